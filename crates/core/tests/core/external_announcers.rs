//! What a Service gets whose addresses another program announces: MetalLB, Cilium or kube-vip.

use std::net::IpAddr;

use clusterip_core::external::{Holder, Sharer};
use clusterip_core::service::Service;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_core::{InUse, Response, decide_value};
use serde_json::{Value, json};

use crate::support::{
    ASKED, FakeCluster, RECORD, REMEDY, balancer_of, check_mistakes, created, document, extended, external_answer,
    external_pool, external_pools, ip, updated,
};

const METALLB: &str = "metallb.io/loadBalancerIPs";
const METALLB_BEFORE: &str = "metallb.universe.tf/loadBalancerIPs";
const CILIUM: &str = "lbipam.cilium.io/ips";
const KUBE_VIP: &str = "kube-vip.io/loadbalancerIPs";

fn settings(announcer: &str) -> Value {
    json!({"external": {"pools": [
        {"name": "lan", "cidrs": ["10.0.9.10-10.0.9.11", "fd00::9:1-fd00::9:2"], "announcer": announcer,
         "match": {"namespaces": ["shop"]}},
        {"name": "far", "cidrs": ["10.0.8.0/24"], "announcer": announcer, "match": {"namespaces": ["far"]}},
    ]}})
}

/// The Service `shop/web` after the request: what happens to its record, its annotations, `spec.loadBalancerIP` and the
/// warnings, or the refusal.
fn outcome(answer: &Value, object: &Value) -> String {
    if let Some(message) = answer.get("message") {
        return message.as_str().unwrap().to_owned();
    }
    let after = answer.get("mutated_object").unwrap_or(object);
    let mut lines = vec![answer["audit_annotations"]["external"].as_str().unwrap_or("not concerned").to_owned()];
    let annotations = after["metadata"].get("annotations").and_then(Value::as_object).into_iter().flatten();
    lines.extend(annotations.map(|(key, value)| format!("{key}: {}", value.as_str().unwrap())));
    lines.extend(after["spec"].get("loadBalancerIP").map(|address| format!("loadBalancerIP: {address}")));
    lines.extend(answer.get("warnings").into_iter().flat_map(|all| all.as_array().unwrap()).map(Value::to_string));
    lines.join("\n")
}

struct Case<'a> {
    name: &'a str,
    announcer: &'a str,
    /// The old Service; `None` for a creation.
    before: Option<Value>,
    now: Value,
    held: &'a [(&'a str, &'a str)],
    expected: String,
}

impl Case<'_> {
    fn check(self) {
        let Self { name, announcer, before, now, held, expected } = self;
        let request = match before {
            Some(before) => updated(before, now.clone()),
            None => created(now.clone()),
        };
        let answer = external_answer(&request, &settings(announcer), Some(held), &FakeCluster::default());
        assert_eq!(outcome(&answer, &now), expected, "{announcer}: {name}");
    }
}

fn with(annotations: &[(&str, &str)]) -> Value {
    balancer_of(json!({"ipFamilies": ["IPv4"]}), annotations)
}

fn in_field(address: &str, annotations: &[(&str, &str)]) -> Value {
    balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerIP": address}), annotations)
}

#[test]
fn address_of_the_pool_is_written_as_its_announcer_reads_it() {
    for (announcer, key) in [("metallb", METALLB), ("cilium", CILIUM), ("kube-vip", KUBE_VIP)] {
        let both = balancer_of(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[]);
        let recorded = |addresses: &str| {
            let mut lines = [format!("{RECORD}: {addresses}"), format!("{key}: {addresses}")];
            lines.sort_unstable();
            lines.join("\n")
        };
        let kept = with(&[(RECORD, "10.0.9.11"), (key, "10.0.9.11")]);
        let shown = json!({"loadBalancer": {"ingress": [{"ip": "10.0.9.11"}, {"ip": "192.0.2.7"}]}});
        let case = |name, before, now, expected| Case { name, announcer, before, now, held: &[], expected };
        let cases = [
            case("new", None, with(&[]), format!("recorded\n{}", recorded("10.0.9.10"))),
            case("two families", None, both, format!("recorded\n{}", recorded("10.0.9.10,fd00::9:1"))),
            case("ours", None, with(&[(ASKED, "10.0.9.11")]), {
                let mut lines = [format!("{ASKED}: 10.0.9.11"), recorded("10.0.9.11")];
                lines.sort_unstable();
                format!("recorded\n{}", lines.join("\n"))
            }),
            case(
                "its own annotation",
                None,
                with(&[(key, "10.0.9.11")]),
                format!("recorded\n{}", recorded("10.0.9.11")),
            ),
            case("kept", Some(kept.clone()), kept.clone(), format!("unchanged\n{}", recorded("10.0.9.11"))),
            case("replaced", Some(kept.clone()), with(&[]), format!("recorded\n{}", recorded("10.0.9.11"))),
            case(
                "the annotation is removed",
                Some(kept.clone()),
                with(&[(RECORD, "10.0.9.11")]),
                format!("unchanged\n{}", recorded("10.0.9.11")),
            ),
            case(
                "another address of the pool",
                Some(kept.clone()),
                with(&[(RECORD, "10.0.9.11"), (key, "10.0.9.10")]),
                format!("recorded\n{}", recorded("10.0.9.10")),
            ),
            case(
                "the announcer chose it before there was a pool",
                Some(extended(with(&[]), &json!({ "status": shown }))),
                with(&[]),
                format!("recorded\n{}", recorded("10.0.9.11")),
            ),
            case(
                "another type",
                Some(kept),
                extended(with(&[(RECORD, "10.0.9.11"), (key, "10.0.9.11")]), &json!({"spec": {"type": "ClusterIP"}})),
                "removed".to_owned(),
            ),
        ];
        cases.into_iter().for_each(Case::check);
    }
}

#[test]
fn announcer_is_kept_from_choosing_an_address_itself() {
    let full: &[(&str, &str)] = &[("10.0.9.10", "far/db"), ("10.0.9.11", "far/db")];
    let warning = "\"pool \\\"lan\\\" (10.0.9.10-10.0.9.11) is full: all 2 external addresses are used; the Service waits \
                   for one\"";
    for (announcer, key) in [("metallb", METALLB), ("cilium", CILIUM)] {
        let waiting = with(&[(key, "0.0.0.0")]);
        let case = |name, before, now, held, expected| Case { name, announcer, before, now, held, expected };
        let waits = format!("unchanged\n{key}: 0.0.0.0\n{warning}");
        let got = format!("recorded\n{RECORD}: 10.0.9.10\n{key}: 10.0.9.10");
        let elsewhere = extended(with(&[]), &json!({"metadata": {"name": "web", "namespace": "other"}}));
        let cases = [
            case("full", None, with(&[]), full, waits.clone()),
            case("full, also later", Some(waiting.clone()), waiting.clone(), full, waits.clone()),
            case("full, as the controller writes it", Some(with(&[])), waiting.clone(), full, waits),
            case("an address becomes free", Some(waiting.clone()), waiting, &[], got),
            case("no pool admits it", None, elsewhere, &[], format!("unchanged\n{key}: 0.0.0.0")),
        ];
        cases.into_iter().for_each(Case::check);
    }
    // kube-vip announces nothing without the annotation, and with 0.0.0.0 it would ask a DHCP server.
    let expected = format!("unchanged\n{warning}");
    Case { name: "full", announcer: "kube-vip", before: None, now: with(&[]), held: full, expected }.check();
}

#[test]
fn field_with_an_address_is_not_read_beside_the_annotation() {
    let both = json!({"ipFamilies": ["IPv4", "IPv6"], "loadBalancerIP": "10.0.9.11"});
    for (announcer, key) in [("metallb", METALLB), ("cilium", CILIUM), ("kube-vip", KUBE_VIP)] {
        // MetalLB refuses a Service with both.
        let annotation = if announcer == "metallb" { String::new() } else { format!("\n{key}: 10.0.9.11") };
        let mut of_both = [format!("{RECORD}: 10.0.9.11,fd00::9:1"), format!("{key}: 10.0.9.11,fd00::9:1")];
        of_both.sort_unstable();
        let mut alone = [format!("\n{RECORD}: 10.0.9.11"), annotation];
        alone.sort_unstable_by_key(|line| line.trim_start().to_owned());
        let case = |name, before, now, expected| Case { name, announcer, before, now, held: &[], expected };
        let older = in_field("192.0.2.7", &[]);
        let mut given = [format!("{RECORD}: 10.0.9.10"), format!("{key}: 10.0.9.10")];
        given.sort_unstable();
        let cases = [
            case(
                "alone",
                None,
                in_field("10.0.9.11", &[]),
                format!("recorded{}\nloadBalancerIP: \"10.0.9.11\"", alone.concat()),
            ),
            case(
                "of one of two families",
                None,
                balancer_of(both.clone(), &[]),
                format!("recorded\n{}", of_both.join("\n")),
            ),
            case(
                "older than the pool",
                Some(older.clone()),
                older,
                format!("recorded\n{}\n", given.join("\n"))
                    + "\"192.0.2.7 lies in no pool of external addresses: the Service can't have it\"",
            ),
        ];
        cases.into_iter().for_each(Case::check);
    }
}

#[test]
fn tenant_gets_no_address_that_the_pool_does_not_admit() {
    let held: &[(&str, &str)] = &[("10.0.9.11", "shop/db")];
    let outside = "lies in no pool of external addresses";
    let foreign = "lies in pool \"far\", which does not admit this Service: namespaces does not match";
    let taken = "of pool \"lan\" is held by shop/db";
    for (announcer, keys) in [
        ("metallb", &[METALLB, METALLB_BEFORE][..]),
        ("cilium", &[CILIUM, "io.cilium/lb-ipam-ips"]),
        ("kube-vip", &[KUBE_VIP]),
    ] {
        let own = keys[0];
        let has = [(RECORD, "10.0.9.10"), (own, "10.0.9.10")];
        for key in keys {
            // A claim of an address of a pool is refused in the same words for each program.
            let refusal = |address: &str, why: &str| {
                let mistake = format!("annotation {key}: {address} {why}");
                let mistakes = if why == outside { mistake.clone() } else { format!("{mistake}; {mistake}") };
                format!("Service shop/web: {mistakes}; {REMEDY}")
            };
            for (address, why) in [("192.0.2.7", outside), ("10.0.8.7", foreign), ("10.0.9.11", taken)] {
                let now = with(&[(key, address)]);
                let expected = refusal(address, why);
                Case { name: "created", announcer, before: None, now, held, expected: expected.clone() }.check();
                let mut now = has.to_vec();
                now.retain(|(other, _)| other != key);
                now.push((key, address));
                let (before, now) = (Some(with(&has)), with(&now));
                Case { name: "updated", announcer, before, now, held, expected }.check();
            }
        }
        let expected = format!("Service shop/web: spec.loadBalancerIP: 192.0.2.7 {outside}; {REMEDY}");
        let now = in_field("192.0.2.7", &[]);
        Case { name: "field", announcer, before: None, now, held, expected }.check();
    }
    // kube-vip would ask a DHCP server for an address.
    let expected = format!("Service shop/web: annotation {KUBE_VIP}: 0.0.0.0 {outside}; {REMEDY}");
    let now = with(&[(KUBE_VIP, "0.0.0.0")]);
    Case { name: "DHCP", announcer: "kube-vip", before: None, now, held, expected }.check();
}

/// The address of `shop/web` if `shop/db`, changed by `other`, has 10.0.9.10.
fn shared(announcer: &str, web: Value, namespace: &str, other: Value) -> Option<String> {
    let owner = ServiceKey::new(namespace, "db");
    let holder_of = |address: IpAddr, sharer: &Sharer<'_>| {
        let read = |_: &ServiceKey| Service::read(&other, "").ok();
        let has = address == ip("10.0.9.10") && !sharer.shares([&owner], read);
        has.then(|| Holder { service: owner.clone(), in_flight: None })
    };
    let in_use = InUse { blocks: None, external: Some(&holder_of) };
    let settings = Settings::from_value(&settings(announcer)).unwrap();
    let decision = decide_value(&created(web.clone()), &settings, in_use, &FakeCluster::default());
    let answer = Response::new(decision, web);
    answer.audit_annotations?.get("external-addresses").cloned()
}

#[test]
fn services_of_a_namespace_share_an_address_as_their_announcer_allows() {
    struct Case {
        name: &'static str,
        namespace: &'static str,
        key: &'static str,
        ports: Value,
        more: Value,
        /// Whether MetalLB lets both share the address, and whether Cilium does.
        shares: [bool; 2],
    }
    let base = || Case {
        name: "other ports",
        namespace: "shop",
        key: "k",
        ports: json!([{"port": 443}]),
        more: json!({}),
        shares: [true, true],
    };
    let local = |app: &str| json!({"externalTrafficPolicy": "Local", "selector": {"app": app}});
    let cases = [
        base(),
        Case { name: "another namespace", namespace: "far", shares: [false, false], ..base() },
        Case { name: "another key", key: "other", shares: [false, false], ..base() },
        Case { name: "no key", key: "", shares: [false, false], ..base() },
        Case { name: "the same port", ports: json!([{"port": 443}, {"port": 80}]), shares: [false, false], ..base() },
        Case {
            name: "the same port of another protocol",
            ports: json!([{"port": 80, "protocol": "UDP"}]),
            shares: [true, false],
            ..base()
        },
        Case { name: "unknown ports", ports: json!([{"port": "http"}]), shares: [false, false], ..base() },
        Case { name: "one is Local", more: local("web"), shares: [false, false], ..base() },
    ];
    for Case { name, namespace, key, ports, more, shares } in cases {
        for ((announcer, annotation), shares) in
            [("metallb", "metallb.io/allow-shared-ip"), ("cilium", "lbipam.cilium.io/sharing-key")]
                .into_iter()
                .zip(shares)
        {
            let of = |key: &str, ports: Value, more: &Value| {
                let spec = json!({"ipFamilies": ["IPv4"], "ports": ports});
                balancer_of(extended(spec, more), &[(annotation, key), (ASKED, "10.0.9.10")])
            };
            let other = of(key, ports.clone(), &more);
            let found = shared(announcer, of("k", json!([{"port": 80}]), &json!({})), namespace, other);
            assert_eq!(found.as_deref(), shares.then_some("10.0.9.10"), "{announcer}: {name}");
        }
    }
    let local_pair = |app: &str, other: &str| {
        let of = |port: u16, app: &str| {
            let spec = extended(json!({"ipFamilies": ["IPv4"], "ports": [{"port": port}]}), &local(app));
            balancer_of(spec, &[("metallb.io/allow-shared-ip", "k"), (ASKED, "10.0.9.10")])
        };
        shared("metallb", of(80, app), "shop", of(443, other))
    };
    assert_eq!(local_pair("web", "web").as_deref(), Some("10.0.9.10"), "both are Local and select the same Pods");
    assert_eq!(local_pair("web", "db"), None, "both are Local and select other Pods");
}

#[test]
fn services_with_one_key_find_the_same_address_without_a_request() {
    let of = |name: &str, key: &str| {
        let mut web = balancer_of(
            json!({"ipFamilies": ["IPv6"], "ports": [{"port": 80}]}),
            &[("metallb.io/allow-shared-ip", key)],
        );
        web["metadata"]["name"] = name.into();
        let document =
            json!({"external": {"pools": [{"name": "lan", "cidrs": ["fd00::/64"], "announcer": "metallb"}]}});
        let answer = external_answer(&created(web), &document, Some(&[]), &FakeCluster::default());
        answer["audit_annotations"]["external-addresses"].clone()
    };
    assert_eq!(of("web", "k"), of("api", "k"));
    assert_ne!(of("web", "k"), of("web", "other"));
    assert_ne!(of("web", ""), of("api", ""));
}

#[test]
fn at_most_32_services_share_an_address() {
    let service = |port: u16| {
        let spec = json!({"type": "LoadBalancer", "ports": [{"port": port}]});
        let annotations = json!({"metallb.io/allow-shared-ip": "k"});
        Service::read(&json!({"metadata": {"annotations": annotations}, "spec": spec}), "").unwrap()
    };
    let own = service(1);
    let sharer = Sharer { service: &own, namespace: "shop", announcer: clusterip_core::external::Announcer::MetalLb };
    let owners: Vec<ServiceKey> = (2..=33).map(|port| ServiceKey::new("shop", port.to_string())).collect();
    let read = |key: &ServiceKey| Some(service(key.name.parse().unwrap()));
    assert!(sharer.shares(&owners[..31], read));
    assert!(!sharer.shares(&owners, read));
}

#[test]
fn classes_select_the_announcer() {
    let document = external_pools(json!([
        {"name": "agents", "cidrs": ["10.0.9.0/24"]},
        {"name": "metal", "cidrs": ["10.0.8.0/24"], "announcer": "metallb", "loadBalancerClass": ""},
        {"name": "cilium", "cidrs": ["10.0.7.0/24"], "announcer": "cilium", "loadBalancerClass": "io.cilium/l2-announcer"},
    ]));
    for (class, pool) in [
        (json!("clusterip-policy/external"), "agents"),
        (Value::Null, "metal"),
        (json!("io.cilium/l2-announcer"), "cilium"),
        (json!("example.com/other"), ""),
    ] {
        let web = balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerClass": class}), &[]);
        let answer = external_answer(&created(web), &document, Some(&[]), &FakeCluster::default());
        assert_eq!(answer["audit_annotations"]["external-pool"].as_str().unwrap_or_default(), pool, "{class}");
    }
    let web = balancer_of(json!({"ipFamilies": ["IPv4"]}), &[(ASKED, "10.0.8.7")]);
    let answer = external_answer(&created(web), &document, Some(&[]), &FakeCluster::default());
    let why = "lies in pool \"metal\", which is for Services of another loadBalancerClass";
    assert_eq!(answer["message"], format!("Service shop/web: annotation {ASKED}: 10.0.8.7 {why}; {REMEDY}"));
}

#[test]
fn settings_of_announcers_have_mistakes() {
    let two = |first: Value, second: Value| {
        let pool = |name: &str, cidr: &str, more: &Value| extended(json!({"name": name, "cidrs": [cidr]}), more);
        external_pools(json!([pool("a", "10.0.9.0/24", &first), pool("b", "10.0.8.0/24", &second)]))
    };
    let metallb = |class: &str| json!({"announcer": "metallb", "loadBalancerClass": class});
    let shared = ": metallb is to announce addresses of Services of the class \
                  clusterip-policy/external, and agents those of pool \"a\": set loadBalancerClass of one of the pools";
    let not_a_class = ".loadBalancerClass: \"a b\" is not a class: expected a label key such as example.com/lan";
    check_mistakes(
        "external.pools[0]",
        external_pool,
        &[
            (json!({"announcer": "metalb"}), ".announcer: unknown value \"metalb\": did you mean metallb?"),
            (
                json!({"announcer": "metallb", "nodes": {"matchLabels": {"a": "b"}}}),
                ".nodes: only agents read it: the announcer of the pool chooses the nodes itself",
            ),
            (json!({"loadBalancerClass": "a b"}), not_a_class),
        ],
    );
    check_mistakes(
        "external.pools[1].announcer",
        document,
        &[
            (two(json!({}), json!({"announcer": "metallb"})), shared),
            (two(json!({}), metallb("clusterip-policy/external")), shared),
            (two(json!({}), metallb("")), ""),
            (two(metallb("a/b"), metallb("a/b")), ""),
        ],
    );
}
