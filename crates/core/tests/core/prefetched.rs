//! What a host sends in advance saves look-ups and changes no answer.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use clusterip_core::address::Span;
use clusterip_core::prefetched::Prefetched;
use serde_json::{Value, json};

use crate::support::{FakeCluster, answer, answer_of, answer_with, created, ip, selecting};

fn span(first: &str, last: &str) -> Span {
    Span::new(ip(first), ip(last)).unwrap()
}

fn prefetched(used: &[Span]) -> Prefetched {
    Prefetched { used: Some(used.to_vec()), workload_kinds: None }
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
        let answered = answer_with(&prefetched(&used), &request, &settings, &cluster);
        assert_eq!(cluster.questions(), questions, "{name}");
        assert_eq!(answered, answer_of(&request, &settings, &cluster), "{name}");
    }
}

#[test]
fn spread_does_not_depend_on_the_addresses_that_the_host_sends() {
    let (mut settings, cluster) = lowest(100);
    settings["services"]["order"] = "spread".into();
    let request = created(selecting());
    let expected = answer_of(&request, &settings, &cluster);
    let asked = cluster.questions();
    let (_, cluster) = lowest(100);
    let answered = answer_with(&prefetched(&[span("10.0.0.1", "10.0.0.100")]), &request, &settings, &cluster);
    assert_eq!((answered, cluster.questions()), (expected, asked));
}

#[test]
fn kinds_without_a_selected_workload_are_not_looked_up() {
    struct Case {
        name: &'static str,
        kinds: Option<&'static [&'static str]>,
        questions: &'static [&'static str],
    }
    let cases = [
        Case {
            name: "unknown",
            kinds: None,
            questions: &["list Deployment", "list ReplicationController", "list Pod", "get IPAddress 10.0.0.57"],
        },
        Case { name: "only Pods", kinds: Some(&["v1/Pod"]), questions: &["list Pod", "get IPAddress 10.0.0.57"] },
        Case {
            name: "a kind of the same name in another group",
            kinds: Some(&["v1/Pod", "apps.example.org/v1/Deployment"]),
            questions: &["list Pod", "get IPAddress 10.0.0.57"],
        },
    ];
    let settings = json!({"services": {
        "pools": [{"name": "windows", "cidrs": ["10.0.0.0/26"], "match": {"os": "windows"}}],
        "evidence": {"kinds": ["Deployment", "ReplicationController", "Pod"]},
    }});
    let windows = json!({"nodeSelector": {"kubernetes.io/os": "windows"}});
    for Case { name, kinds, questions } in cases {
        let cluster = FakeCluster::default().workload("Pod", "shop/web-1", windows.clone());
        let kinds = kinds.map(|kinds| kinds.iter().map(|kind| (*kind).to_owned()).collect());
        let prefetched = Prefetched { workload_kinds: kinds, used: None };
        let answered = answer_with(&prefetched, &created(selecting()), &settings, &cluster);
        assert_eq!(cluster.questions(), questions, "{name}");
        assert_eq!(answered, answer(&selecting(), &settings, &cluster), "{name}");
    }
}

#[test]
fn prefetched_answers_that_can_not_be_read_are_refused() {
    let (settings, cluster) = lowest(0);
    let cases = [
        (json!([]), "prefetched: expected an object, found a list"),
        (json!({"used": "10.0.0.1"}), "prefetched.used: expected a list, found the string \"10.0.0.1\""),
        (json!({"used": ["10.0.0.2-x"]}), "prefetched.used[0]: expected addresses, found the string \"10.0.0.2-x\""),
        (json!({"workloadKinds": [1]}), "prefetched.workloadKinds[0]: expected a string, found the number 1"),
    ];
    for (prefetched, mistake) in cases {
        let payload = json!({"request": created(selecting()), "settings": settings, "prefetched": prefetched});
        let answered = clusterip_core::validate(payload.to_string().as_bytes(), &cluster);
        let message = format!("the request can't be read: {mistake}");
        assert_eq!(answered.message, Some(message), "{prefetched}");
    }
    let read = |prefetched: &Prefetched| Prefetched::read(&prefetched.to_value());
    for written in [
        Prefetched::default(),
        Prefetched { workload_kinds: Some(vec!["v1/Pod".to_owned()]), used: Some(vec![span("fd00::1", "fd00::1")]) },
        prefetched(&[span("10.0.0.1", "10.0.0.9"), span("10.0.0.11", "10.0.0.11")]),
    ] {
        assert_eq!(read(&written), Ok(written));
    }
    assert_eq!(Prefetched::read(&Value::Null), Ok(Prefetched::default()));
}
