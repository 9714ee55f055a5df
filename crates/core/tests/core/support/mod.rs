//! Helpers of several test files: short constructors, a scripted cluster, requests.

mod any_json;
pub mod claim_cases;
mod documents;
pub mod dual_stack;
mod external;
pub mod external_cases;
mod fake_cluster;
mod in_use;
mod k2s;
mod nodes;
mod requests;

use std::net::IpAddr;

pub use any_json::{json_with, some_json};
use clusterip_core::json::Located;
use clusterip_core::label_selector::{LabelSelector, Labels, Operator, Requirement};
use clusterip_core::settings::Settings;
use clusterip_core::workload::PodSpec;
pub use documents::{
    check_mistakes, document, external_pool, external_pools, node_pool, node_pools, nodes, pool, pools, services,
    warnings_of,
};
pub use external::{
    ASKED, Now, RECORD, REMEDY, Row, balancer, balancer_of, external_answer, nothing, now, refused, with_record,
};
pub use fake_cluster::FakeCluster;
pub use in_use::answer_in_use;
use ipnet::IpNet;
pub use k2s::{Creation, check_evidence, lowest, plain};
pub use nodes::{
    Sequence, about_node, assigned_of, blocks_given, node, node_created, node_of, node_unchanged, two_pools,
    with_blocks,
};
use proptest::test_runner::Config;
pub use requests::{
    ASSUMED, LINUX, UNASKED, WINDOWS, Why, allocated, annotated, answer, answer_of, by, by_os, created, denied,
    request, selecting, service, unchanged, updated, with_field, with_mixed, with_spec,
};
use serde_json::Value;

#[track_caller]
pub fn net(text: &str) -> IpNet {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a CIDR"))
}

#[track_caller]
pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text} is not an IP address"))
}

/// All addresses of a CIDR.
pub fn addresses(cidr: IpNet) -> Vec<IpAddr> {
    let count = 1_u128 << (cidr.max_prefix_len() - cidr.prefix_len());
    let next = |index: u128| match cidr.network() {
        IpAddr::V4(first) => IpAddr::from((u32::from(first) + index as u32).to_be_bytes()),
        IpAddr::V6(first) => IpAddr::V6((u128::from(first) + index).into()),
    };
    (0..count).map(next).collect()
}

#[track_caller]
pub fn settings(document: &Value) -> Settings {
    Settings::from_value(document).unwrap_or_else(|invalid| panic!("{document}: {invalid}"))
}

/// `object` with these fields too.
pub fn extended(mut object: Value, fields: &Value) -> Value {
    object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    object
}

pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The requirements of a selector for objects with this label.
pub fn labelled(key: &str, value: &str) -> LabelSelector {
    LabelSelector { match_labels: labels(&[(key, value)]), match_expressions: vec![] }
}

/// A selector with this requirement alone.
pub fn requiring(key: &str, operator: Operator, values: &[&str]) -> LabelSelector {
    let values = values.iter().map(|&value| value.to_owned()).collect();
    LabelSelector {
        match_labels: Labels::new(),
        match_expressions: vec![Requirement { key: key.into(), operator, values }],
    }
}

pub fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

/// A Pod spec as written in a manifest.
#[track_caller]
pub fn pod_spec_of(spec: &Value) -> PodSpec {
    PodSpec::read(&Located::new(spec, "spec")).unwrap_or_else(|mismatch| panic!("{mismatch}"))
}

/// The number of random cases. A failure writes no file, because the message contains its smallest input.
pub fn cases(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}
