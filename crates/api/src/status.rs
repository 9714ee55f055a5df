//! The status of the objects.

use std::collections::BTreeSet;

use clusterip_core::service_key::ServiceKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The type of the condition that every object has.
pub const READY: &str = "Ready";
/// The type of the condition that an object has only while it is not in use as it was written last. For tools that
/// follow kstatus, the object has failed then, and otherwise they would wait.
pub const STALLED: &str = "Stalled";
/// The type of the condition that an object has only while it is in use and probably not intended as it is.
pub const HAS_WARNINGS: &str = "HasWarnings";
/// The type of the condition of a ClusterIPPolicy that says whether the addresses of all Services lie in pools.
pub const ADDRESSES_IN_POOLS: &str = "AddressesInPools";

/// What the status of a pool of any kind has, as `clusterip serve` observed it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When a server wrote this status last: at most five minutes ago while a server runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Time>,
    /// The ranges in use, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range_summary: Option<String>,
    /// The version in use, if that is not the one in spec, because spec has a mistake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub in_use: Option<serde_json::Value>,
    /// Ready is true if the pool is in use as it was written last. HasWarnings is true if the pool is probably not
    /// intended as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// How many addresses a pool has, for both families together and for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Addresses {
    /// Addresses that objects have, of both families.
    pub used: i64,
    /// Free addresses of the family that has fewer of them.
    pub free: i64,
    /// Addresses of objects that belong to another pool, of both families.
    pub misplaced: i64,
    /// IPv4 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<AddressCounts>,
    /// IPv6 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

/// The condition [`READY`] of an object of this generation: true with [`Reason::InUse`], otherwise false.
///
/// The time of the last transition is that of `before` if the status has not changed, and `now` otherwise.
pub fn ready_condition(
    generation: Option<i64>,
    reason: Reason,
    message: String,
    before: Option<&Condition>,
    now: Time,
) -> Condition {
    condition((READY, reason == Reason::InUse), reason.as_str(), message, generation, before, now)
}

/// The condition [`STALLED`] beside a condition [`READY`]; `None` if that one is true. Nothing changes until a user
/// changes this object or another one, so that the object does not become ready by itself.
///
/// The time of the last transition is as in [`ready_condition`].
pub fn stalled_condition(ready: &Condition, before: Option<&Condition>, now: Time) -> Option<Condition> {
    let stalled = || {
        let (reason, message) = (&ready.reason, ready.message.clone());
        condition((STALLED, true), reason, message, ready.observed_generation, before, now)
    };
    (ready.status != "True").then(stalled)
}

/// The condition [`HAS_WARNINGS`] of an object of this generation; `None` if there are no warnings.
///
/// The time of the last transition is as in [`ready_condition`].
pub fn has_warnings_condition(
    generation: Option<i64>,
    warnings: &[String],
    before: Option<&Condition>,
    now: Time,
) -> Option<Condition> {
    let warned = || {
        let is_warned = (HAS_WARNINGS, true);
        condition(is_warned, "ProbablyNotIntended", warnings.join("; "), generation, before, now)
    };
    (!warnings.is_empty()).then(warned)
}

/// The condition [`ADDRESSES_IN_POOLS`] of a ClusterIPPolicy of this generation. `outside` are the Services with an
/// address that lies in no pool.
///
/// The time of the last transition is as in [`ready_condition`].
pub fn addresses_in_pools_condition(
    generation: Option<i64>,
    outside: &BTreeSet<ServiceKey>,
    before: Option<&Condition>,
    now: Time,
) -> Condition {
    /// More names than these make a condition hard to read, and change it often.
    const SHOWN: usize = 3;
    const REMEDY: &str =
        "add a pool with this range, or run `clusterip move --seamless`, which moves the Services that a pool matches";
    let names: Vec<String> = outside.iter().take(SHOWN).map(ServiceKey::to_string).collect();
    let (names, others) = (names.join(", "), outside.len().saturating_sub(SHOWN));
    let (reason, message) = match outside.len() {
        0 => ("AllInPools", "the address of every Service lies in a pool".to_owned()),
        1 => ("OutsideOfPools", format!("1 Service has an address that lies in no pool: {names}; {REMEDY}")),
        count => {
            let others = if others > 0 { format!(" and {others} more") } else { String::new() };
            (
                "OutsideOfPools",
                format!("{count} Services have an address that lies in no pool: {names}{others}; {REMEDY}"),
            )
        }
    };
    condition((ADDRESSES_IN_POOLS, outside.is_empty()), reason, message, generation, before, now)
}

/// A condition of this type, and whether it is true.
fn condition(
    (type_, is_true): (&str, bool),
    reason: &str,
    message: String,
    generation: Option<i64>,
    before: Option<&Condition>,
    now: Time,
) -> Condition {
    let status = if is_true { "True" } else { "False" };
    let unchanged = before.filter(|before| before.status == status);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: unchanged.map_or(now, |before| before.last_transition_time.clone()),
    }
}

/// A version of a pool as an object without a schema of its own.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
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
