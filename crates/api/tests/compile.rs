//! Objects are translated into the settings document. Each row has all objects, and the whole result.
#![allow(clippy::unwrap_used)]

use clusterip_api::{Compilation, InUse, LabelledRanges, ObjectKey, Objects, compile, in_use_before};
use serde_json::{Value, json};

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "clusterip-policy.io/v1alpha1", "kind": kind,
        "metadata": {"name": name, "generation": 1}, "spec": spec,
    })
}

fn pool(name: &str, spec: Value) -> Value {
    object("ServicePool", name, spec)
}

/// An object whose version in use is another one.
fn edited(mut object: Value, in_use: Value) -> Value {
    object["status"] = json!({"inUse": in_use});
    object
}

/// An object that is in use as it is.
fn ready(mut object: Value) -> Value {
    object["status"] = json!({"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]});
    object
}

/// The state of each object: the reason and the message.
fn states(compilation: &Compilation) -> Vec<String> {
    let state = |(key, state): (&ObjectKey, &clusterip_api::ObjectState)| {
        format!("{key}: {}: {}", state.reason.as_str(), state.message)
    };
    compilation.states.iter().map(state).collect()
}

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
            name: "settings that belong to no pool, and pools of all kinds",
            objects: vec![
                object(
                    "ClusterIPPolicy",
                    "default",
                    json!({
                        "order": "Lowest", "explicit": "Deny", "whenFull": "Unmanaged", "assumeOS": "linux",
                        "nodes": {"explicit": "Allow"}, "external": {"default": true},
                    }),
                ),
                pool("all", json!({"cidrs": ["10.96.1.0/24"]})),
                object("NodeBlockPool", "nodes", json!({"cidrs": ["10.244.0.0/16"]})),
                object("ExternalPool", "edge", json!({"cidrs": ["10.0.9.10-10.0.9.40"], "fence": "Warn"})),
            ],
            document: json!({
                "services": {
                    "order": "lowest", "explicit": "deny", "whenFull": "unmanaged", "assumeOS": "linux",
                    "pools": [{"name": "all", "cidrs": ["10.96.1.0/24"]}],
                },
                "nodes": {"explicit": "allow", "pools": [{"name": "nodes", "cidrs": ["10.244.0.0/16"]}]},
                "external": {"default": true, "pools": [{"name": "edge", "cidrs": ["10.0.9.10-10.0.9.40"]}]},
            }),
            states: &[
                "ServicePool all: InUse: the pool is in use",
                "ExternalPool edge: InUse: the pool is in use",
                "NodeBlockPool nodes: InUse: the pool is in use",
                "ClusterIPPolicy default: InUse: the settings are in use",
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
                "ServicePool new: Overlaps: beside this pool, pool \"old\" can't be used: spec.cidrs[0]: \
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
        let ranges = |(team, cidr): &(&str, &str)| LabelledRanges {
            labels: [("team".to_owned(), (*team).to_owned())].into(),
            cidrs: vec![(*cidr).to_owned()],
        };
        let objects = Objects {
            objects: case.objects,
            service_cidrs: case.service_cidrs.iter().map(ranges).collect(),
            cluster_ranges: case.cluster_ranges.iter().map(|&range| range.to_owned()).collect(),
        };
        let compilation = compile(&objects, &in_use_before(&objects));
        assert_eq!(compilation.document, case.document, "{}", case.name);
        assert_eq!(states(&compilation), case.states, "{}", case.name);
    }
}

#[test]
fn version_in_use_is_kept_in_memory_until_the_status_has_it() {
    let good = Objects { objects: vec![pool("a", json!({"cidrs": ["10.96.1.0/24"]}))], ..Objects::default() };
    let bad = Objects { objects: vec![pool("a", json!({"cidrs": ["10.96.1.7/24"]}))], ..Objects::default() };
    let first = compile(&good, &InUse::new());
    assert_eq!(compile(&bad, &first.in_use).document, first.document);
    assert_eq!(compile(&bad, &InUse::new()).document, json!({"services": {"pools": []}}));
}

/// The same objects as a process that starts now reads them: with the status that this compilation gives them.
fn after_restart(objects: &Objects, compilation: &Compilation) -> Objects {
    let with_status = |object: &Value| {
        let key = ObjectKey::of(object).unwrap();
        let in_use = compilation.in_use.get(&key);
        let mut object = match (compilation.states[&key].reason.as_str(), in_use) {
            ("InUse", _) => ready(object.clone()),
            (_, Some(in_use)) => edited(object.clone(), in_use.clone()),
            (_, None) => object.clone(),
        };
        object["status"]["ranges"] = in_use.map_or_else(|| json!([]), |in_use| in_use["cidrs"].clone());
        object
    };
    Objects { objects: objects.objects.iter().map(with_status).collect(), ..objects.clone() }
}

#[test]
fn edited_priority_does_not_drop_an_unchanged_pool() {
    struct Case {
        name: &'static str,
        range: &'static str,
        /// The state of the edited pool.
        expected: &'static str,
    }
    let pools = |priority: i64, range: &str| Objects {
        objects: vec![
            pool(
                "high",
                json!({"priority": 60, "cidrs": ["10.96.1.0/24"],
                       "match": {"namespaces": ["pr"], "serviceSelector": {"matchLabels": {"tier": "front"}}}}),
            ),
            pool("low", json!({"priority": priority, "cidrs": [range], "match": {"namespaces": ["pr"]}})),
        ],
        ..Objects::default()
    };
    let good = pools(50, "10.96.2.0/24");
    let before = compile(&good, &InUse::new());
    assert_eq!(states(&before).iter().filter(|state| state.contains(": InUse: ")).count(), 2);
    let cases = [
        Case {
            name: "the priority alone",
            range: "10.96.2.0/24",
            expected: "ServicePool low: NeverUsed: beside this pool, pool \"high\" can't be used: spec.match: never \
                       used: pool \"low\", which is tried first, matches the same or more; the previous \
                       version stays in use",
        },
        Case {
            name: "the priority, and a range with a mistake",
            range: "10.96.2.7/24",
            expected: "ServicePool low: Invalid: spec.cidrs[0]: 10.96.2.7/24 has host bits set: did you mean \
                       10.96.2.0/24?; the previous version stays in use",
        },
    ];
    for Case { name, range, expected } in cases {
        let edited = pools(1000, range);
        let after = compile(&edited, &before.in_use);
        assert_eq!(states(&after), ["ServicePool high: InUse: the pool is in use", expected], "{name}");
        assert_eq!((&after.document, &after.in_use), (&before.document, &before.in_use), "{name}");
        let restarted = after_restart(&edited, &after);
        assert_eq!(compile(&restarted, &in_use_before(&restarted)), after, "{name}: after a restart");
    }
}

#[test]
fn pool_keeps_its_ranges_if_service_cidrs_lose_their_labels() {
    struct Case {
        name: &'static str,
        /// The pool now.
        team: Value,
        /// A pool that was not there before.
        other: Option<Value>,
        cluster_ranges: &'static [&'static str],
        is_in_use: bool,
        /// The states of the other pool and of the pool.
        states: Vec<String>,
    }
    const NO_RANGES: &str = "ServicePool team: NoRanges: spec.serviceCIDRSelector: no ServiceCIDR object has these \
                             labels: label one with kubectl label servicecidr, or list cidrs";
    let kept = || format!("{NO_RANGES}; the previous version stays in use, with its ranges");
    let labels = |team: &str| json!({"matchLabels": {"team": team}});
    let team = || {
        pool("team", json!({"priority": 3, "serviceCIDRSelector": labels("a"), "match": {"namespaces": ["team-a"]}}))
    };
    let with = |objects: Vec<Value>, service_cidrs: Vec<LabelledRanges>, cluster_ranges: &[&str]| Objects {
        objects,
        service_cidrs,
        cluster_ranges: cluster_ranges.iter().map(|&range| range.to_owned()).collect(),
    };
    let labelled = |team: &str| LabelledRanges {
        labels: [("team".to_owned(), team.to_owned())].into(),
        cidrs: vec!["10.97.0.0/24".to_owned()],
    };
    const BOTH: &[&str] = &["10.96.0.0/16", "10.97.0.0/24"];
    let first = with(vec![team()], vec![labelled("a")], BOTH);
    let before = compile(&first, &InUse::new());
    assert_eq!(states(&before), ["ServicePool team: InUse: the pool is in use"]);
    let cases = [
        Case {
            name: "the ServiceCIDR is still there",
            team: team(),
            other: None,
            cluster_ranges: BOTH,
            is_in_use: true,
            states: vec![kept()],
        },
        Case {
            name: "the range is a part of another ServiceCIDR",
            team: team(),
            other: None,
            cluster_ranges: &["10.96.0.0/12"],
            is_in_use: true,
            states: vec![kept()],
        },
        Case {
            name: "the pool was edited too",
            team: pool("team", json!({"priority": 9, "serviceCIDRSelector": labels("c")})),
            other: None,
            cluster_ranges: BOTH,
            is_in_use: true,
            states: vec![kept()],
        },
        Case {
            name: "the ServiceCIDR has the label of another pool now",
            team: team(),
            other: Some(pool(
                "other",
                json!({"priority": 9, "serviceCIDRSelector": labels("b"), "match": {"namespaces": ["team-b"]}}),
            )),
            cluster_ranges: BOTH,
            is_in_use: true,
            states: vec![
                "ServicePool other: Overlaps: beside this pool, pool \"team\" can't be used: spec.cidrs[0]: \
                 10.97.0.0/24 overlaps 10.97.0.0/24 of pool \"other\""
                    .to_owned(),
                kept(),
            ],
        },
        Case {
            name: "the ServiceCIDR was deleted",
            team: team(),
            other: None,
            cluster_ranges: &["10.96.0.0/16"],
            is_in_use: false,
            states: vec![NO_RANGES.to_owned()],
        },
    ];
    for Case { name, team, other, cluster_ranges, is_in_use, states: expected } in cases {
        let objects = [vec![team], other.into_iter().collect()].concat();
        let now = with(objects, vec![labelled("b")], cluster_ranges);
        let after = compile(&now, &before.in_use);
        let document = if is_in_use { before.document.clone() } else { json!({"services": {"pools": []}}) };
        assert_eq!((&after.document, states(&after)), (&document, expected), "{name}");
        let restarted = after_restart(&now, &after);
        assert_eq!(compile(&restarted, &in_use_before(&restarted)), after, "{name}: after a restart");
    }

    let meanwhile = Objects { service_cidrs: Vec::new(), ..after_restart(&first, &before) };
    let after = compile(&meanwhile, &in_use_before(&meanwhile));
    assert_eq!((&after.document, states(&after)), (&before.document, vec![kept()]), "while no process ran");
}

/// Two pools that exchange their ranges at the same time are both valid.
#[test]
fn pools_may_exchange_their_ranges() {
    let pools = |a: &str, b: &str| Objects {
        objects: vec![
            pool("a", json!({"priority": 1, "cidrs": [a], "match": {"os": "linux"}})),
            pool("b", json!({"cidrs": [b]})),
        ],
        ..Objects::default()
    };
    let before = compile(&pools("10.96.1.0/24", "10.96.2.0/24"), &InUse::new());
    let after = compile(&pools("10.96.2.0/24", "10.96.1.0/24"), &before.in_use);
    assert_eq!(
        states(&after),
        ["ServicePool a: InUse: the pool is in use", "ServicePool b: InUse: the pool is in use"]
    );
}
