//! policy-server keeps a watch forever for each distinct query, so the number of distinct queries must be small.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use clusterip_cluster::policy::host_calls::HostCall;
use clusterip_cluster::policy::recorded_session::Recorder;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;

use crate::support::random::{NAMESPACES, cluster, request, settings};
use crate::support::{answer_of_core, snapshots};

const TEMPLATE: &str = "spec.template.metadata.labels spec.template.spec.affinity.nodeAffinity \
    spec.template.spec.nodeSelector spec.template.spec.os spec.template.spec.runtimeClassName";
const JOB_TEMPLATE: &str = "spec.jobTemplate.spec.template.metadata.labels \
    spec.jobTemplate.spec.template.spec.affinity.nodeAffinity spec.jobTemplate.spec.template.spec.nodeSelector \
    spec.jobTemplate.spec.template.spec.os spec.jobTemplate.spec.template.spec.runtimeClassName";
const POD: &str = "spec.affinity.nodeAffinity spec.nodeName spec.nodeSelector spec.os spec.runtimeClassName";

/// Every list of workloads that the policy requests, with its masks. None has a selector.
const WORKLOAD_LISTS: [(&str, &str); 9] = [
    ("apps/v1/DaemonSet", TEMPLATE),
    ("apps/v1/Deployment", TEMPLATE),
    ("apps/v1/ReplicaSet", TEMPLATE),
    ("apps/v1/StatefulSet", TEMPLATE),
    ("batch/v1/CronJob", JOB_TEMPLATE),
    ("batch/v1/Job", TEMPLATE),
    ("example.com/v1/Odd", TEMPLATE),
    ("v1/Pod", POD),
    ("v1/ReplicationController", TEMPLATE),
];

/// Every other list, and every single object, with any name. Only one bypasses all caches.
const OTHERS: [&str; 7] = [
    "get networking.k8s.io/v1/IPAddress, not from the cache: metadata",
    "get node.k8s.io/v1/RuntimeClass: scheduling.nodeSelector",
    "get v1/Namespace: metadata",
    "get v1/Node: metadata",
    "list v1/Node: spec.podCIDR spec.podCIDRs",
    "list v1/Service: spec.clusterIP spec.clusterIPs spec.type",
    "list v1/Service: spec.externalIPs spec.loadBalancerIP status.loadBalancer.ingress",
];

/// A query without the name of a single object.
fn shape(call: &HostCall) -> String {
    let masks = |masks: &Option<BTreeSet<String>>| match masks {
        Some(masks) => masks.iter().map(String::as_str).collect::<Vec<_>>().join(" "),
        None => "everything".to_owned(),
    };
    let selectors = |label: &Option<String>, field: &Option<String>| match (label, field) {
        (None, None) => String::new(),
        selectors => format!(", selecting {selectors:?}"),
    };
    match call {
        HostCall::ListAll { api_version, kind, label_selector, field_selector, field_masks } => {
            let selectors = selectors(label_selector, field_selector);
            format!("list {api_version}/{kind}{selectors}: {}", masks(field_masks))
        }
        HostCall::ListNamespace { api_version, kind, namespace, label_selector, field_selector, field_masks } => {
            let selectors = selectors(label_selector, field_selector);
            format!("list {api_version}/{kind} in {namespace}{selectors}: {}", masks(field_masks))
        }
        HostCall::Get { api_version, kind, namespace, disable_cache, field_masks, .. } => {
            let scope = namespace.as_ref().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
            let cache = if *disable_cache { ", not from the cache" } else { "" };
            format!("get {api_version}/{kind}{scope}{cache}: {}", masks(field_masks))
        }
    }
}

/// All shapes that may occur; workloads are listed in `namespace`, or in the whole cluster.
fn allowed(namespace: Option<&str>) -> BTreeSet<String> {
    let scope = namespace.map(|namespace| format!(" in {namespace}")).unwrap_or_default();
    let lists = WORKLOAD_LISTS.iter().map(|(kind, masks)| format!("list {kind}{scope}: {masks}"));
    lists.chain(OTHERS.map(str::to_owned)).collect()
}

#[test]
fn query_shapes_depend_only_on_the_namespace_and_the_scope_of_look_ups() {
    let seen = RefCell::new(BTreeSet::new());
    let config = Config { cases: 8000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let outcome = runner.run(&(request(), settings(), cluster()), |(request, settings, (objects, ..))| {
        let recorder = Recorder::new(Arc::new(snapshots::complete(&objects)));
        let payload = json!({"request": request, "settings": settings}).to_string();
        answer_of_core(payload.as_bytes(), &recorder);
        let is_scoped = settings["services"]["evidence"]["lookups"] == "namespace";
        let allowed = allowed(request["namespace"].as_str().filter(|_| is_scoped));
        let shapes: BTreeSet<String> = recorder.exchanges().iter().map(|exchange| shape(&exchange.call)).collect();
        let others: Vec<&String> = shapes.difference(&allowed).collect();
        prop_assert!(others.is_empty(), "{others:#?}");
        seen.borrow_mut().extend(shapes);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    // The test would prove nothing if the policy requested nothing. The exempt namespace needs no workloads.
    let scopes = NAMESPACES.iter().filter(|namespace| **namespace != "kube-system").map(|namespace| Some(*namespace));
    assert_eq!(seen.into_inner(), scopes.chain([None]).flat_map(allowed).collect());
}
