//! Versions of objects that stay in use after a change.

use std::collections::BTreeSet;

use clusterip_api::{Compilation, InUse, ObjectKey, Objects, compile, in_use_before};
use serde_json::{Value, json};

use crate::support::{in_cluster, object, pool, ready, states};

#[test]
fn version_in_use_is_kept_in_memory_until_the_status_has_it() {
    let with = |cidr: &str| Objects { objects: vec![pool("a", json!({"cidrs": [cidr]}))], ..Objects::default() };
    let (good, mut bad) = (with("10.96.1.0/24"), with("10.96.1.7/24"));
    let first = compile(&good, &InUse::new());
    assert_eq!(compile(&bad, &first.in_use).document, first.document);
    assert_eq!(compile(&bad, &in_use_before(&bad)).document, json!({"services": {"pools": []}}));

    // The edit came while no process ran: the status is that of the version before.
    bad.objects[0]["metadata"]["generation"] = json!(2);
    bad.objects[0]["status"] = after_restart(&good, &first).objects[0]["status"].clone();
    assert_eq!(compile(&bad, &in_use_before(&bad)).document, first.document);
}

/// The same objects as a process that starts now reads them: with the status that this compilation gives them.
fn after_restart(objects: &Objects, compilation: &Compilation) -> Objects {
    let with_status = |object: &Value| {
        let key = ObjectKey::of(object).unwrap();
        let in_use = compilation.in_use.get(&key);
        let mut object = match compilation.states[&key].reason.as_str() {
            "InUse" => ready(object.clone()),
            _ => object.clone(),
        };
        object["status"]["inUse"] = in_use.cloned().unwrap_or_default();
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
            expected: "ServicePool low: NeverUsed: this pool conflicts with pool \"high\": spec.match: never \
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
        objects: Vec<Value>,
        cluster_ranges: &'static [&'static str],
        is_in_use: bool,
        states: Vec<String>,
    }
    const NO_RANGES: &str = "ServicePool team: NoRanges: spec.serviceCIDRSelector: no ServiceCIDR object has these \
                             labels: label one with kubectl label servicecidr, or list cidrs";
    const BOTH: &[&str] = &["10.96.0.0/16", "10.97.0.0/24"];
    let kept = || format!("{NO_RANGES}; the previous version stays in use, with its ranges");
    let labels = |team: &str| json!({"matchLabels": {"team": team}});
    let team = || {
        pool("team", json!({"priority": 3, "serviceCIDRSelector": labels("a"), "match": {"namespaces": ["team-a"]}}))
    };
    let first = in_cluster(vec![team()], &[("a", "10.97.0.0/24")], BOTH);
    let before = compile(&first, &InUse::new());
    assert_eq!(states(&before), ["ServicePool team: InUse: the pool is in use"]);
    let is_kept =
        |name, pool| Case { name, objects: vec![pool], cluster_ranges: BOTH, is_in_use: true, states: vec![kept()] };
    let edited = pool("team", json!({"priority": 9, "serviceCIDRSelector": labels("c")}));
    let other =
        pool("other", json!({"priority": 9, "serviceCIDRSelector": labels("b"), "match": {"namespaces": ["team-b"]}}));
    let cases = [
        is_kept("the ServiceCIDR is still there", team()),
        Case { cluster_ranges: &["10.96.0.0/12"], ..is_kept("the range is a part of another ServiceCIDR", team()) },
        is_kept("the pool was edited too", edited),
        Case {
            name: "the ServiceCIDR has the label of another pool now",
            objects: vec![team(), other],
            cluster_ranges: BOTH,
            is_in_use: true,
            states: vec![
                "ServicePool other: Overlaps: this pool conflicts with pool \"team\": spec.cidrs[0]: \
                 10.97.0.0/24 overlaps 10.97.0.0/24 of pool \"other\""
                    .to_owned(),
                kept(),
            ],
        },
        Case {
            name: "the ServiceCIDR was deleted",
            objects: vec![team()],
            cluster_ranges: &["10.96.0.0/16"],
            is_in_use: false,
            states: vec![NO_RANGES.to_owned()],
        },
    ];
    for Case { name, objects, cluster_ranges, is_in_use, states: expected } in cases {
        let now = in_cluster(objects, &[("b", "10.97.0.0/24")], cluster_ranges);
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

/// Unlike an object with a mistake, which stays in use as it was.
#[test]
fn deleted_object_is_not_in_use_any_more() {
    const POOL: &str = "ServicePool a: InUse: the pool is in use";
    const SETTINGS: &str = "ClusterIPPolicy default: InUse: the settings are in use";
    let policy = || object("ClusterIPPolicy", "default", json!({"order": "Lowest"}));
    let pool_a = || pool("a", json!({"cidrs": ["10.96.1.0/24"]}));
    let all = Objects { objects: vec![policy(), pool_a()], ..Objects::default() };
    let before = compile(&all, &InUse::new());
    struct Case {
        name: &'static str,
        left: Vec<Value>,
        document: Value,
        states: &'static [&'static str],
    }
    let pools = json!([{"name": "a", "cidrs": ["10.96.1.0/24"]}]);
    let cases = [
        Case {
            name: "nothing",
            left: vec![policy(), pool_a()],
            document: json!({"services": {"order": "lowest", "pools": pools}}),
            states: &[POOL, SETTINGS],
        },
        Case {
            name: "the ClusterIPPolicy",
            left: vec![pool_a()],
            document: json!({"services": {"pools": pools}}),
            states: &[POOL],
        },
        Case {
            name: "the pool",
            left: vec![policy()],
            document: json!({"services": {"order": "lowest", "pools": []}}),
            states: &[SETTINGS],
        },
    ];
    for Case { name, left, document, states: expected } in cases {
        let keys: BTreeSet<ObjectKey> = left.iter().filter_map(ObjectKey::of).collect();
        let after = compile(&Objects { objects: left, ..Objects::default() }, &before.in_use);
        assert_eq!(after.document, document, "{name}");
        assert_eq!(states(&after), expected, "{name}");
        assert_eq!(after.in_use.into_keys().collect::<BTreeSet<_>>(), keys, "{name}");
    }
}
