use serde_json::json;

use super::*;

#[test]
fn method_follows_from_the_service() {
    struct Case {
        name: &'static str,
        change: Value,
        expected: String,
    }
    let interrupts = |what: &str| {
        format!("plain: fail until DNS forgets the old address; a seamless move would interrupt its {what} for seconds")
    };
    let case = |name, change, expected: &str| Case { name, change, expected: expected.to_owned() };
    let no_selector =
        "plain: fail until DNS forgets the old address; without a selector, no temporary Service can keep it";
    let cases = [
        case(
            "a Service that serves",
            json!({}),
            "seamless: notice nothing: both addresses answer until the grace period ends",
        ),
        case("no selector", json!({"selector": null}), no_selector),
        case("an empty selector", json!({"selector": {"app": null}}), no_selector),
        case("node ports", json!({"type": "NodePort"}), &interrupts("node ports")),
        case("a load balancer", json!({"type": "LoadBalancer"}), &interrupts("load balancer")),
        case("external addresses", json!({"externalIPs": ["192.0.2.1"]}), &interrupts("external addresses")),
        case(
            "the second address moves",
            json!({"clusterIP": "fd00::8", "clusterIPs": ["fd00::8", "10.0.0.1"]}),
            "plain: fail at the address that moves until DNS forgets it; the other one stays",
        ),
    ];
    let to = ["10.0.0.1".parse().unwrap()];
    for Case { name, change, expected } in cases {
        let spec = json!({"type": "ClusterIP", "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"],
                          "selector": {"app": "web"}});
        let mut service = json!({"spec": spec});
        json_patch::merge(&mut service, &json!({"spec": change}));
        let found = method(&service, &to, true);
        assert_eq!(format!("{}: {found}", found.as_str()), expected, "{name}");
        assert_eq!(method(&service, &to, false), Method::Plain("notice nothing: no endpoint is ready"), "{name}");
    }
}

#[test]
fn only_ready_endpoints_count_and_their_order_does_not() {
    struct Case {
        name: &'static str,
        slices: Value,
        equal: bool,
    }
    let slice =
        |endpoints: Value| json!({"ports": [{"name": "", "protocol": "TCP", "port": 80}], "endpoints": endpoints});
    let one = |address: &str, ready: Value| json!({"addresses": [address], "conditions": {"ready": ready}});
    let both = json!([one("10.1.0.1", json!(true)), one("10.1.0.2", Value::Null)]);
    let cases = [
        Case {
            name: "in two slices, in another order",
            slices: json!([slice(json!([one("10.1.0.2", json!(true))])), slice(json!([one("10.1.0.1", json!(true))]))]),
            equal: true,
        },
        Case {
            name: "one is not ready",
            slices: json!([slice(json!([one("10.1.0.1", json!(true)), one("10.1.0.2", json!(false))]))]),
            equal: false,
        },
        Case { name: "no slice yet", slices: json!([]), equal: false },
        Case {
            name: "another port",
            slices: json!([{"ports": [{"name": "", "protocol": "TCP", "port": 81}], "endpoints": both}]),
            equal: false,
        },
    ];
    let original = [slice(both)];
    for Case { name, slices, equal } in cases {
        let slices = slices.as_array().cloned().unwrap_or_default();
        let sorted = |slices: &[Value]| ready_endpoints(slices).collect::<BTreeSet<_>>();
        assert_eq!(sorted(&slices) == sorted(&original), equal, "{name}");
    }
}

#[test]
fn quotas_need_room_for_two_services() {
    struct Case {
        name: &'static str,
        hard: Value,
        used: Value,
        full: bool,
    }
    let cases = [
        Case { name: "room for two", hard: json!({"services": "5"}), used: json!({"services": "3"}), full: false },
        Case { name: "room for one", hard: json!({"services": "5"}), used: json!({"services": "4"}), full: true },
        Case {
            name: "counted as objects",
            hard: json!({"count/services": "5"}),
            used: json!({"count/services": "5"}),
            full: true,
        },
        Case { name: "other resources", hard: json!({"pods": "5"}), used: json!({"pods": "5"}), full: false },
        Case { name: "not counted yet", hard: json!({"services": "1"}), used: json!({}), full: false },
        Case { name: "a suffix", hard: json!({"services": "1k"}), used: json!({"services": "4"}), full: false },
    ];
    for Case { name, hard, used, full } in cases {
        let quota = json!({"metadata": {"name": "small"}, "status": {"hard": hard, "used": used}});
        assert_eq!(without_room(&[quota]).is_some(), full, "{name}");
    }
}
