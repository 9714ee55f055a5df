//! The status of the objects, and the lines in it that sum up a pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object_key::Kind;

/// The type of the condition that every object has: whether it is in use as it was written last.
pub const READY: &str = "Ready";

/// What the status of every object has, as `clusterip serve` observed it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStatus {
    /// The generation of the spec that this status describes.
    pub observed_generation: Option<i64>,
    /// When a server wrote this status last: at most five minutes ago while a server runs.
    pub checked_at: Option<Time>,
    /// The version in use, if that is not the one in spec, because spec has a mistake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub in_use: Option<Value>,
}

/// What the status of a pool of any kind has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    #[serde(flatten)]
    pub object: ObjectStatus,
    /// The ranges in use, in one line.
    pub range_summary: Option<String>,
    /// Ready is true if the pool is in use as it was written last. HasWarnings is true if the pool is probably not
    /// intended as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// How many addresses a pool has, for both families together and for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolAddresses {
    /// Addresses that objects have, of both families.
    pub used: i64,
    /// Free addresses of the family that has fewer of them.
    pub free: i64,
    /// Addresses of objects that belong to another pool, of both families.
    pub misplaced: i64,
    /// IPv4 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<AddressCounts>,
    /// IPv6 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<AddressCounts>,
}

/// How many addresses of one family a pool has. A number above 2^63 - 1 is reported as 2^63 - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressCounts {
    /// Addresses that the pool may hand out, used or free.
    pub usable: i64,
    /// Addresses that objects have, including those that the pool may not hand out.
    pub used: i64,
    /// Usable addresses that no object has and that are not in flight.
    pub free: i64,
    /// Addresses that were handed out in the last moments and are not yet in any object.
    pub in_flight: i64,
    /// Used addresses of objects that belong to another pool.
    pub misplaced: i64,
}

/// The reason of the condition [`READY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The object is in use.
    InUse,
    /// The object has a mistake that concerns no other object.
    Invalid,
    /// A range overlaps a range of another pool.
    Overlaps,
    /// A range lies outside of the Service ranges of the cluster.
    OutsideServiceCIDRs,
    /// A pool that is tried first matches everything that this pool matches.
    NeverUsed,
    /// No ServiceCIDR has the labels that the pool selects. If the pool had ranges before, they stay in use.
    NoRanges,
}

impl Reason {
    /// The reason as the condition shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InUse => "InUse",
            Self::Invalid => "Invalid",
            Self::Overlaps => "Overlaps",
            Self::OutsideServiceCIDRs => "OutsideServiceCIDRs",
            Self::NeverUsed => "NeverUsed",
            Self::NoRanges => "NoRanges",
        }
    }
}

/// A version of a pool as an object without a schema of its own.
fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Conditions as a list that server-side apply merges by type.
pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Ready is true if the object is in use as it was written last.",
        "type": "array",
        "maxItems": 8,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": generator.subschema_for::<Condition>(),
    })
}

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
    use serde_json::json;

    use super::*;

    #[test]
    fn family_without_addresses_is_left_out_as_the_schema_demands() {
        assert_eq!(json!(PoolAddresses::default()), json!({"used": 0, "free": 0, "misplaced": 0}));
    }

    #[test]
    fn ranges_are_joined_and_shortened() {
        assert_eq!(range_summary(&[]), "");
        assert_eq!(range_summary(&["10.96.1.0/24", "fd00:1::/112"]), "10.96.1.0/24,fd00:1::/112");
        let long = range_summary(&["10.96.1.0/24"; 32]);
        assert_eq!(long.len(), MAX_LENGTH);
        assert!(long.starts_with("10.96.1.0/24,10.96.1.0/24,") && long.ends_with("..."), "{long}");
    }
}
