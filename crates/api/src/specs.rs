//! The fields of specs that the core does not check: it does not read them, or the document has other values for them.
//! `deploy/crds` describes all fields.
#![allow(dead_code, reason = "reading a spec checks its types")]

use serde::Deserialize;

#[derive(Deserialize)]
pub(crate) struct ServicePoolSpec {
    priority: Option<i32>,
    reserved: Option<i64>,
    fence: Option<Reaction>,
}

#[derive(Deserialize)]
pub(crate) struct ExternalPoolSpec {
    priority: Option<i32>,
    cidrs: Vec<String>,
    fence: Option<Reaction>,
}

#[derive(Deserialize)]
pub(crate) struct NodeBlockPoolSpec {
    priority: Option<i32>,
    cidrs: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterIPPolicySpec {
    order: Option<Order>,
    explicit: Option<Reaction>,
    when_full: Option<WhenFull>,
    unmatched: Option<Unmatched>,
    nodes: Option<NodeSettings>,
}

#[derive(Deserialize)]
struct NodeSettings {
    explicit: Option<Reaction>,
}

#[derive(Deserialize)]
enum Order {
    Spread,
    Lowest,
}

#[derive(Deserialize)]
enum Reaction {
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
