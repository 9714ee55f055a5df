//! The decision about a request, its reasons, and how it changes the object.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::annotations::{REASON_ANNOTATION, RECORD_ANNOTATION, annotate, cut, in_record};
use crate::external::Announcement;
use crate::json::{TypeMismatch, field_mut, quote};
use crate::label_selector::Labels;
use crate::lookups::LookupError;
use crate::service::ADDRESS_FIELDS;

/// The API server may cut longer warnings. A value of [`REASON_ANNOTATION`] is not longer either.
pub(crate) const MAX_LINE_LENGTH: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Verdict,
    /// The name of the Service's pool, if a pool was looked for.
    pub pool: Option<String>,
    /// Whether a pool was looked for, and none matches the Service, or its annotation names none that it may have.
    pub unmatched: bool,
    pub evidence: Option<Report>,
    /// The new addresses that the author of the request set and that the Service may have. A host with a ledger
    /// reserves no others: the API server checks an object only after its webhooks have answered, so a request that it
    /// refuses can name any address.
    pub chosen: Vec<IpAddr>,
    /// What happens to the Service's external addresses, if the request concerns any.
    pub external: Option<External>,
    /// Whether the Service has or gets an address that the request does not name. Then the address fields must have no
    /// owner in `metadata.managedFields`: with server-side apply, the author of an empty `clusterIP` owns it before the
    /// address is there, and the address would count as set by hand.
    pub disown: bool,
    /// Whether one address is also written to `spec.clusterIPs`. The API server fills in the list of a new Service. For an
    /// update it does not, if the stored Service has another one.
    pub lists_one: bool,
    /// The new value of `REASON_ANNOTATION`, not longer than a warning; empty if the annotation is removed, `None` if
    /// it stays as it is.
    pub note: Option<String>,
    pub warnings: Vec<String>,
}

impl Decision {
    pub(crate) fn new(verdict: Verdict) -> Self {
        Self { verdict, ..Self::default() }
    }

    pub fn denied(code: u16, message: String) -> Self {
        Self::new(Verdict::Denied(Denial { code, message }))
    }

    pub fn unreadable(mismatch: &TypeMismatch) -> Self {
        Self::denied(400, format!("the request can't be read: {mismatch}"))
    }

    /// The warnings, each as long as the API server shows it.
    pub fn cut_warnings(&self) -> Vec<String> {
        self.warnings.iter().map(|warning| cut(warning, MAX_LINE_LENGTH).into_owned()).collect()
    }

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

    /// Changes `object`, the object of the request, as decided: only its addresses, blocks, record of external
    /// addresses, reason, and the owners of its addresses in `metadata.managedFields`. Returns false if the object is
    /// to stay as it is.
    pub fn carry_out(&self, object: &mut Value) -> bool {
        if self.verdict.is_denied() {
            return false;
        }
        let disowned = self.disown && disown_addresses(object);
        match &self.verdict {
            Verdict::Allocated(addresses) => set_addresses(object, addresses, self.lists_one),
            Verdict::Assigned(blocks) => set_blocks(object, blocks),
            _ if disowned || self.note.is_some() || self.external.as_ref().is_some_and(External::changes) => {}
            _ => return false,
        }
        if let Some(note) = &self.note {
            annotate(object, REASON_ANNOTATION, note.clone());
        }
        if let Some(external) = &self.external {
            external.carry_out(object);
        }
        true
    }

    pub fn changed(&self, object: &Value) -> Option<Value> {
        if self.verdict.is_denied() {
            return None;
        }
        let mut object = object.clone();
        self.carry_out(&mut object).then_some(object)
    }

    /// The audit annotations: `decision`, and `pool`, `evidence` (as JSON) and `reason`, as far as the decision has
    /// them. If the request concerns external addresses, also `external`, `external-pool`, `external-addresses` and
    /// `external-reason`.
    pub fn audit_annotations(&self) -> BTreeMap<String, String> {
        // Inserted one by one: collecting would need a sort, for which the module has no room.
        let mut annotations = BTreeMap::new();
        let mut annotate = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                annotations.insert(key.to_owned(), value);
            }
        };
        annotate("decision", Some(self.verdict.name().to_owned()));
        annotate("evidence", self.evidence.as_ref().and_then(|evidence| serde_json::to_string(evidence).ok()));
        annotate("pool", self.pool.clone());
        annotate("reason", self.verdict.reason().map(str::to_owned));
        if let Some(External { outcome, pool, addresses, reason, .. }) = &self.external {
            annotate("external", Some(outcome.name().to_owned()));
            annotate("external-pool", pool.clone());
            annotate("external-addresses", (!addresses.is_empty()).then(|| in_record(addresses)));
            annotate("external-reason", reason.clone());
        }
        annotations
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
    Denied(Denial),
}

impl Verdict {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Allocated(_) | Self::Assigned(_) => "allocated",
            Self::Unchanged(_) => "unchanged",
            Self::Denied(_) => "denied",
        }
    }

    pub fn is_allocated(&self) -> bool {
        matches!(self, Self::Allocated(_) | Self::Assigned(_))
    }

    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied(_))
    }

    /// The verdict, in which a refusal names the object, such as `Service shop/web`.
    pub(crate) fn about(self, object: &str) -> Self {
        let Self::Denied(Denial { code, message }) = self else { return self };
        Self::Denied(Denial { code, message: format!("{object}: {message}") })
    }

    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Allocated(_) | Self::Assigned(_) => None,
            Self::Unchanged(reason) => Some(reason),
            Self::Denied(denial) => Some(&denial.message),
        }
    }
}

impl Default for Verdict {
    fn default() -> Self {
        Self::Unchanged(String::new())
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    pub code: u16,
    /// The object, the range, the evidence and the remedy.
    pub message: String,
}

/// The HTTP status of a refusal because a look-up failed.
pub(crate) const LOOKUP_FAILED: u16 = 500;

impl From<LookupError> for Denial {
    fn from(error: LookupError) -> Self {
        Self { code: LOOKUP_FAILED, message: format!("{error}; {}", error.remedy()) }
    }
}

impl From<Denial> for Verdict {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl From<LookupError> for Verdict {
    fn from(error: LookupError) -> Self {
        Self::Denied(error.into())
    }
}

/// The decision about a Service's external addresses, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    pub outcome: RecordChange,
    pub pool: Option<String>,
    /// The addresses that the Service has after the request, in the order of its families.
    pub addresses: Vec<IpAddr>,
    /// Why nothing changes, or why the record is removed.
    pub reason: Option<String>,
    /// What changes besides the record, for a program that announces the addresses.
    pub announcement: Announcement,
}

/// What happens to the record of a Service's external addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// It is written, because the Service gets other addresses than it has.
    Recorded,
    Removed,
    Unchanged,
    Denied,
}

impl RecordChange {
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
    pub fn changes(&self) -> bool {
        self.changes_record() || self.announcement != Announcement::default()
    }

    pub fn changes_record(&self) -> bool {
        matches!(self.outcome, RecordChange::Recorded | RecordChange::Removed)
    }

    /// Changes the record of `object`, a Service, and its announcement, according to this outcome.
    pub fn carry_out(&self, object: &mut Value) {
        if self.changes_record() {
            // A removed record has no addresses.
            annotate(object, RECORD_ANNOTATION, in_record(&self.addresses));
        }
        for (key, text) in &self.announcement.annotations {
            annotate(object, key, text.clone());
        }
        if self.announcement.clears_field
            && let Some(spec) = spec(object)
        {
            spec.remove("loadBalancerIP");
        }
    }

    pub(crate) fn new(outcome: RecordChange, reason: &str) -> Self {
        let reason = Some(reason.to_owned());
        Self { outcome, pool: None, addresses: Vec::new(), reason, announcement: Announcement::default() }
    }
}

/// The source of an operating system that the settings assume.
pub(crate) const ASSUMED_OS: &str = "setting assumeOS";
/// Separates the sources of a report.
pub(crate) const SEPARATOR: &str = ", ";

/// Evidence in the form that answers report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Report {
    /// The source, such as `Deployment shop/web`. Without labels, the other conditions that led to the pool, such as
    /// `namespace shop`.
    pub source: String,
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
    // Annotations may contain any text.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let plain = |value: &String| !value.is_empty() && value.bytes().all(is_plain);
    let value = |value| if plain(value) { value.clone() } else { quote(value) };
    let labels: Vec<String> = labels.iter().map(|(key, text)| format!("{key}={}", value(text))).collect();
    labels.join(", ")
}

/// Sets `spec.clusterIP`, and `spec.clusterIPs` too for two addresses, with `lists_one`, or if the list contains anything
/// that would contradict `clusterIP`. Otherwise the API server fills in the list. Addresses are written in the canonical
/// form (RFC 5952), which is also the name of `IPAddress` objects.
fn set_addresses(object: &mut Value, addresses: &[IpAddr], lists_one: bool) {
    let (Some(spec), Some(primary)) = (spec(object), addresses.first()) else { return };
    spec.insert("clusterIP".to_owned(), primary.to_string().into());
    let is_empty = |list: &Value| list.as_array().is_some_and(Vec::is_empty);
    if lists_one || addresses.len() > 1 || spec.get("clusterIPs").is_some_and(|list| !is_empty(list)) {
        spec.insert("clusterIPs".to_owned(), addresses.iter().map(ToString::to_string).collect());
    }
}

/// Removes `spec.clusterIP` from its owners in `metadata.managedFields`, and `spec.clusterIPs` too if the list is
/// absent or empty. Returns whether there was an owner.
///
/// An entry that owns nothing else stays, with empty fields: the API server accepts that, and the patch only removes
/// fields.
fn disown_addresses(object: &mut Value) -> bool {
    let list = object.get("spec").and_then(|spec| spec.get("clusterIPs")).and_then(Value::as_array);
    let lists_any = list.is_some_and(|list| !list.is_empty());
    let entries = object.get_mut("metadata").and_then(|metadata| metadata.get_mut("managedFields"));
    let mut changed = false;
    for entry in entries.and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(fields) = entry.get_mut("fieldsV1").and_then(Value::as_object_mut) else { continue };
        let Some(spec) = fields.get_mut("f:spec").and_then(Value::as_object_mut) else { continue };
        let owned = spec.len();
        let [primary, all] = ADDRESS_FIELDS;
        spec.remove(primary);
        if !lists_any {
            spec.remove(all);
        }
        if spec.len() == owned {
            continue;
        }
        changed = true;
        // An empty `f:spec` would own `spec` as a whole.
        if spec.is_empty() {
            fields.remove("f:spec");
        }
    }
    changed
}

/// Sets `spec.podCIDR` and `spec.podCIDRs` together, because the API server refuses one without the other.
fn set_blocks(object: &mut Value, blocks: &[IpNet]) {
    let (Some(spec), Some(first)) = (spec(object), blocks.first()) else { return };
    spec.insert("podCIDR".to_owned(), first.to_string().into());
    spec.insert("podCIDRs".to_owned(), blocks.iter().map(ToString::to_string).collect());
}

/// The `spec` of an object, created if it is absent.
fn spec(object: &mut Value) -> Option<&mut Map<String, Value>> {
    field_mut(object.as_object_mut()?, "spec")
}
