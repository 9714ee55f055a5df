//! Reduces `managedFields` to what shows whether a Service's address was set by hand.

use clusterip_core::address_set_by_hand::{ADDRESS_FIELDS, MANAGER};
use serde_json::{Map, Value, json};

use super::partial_object::Manager;

/// Reduces `metadata.managedFields` to what [`is_set_by_hand`](clusterip_core::address_set_by_hand::is_set_by_hand)
/// reads: one owner of an address, or an empty entry if no manager owns it. Server-side apply allows any number of
/// owners; one that is not the mover is enough.
pub fn of_address(managers: &[Manager]) -> Vec<Value> {
    let mut kept = Vec::new();
    let (own, others): (Vec<&Manager>, Vec<&Manager>) =
        managers.iter().partition(|manager| manager.name.as_deref() == Some(MANAGER));
    for Manager { name, spec } in others.into_iter().chain(own) {
        let owned = ADDRESS_FIELDS.iter().filter(|field| spec.iter().any(|owned| owned == *field));
        let owned: Map<String, Value> = owned.map(|field| ((*field).to_owned(), json!({}))).collect();
        if !owned.is_empty() {
            kept.push(json!({"manager": name, "fieldsV1": {"f:spec": owned}}));
            break;
        }
    }
    if kept.is_empty() { vec![json!({})] } else { kept }
}
