//! What a pool is for and its ranges, each in one line.

use serde_json::Value;

use crate::object_key::Kind;

/// The longest line, in characters.
const MAX_LENGTH: usize = 256;

/// The conditions of a pool's entry in one line, such as `os=windows` or `namespace in (a,b)`. A longer line than
/// [`MAX_LENGTH`] ends in `...`.
pub(crate) fn summary(kind: Kind, entry: &Value) -> String {
    let mut conditions = Vec::new();
    if let Some(matches) = entry.get("match").and_then(Value::as_object) {
        for (field, value) in matches {
            match (field.as_str(), value) {
                ("os", Value::String(os)) => conditions.push(format!("os={os}")),
                ("nodeLabels", Value::Object(_)) => conditions.extend(labels(value)),
                ("namespaces", Value::Array(names)) => {
                    let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
                    conditions.push(match names.as_slice() {
                        [name] => format!("namespace={name}"),
                        names => format!("namespace in ({})", names.join(",")),
                    });
                }
                ("namespaceSelector", Value::Object(_)) => {
                    conditions.extend(selector(value).into_iter().map(|text| format!("namespace with {text}")));
                }
                ("serviceSelector" | "nodeSelector", Value::Object(_)) => conditions.extend(selector(value)),
                _ => {}
            }
        }
    }
    if conditions.is_empty() {
        conditions.push(if kind == Kind::NodeBlockPool { "all Nodes" } else { "all Services" }.to_owned());
    }
    shortened(conditions.join(", "))
}

/// The ranges of a pool in one line, such as `10.96.1.0/24,fd00:1::/112`. A line of more than 256 characters ends in
/// `...`.
pub fn range_summary(ranges: &[&str]) -> String {
    shortened(ranges.join(","))
}

/// The line, with at most [`MAX_LENGTH`] characters.
fn shortened(line: String) -> String {
    if line.chars().count() <= MAX_LENGTH {
        return line;
    }
    line.chars().take(MAX_LENGTH - 3).chain("...".chars()).collect()
}

fn labels(labels: &Value) -> Vec<String> {
    let labels = labels.as_object().into_iter().flatten();
    labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect()
}

/// The requirements of a label selector, as kubectl writes them.
fn selector(selector: &Value) -> Vec<String> {
    let mut requirements = selector.get("matchLabels").map(labels).unwrap_or_default();
    for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| expression.get(field).and_then(Value::as_str);
        let values: Vec<&str> = expression
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let (Some(key), Some(operator)) = (text("key"), text("operator")) else { continue };
        requirements.push(match operator {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    requirements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_shortened() {
        assert_eq!(range_summary(&[]), "");
        assert_eq!(range_summary(&["10.96.1.0/24", "fd00:1::/112"]), "10.96.1.0/24,fd00:1::/112");
        let long = range_summary(&["10.96.1.0/24"; 32]);
        assert_eq!(long.len(), MAX_LENGTH);
        assert!(long.starts_with("10.96.1.0/24,10.96.1.0/24,") && long.ends_with("..."), "{long}");
    }
}
