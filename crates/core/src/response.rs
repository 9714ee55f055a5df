//! The response of the policy to a request: a decision as it is sent to the API server.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::address_set_by_hand::ADDRESS_FIELDS;
use crate::annotations::{REASON_ANNOTATION, annotate, in_record};
use crate::decision::{Decision, Denial, External, Verdict};
use crate::json::field_mut;

/// The response of a Kubewarden policy. The same decision always gives the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Response {
    /// Whether the request is admitted.
    pub accepted: bool,
    /// The reason of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The HTTP status of a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The object of the request with its new addresses, blocks or record; `None` if it does not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutated_object: Option<Value>,
    /// What was decided, and why. Every response has them, including refusals.
    pub audit_annotations: Option<BTreeMap<String, String>>,
    /// Warnings for the author of the request. The API server shows them, and may cut those with more than 256
    /// characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<Vec<String>>,
}

impl Response {
    /// The response that applies `decision` to `object`, the object of the request. Only its addresses, blocks, record
    /// of external addresses, reason, and the owners of its addresses in `metadata.managedFields` change.
    pub fn new(decision: Decision, mut object: Value) -> Self {
        let warnings = decision.cut_warnings();
        let mut response = Self {
            accepted: true,
            audit_annotations: Some(audit_annotations(&decision)),
            warnings: (!warnings.is_empty()).then_some(warnings),
            ..Self::default()
        };
        let Decision { verdict, external, disown, note, .. } = decision;
        let disowned = disown && disown_addresses(&mut object);
        match verdict {
            Verdict::Allocated(addresses) => {
                set_addresses(&mut object, &addresses);
                response.mutated_object = Some(object);
            }
            Verdict::Assigned(blocks) => {
                set_blocks(&mut object, &blocks);
                response.mutated_object = Some(object);
            }
            Verdict::Unchanged(_) => {
                let changes = disowned || note.is_some() || external.as_ref().is_some_and(External::changes);
                response.mutated_object = changes.then_some(object);
            }
            Verdict::Denied(Denial { code, message }) => {
                response.accepted = false;
                response.code = Some(code);
                response.message = Some(message);
            }
        }
        if let Some(object) = &mut response.mutated_object {
            if let Some(note) = note {
                annotate(object, REASON_ANNOTATION, note);
            }
            if let Some(external) = external {
                external.carry_out(object);
            }
        }
        response
    }

    /// The response to a request that can't be read.
    pub(crate) fn unreadable(message: String) -> Self {
        let verdict = Verdict::Denied(Denial { code: 400, message });
        Self::new(Decision::new(verdict), Value::Null)
    }
}

/// The audit annotations: `decision`, and `pool`, `evidence` (as JSON) and `reason`, as far as the decision has them.
/// If the request concerns external addresses, also `external`, `external-pool`, `external-addresses` and
/// `external-reason`.
fn audit_annotations(decision: &Decision) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    let mut annotate = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            annotations.insert(key.to_owned(), value);
        }
    };
    annotate("decision", Some(decision.verdict.name().to_owned()));
    annotate("evidence", decision.evidence.as_ref().and_then(|evidence| serde_json::to_string(evidence).ok()));
    annotate("pool", decision.pool.clone());
    annotate("reason", decision.verdict.reason().map(str::to_owned));
    if let Some(External { outcome, pool, addresses, reason }) = &decision.external {
        annotate("external", Some(outcome.name().to_owned()));
        annotate("external-pool", pool.clone());
        annotate("external-addresses", (!addresses.is_empty()).then(|| in_record(addresses)));
        annotate("external-reason", reason.clone());
    }
    annotations
}

/// Sets `spec.clusterIP`, and for two addresses `spec.clusterIPs` too. With one address, the API server fills in the
/// list. Addresses are written in the canonical form (RFC 5952), which is also the name of `IPAddress` objects.
fn set_addresses(object: &mut Value, addresses: &[IpAddr]) {
    let (Some(spec), Some(primary)) = (spec(object), addresses.first()) else { return };
    spec.insert("clusterIP".to_owned(), primary.to_string().into());
    if addresses.len() > 1 {
        spec.insert("clusterIPs".to_owned(), addresses.iter().map(ToString::to_string).collect());
    } else if spec
        .get("clusterIPs")
        .is_some_and(|ips| !ips.is_array() || ips.as_array().is_some_and(|ips| !ips.is_empty()))
    {
        // An empty string or null in this list would contradict `clusterIP`.
        spec.remove("clusterIPs");
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
