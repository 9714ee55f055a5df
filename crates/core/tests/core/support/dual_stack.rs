//! Pools and clusters with one or both families.

use super::{FakeCluster, Why, selecting, with_spec};
use serde_json::{Value, json};

/// The ranges of a pool.
pub const V4: &[&str] = &["10.0.0.0/24"];
pub const V6: &[&str] = &["fd00::/120"];
pub const BOTH: &[&str] = &["fd00::/120", "10.0.0.0/24"];

/// The Service ranges of a cluster.
pub const CLUSTER_V4: &[&str] = &["10.0.0.0/16"];
pub const CLUSTER_V4_V6: &[&str] = &["10.0.0.0/16", "fd00::/108"];
pub const CLUSTER_V6_V4: &[&str] = &["fd00::/108", "10.0.0.0/16"];

/// The pool of every row.
pub const WHY: Why<'static> = (Some("all"), Some(("default", &[])));

/// Settings with one pool of these ranges, for a cluster with these Service ranges.
pub fn settings(pool: &[&str], cluster: &[&str]) -> Value {
    json!({"services": {
        "order": "lowest",
        "pools": [{"name": "all", "cidrs": pool, "reserved": 7}],
        "serviceCIDRs": cluster,
    }})
}

/// The Service `shop/web` with these fields of its spec.
pub fn asking(fields: Value) -> Value {
    with_spec(selecting(), fields)
}

/// A cluster without objects.
pub fn cluster() -> FakeCluster {
    FakeCluster::default()
}

/// The evidence and the remedy if the pool has no range of this family.
pub fn lacking(family: &str) -> String {
    format!("chosen by default; add an {family} range to the pool, or set services.whenFull: unmanaged")
}
