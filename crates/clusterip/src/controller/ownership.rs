//! Whether a Service's address was set by hand.

use serde_json::Value;

use super::field_ownership::MANAGER;

/// Whether somebody chose this Service's address: he owns it in `metadata.managedFields`.
///
/// The API server computes those before mutating admission, so an address that a webhook or the
/// allocator picked has no owner. A Service without managedFields tells nothing, and counts as set by
/// hand; what a move that is not finished yet owns does not count.
pub fn set_by_hand(service: &Value) -> bool {
    let entries = service.pointer("/metadata/managedFields").and_then(Value::as_array);
    let Some(entries) = entries.filter(|entries| !entries.is_empty()) else { return true };
    let others = entries.iter().filter(|entry| entry.get("manager").is_none_or(|manager| manager != MANAGER));
    others.filter_map(|entry| entry.pointer("/fieldsV1/f:spec")).any(|spec| {
        let owned = |field| spec.get(field).is_some();
        owned("f:clusterIP") || owned("f:clusterIPs")
    })
}
