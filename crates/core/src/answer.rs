//! A decision in words: what is sent back.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::annotations::{cut, in_record, recorded_addresses};
use crate::decide::{Decision, Verdict};
use crate::denial::Denial;
use crate::evidence::Report;
use crate::external::{self, External};
use crate::json::field_mut;

/// The API server may cut a warning that is longer.
const LONGEST_WARNING: usize = 256;

/// The answer of a Kubewarden policy. The same decision gives the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// Whether the request may go on.
    pub accepted: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The HTTP status of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The object of the request with its addresses, or its blocks, if it gets any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutated_object: Option<Value>,
    /// See [`Audit`].
    pub audit_annotations: Option<BTreeMap<String, String>>,
    /// For whoever sent the request: the API server shows them, and may cut what is longer than 256
    /// characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<Vec<String>>,
}

/// What the audit annotations of every answer say, denials included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// `decision`: what happened.
    pub outcome: Outcome,
    /// `pool`: the Service's pool, where it was asked for.
    pub pool: Option<String>,
    /// `evidence`: what is known of the nodes, as JSON, where it was asked for.
    pub evidence: Option<Report>,
    /// `reason`: why a request was left or denied.
    pub reason: Option<String>,
    /// `external`, `external-pool`, `external-addresses` and `external-reason`: what happened to the external
    /// addresses of a Service, where the request was about any.
    pub external: Option<External>,
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It got an address.
    Allocated,
    /// It stayed as it was.
    Left,
    /// It was refused.
    Denied,
}

impl Outcome {
    /// `allocated`, `left` or `denied`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Left => "left",
            Self::Denied => "denied",
        }
    }
}

impl Audit {
    /// As annotations.
    pub fn to_annotations(&self) -> BTreeMap<String, String> {
        let evidence = self.evidence.as_ref().and_then(|evidence| serde_json::to_string(evidence).ok());
        let mut annotations = BTreeMap::new();
        let mut annotate = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                annotations.insert(key.to_owned(), value);
            }
        };
        annotate("decision", Some(self.outcome.name().to_owned()));
        annotate("evidence", evidence);
        annotate("pool", self.pool.clone());
        annotate("reason", self.reason.clone());
        if let Some(External { outcome, pool, addresses, reason }) = &self.external {
            annotate("external", Some(outcome.name().to_owned()));
            annotate("external-pool", pool.clone());
            annotate("external-addresses", (!addresses.is_empty()).then(|| in_record(addresses)));
            annotate("external-reason", reason.clone());
        }
        annotations
    }

    /// Reads annotations back; nothing where they are not those of this policy.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let outcome = [Outcome::Allocated, Outcome::Left, Outcome::Denied]
            .into_iter()
            .find(|outcome| annotations.get("decision").is_some_and(|name| name == outcome.name()))?;
        Some(Self {
            outcome,
            pool: annotations.get("pool").cloned(),
            evidence: annotations.get("evidence").and_then(|text| serde_json::from_str(text).ok()),
            reason: annotations.get("reason").cloned(),
            external: Self::external(annotations),
        })
    }

    fn external(annotations: &BTreeMap<String, String>) -> Option<External> {
        let name = annotations.get("external")?;
        Some(External {
            outcome: external::Outcome::ALL.into_iter().find(|outcome| outcome.name() == name)?,
            pool: annotations.get("external-pool").cloned(),
            addresses: annotations.get("external-addresses").map(|text| recorded_addresses(text)).unwrap_or_default(),
            reason: annotations.get("external-reason").cloned(),
        })
    }
}

impl Answer {
    /// The answer that carries out `decision` on `object`, the object of the request: nothing of it
    /// changes but the addresses, and who owns them in `metadata.managedFields`.
    pub fn new(decision: Decision, mut object: Value) -> Self {
        let Decision { verdict, pool, evidence, external, disown, warnings } = decision;
        let (outcome, reason) = match &verdict {
            Verdict::Allocated(_) | Verdict::Assigned(_) => (Outcome::Allocated, None),
            Verdict::Left(reason) => (Outcome::Left, Some(reason.clone())),
            Verdict::Denied(denial) => (Outcome::Denied, Some(denial.message.clone())),
        };
        let audit = Audit { outcome, pool, evidence, reason, external: external.clone() }.to_annotations();
        let mut answer = Self {
            accepted: true,
            audit_annotations: Some(audit),
            warnings: (!warnings.is_empty())
                .then(|| warnings.iter().map(|warning| cut(warning, LONGEST_WARNING).into_owned()).collect()),
            ..Self::default()
        };
        let disowned = disown && disown_addresses(&mut object);
        match verdict {
            Verdict::Allocated(addresses) => {
                set_addresses(&mut object, &addresses);
                answer.mutated_object = Some(object);
            }
            Verdict::Assigned(blocks) => {
                set_blocks(&mut object, &blocks);
                answer.mutated_object = Some(object);
            }
            Verdict::Left(_) => {
                let changes = disowned || external.as_ref().is_some_and(External::changes);
                answer.mutated_object = changes.then_some(object);
            }
            Verdict::Denied(Denial { code, message }) => {
                answer.accepted = false;
                answer.code = Some(code);
                answer.message = Some(message);
            }
        }
        if let (Some(object), Some(external)) = (&mut answer.mutated_object, external) {
            external.carry_out(object);
        }
        answer
    }

    /// The answer to a request that can't be read.
    pub fn unreadable(message: String) -> Self {
        let verdict = Verdict::Denied(Denial { code: 400, message });
        let decision =
            Decision { verdict, pool: None, evidence: None, external: None, disown: false, warnings: Vec::new() };
        Self::new(decision, Value::Null)
    }

    /// What happened, also where another policy answers, which has no audit annotations that say so.
    pub fn outcome(&self) -> Outcome {
        match (self.audit(), self.accepted, &self.mutated_object) {
            (Some(audit), ..) => audit.outcome,
            (None, false, _) => Outcome::Denied,
            (None, true, Some(_)) => Outcome::Allocated,
            (None, true, None) => Outcome::Left,
        }
    }

    /// What its audit annotations say, if it is this policy's answer.
    pub fn audit(&self) -> Option<Audit> {
        Audit::from_annotations(self.audit_annotations.as_ref()?)
    }
}

/// Sets `spec.clusterIP`; for two addresses `spec.clusterIPs` too. For one the API server fills that in
/// itself. Addresses are written canonically (RFC 5952), as `IPAddress` objects are named.
fn set_addresses(object: &mut Value, addresses: &[IpAddr]) {
    let (Some(spec), Some(primary)) = (spec(object), addresses.first()) else { return };
    spec.insert("clusterIP".to_owned(), primary.to_string().into());
    if addresses.len() > 1 {
        spec.insert("clusterIPs".to_owned(), addresses.iter().map(ToString::to_string).collect());
    } else if spec
        .get("clusterIPs")
        .is_some_and(|ips| !ips.is_array() || ips.as_array().is_some_and(|ips| !ips.is_empty()))
    {
        // An empty string or null in its place would contradict `clusterIP`.
        spec.remove("clusterIPs");
    }
}

/// Takes `spec.clusterIP` from its owners in `metadata.managedFields`, and `spec.clusterIPs` where it is absent, too.
/// Whether anybody owned them.
///
/// An entry that owns nothing else stays, without fields: the API server accepts that, and the patch is the
/// removal of one field.
fn disown_addresses(object: &mut Value) -> bool {
    let list = object.get("spec").and_then(|spec| spec.get("clusterIPs")).and_then(Value::as_array);
    let lists_any = list.is_some_and(|list| !list.is_empty());
    let entries = object.get_mut("metadata").and_then(|metadata| metadata.get_mut("managedFields"));
    let mut changed = false;
    for entry in entries.and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(fields) = entry.get_mut("fieldsV1").and_then(Value::as_object_mut) else { continue };
        let Some(spec) = fields.get_mut("f:spec").and_then(Value::as_object_mut) else { continue };
        let owned = spec.len();
        spec.remove("f:clusterIP");
        if !lists_any {
            spec.remove("f:clusterIPs");
        }
        if spec.len() == owned {
            continue;
        }
        changed = true;
        // An empty one would own `spec` as a whole.
        if spec.is_empty() {
            fields.remove("f:spec");
        }
    }
    changed
}

/// Sets `spec.podCIDR` and `spec.podCIDRs` together: the API server refuses the one without the other.
fn set_blocks(object: &mut Value, blocks: &[IpNet]) {
    let (Some(spec), Some(first)) = (spec(object), blocks.first()) else { return };
    spec.insert("podCIDR".to_owned(), first.to_string().into());
    spec.insert("podCIDRs".to_owned(), blocks.iter().map(ToString::to_string).collect());
}

/// The `spec` of an object, made where it is absent.
fn spec(object: &mut Value) -> Option<&mut Map<String, Value>> {
    field_mut(object.as_object_mut()?, "spec")
}
