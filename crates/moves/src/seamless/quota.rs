//! Whether the quotas of a namespace leave room for the temporary Services.

use serde_json::Value;

/// How many Services a seamless move creates in the namespace of its Service.
const NEEDED: u64 = 2;
/// The resources of a quota that count every Service.
const COUNTED: [&str; 2] = ["services", "count/services"];

/// The first of these ResourceQuotas that has no room for the temporary Services, as text; `None` if all have. A
/// quantity that is not a plain number is left to the API server.
pub fn without_room(quotas: &[Value]) -> Option<String> {
    let full = |quota: &Value| {
        let name = quota.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let amount = |list: &str, resource: &str| -> Option<u64> {
            quota.get("status")?.get(list)?.get(resource)?.as_str()?.parse().ok()
        };
        COUNTED.into_iter().find_map(|resource| {
            let (hard, used) = (amount("hard", resource)?, amount("used", resource)?);
            (used.saturating_add(NEEDED) > hard).then(|| {
                format!(
                    "ResourceQuota {name} has no room for {NEEDED} temporary Services: {used} of {hard} {resource} are \
                     used; raise the quota, or move without --seamless"
                )
            })
        })
    };
    quotas.iter().find_map(full)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quotas_need_room_for_two_services() {
        struct Case {
            name: &'static str,
            hard: Value,
            used: Value,
            full: bool,
        }
        let cases = [
            Case { name: "room for two", hard: json!({"services": "5"}), used: json!({"services": "3"}), full: false },
            Case { name: "room for one", hard: json!({"services": "5"}), used: json!({"services": "4"}), full: true },
            Case {
                name: "counted as objects",
                hard: json!({"count/services": "5"}),
                used: json!({"count/services": "5"}),
                full: true,
            },
            Case { name: "other resources", hard: json!({"pods": "5"}), used: json!({"pods": "5"}), full: false },
            Case { name: "not counted yet", hard: json!({"services": "1"}), used: json!({}), full: false },
            Case { name: "a suffix", hard: json!({"services": "1k"}), used: json!({"services": "4"}), full: false },
        ];
        for Case { name, hard, used, full } in cases {
            let quota = json!({"metadata": {"name": "small"}, "status": {"hard": hard, "used": used}});
            assert_eq!(without_room(&[quota]).is_some(), full, "{name}");
        }
    }
}
