//! The status of the objects, and the lines in it that sum up a pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::core::Selector;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::object_key::Kind;

/// The type of the condition that every object has: whether it is in use as it was written last.
pub const READY: &str = "Ready";

/// How many addresses a pool has, for both families together and for each family. `deploy/crds` describes the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct PoolAddresses {
    pub used: i64,
    pub free: i64,
    pub misplaced: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<AddressCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<AddressCounts>,
}

/// How many addresses of one family a pool has. A number above 2^63 - 1 is reported as 2^63 - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressCounts {
    pub usable: i64,
    pub used: i64,
    pub free: i64,
    pub in_flight: i64,
    pub misplaced: i64,
}

/// How many blocks a pool has. A number above 2^63 - 1 is reported as 2^63 - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Blocks {
    pub usable: i64,
    pub used: i64,
    pub free: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ReservationStatus {
    pub address: String,
    pub holder: ReservationHolder,
    pub since: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum ReservationHolder {
    Owner,
    Nobody,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    InUse,
    /// The object has a mistake that concerns no other object.
    Invalid,
    Overlaps,
    OutsideServiceCIDRs,
    /// A pool that is tried first matches everything that this pool matches.
    NeverUsed,
    /// No ServiceCIDR has the labels that the pool selects. If the pool had ranges before, they stay in use.
    NoRanges,
}

impl Reason {
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

const MAX_LENGTH: usize = 256;

/// The conditions of a pool's entry in one short line, such as `os=windows` or `namespace in (a,b)`.
pub(crate) fn summary(kind: Kind, entry: &Value) -> String {
    let mut conditions = Vec::new();
    for (field, value) in entry.get("match").and_then(Value::as_object).into_iter().flatten() {
        match (field.as_str(), value) {
            ("os", Value::String(os)) => conditions.push(format!("os={os}")),
            ("nodeLabels", Value::Object(_)) => conditions.extend(selector(&json!({"matchLabels": value}))),
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
    if conditions.is_empty() {
        conditions.push(if kind == Kind::NodeBlockPool { "all Nodes" } else { "all Services" }.to_owned());
    }
    shortened(conditions.join(", "))
}

/// The ranges of a pool in one short line, such as `10.96.1.0/24,fd00:1::/112`.
pub fn range_summary(ranges: &[&str]) -> String {
    shortened(ranges.join(","))
}

fn shortened(line: String) -> String {
    if line.chars().count() <= MAX_LENGTH {
        return line;
    }
    line.chars().take(MAX_LENGTH - 3).chain("...".chars()).collect()
}

/// The requirements of a label selector, each as `kubectl --selector` takes it.
fn selector(selector: &Value) -> Vec<String> {
    let read = LabelSelector::deserialize(selector).ok().and_then(|selector| Selector::try_from(selector).ok());
    read.into_iter().flatten().map(|requirement| requirement.to_string()).collect()
}

#[cfg(test)]
mod tests {
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
