//! The free addresses that a host knows save look-ups and change no answer.

use serde_json::{Value, json};

use crate::support::{FakeCluster, answer_of, created, selecting};

fn settings(cidr: &str, order: &str) -> Value {
    json!({"services": {"pools": [{"name": "all", "cidrs": [cidr]}], "order": order}})
}

/// `10.0.0.1` to `10.0.0.254`, of which the first `count` are taken.
fn first_taken(count: u8) -> FakeCluster {
    (1..=count).fold(FakeCluster::default(), |cluster, last| cluster.service("x/y", &format!("10.0.0.{last}")))
}

#[test]
fn lowest_looks_up_the_first_free_addresses_alone() {
    let get = |last: u8| format!("get IPAddress 10.0.0.{last}");
    for (name, cluster, questions) in [
        ("nothing is used", first_taken(0), vec![get(1)]),
        ("forty are used", first_taken(40), vec![get(41)]),
        (
            "the first ones have no Service yet",
            (1..=3).fold(first_taken(0), |cluster, last| cluster.ip_address(&format!("10.0.0.{last}"))),
            (1..=4).map(get).collect(),
        ),
        ("all are used", first_taken(254), vec![]),
    ] {
        let cluster = cluster.knowing_free_addresses();
        answer_of(&created(selecting()), &settings("10.0.0.0/24", "lowest"), &cluster);
        assert_eq!(
            cluster
                .questions()
                .into_iter()
                .filter(|question| question.starts_with("get IPAddress"))
                .collect::<Vec<_>>(),
            questions,
            "{name}"
        );
    }
}

#[test]
fn lowest_finds_a_free_address_of_the_largest_pools() {
    let taken =
        || (1..=40).fold(FakeCluster::default(), |cluster, last| cluster.service("x/y", &format!("fd00::{last:x}")));
    for cidr in ["fd00::/64", "fd00::/8"] {
        let settings = settings(cidr, "lowest");
        let cluster = taken().knowing_free_addresses();
        let answer = answer_of(&created(selecting()), &settings, &cluster);
        assert_eq!(answer["mutated_object"]["spec"]["clusterIP"], "fd00::29", "{cidr}");
        assert_eq!(cluster.questions().iter().filter(|question| question.contains("IPAddress")).count(), 1, "{cidr}");
    }
}

/// A namespace may have reserved thousands of addresses, which the host does not know to be used.
#[test]
fn host_is_asked_for_many_more_free_addresses_if_the_first_ones_are_reserved() {
    let reserved = |cluster: FakeCluster, last| cluster.ip_address(&format!("fd00::{last:x}"));
    let cluster = (1..=300).fold(FakeCluster::default(), reserved).knowing_free_addresses();
    let answer = answer_of(&created(selecting()), &settings("fd00::/64", "lowest"), &cluster);
    assert_eq!(answer["mutated_object"]["spec"]["clusterIP"], "fd00::12d");
    let questions = cluster.questions().iter().filter(|question| question.contains("IPAddress")).count();
    assert_eq!(questions, 256 + 301, "once the first 256, then enough of them");
}

/// A pool with 1,022 addresses, in which every `nth` address is free.
#[test]
fn spread_gives_the_same_addresses_and_asks_little_however_full_the_pool_is() {
    for nth in [1, 2, 3, 5, 20, 100, 1021, 2000] {
        let taken = || {
            let all = (1..1023).filter(|number| number % nth != 0);
            all.fold(FakeCluster::default(), |cluster, number| {
                cluster.service("x/y", &format!("10.0.{}.{}", number / 256, number % 256))
            })
        };
        for name in ["web", "db", "cart", "api", "mail"] {
            let mut object = selecting();
            object["metadata"]["name"] = name.into();
            let (request, settings) = (created(object), settings("10.0.0.0/22", "spread"));
            let (asking, knowing) = (taken(), taken().knowing_free_addresses());
            assert_eq!(
                answer_of(&request, &settings, &knowing),
                answer_of(&request, &settings, &asking),
                "{nth} {name}"
            );
            let questions = knowing.questions().iter().filter(|question| question.contains("IPAddress")).count();
            assert!(nth < 5 || questions <= 17, "{nth} {name}: {questions}");
        }
    }
}
