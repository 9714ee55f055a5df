//! The number of host calls of an admission.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::support::{create, evaluate, service, snapshot, words, workload};

fn annotated() -> Value {
    let mut service = service();
    service["metadata"]["annotations"] = json!({"clusterip-policy/os": "windows"});
    service
}

#[test]
fn admission_makes_no_more_host_calls_than_promised() {
    struct Case {
        name: &'static str,
        order: &'static str,
        object: Value,
        cluster: Vec<Value>,
        most: usize,
        expected: Vec<&'static str>,
    }
    const KINDS: usize = 8;
    let deployment = || vec![workload("apps/v1", "Deployment", "windows")];
    let every_kind = [
        "list apps/v1/Deployment",
        "list apps/v1/StatefulSet",
        "list apps/v1/DaemonSet",
        "list apps/v1/ReplicaSet",
        "list v1/ReplicationController",
        "list batch/v1/Job",
        "list batch/v1/CronJob",
        "list v1/Pod",
        "get v1/Namespace shop",
    ];
    let windows = "get networking.k8s.io/v1/IPAddress 172.21.1.59";
    let lowest_windows = "get networking.k8s.io/v1/IPAddress 172.21.1.50";
    let without_workload = |rest: &[&'static str]| [&every_kind[..], rest].concat();
    let list = "list v1/Service";
    let rows = [
        Case {
            name: "annotated",
            order: "spread",
            object: annotated(),
            cluster: vec![],
            most: 2,
            expected: vec![windows],
        },
        Case {
            name: "annotated, lowest",
            order: "lowest",
            object: annotated(),
            cluster: vec![],
            most: 2,
            expected: vec![list, lowest_windows],
        },
        Case {
            name: "Deployment there",
            order: "spread",
            object: service(),
            cluster: deployment(),
            most: 3,
            expected: vec!["list apps/v1/Deployment", windows],
        },
        Case {
            name: "Deployment there, lowest",
            order: "lowest",
            object: service(),
            cluster: deployment(),
            most: 3,
            expected: vec!["list apps/v1/Deployment", list, lowest_windows],
        },
        Case {
            name: "no workload",
            order: "spread",
            object: service(),
            cluster: vec![],
            most: KINDS + 3,
            expected: without_workload(&["get networking.k8s.io/v1/IPAddress 172.21.0.59"]),
        },
        Case {
            name: "no workload, lowest",
            order: "lowest",
            object: service(),
            cluster: vec![],
            most: KINDS + 3,
            expected: without_workload(&[list, "get networking.k8s.io/v1/IPAddress 172.21.0.50"]),
        },
    ];
    for Case { name, order, object, cluster, most, expected } in rows {
        let settings = json!({"services": {"order": order}});
        let (answer, exchanges) = evaluate(&create(&object), &settings, &snapshot(cluster));
        let calls: Vec<String> = exchanges.iter().map(|exchange| words(&exchange.call)).collect();
        assert!(answer.accepted && answer.mutated_object.is_some(), "{name}: {answer:?}");
        assert_eq!(calls, expected, "{name}");
        assert!(calls.len() <= most, "{name}: {calls:?}");
    }
}

/// A number that is independent of the order of its argument, the same in every run.
fn scattered(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[test]
fn spread_looks_up_few_addresses_of_a_pool_half_full() {
    const MAX_MEAN: f64 = 4.0;
    for (prefix, names) in [(24, 400), (20, 400)] {
        let size = 1_u32 << (32 - prefix);
        let network = u32::from(Ipv4Addr::new(10, 96, 0, 0));
        let mut usable: Vec<u32> = (network + 1..network + size - 1).collect();
        usable.sort_by_key(|address| scattered(u64::from(*address)));
        let taken = usable.len() / 2;
        let services = usable[..taken].iter().map(|address| {
            let address = Ipv4Addr::from_bits(*address).to_string();
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": format!("at-{address}"), "namespace": "other"},
                "spec": {"clusterIP": address, "clusterIPs": [address]},
            })
        });
        let cluster = snapshot(services);
        let settings = json!({"services": {"pools": [{"name": "all", "cidrs": [format!("10.96.0.0/{prefix}")]}]}});
        let (mut lookups, mut lists) = (0, 0);
        for number in 0..names {
            let mut object = service();
            object["metadata"]["name"] = format!("web-{number}").into();
            let (answer, exchanges) = evaluate(&create(&object), &settings, &cluster);
            assert!(answer.mutated_object.is_some(), "{answer:?}");
            for exchange in exchanges {
                match words(&exchange.call) {
                    call if call.starts_with("get networking.k8s.io/v1/IPAddress ") => lookups += 1,
                    call if call == "list v1/Service" => lists += 1,
                    call => panic!("{call}"),
                }
            }
        }
        let mean = f64::from(lookups) / f64::from(names);
        // One look-up is needed; with half of the addresses used, two are expected on average.
        assert!((1.5..=MAX_MEAN).contains(&mean), "/{prefix}: {mean} IPAddress look-ups in the mean");
        assert!(lists * 100 < names, "/{prefix}: {lists} lists for {names} Services");
    }
}
