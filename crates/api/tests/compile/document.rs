//! Each row has all objects, and the whole result.

use clusterip_api::{compile, in_use_before};
use serde_json::{Value, json};

use crate::support::{edited, in_cluster, object, pool, ready, states};

struct Case {
    name: &'static str,
    objects: Vec<Value>,
    service_cidrs: Vec<(&'static str, &'static str)>,
    cluster_ranges: &'static [&'static str],
    document: Value,
    states: &'static [&'static str],
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: "",
            objects: Vec::new(),
            service_cidrs: Vec::new(),
            cluster_ranges: &["10.96.0.0/16"],
            document: json!({"services": {"pools": []}}),
            states: &[],
        }
    }
}

#[test]
fn objects_become_a_document() {
    let cases = [
        Case { name: "no objects", ..Case::default() },
        Case {
            name: "pools in the order of priority, then of names",
            objects: vec![
                pool(
                    "b",
                    json!({"priority": 0, "fence": "Allow", "cidrs": ["10.96.1.0/24"], "match": {"os": "linux"}}),
                ),
                pool(
                    "a",
                    json!({"priority": 0, "fence": "Deny", "cidrs": ["10.96.2.0/24"], "match": {"os": "windows"}}),
                ),
                pool(
                    "z",
                    json!({"priority": 9, "fence": "Allow", "cidrs": ["10.96.3.0/24"],
                    "match": {"namespaces": ["shop"]}, "reserved": 5, "bands": true}),
                ),
            ],
            document: json!({"services": {"pools": [
                {"name": "z", "cidrs": ["10.96.3.0/24"], "match": {"namespaces": ["shop"]}, "reserved": 5,
                 "bands": true},
                {"name": "a", "cidrs": ["10.96.2.0/24"], "match": {"os": "windows"}},
                {"name": "b", "cidrs": ["10.96.1.0/24"], "match": {"os": "linux"}},
            ]}}),
            states: &[
                "ServicePool a: InUse: the pool is in use",
                "ServicePool b: InUse: the pool is in use",
                "ServicePool z: InUse: the pool is in use",
            ],
            ..Case::default()
        },
        Case {
            name: "a pool with a mistake is left out",
            objects: vec![
                pool("bad", json!({"cidrs": ["10.96.2.7/24"]})),
                pool("good", json!({"cidrs": ["10.96.1.0/24"]})),
            ],
            document: json!({"services": {"pools": [{"name": "good", "cidrs": ["10.96.1.0/24"]}]}}),
            states: &[
                "ServicePool bad: Invalid: spec.cidrs[0]: 10.96.2.7/24 has host bits set: did you mean 10.96.2.0/24?",
                "ServicePool good: InUse: the pool is in use",
            ],
            ..Case::default()
        },
        Case {
            name: "of two new pools that overlap, the one with the higher priority is used",
            objects: vec![
                pool("first", json!({"priority": 1, "cidrs": ["10.96.1.0/24"], "match": {"os": "linux"}})),
                pool("second", json!({"cidrs": ["10.96.1.128/25"]})),
            ],
            document: json!({"services": {"pools": [
                {"name": "first", "cidrs": ["10.96.1.0/24"], "match": {"os": "linux"}},
            ]}}),
            states: &[
                "ServicePool first: InUse: the pool is in use",
                "ServicePool second: Overlaps: spec.cidrs[0]: 10.96.1.128/25 overlaps 10.96.1.0/24 of pool \"first\"",
            ],
            ..Case::default()
        },
        Case {
            name: "a pool in use stays, whatever the priority of a new one",
            objects: vec![
                pool("new", json!({"priority": 9, "cidrs": ["10.96.1.0/24"], "match": {"os": "linux"}})),
                ready(pool("old", json!({"cidrs": ["10.96.1.128/25"]}))),
            ],
            document: json!({"services": {"pools": [{"name": "old", "cidrs": ["10.96.1.128/25"]}]}}),
            states: &[
                "ServicePool new: Overlaps: this pool conflicts with pool \"old\": spec.cidrs[0]: \
                 10.96.1.128/25 overlaps 10.96.1.0/24 of pool \"new\"",
                "ServicePool old: InUse: the pool is in use",
            ],
            ..Case::default()
        },
        Case {
            name: "the last good version of an edited pool stays in use",
            objects: vec![
                edited(
                    pool("edited", json!({"cidrs": ["10.97.0.0/24"]})),
                    json!({"name": "edited", "priority": 0, "cidrs": ["10.96.2.0/24"]}),
                ),
                pool("other", json!({"priority": 1, "cidrs": ["10.96.1.0/24"], "match": {"os": "linux"}})),
            ],
            document: json!({"services": {"pools": [
                {"name": "other", "cidrs": ["10.96.1.0/24"], "match": {"os": "linux"}},
                {"name": "edited", "cidrs": ["10.96.2.0/24"]},
            ]}}),
            states: &[
                "ServicePool edited: OutsideServiceCIDRs: spec.cidrs[0]: 10.97.0.0/24 lies outside serviceCIDRs \
                 (10.96.0.0/16): the API server would refuse its addresses; the previous version stays in use",
                "ServicePool other: InUse: the pool is in use",
            ],
            ..Case::default()
        },
        Case {
            name: "a pool outside of the Service ranges in the policy",
            objects: vec![
                object("ClusterIPPolicy", "default", json!({"serviceCIDRs": ["10.96.0.0/16"]})),
                pool("far", json!({"cidrs": ["10.97.0.0/24"]})),
            ],
            cluster_ranges: &[],
            document: json!({"services": {"serviceCIDRs": ["10.96.0.0/16"], "pools": []}}),
            states: &[
                "ServicePool far: OutsideServiceCIDRs: spec.cidrs[0]: 10.97.0.0/24 lies outside serviceCIDRs \
                 (10.96.0.0/16): the API server would refuse its addresses",
                "ClusterIPPolicy default: InUse: the settings are in use",
            ],
            ..Case::default()
        },
        Case {
            name: "external addresses that an edit has put into a Service range",
            objects: vec![edited(
                object("ExternalPool", "edge", json!({"cidrs": ["10.96.9.0/24"]})),
                json!({"name": "edge", "priority": 0, "cidrs": ["10.0.9.0/24"]}),
            )],
            document: json!({"services": {"pools": []}, "external": {"pools": [{"name": "edge", "cidrs": ["10.0.9.0/24"]}]}}),
            states: &[
                "ExternalPool edge: Overlaps: spec.cidrs[0]: 10.96.9.0/24 overlaps the Service range 10.96.0.0/16: an \
                 address is either inside of the cluster or external; the previous version stays in use",
            ],
            ..Case::default()
        },
        Case {
            name: "external addresses in a Service range",
            objects: vec![object("ExternalPool", "edge", json!({"cidrs": ["10.96.9.0/24"]}))],
            states: &[
                "ExternalPool edge: Overlaps: spec.cidrs[0]: 10.96.9.0/24 overlaps the Service range 10.96.0.0/16: an \
                 address is either inside of the cluster or external",
            ],
            ..Case::default()
        },
        Case {
            name: "ranges of labelled ServiceCIDRs",
            objects: vec![
                pool("team", json!({"serviceCIDRSelector": {"matchLabels": {"team": "a"}}})),
                pool("nobody", json!({"priority": 1, "serviceCIDRSelector": {"matchLabels": {"team": "b"}}})),
            ],
            service_cidrs: vec![("a", "10.96.128.0/20"), ("a", "10.96.64.0/20"), ("c", "10.96.0.0/20")],
            document: json!({"services": {"pools": [{"name": "team", "cidrs": ["10.96.128.0/20", "10.96.64.0/20"]}]}}),
            states: &[
                "ServicePool nobody: NoRanges: spec.serviceCIDRSelector: no ServiceCIDR object has these labels: label \
                 one with kubectl label servicecidr, or list cidrs",
                "ServicePool team: InUse: the pool is in use",
            ],
            ..Case::default()
        },
        Case {
            name: "a pool behind one that matches everything is never used",
            objects: vec![
                pool("all", json!({"priority": 1, "cidrs": ["10.96.1.0/24"]})),
                pool("late", json!({"cidrs": ["10.96.2.0/24"], "match": {"os": "linux"}})),
            ],
            document: json!({"services": {"pools": [{"name": "all", "cidrs": ["10.96.1.0/24"]}]}}),
            states: &[
                "ServicePool all: InUse: the pool is in use",
                "ServicePool late: NeverUsed: spec.match: never used: pool \"all\", which is tried first, matches the \
                 same or more",
            ],
            ..Case::default()
        },
        Case {
            name: "settings with a mistake",
            objects: vec![
                object("ClusterIPPolicy", "default", json!({"order": "Sideways"})),
                pool("all", json!({"cidrs": ["10.96.1.0/24"]})),
            ],
            document: json!({"services": {"pools": [{"name": "all", "cidrs": ["10.96.1.0/24"]}]}}),
            states: &[
                "ServicePool all: InUse: the pool is in use",
                "ClusterIPPolicy default: Invalid: spec.order: unknown value \"sideways\": known are spread, lowest; \
                 the defaults are in use",
            ],
            ..Case::default()
        },
        Case {
            name: "other objects are ignored",
            objects: vec![
                json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}),
                json!({"apiVersion": "example.com/v1", "kind": "ServicePool", "metadata": {"name": "web"}}),
                object("ClusterIPPolicy", "other", json!({"order": "Lowest"})),
            ],
            ..Case::default()
        },
    ];
    for case in cases {
        let objects = in_cluster(case.objects, &case.service_cidrs, case.cluster_ranges);
        let compilation = compile(&objects, &in_use_before(&objects));
        assert_eq!(compilation.document, case.document, "{}", case.name);
        assert_eq!(states(&compilation), case.states, "{}", case.name);
    }
}
