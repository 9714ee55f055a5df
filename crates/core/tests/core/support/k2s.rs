//! The K2s pools, and Services that are created in them.

use serde_json::{Value, json};

use super::{FakeCluster, Why, allocated, answer};

/// The K2s pools with `order: lowest`.
pub fn lowest() -> Value {
    json!({"services": {"order": "lowest"}})
}

/// Rows are name, Service, cluster; pool, evidence and warnings of the answer, which assigns the first address of the
/// pool.
#[track_caller]
pub fn check_evidence(rows: Vec<(&str, Value, FakeCluster, Why<'_>, &[&str])>) {
    for (name, object, cluster, why, warnings) in rows {
        let address = if why.0 == Some("windows") { "172.21.1.50" } else { "172.21.0.50" };
        let expected = allocated(&object, &[address], why, warnings);
        assert_eq!(answer(&object, &lowest(), &cluster), expected, "{name}");
    }
}
