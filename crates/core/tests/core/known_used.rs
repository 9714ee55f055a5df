//! The addresses that a host knows to be used save look-ups and change no answer.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use clusterip_core::address::Span;
use serde_json::{Value, json};

use crate::support::{FakeCluster, answer_of, created, ip, selecting};

fn span(first: &str, last: &str) -> Span {
    Span::new(ip(first), ip(last)).unwrap()
}

/// A pool of `10.0.0.1` to `10.0.0.254`, and the first `count` of them taken.
fn lowest(count: u8) -> (Value, FakeCluster) {
    let settings = json!({"services": {"pools": [{"name": "all", "cidrs": ["10.0.0.0/24"]}], "order": "lowest"}});
    let taken =
        (1..=count).fold(FakeCluster::default(), |cluster, last| cluster.service("x/y", &format!("10.0.0.{last}")));
    (settings, taken)
}

#[test]
fn lowest_looks_up_the_first_address_that_is_not_known_to_be_used() {
    struct Case {
        name: &'static str,
        taken: u8,
        used: Vec<Span>,
        questions: Vec<String>,
    }
    let get = |last: u8| format!("get IPAddress 10.0.0.{last}");
    let list = || "list Service".to_owned();
    let cases = [
        Case { name: "nothing is used", taken: 0, used: vec![], questions: vec![get(1)] },
        Case { name: "all is known", taken: 40, used: vec![span("10.0.0.1", "10.0.0.40")], questions: vec![get(41)] },
        Case {
            name: "some addresses are missing",
            taken: 40,
            used: vec![span("10.0.0.3", "10.0.0.20"), span("10.0.0.22", "10.0.0.40")],
            questions: vec![get(1), get(2), get(21), get(41)],
        },
        Case {
            name: "so many addresses are missing that a list is cheaper",
            taken: 40,
            used: vec![span("10.0.0.1", "10.0.0.10")],
            questions: (11..=26).map(get).chain([list(), get(41)]).collect(),
        },
        Case {
            name: "ranges that lie outside of the pool, or partly",
            taken: 9,
            used: vec![span("9.255.255.1", "10.0.0.9"), span("fd00::1", "fd00::ffff")],
            questions: vec![get(10)],
        },
    ];
    for Case { name, taken, used, questions } in cases {
        let (settings, cluster) = lowest(taken);
        let request = created(selecting());
        let expected = answer_of(&request, &settings, &lowest(taken).1);
        let cluster = cluster.known_used(&used);
        assert_eq!(answer_of(&request, &settings, &cluster), expected, "{name}");
        assert_eq!(cluster.questions(), questions, "{name}");
    }
}

#[test]
fn spread_does_not_depend_on_the_addresses_that_the_host_knows() {
    let (mut settings, cluster) = lowest(100);
    settings["services"]["order"] = "spread".into();
    let request = created(selecting());
    let expected = answer_of(&request, &settings, &cluster);
    let asked = cluster.questions();
    let (_, cluster) = lowest(100);
    let cluster = cluster.known_used(&[span("10.0.0.1", "10.0.0.100")]);
    let answered = answer_of(&request, &settings, &cluster);
    assert_eq!((answered, cluster.questions()), (expected, asked));
}
