//! Finds out whether a Service's address was set by hand.

use serde_json::{Map, Value, json};

use super::partial_object::Manager;

/// The field manager of our moves.
pub const MANAGER: &str = "clusterip-mover";

/// The fields of `spec` in `fieldsV1` whose owner has set the address.
pub const OWNED: [&str; 2] = ["f:clusterIP", "f:clusterIPs"];

/// Whether this Service's address was set by hand: a manager owns it in `metadata.managedFields`.
///
/// The API server computes those before mutating admission, so an address that a webhook or the allocator picked has
/// no owner. A Service without managedFields shows nothing, and counts as set by hand. Fields that an unfinished move
/// owns do not count.
pub fn set_by_hand(service: &Value) -> bool {
    chosen_by_hand(service).unwrap_or(true)
}

/// As [`set_by_hand`], but `None` for a Service without managedFields, about which nothing is known.
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

/// Reduces `metadata.managedFields` to what [`chosen_by_hand`] reads: one owner of an address, or an empty entry if
/// no manager owns it. Server-side apply allows any number of owners; one that is not the mover is enough.
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
