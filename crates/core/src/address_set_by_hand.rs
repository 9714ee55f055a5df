//! Whether a Service's address was set by hand, which `metadata.managedFields` shows: a manager owns the address.
//!
//! The API server computes `managedFields` before mutating admission, so an address that a webhook or the allocator
//! picked has no owner.

use serde_json::Value;

/// The field manager of our moves.
pub const MANAGER: &str = "clusterip-mover";

/// The fields of `spec` in `fieldsV1` whose owner has set the address: `clusterIP` and `clusterIPs`, in this order.
pub const ADDRESS_FIELDS: [&str; 2] = ["f:clusterIP", "f:clusterIPs"];

/// Whether this Service's address was set by hand; `None` for a Service without managedFields, about which nothing is
/// known. Fields that an unfinished move owns do not count.
pub fn is_set_by_hand(service: &Value) -> Option<bool> {
    let entries = service.pointer("/metadata/managedFields").and_then(Value::as_array);
    let entries = entries.filter(|entries| !entries.is_empty())?;
    let others = entries.iter().filter(|entry| entry.get("manager").is_none_or(|manager| manager != MANAGER));
    Some(
        others
            .filter_map(|entry| entry.pointer("/fieldsV1/f:spec"))
            .any(|spec| ADDRESS_FIELDS.iter().any(|field| spec.get(field).is_some())),
    )
}

/// As [`is_set_by_hand`], but a Service about which nothing is known counts as set by hand: nothing may move it.
pub fn may_be_set_by_hand(service: &Value) -> bool {
    is_set_by_hand(service).unwrap_or(true)
}
