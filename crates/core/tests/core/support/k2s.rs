//! The K2s pools, and Services that are created in them.

use serde_json::{Value, json};

use super::{ASSUMED, FakeCluster, Why, allocated, answer, selecting};

/// The K2s pools with `order: lowest`.
pub fn lowest() -> Value {
    json!({"services": {"order": "lowest"}})
}

/// The creation of a Service in a cluster, and its expected answer.
pub struct Creation<'a> {
    pub name: &'a str,
    pub object: Value,
    pub cluster: FakeCluster,
    /// The pool and the evidence.
    pub why: Why<'a>,
    pub warnings: &'a [&'a str],
}

/// A Service with a selector, in a cluster where nothing names its operating system.
pub fn plain() -> Creation<'static> {
    Creation { name: "", object: selecting(), cluster: FakeCluster::default(), why: ASSUMED, warnings: &[] }
}

/// Each answer must assign the first address of its pool.
#[track_caller]
pub fn check_evidence(cases: Vec<Creation<'_>>) {
    for Creation { name, object, cluster, why, warnings } in cases {
        let address = if why.0 == Some("windows") { "172.21.1.50" } else { "172.21.0.50" };
        let expected = allocated(&object, &[address], why, warnings);
        assert_eq!(answer(&object, &lowest(), &cluster), expected, "{name}");
    }
}
