//! Selects Services by their labels, in the syntax of `kubectl get --selector`.

use std::str::FromStr;

use clusterip_cluster::lookups::selectors;
use clusterip_cluster::object::map;
use clusterip_core::label_selector::{LabelSelector, MAX_LABELS};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSelector(LabelSelector);

impl ServiceSelector {
    pub fn matches(&self, service: &Value) -> bool {
        // A watched Service has no more labels than these, so every command selects by the same labels.
        let labels = map(service, &["metadata", "labels"]).into_iter().take(MAX_LABELS).collect();
        self.0.matches(&labels)
    }
}

impl FromStr for ServiceSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        selectors::labels(text).map(Self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn services_are_selected_by_their_labels() {
        struct Case {
            selector: &'static str,
            service: Value,
            expected: bool,
        }
        let labels = |labels: Value| json!({"metadata": {"labels": labels}});
        let cases = [
            Case { selector: "", service: json!({}), expected: true },
            Case { selector: "app=web", service: labels(json!({"app": "web"})), expected: true },
            Case { selector: "app=web", service: labels(json!({"app": "db"})), expected: false },
            Case { selector: "app=web", service: json!({"metadata": {}}), expected: false },
            Case { selector: "app!=web", service: json!({"metadata": {}}), expected: true },
            Case {
                selector: "app in (web, db),!old",
                service: labels(json!({"app": "db", "old": "yes"})),
                expected: false,
            },
        ];
        for Case { selector, service, expected } in cases {
            let parsed: ServiceSelector = selector.parse().unwrap();
            assert_eq!(parsed.matches(&service), expected, "{selector:?}: {service}");
        }
    }

    #[test]
    fn error_names_the_position() {
        let error = "app=web,tier like front".parse::<ServiceSelector>().unwrap_err();
        let expected = "at character 9: unable to parse requirement \"tier like front\": an operator is expected: =, \
                        ==, !=, in, notin";
        assert_eq!(error.to_string(), expected);
    }
}
