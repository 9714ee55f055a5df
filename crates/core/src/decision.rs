//! The decision about a request, and its reasons.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::annotations::{RECORD_ANNOTATION, annotate, cut, in_record};
use crate::json::{TypeMismatch, quote};
use crate::label_selector::Labels;

/// The API server may cut longer warnings. A value of [`REASON_ANNOTATION`] is not longer either.
pub(crate) const MAX_LINE_LENGTH: usize = 256;

/// The decision about a request, and its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What happens.
    pub verdict: Verdict,
    /// The name of the Service's pool, if a pool was looked for.
    pub pool: Option<String>,
    /// Whether a pool was looked for, and none matches the Service.
    pub unmatched: bool,
    /// The evidence about nodes, if it was needed.
    pub evidence: Option<Report>,
    /// What happens to the Service's external addresses, if the request concerns any.
    pub external: Option<External>,
    /// Whether the Service has or gets an address that the request does not name. Then the address fields must have no
    /// owner in `metadata.managedFields`: with server-side apply, the author of an empty `clusterIP` owns it before the
    /// address is there, and the address would count as set by hand.
    pub disown: bool,
    /// The new value of `REASON_ANNOTATION`, not longer than a warning; empty if the annotation is removed, `None` if
    /// it stays as it is.
    pub note: Option<String>,
    /// Warnings for the author of the request.
    pub warnings: Vec<String>,
}

impl Decision {
    /// A decision without reasons and warnings.
    pub(crate) fn new(verdict: Verdict) -> Self {
        Self {
            verdict,
            pool: None,
            unmatched: false,
            evidence: None,
            external: None,
            disown: false,
            note: None,
            warnings: Vec::new(),
        }
    }

    /// The refusal of a request that can't be read.
    pub fn unreadable(mismatch: &TypeMismatch) -> Self {
        let message = format!("the request can't be read: {mismatch}");
        Self::new(Verdict::Denied(Denial { code: 400, message }))
    }

    /// The warnings, each as long as the API server shows it.
    pub fn cut_warnings(&self) -> Vec<String> {
        self.warnings.iter().map(|warning| cut(warning, MAX_LINE_LENGTH).into_owned()).collect()
    }

    /// The refusal; `None` if the request is admitted.
    pub fn denial(&self) -> Option<&Denial> {
        if let Verdict::Denied(denial) = &self.verdict { Some(denial) } else { None }
    }

    /// The blocks that a Node gets, if it gets any.
    pub fn assigned(&self) -> Option<&[IpNet]> {
        if let Verdict::Assigned(blocks) = &self.verdict { Some(blocks) } else { None }
    }

    /// The addresses of a Service that gets any, the primary one first; they include one that it already has.
    pub fn allocated(&self) -> Option<&[IpAddr]> {
        if let Verdict::Allocated(addresses) = &self.verdict { Some(addresses) } else { None }
    }
}

/// What happens to a request. As JSON it is its [`name`](Self::name).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The Service gets these addresses, the primary one first. They include an address that it already has.
    Allocated(Vec<IpAddr>),
    /// The Node gets these pod CIDRs, in this order.
    Assigned(Vec<IpNet>),
    /// The object stays as it is, for this reason.
    Unchanged(String),
    /// The request is refused.
    Denied(Denial),
}

impl Verdict {
    /// `allocated`, `unchanged` or `denied`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Allocated(_) | Self::Assigned(_) => "allocated",
            Self::Unchanged(_) => "unchanged",
            Self::Denied(_) => "denied",
        }
    }

    /// Whether the object gets addresses or blocks.
    pub fn is_allocated(&self) -> bool {
        matches!(self, Self::Allocated(_) | Self::Assigned(_))
    }

    /// Whether the request is refused.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied(_))
    }

    /// Why the object stays as it is, or why the request is refused.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Allocated(_) | Self::Assigned(_) => None,
            Self::Unchanged(reason) => Some(reason),
            Self::Denied(denial) => Some(&denial.message),
        }
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The HTTP status that the API server answers with.
    pub code: u16,
    /// The object, the range, the evidence and the remedy.
    pub message: String,
}

/// The decision about a Service's external addresses, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// What happens.
    pub outcome: RecordChange,
    /// The pool of the addresses, if known.
    pub pool: Option<String>,
    /// The addresses that the Service has after the request, in the order of its families.
    pub addresses: Vec<IpAddr>,
    /// Why nothing changes, or why the record is removed.
    pub reason: Option<String>,
}

/// What happens to the record of a Service's external addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// It is written, because the Service gets other addresses than it has.
    Recorded,
    /// It is removed.
    Removed,
    /// It stays as it is.
    Unchanged,
    /// The request is refused.
    Denied,
}

impl RecordChange {
    /// `recorded`, `removed`, `unchanged` or `denied`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Removed => "removed",
            Self::Unchanged => "unchanged",
            Self::Denied => "denied",
        }
    }
}

impl External {
    /// Whether the record changes.
    pub fn changes(&self) -> bool {
        matches!(self.outcome, RecordChange::Recorded | RecordChange::Removed)
    }

    /// Changes the record of `object`, a Service, according to this outcome.
    pub fn carry_out(&self, object: &mut Value) {
        if self.changes() {
            // A removed record has no addresses.
            annotate(object, RECORD_ANNOTATION, in_record(&self.addresses));
        }
    }

    pub(crate) fn new(outcome: RecordChange, reason: &str) -> Self {
        Self { outcome, pool: None, addresses: Vec::new(), reason: Some(reason.to_owned()) }
    }
}

/// The source of an operating system that the settings assume.
pub(crate) const ASSUMED_OS: &str = "setting assumeOS";
/// Separates the sources of a report.
pub(crate) const SEPARATOR: &str = ", ";

/// Evidence in the form that answers report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The source, such as `Deployment shop/web`. Without labels, the other conditions that led to the pool, such as
    /// `namespace shop`.
    pub source: String,
    /// The node labels.
    pub labels: Labels,
    /// A sentence for each label on which the selected workloads disagree. Unlike a warning, it is never cut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mixed: Vec<String>,
}

impl Report {
    /// One line: `kubernetes.io/os=windows (Deployment shop/web)`, or only the source if there are no labels.
    pub fn describe(&self) -> String {
        if self.labels.is_empty() {
            return self.source.clone();
        }
        format!("{} ({})", in_words(&self.labels), self.source)
    }

    /// Whether one of the labels is only assumed, as the settings say. Only the operating system is ever assumed.
    pub fn has_assumed_os(&self) -> bool {
        self.source.split(SEPARATOR).any(|source| source == ASSUMED_OS)
    }
}

/// Labels in one line: `kubernetes.io/arch=arm64, kubernetes.io/os=linux`.
pub(crate) fn in_words(labels: &Labels) -> String {
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={}", plain(value))).collect();
    labels.join(", ")
}

/// A label value as it is; any other text is quoted, because annotations may contain any text.
fn plain(value: &str) -> String {
    let harmless =
        !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if harmless { value.to_owned() } else { quote(value) }
}
