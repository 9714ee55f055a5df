//! The fields of specs that the core does not check: it does not read them, or the document has other values for them.
//! `deploy/crds` describes all fields.
#![allow(dead_code, reason = "reading a spec checks its types")]

use serde::Deserialize;

#[derive(Deserialize)]
pub(crate) struct ServicePoolSpec {
    #[serde(default)]
    priority: i32,
    reserved: Option<i64>,
    #[serde(default)]
    fence: Fence,
}

#[derive(Deserialize)]
pub(crate) struct ExternalPoolSpec {
    #[serde(default)]
    priority: i32,
    cidrs: Vec<String>,
    #[serde(default)]
    fence: Fence,
}

#[derive(Deserialize)]
pub(crate) struct NodeBlockPoolSpec {
    #[serde(default)]
    priority: i32,
    cidrs: Vec<String>,
}

#[derive(Default, Deserialize)]
enum Fence {
    #[default]
    Allow,
    Warn,
    Deny,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterIPPolicySpec {
    order: Option<Order>,
    explicit: Option<Explicit>,
    when_full: Option<WhenFull>,
    unmatched: Option<Unmatched>,
    nodes: Option<NodeSettings>,
}

#[derive(Deserialize)]
struct NodeSettings {
    explicit: Option<Explicit>,
}

#[derive(Deserialize)]
enum Order {
    Spread,
    Lowest,
}

#[derive(Deserialize)]
enum Explicit {
    Allow,
    Warn,
    Deny,
}

#[derive(Deserialize)]
enum WhenFull {
    Deny,
    Unmanaged,
}

#[derive(Deserialize)]
enum Unmatched {
    Unmanaged,
    Outside,
    Deny,
}
