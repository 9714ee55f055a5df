//! Recognizes webhooks of other programs that also choose the addresses of Services.
//!
//! A webhook configuration does not say what its webhook changes, so these webhooks are known by their names. The K2s
//! distribution has two, whose names have not changed since its first version: one gives addresses to Services, the
//! other one deletes and creates Services of Windows workloads.

use serde::Deserialize;

/// The name of the webhook of K2s that gives addresses to Services. The name of its other webhook ends with this name.
pub const K2S: &str = "clusterip.k2s.io";

/// A condition of a webhook. The API server calls the webhook only if all its conditions are true.
#[derive(Deserialize)]
pub(super) struct MatchCondition {
    expression: Option<String>,
}

/// Whether a webhook of this name chooses addresses of Services, and the API server may call it. The API server never
/// calls a webhook with the condition `false`.
pub(super) fn chooses_addresses(name: &str, conditions: &[MatchCondition]) -> bool {
    let is_known = name.strip_suffix(K2S).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'));
    let is_false = |condition: &MatchCondition| condition.expression.as_deref().map(str::trim) == Some("false");
    is_known && !conditions.iter().any(is_false)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn webhooks_of_k2s_are_recognized_by_their_names() {
        struct Case {
            name: &'static str,
            webhook: &'static str,
            conditions: Value,
            expected: bool,
        }
        let never = json!({"name": "never", "expression": " false\n"});
        let maybe = json!({"name": "maybe", "expression": "object.metadata.name != 'web'"});
        let cases = [
            Case { name: "of Services", webhook: "clusterip.k2s.io", conditions: json!([]), expected: true },
            Case { name: "of workloads", webhook: "workload.clusterip.k2s.io", conditions: json!([]), expected: true },
            Case { name: "with a condition", webhook: "clusterip.k2s.io", conditions: json!([maybe]), expected: true },
            Case {
                name: "that is never called",
                webhook: "clusterip.k2s.io",
                conditions: json!([maybe, never]),
                expected: false,
            },
            Case { name: "of another domain", webhook: "myclusterip.k2s.io", conditions: json!([]), expected: false },
            Case {
                name: "of this program",
                webhook: "services.clusterip-policy.io",
                conditions: json!([]),
                expected: false,
            },
            Case { name: "without a name", webhook: "", conditions: json!([]), expected: false },
        ];
        for Case { name, webhook, conditions, expected } in cases {
            let conditions: Vec<MatchCondition> = serde_json::from_value(conditions).unwrap();
            assert_eq!(chooses_addresses(webhook, &conditions), expected, "{name}");
        }
    }
}
