//! Whether a Service's address was set by hand.

use serde_json::{Map, Value, json};

use super::field_ownership::MANAGER;
use crate::cluster::watched::Manager;

/// The owner of one of these fields of `spec` chose an address.
pub const OWNED: [&str; 2] = ["f:clusterIP", "f:clusterIPs"];

/// Whether somebody chose this Service's address: he owns it in `metadata.managedFields`.
///
/// The API server computes those before mutating admission, so an address that a webhook or the
/// allocator picked has no owner. A Service without managedFields tells nothing, and counts as set by
/// hand; what a move that is not finished yet owns does not count.
pub fn set_by_hand(service: &Value) -> bool {
    chosen_by_hand(service).unwrap_or(true)
}

/// The same, where it is to be told what is not known: nothing for a Service without managedFields.
pub fn chosen_by_hand(service: &Value) -> Option<bool> {
    let entries = service.pointer("/metadata/managedFields").and_then(Value::as_array);
    let entries = entries.filter(|entries| !entries.is_empty())?;
    let others = entries.iter().filter(|entry| entry.get("manager").is_none_or(|manager| manager != MANAGER));
    Some(
        others
            .filter_map(|entry| entry.pointer("/fieldsV1/f:spec"))
            .any(|spec| OWNED.iter().any(|field| spec.get(field).is_some())),
    )
}

/// Of `metadata.managedFields` what [`chosen_by_hand`] reads: an owner of an address, or that nobody owns it. There
/// may be any number of owners, by server-side apply: one that is not the mover is enough.
pub fn of_address(managers: &[Manager]) -> Vec<Value> {
    let mut kept = Vec::new();
    let (own, others): (Vec<&Manager>, Vec<&Manager>) =
        managers.iter().partition(|manager| manager.name.as_deref() == Some(MANAGER));
    for Manager { name, spec } in others.into_iter().chain(own) {
        let owned = OWNED.iter().filter(|field| spec.iter().any(|owned| owned == *field));
        let owned: Map<String, Value> = owned.map(|field| ((*field).to_owned(), json!({}))).collect();
        if !owned.is_empty() {
            kept.push(json!({"manager": name, "fieldsV1": {"f:spec": owned}}));
            break;
        }
    }
    if kept.is_empty() { vec![json!({})] } else { kept }
}
