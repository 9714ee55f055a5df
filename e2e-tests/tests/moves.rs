//! Moves on a real API server: which fields are kept, concurrent changes of others, and targets that are taken,
//! forbidden or unavailable.

use std::net::IpAddr;
use std::time::Duration;

use axum::http::Method;
use clusterip::controller::mover::{Limits, MoveError};
use clusterip::controller::outcome::{Outcome, Unmoved};
use clusterip::controller::ownership::set_by_hand;
use clusterip::controller::step::MOVING_NAME;
use clusterip_core::service::MOVING_ANNOTATION;
use kube::Client;
use serde_json::{Value, json};

use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{
    These, addresses, but_addresses, cached, create, delete, fresh, is_recorded, is_step, mover, mover_with, order,
    patch, path, plane, resume, send, step, stored,
};

const WHY: &str = "its Pods run on windows";

fn moved(from: &[IpAddr], to: &[IpAddr]) -> Outcome {
    Outcome::Moved { from: from.to_vec(), to: to.to_vec(), why: WHY.to_owned(), notes: Vec::new() }
}

/// Moves a Service, which must succeed, and returns the moved Service.
async fn move_to(client: &Client, service: &Value, to: &[IpAddr]) -> Value {
    let outcome = mover(client.clone()).start(&order(service, to), &These(vec![])).await.unwrap();
    assert_eq!(outcome, moved(&addresses(service), to));
    again(client, service).await
}

async fn again(client: &Client, service: &Value) -> Value {
    let text = |field: &str| service["metadata"][field].as_str().unwrap().to_owned();
    stored(client, &text("namespace"), &text("name")).await.unwrap()
}

fn manifest(name: &str, namespace: &str, metadata: Value, spec: Value) -> Value {
    let mut manifest = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec});
    json_patch::merge(&mut manifest["metadata"], &metadata);
    manifest
}

#[tokio::test]
async fn moved_service_keeps_every_other_field() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("fields").await;
    let owner = create(&client, &namespace, "owner", json!({"ports": [{"port": 1}]})).await;
    let owned = json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "owner", "uid": owner["metadata"]["uid"]}]});
    let http = json!([{"port": 80}]);
    let all_ports = json!([
        {"name": "tcp", "port": 80, "targetPort": "http", "protocol": "TCP", "appProtocol": "http"},
        {"name": "udp", "port": 80, "targetPort": 53, "protocol": "UDP"},
        {"name": "sctp", "port": 81, "protocol": "SCTP"},
    ]);
    let load_balancer = json!({
        "type": "LoadBalancer", "selector": {"app": "web"}, "ports": all_ports, "externalTrafficPolicy": "Local",
        "internalTrafficPolicy": "Local", "loadBalancerClass": "example.com/lb", "loadBalancerIP": "192.0.2.9",
        "loadBalancerSourceRanges": ["10.0.0.0/8"], "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 77}}, "publishNotReadyAddresses": true,
        "trafficDistribution": "PreferClose", "externalIPs": ["192.0.2.7"],
    });
    let source_ranges =
        json!({"annotations": {"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"}});
    let dual = |policy: &str| json!({"ipFamilyPolicy": policy, "selector": {"app": "web"}, "ports": http});
    let six_first = json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"], "ports": http});
    let six = json!({"ipFamilies": ["IPv6"], "ports": http});
    struct Case {
        name: &'static str,
        metadata: Value,
        spec: Value,
    }
    let cases = [
        Case { name: "plain", metadata: json!({}), spec: json!({"selector": {"app": "web"}, "ports": http}) },
        Case { name: "without-a-selector", metadata: json!({}), spec: json!({"ports": http}) },
        Case {
            name: "labels-and-annotations",
            metadata: json!({"labels": {"a": "b"}, "annotations": {"c": "d"}}),
            spec: json!({"ports": http}),
        },
        Case {
            name: "node-ports",
            metadata: json!({}),
            spec: json!({"type": "NodePort", "ports": all_ports, "externalTrafficPolicy": "Local"}),
        },
        Case {
            name: "external-ips",
            metadata: json!({}),
            spec: json!({"externalIPs": ["192.0.2.8"], "externalTrafficPolicy": "Local", "ports": http}),
        },
        Case { name: "finalizer", metadata: json!({"finalizers": ["example.com/keep"]}), spec: json!({"ports": http}) },
        Case { name: "owned", metadata: owned, spec: json!({"ports": http}) },
        Case {
            name: "session-affinity",
            metadata: json!({}),
            spec: json!({"sessionAffinity": "ClientIP", "ports": http}),
        },
        Case {
            name: "an-old-external-name",
            metadata: json!({}),
            spec: json!({"externalName": "old.example.com", "ports": http}),
        },
        Case { name: "load-balancer", metadata: json!({}), spec: load_balancer.clone() },
        Case {
            name: "load-balancer-with-source-ranges",
            metadata: source_ranges,
            spec: json!({"type": "LoadBalancer", "ports": http}),
        },
        Case {
            name: "load-balancer-without-node-ports",
            metadata: json!({}),
            spec: json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": http}),
        },
        Case { name: "dual-required", metadata: json!({}), spec: dual("RequireDualStack") },
        Case { name: "dual-preferred", metadata: json!({}), spec: dual("PreferDualStack") },
        Case { name: "dual-second", metadata: json!({}), spec: dual("RequireDualStack") },
        Case { name: "dual-first", metadata: json!({}), spec: dual("RequireDualStack") },
        Case {
            name: "dual-load-balancer-second",
            metadata: json!({}),
            spec: {
                let mut spec = load_balancer;
                spec["ipFamilyPolicy"] = "RequireDualStack".into();
                spec
            },
        },
        Case { name: "ipv6-first", metadata: json!({}), spec: six_first },
        Case { name: "ipv6", metadata: json!({}), spec: six },
    ];
    for Case { name: row, metadata, spec } in cases {
        for way in ["client-side", "server-side", "replaced"] {
            let name = format!("{row}-{way}");
            let text = manifest(&name, &namespace, metadata.clone(), spec.clone()).to_string();
            let apply: &[&str] = match way {
                "server-side" => &["apply", "--server-side", "-f", "-"],
                "client-side" => &["apply", "-f", "-"],
                _ => &["create", "-f", "-"],
            };
            plane.kubectl_with(apply, &text).await.ok();
            if way == "replaced" {
                plane.kubectl_with(&["replace", "-f", "-"], &text).await.ok();
            }
            if spec["type"] == "LoadBalancer" {
                let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10", "ipMode": "VIP"}]}}});
                let path = format!("{}/status?fieldManager=cloud", path(&namespace, &name));
                send(&client, Method::PATCH, &path, Some(&status)).await.unwrap();
            }
            let before = stored(&client, &namespace, &name).await.unwrap();
            let [four, other] = fresh();
            let from = addresses(&before);
            let to = match (row.rsplit('-').next(), from.as_slice()) {
                (Some("second"), [first, _]) => vec![*first, other],
                (Some("first"), [first, second]) if first.is_ipv4() => vec![four, *second],
                (_, list) => list.iter().map(|old| if old.is_ipv4() { four } else { other }).collect(),
            };
            let after = move_to(&client, &before, &to).await;
            assert_eq!(addresses(&after), to, "{name}");
            assert_eq!(but_addresses(&after), but_addresses(&before), "{name}");
            assert!(!set_by_hand(&after), "{name}");

            // The owner can apply the manifest again, without a difference or a conflict.
            if way != "replaced" {
                plane.kubectl_with(apply, &text).await.ok();
                assert_eq!(again(&client, &before).await, after, "{name}: applied again");
            }
            if row == "finalizer" {
                patch(&client, &namespace, &name, json!({"metadata": {"finalizers": null}})).await;
            }
            delete(&client, &namespace, &name).await;
        }
    }
}

#[tokio::test]
async fn owner_can_change_the_type_after_a_move() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("retype").await;
    let apply = ["apply", "--server-side", "--field-manager=owner", "-f", "-"];
    let text = |of| manifest("web", &namespace, json!({}), json!({"type": of, "ports": [{"port": 80}]})).to_string();
    plane.kubectl_with(&apply, &text("ClusterIP")).await.ok();
    let [to, _] = fresh();
    let before = stored(&client, &namespace, "web").await.unwrap();
    move_to(&client, &before, &[to]).await;
    plane.kubectl_with(&apply, &text("NodePort")).await.ok();
    let after = again(&client, &before).await;
    assert_eq!((&after["spec"]["type"], addresses(&after)), (&json!("NodePort"), vec![to]));
}

#[tokio::test]
async fn endpoints_stay_the_same_objects() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("endpoints").await;
    let before = create(&client, &namespace, "web", json!({"selector": {"app": "web"}, "ports": [{"port": 80}]})).await;
    let slices = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io/service-name=web"
    );
    let list = async || {
        let list = send(&client, Method::GET, &slices, None).await.unwrap();
        list["items"].as_array().cloned().filter(|items| !items.is_empty())
    };
    let slices_before = eventually("an EndpointSlice", list).await;
    let hand_made = create(&client, &namespace, "hand", json!({"ports": [{"port": 80}]})).await;
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "hand"},
        "subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]});
    let all = format!("/api/v1/namespaces/{namespace}/endpoints");
    let endpoints = send(&client, Method::POST, &all, Some(&endpoints)).await.unwrap();
    move_to(&client, &before, &fresh()[..1]).await;
    move_to(&client, &hand_made, &fresh()[..1]).await;
    let uids = |items: &[Value]| items.iter().map(|item| item["metadata"]["uid"].clone()).collect::<Vec<_>>();
    assert_eq!(uids(&list().await.unwrap()), uids(&slices_before));
    let now = send(&client, Method::GET, &format!("{all}/hand"), None).await.unwrap();
    assert_eq!((&now["metadata"]["uid"], &now["subsets"]), (&endpoints["metadata"]["uid"], &endpoints["subsets"]));
}

#[tokio::test]
async fn services_that_need_no_move_are_left_alone() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("unmoved").await;
    let ports = json!([{"port": 80}]);
    let [to, to_six] = fresh();
    let kept = create(&client, &namespace, "kept", json!({"ports": ports})).await;
    let deleting =
        manifest("deleting", &namespace, json!({"finalizers": ["example.com/keep"]}), json!({"ports": ports}));
    plane.apply(&deleting.to_string()).await;
    send(&client, Method::DELETE, &path(&namespace, "deleting"), None).await;
    create(&client, &namespace, "headless", json!({"clusterIP": "None", "ports": ports})).await;
    create(&client, &namespace, "alias", json!({"type": "ExternalName", "externalName": "example.com"})).await;
    create(&client, &namespace, "lb", json!({"type": "LoadBalancer", "ports": ports})).await;
    let taken = create(&client, &namespace, "taken", json!({"ports": ports})).await;
    let taken = addresses(&taken);
    struct Case {
        name: &'static str,
        to: Vec<IpAddr>,
        expected: &'static str,
    }
    let cases = [
        Case { name: "kept", to: addresses(&kept), expected: "There" },
        Case { name: "deleting", to: vec![to], expected: "BeingDeleted" },
        Case { name: "headless", to: vec![to], expected: "Headless" },
        Case { name: "alias", to: vec![to], expected: "ExternalName" },
        Case { name: "lb", to: vec![to], expected: "LoadBalancer" },
        Case { name: "kept", to: taken.clone(), expected: "NoTarget" },
    ];
    for Case { name, to, expected } in cases {
        let before = stored(&client, &namespace, name).await.unwrap();
        let mut order = order(&before, &to);
        order.load_balancers = false;
        let outcome = mover(client.clone()).start(&order, &These(vec![to])).await.unwrap();
        let expected = match expected {
            "There" => Unmoved::There,
            "BeingDeleted" => Unmoved::BeingDeleted,
            "Headless" => Unmoved::Headless,
            "ExternalName" => Unmoved::ExternalName,
            "LoadBalancer" => Unmoved::LoadBalancer,
            _ => Unmoved::NoTarget { taken: taken.clone() },
        };
        match expected {
            // Without IPAddress, only the API server knows that the address is taken. The Service is put back.
            Unmoved::NoTarget { .. } if !plane.tells_addresses() => {
                assert!(matches!(outcome, Outcome::Kept { .. }), "{name}: {outcome:?}");
                assert_eq!(again(&client, &before).await["spec"], before["spec"], "{name}");
                continue;
            }
            expected => assert_eq!(outcome, Outcome::Unmoved(expected), "{name}"),
        }
        assert_eq!(again(&client, &before).await, before, "{name}");
    }
    let mut another = order(&kept, &[to]);
    another.uid = "another".to_owned();
    let moving = mover(client.clone());
    assert_eq!(moving.start(&another, &These(vec![])).await.unwrap(), Outcome::Unmoved(Unmoved::Gone));
    let error = moving.start(&order(&kept, &[to_six]), &These(vec![])).await.unwrap_err();
    assert!(matches!(error, MoveError::Families { .. }), "{error}");
    assert_eq!(resume(&moving, &kept, &These(vec![])).await, Outcome::Unmoved(Unmoved::NotMoving));
    assert!(!is_recorded(&client, &kept).await);
    if plane.tells_addresses() {
        assert_eq!(again(&client, &kept).await, kept);
    }
    patch(&client, &namespace, "deleting", json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn service_is_read_again_only_if_it_has_changed() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("just-read").await;
    let proxy = Proxy::start(plane).await;
    let ports = json!([{"port": 80}]);
    struct Case {
        /// The change after the Service was read.
        name: &'static str,
        /// How often the Service is read again.
        reads: usize,
        /// Whether the Service is moved.
        moves: bool,
    }
    let cases = [
        Case { name: "nothing", reads: 0, moves: true },
        Case { name: "changed", reads: 1, moves: true },
        Case { name: "deleted", reads: 1, moves: false },
        Case { name: "replaced", reads: 1, moves: false },
    ];
    for Case { name, reads, moves } in cases {
        let [to, _] = fresh();
        let before = create(&client, &namespace, name, json!({"ports": ports})).await;
        match name {
            "changed" => {
                patch(&client, &namespace, name, json!({"metadata": {"labels": {"new": "label"}}})).await;
            }
            "deleted" => delete(&client, &namespace, name).await,
            "replaced" => {
                delete(&client, &namespace, name).await;
                create(&client, &namespace, name, json!({"ports": ports})).await;
            }
            _ => {}
        }
        let expected = stored(&client, &namespace, name).await;
        let at = path(&namespace, name);
        let gate = proxy.on(move |seen| seen.method == Method::GET && seen.path == at, Fault::PauseBefore);
        gate.release();
        let moving = mover(proxy.client());
        let outcome = moving.start_from(before.clone(), &order(&before, &[to]), &These(vec![])).await.unwrap();
        let after = stored(&client, &namespace, name).await;
        if moves {
            let after = after.unwrap();
            assert_eq!(outcome, moved(&addresses(&before), &[to]), "{name}");
            assert_eq!(addresses(&after), [to], "{name}");
            assert_eq!(but_addresses(&after), but_addresses(&expected.unwrap()), "{name}");
        } else {
            assert_eq!((outcome, after), (Outcome::Unmoved(Unmoved::Gone), expected), "{name}");
        }
        assert_eq!(gate.count(), reads, "{name}: reads");
    }
    // An address that is set by hand after the Service was read is kept.
    let before = create(&client, &namespace, "chosen", json!({"ports": ports})).await;
    let chosen = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chosen", "namespace": namespace},
        "spec": {"clusterIP": before["spec"]["clusterIP"]},
    });
    plane.kubectl_with(&["apply", "--server-side", "-f", "-"], &chosen.to_string()).await.ok();
    let expected = again(&client, &before).await;
    let elsewhere = order(&before, &fresh()[..1]);
    let outcome = mover(client.clone()).start_from(before.clone(), &elsewhere, &These(vec![])).await.unwrap();
    assert_eq!((outcome, again(&client, &before).await), (Outcome::Unmoved(Unmoved::SetByHand), expected));
    let kept = create(&client, &namespace, "kept", json!({"ports": ports})).await;
    let mut another = order(&kept, &fresh()[..1]);
    another.uid = "another".to_owned();
    let outcome = mover(client.clone()).start_from(kept.clone(), &another, &These(vec![])).await.unwrap();
    assert_eq!((outcome, again(&client, &kept).await), (Outcome::Unmoved(Unmoved::Gone), kept));
}

#[tokio::test]
async fn next_target_is_used_if_one_is_taken() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("taken").await;
    let proxy = Proxy::start(plane).await;
    let ports = json!([{"port": 80}]);
    struct Case {
        name: &'static str,
        /// The addresses that other Services take before the move.
        taken_before: &'static [&'static str],
        /// The addresses that other Services take while the Service has none.
        taken_meanwhile: &'static [&'static str],
        expected: &'static str,
    }
    let cases = [
        Case { name: "before", taken_before: &["first"], taken_meanwhile: &[], expected: "second" },
        Case { name: "meanwhile", taken_before: &[], taken_meanwhile: &["first"], expected: "second" },
        Case { name: "both", taken_before: &["first"], taken_meanwhile: &["second"], expected: "old" },
        Case { name: "all-meanwhile", taken_before: &[], taken_meanwhile: &["first", "second"], expected: "old" },
        Case { name: "old-too", taken_before: &[], taken_meanwhile: &["first", "second", "old"], expected: "any" },
        Case { name: "old-alone", taken_before: &[], taken_meanwhile: &["old"], expected: "first" },
    ];
    for Case { name, taken_before, taken_meanwhile, expected } in cases {
        let [[first, _], [second, _]] = [fresh(), fresh()];
        let before = create(&client, &namespace, name, json!({"type": "NodePort", "ports": ports})).await;
        let old = addresses(&before)[0];
        let take = async |whose: &[&str]| {
            for who in whose {
                let address = match *who {
                    "first" => first,
                    "second" => second,
                    _ => old,
                };
                create(&client, &namespace, &format!("{name}-{who}"), json!({"clusterIP": address, "ports": ports}))
                    .await;
            }
        };
        take(taken_before).await;
        let gate = proxy.on(is_step(&namespace, name, "place"), Fault::PauseBefore);
        let moving = mover(proxy.client());
        let (order, targets) = (order(&before, &[first]), These(vec![vec![first], vec![second]]));
        let disturb = async {
            gate.arrived().await;
            take(taken_meanwhile).await;
            gate.release();
        };
        let (outcome, ()) = tokio::join!(moving.start(&order, &targets), disturb);
        let after = again(&client, &before).await;
        let at = addresses(&after);
        let is = match outcome.unwrap() {
            Outcome::Moved { from, to, .. } if from == [old] && to == at && at == [first] => "first",
            Outcome::Moved { from, to, notes, .. }
                if from == [old] && to == at && at == [second] && notes.len() == 1 =>
            {
                "second"
            }
            Outcome::Kept { from, notes, .. } if from == at && at == [old] && notes.len() == 2 => "old",
            Outcome::Elsewhere { from, to, notes, .. } if from == [old] && to == at && notes.len() == 3 => "any",
            other => panic!("{name}: {other:?} at {at:?}"),
        };
        assert_eq!(is, expected, "{name}");
        assert_eq!(but_addresses(&after), but_addresses(&before), "{name}");
    }
}

#[tokio::test]
async fn taken_second_address_is_replaced() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("second").await;
    let proxy = Proxy::start(plane).await;
    let ports = json!([{"port": 80}]);
    for (name, first_moves) in [("second-alone", false), ("both", true)] {
        let [[four, first], [other_four, second]] = [fresh(), fresh()];
        let before =
            create(&client, &namespace, name, json!({"ipFamilyPolicy": "RequireDualStack", "ports": ports})).await;
        let old = addresses(&before);
        let (one, two) = if first_moves { (four, other_four) } else { (old[0], old[0]) };
        let gate = proxy.on(is_step(&namespace, name, "place"), Fault::PauseBefore);
        let moving = mover(proxy.client());
        let (order, targets) = (order(&before, &[one, first]), These(vec![vec![one, first], vec![two, second]]));
        let disturb = async {
            gate.arrived().await;
            let spec = json!({"clusterIP": first, "ipFamilies": ["IPv6"], "ports": ports});
            create(&client, &namespace, &format!("{name}-thief"), spec).await;
            gate.release();
        };
        let (outcome, ()) = tokio::join!(moving.start(&order, &targets), disturb);
        let after = again(&client, &before).await;
        assert_eq!(addresses(&after), [two, second], "{name}: {outcome:?}");
        assert_eq!(but_addresses(&after), but_addresses(&before), "{name}");
    }
}

#[tokio::test]
async fn taken_first_address_is_replaced_and_the_second_stays() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("first").await;
    let proxy = Proxy::start(plane).await;
    let ports = json!([{"port": 80}]);
    let [[first, _], [next, _]] = [fresh(), fresh()];
    let before =
        create(&client, &namespace, "web", json!({"ipFamilyPolicy": "RequireDualStack", "ports": ports})).await;
    let stays = addresses(&before)[1];
    let gate = proxy.on(is_step(&namespace, "web", "place"), Fault::PauseBefore);
    let moving = mover(proxy.client());
    let (order, targets) = (order(&before, &[first, stays]), These(vec![vec![first, stays], vec![next, stays]]));
    let disturb = async {
        gate.arrived().await;
        create(&client, &namespace, "thief", json!({"clusterIP": first, "ports": ports})).await;
        gate.release();
    };
    let (outcome, ()) = tokio::join!(moving.start(&order, &targets), disturb);
    let after = again(&client, &before).await;
    // The API server allocates the addresses of the two families one after the other, in either order. If it allocated
    // the second before it refused the first, it does not release it for a minute. Then only other addresses are
    // available, and the notes say so.
    let leaked = matches!(&outcome, Ok(Outcome::Elsewhere { notes, .. })
        if notes.iter().any(|note| note.contains(&format!("{stays}"))));
    if leaked {
        let now = addresses(&after);
        assert!(now.len() == 2 && now[0].is_ipv4() && now[1].is_ipv6() && now[1] != stays, "{now:?}: {outcome:?}");
    } else {
        assert_eq!(addresses(&after), [next, stays], "{outcome:?}");
    }
    assert_eq!(but_addresses(&after), but_addresses(&before));
}

#[tokio::test]
async fn taken_node_port_is_replaced_after_a_wait() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("ports").await;
    let proxy = Proxy::start(plane).await;
    for (name, comes_back) in [("comes-back", true), ("stays-away", false)] {
        let spec = json!({"type": "NodePort", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]});
        let before = create(&client, &namespace, name, spec).await;
        let [to, _] = fresh();
        let gate = proxy.on(is_step(&namespace, name, "place"), Fault::PauseBefore);
        let later = proxy.on(is_step(&namespace, name, "place"), Fault::PauseBefore);
        let ports = if comes_back { Duration::from_secs(600) } else { Duration::ZERO };
        let moving = mover_with(proxy.client(), Limits { ports, ..Limits::default() });
        let thief = format!("{name}-thief");
        let disturb = async {
            gate.arrived().await;
            let port = &before["spec"]["ports"][1]["nodePort"];
            create(&client, &namespace, &thief, json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]}))
                .await;
            gate.release();
            later.arrived().await;
            if comes_back {
                delete(&client, &namespace, &thief).await;
            }
            later.release();
        };
        let (order, targets) = (order(&before, &[to]), These(vec![]));
        let (outcome, ()) = tokio::join!(moving.start(&order, &targets), disturb);
        let outcome = outcome.unwrap();
        let mut after = again(&client, &before).await;
        assert_eq!(addresses(&after), [to], "{name}");
        if !comes_back {
            assert!(outcome.to_string().contains("was replaced by another"), "{outcome}");
            let replaced = after["spec"]["ports"][1]["nodePort"].take();
            assert_ne!(replaced, before["spec"]["ports"][1]["nodePort"]);
            after["spec"]["ports"][1]["nodePort"] = before["spec"]["ports"][1]["nodePort"].clone();
        }
        assert_eq!(but_addresses(&after), but_addresses(&before), "{name}");
    }
}

#[tokio::test]
async fn concurrent_changes_of_others_win() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("others").await;
    let proxy = Proxy::start(plane).await;
    let spec = json!({"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80}]});
    let annotations = json!({"annotations": {MOVING_ANNOTATION: null}});
    struct Concurrent {
        name: &'static str,
        /// A change before or after the address is released.
        change: Value,
        /// What the change adds to the Service at the end.
        expected: Value,
    }
    let changes = [
        Concurrent {
            name: "selector",
            change: json!({"spec": {"selector": {"app": "shop"}}}),
            expected: json!({"spec": {"selector": {"app": "shop"}}}),
        },
        Concurrent {
            name: "label",
            change: json!({"metadata": {"labels": {"a": "b"}}}),
            expected: json!({"metadata": {"labels": {"a": "b"}}}),
        },
        Concurrent {
            name: "annotation",
            change: json!({"metadata": {"annotations": {"a": "b"}}}),
            expected: json!({"metadata": {"annotations": {"a": "b"}}}),
        },
        Concurrent {
            name: "affinity",
            change: json!({"spec": {"sessionAffinity": "ClientIP"}}),
            expected: json!({"spec": {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}}}}),
        },
    ];
    for at in ["release", "place", "forget"] {
        for Concurrent { name: row, change, expected } in &changes {
            let name = format!("{row}-{at}");
            let before = create(&client, &namespace, &name, spec.clone()).await;
            let [to, _] = fresh();
            let gate = proxy.on(is_step(&namespace, &name, at), Fault::PauseBefore);
            let moving = mover(proxy.client());
            let disturb = async {
                gate.arrived().await;
                let path = format!("{}?fieldManager=other", path(&namespace, &name));
                let changed = send(&client, Method::PATCH, &path, Some(change)).await.unwrap();
                // An API server whose cache lacks this change allocates an address for the next write, refuses the
                // write, and does not release the address.
                cached(&client, &changed).await;
                gate.release();
            };
            let (order, targets) = (order(&before, &[to]), These(vec![]));
            let (outcome, ()) = tokio::join!(moving.start(&order, &targets), disturb);
            assert_eq!(outcome.unwrap(), moved(&addresses(&before), &[to]), "{name}");
            let after = again(&client, &before).await;

            // The same change to a Service that is not moved gives the same owners of fields.
            let twin = format!("{name}-twin");
            let unmoved = create(&client, &namespace, &twin, spec.clone()).await;
            let path = format!("{}?fieldManager=other", path(&namespace, &twin));
            let unmoved_after = send(&client, Method::PATCH, &path, Some(change)).await.unwrap();
            let owners = |service: &Value| {
                let mut entries = service["metadata"]["managedFields"].as_array().unwrap().clone();
                // The map `annotations` belongs to the manager that wrote the first annotation, which was the mover.
                for annotations in
                    entries.iter_mut().filter_map(|entry| entry.pointer_mut("/fieldsV1/f:metadata/f:annotations"))
                {
                    annotations.as_object_mut().unwrap().remove(".");
                }
                let mut owners: Vec<Value> =
                    entries.iter().map(|entry| json!([entry["manager"], entry["fieldsV1"]])).collect();
                owners.sort_by_key(Value::to_string);
                owners
            };
            assert_eq!(owners(&after), owners(&unmoved_after), "{name}");
            let mut wanted = but_addresses(&before);
            json_patch::merge(&mut wanted, expected);
            let bare = |mut service: Value| {
                service["metadata"].as_object_mut().unwrap().remove("managedFields");
                service
            };
            assert_eq!(bare(but_addresses(&after)), bare(wanted), "{name}");
            delete(&client, &namespace, &name).await;
            delete(&client, &namespace, unmoved["metadata"]["name"].as_str().unwrap()).await;
        }
    }

    // Changes that make the move pointless.
    struct Pointless {
        name: &'static str,
        /// `None` deletes the Service.
        change: Option<Value>,
        expected: &'static str,
    }
    let changes = [
        Pointless { name: "retyped", change: Some(json!({"spec": {"type": "ClusterIP"}})), expected: "overtaken" },
        Pointless {
            name: "aliased",
            change: Some(json!({"spec": {"externalName": "example.com"}})),
            expected: "overtaken",
        },
        Pointless {
            name: "retyped-without-a-trace",
            change: Some(json!({"metadata": annotations, "spec": {"type": "ClusterIP", "externalName": null}})),
            expected: "overtaken",
        },
        Pointless { name: "unmarked", change: Some(json!({"metadata": annotations})), expected: "moved" },
        Pointless { name: "deleted", change: None, expected: "gone" },
        Pointless { name: "recreated", change: None, expected: "gone" },
    ];
    for Pointless { name, change, expected } in changes {
        let before = create(&client, &namespace, name, spec.clone()).await;
        let [to, _] = fresh();
        let gate = proxy.on(is_step(&namespace, name, "place"), Fault::PauseBefore);
        let moving = mover(proxy.client());
        let disturb = async {
            gate.arrived().await;
            let left = match change {
                Some(change) => Some(patch(&client, &namespace, name, change).await),
                None => {
                    delete(&client, &namespace, name).await;
                    if name == "recreated" { Some(create(&client, &namespace, name, spec.clone()).await) } else { None }
                }
            };
            gate.release();
            left
        };
        let (order, targets) = (order(&before, &[to]), These(vec![]));
        let (outcome, left) = tokio::join!(moving.start(&order, &targets), disturb);
        let outcome = outcome.unwrap();
        let after = stored(&client, &namespace, name).await;
        match (expected, outcome, &after) {
            ("gone", Outcome::Unmoved(Unmoved::Gone), _) => assert_eq!(after, left, "{name}"),
            ("overtaken", Outcome::Overtaken { from, now, why }, Some(after)) => {
                assert_eq!((from, now, why.as_str()), (addresses(&before), addresses(after), WHY), "{name}");
                let mut left = left.unwrap();
                if left["spec"]["externalName"] == MOVING_NAME {
                    left["spec"].as_object_mut().unwrap().remove("externalName");
                }
                assert_eq!(after["spec"], left["spec"], "{name}");
            }
            // The record contains all that is needed, so the annotation on the Service does not matter.
            ("moved", outcome, Some(after)) => {
                assert_eq!(outcome, moved(&addresses(&before), &[to]), "{name}");
                assert_eq!(but_addresses(after)["spec"], but_addresses(&before)["spec"], "{name}");
            }
            (_, outcome, _) => panic!("{name}: {outcome:?}"),
        }
        let traces = after.map(|after| after.to_string()).unwrap_or_default();
        assert!(!traces.contains(MOVING_ANNOTATION) && !traces.contains(MOVING_NAME), "{name}: {traces}");
    }
}

#[tokio::test]
async fn load_balancer_restored_by_others_keeps_its_source_ranges() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("ranges").await;
    let proxy = Proxy::start(plane).await;
    let spec = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"], "ports": [{"port": 80}]});
    let before = create(&client, &namespace, "web", spec).await;
    let gate = proxy.on(is_step(&namespace, "web", "place"), Fault::PauseBefore);
    let moving = mover(proxy.client());
    let disturb = async {
        gate.arrived().await;
        patch(&client, &namespace, "web", json!({"spec": {"type": "LoadBalancer"}})).await;
        gate.release();
    };
    let (order, targets) = (order(&before, &fresh()[..1]), These(vec![]));
    let (outcome, ()) = tokio::join!(moving.start(&order, &targets), disturb);
    assert!(matches!(outcome, Ok(Outcome::Overtaken { .. })), "{outcome:?}");
    assert_eq!(again(&client, &before).await["spec"]["loadBalancerSourceRanges"], json!(["10.0.0.0/8"]));
}

#[tokio::test]
async fn forbidden_release_changes_nothing() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("forbidden").await;
    let ports = json!([{"port": 80}]);
    let policy = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": namespace},
         "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["services"]}]},
                  "validations": [{"expression": "object.spec.type != 'ExternalName'", "message": "no aliases here"}]}},
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": namespace},
         "spec": {"policyName": namespace, "validationActions": ["Deny"],
                  "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}}},
    ]});
    plane.apply(&policy.to_string()).await;
    let alias =
        manifest("alias", &namespace, json!({}), json!({"type": "ExternalName", "externalName": "example.com"}))
            .to_string();
    eventually("the policy to be in force", async || {
        let tried = plane.kubectl_with(&["create", "--dry-run=server", "-f", "-"], &alias).await;
        tried.stderr.contains("no aliases here").then_some(())
    })
    .await;
    let text = manifest("web", &namespace, json!({}), json!({"ports": ports})).to_string();
    plane.kubectl_with(&["create", "-f", "-"], &text).await.ok();
    let before = stored(&client, &namespace, "web").await.unwrap();
    let error = mover(client.clone()).start(&order(&before, &fresh()[..1]), &These(vec![])).await.unwrap_err();
    assert!(matches!(error, MoveError::Refused { step: "release", untouched: true, .. }), "{error:?}");
    assert!(error.to_string().contains("no aliases here"), "{error}");
    assert_eq!(again(&client, &before).await, before);
    plane.kubectl(&["delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", &namespace]).await.ok();
}

#[tokio::test]
async fn service_too_large_to_record_is_not_moved() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("too-large").await;
    // The API server accepts at most 262144 bytes of annotations.
    let annotations = json!({"annotations": {"example.com/filling": "x".repeat(262_100)}});
    let text = manifest("web", &namespace, annotations, json!({"ports": [{"port": 80}]})).to_string();
    plane.kubectl_with(&["create", "-f", "-"], &text).await.ok();
    let before = stored(&client, &namespace, "web").await.unwrap();
    let outcome = mover(client.clone()).start(&order(&before, &fresh()[..1]), &These(vec![])).await.unwrap();
    assert!(matches!(outcome, Outcome::Unmoved(Unmoved::TooLarge { bytes: 262_144.. })), "{outcome:?}");
    assert_eq!(again(&client, &before).await, before);
}

#[tokio::test]
async fn api_server_faults_are_retried() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("faults").await;
    let proxy = Proxy::start(plane).await;
    let answer = |code, reason| Fault::Answer(code, reason, "a fault of the test".to_owned());
    let faults = [
        ("away", answer(503, "ServiceUnavailable")),
        ("broken", answer(500, "InternalError")),
        ("busy", answer(429, "TooManyRequests")),
        ("conflict", answer(409, "Conflict")),
        ("cut-before", Fault::CutBefore),
        ("cut-after", Fault::CutAfter),
    ];
    let [to, _] = fresh();
    for at in ["try", "release", "place", "status", "forget"] {
        for (fault, what) in &faults {
            let name = format!("{fault}-{at}");
            create(&client, &namespace, &name, json!({"type": "LoadBalancer", "ports": [{"port": 80}]})).await;
            let status = json!({"status": {"loadBalancer": {"ingress": [{"hostname": "example.com"}]}}});
            let before = send(&client, Method::PATCH, &format!("{}/status", path(&namespace, &name)), Some(&status))
                .await
                .unwrap();
            let gate = proxy.on_nth(0, 2, is_step(&namespace, &name, at), what.clone());
            let outcome = mover(proxy.client()).start(&order(&before, &[to]), &These(vec![])).await;
            assert_eq!(outcome.unwrap(), moved(&addresses(&before), &[to]), "{name}");
            assert!(gate.count() > 0, "{name}: the fault did not occur");
            assert_eq!(but_addresses(&again(&client, &before).await), but_addresses(&before), "{name}");
            delete(&client, &namespace, &name).await;
        }
    }
}

#[tokio::test]
async fn forbidden_target_keeps_the_old_address() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("deny").await;
    let proxy = Proxy::start(plane).await;
    let before = create(&client, &namespace, "web", json!({"ports": [{"port": 80}]})).await;
    proxy.on(is_step(&namespace, "web", "place"), Fault::Answer(403, "Forbidden", "not this one".to_owned()));
    let outcome = mover(proxy.client()).start(&order(&before, &fresh()[..1]), &These(vec![])).await.unwrap();
    assert!(matches!(&outcome, Outcome::Kept { notes, .. } if notes.len() == 1), "{outcome}");
    let after = again(&client, &before).await;
    assert_eq!((addresses(&after), but_addresses(&after)), (addresses(&before), but_addresses(&before)));
    let steps: Vec<_> = proxy.writes().iter().filter_map(step).collect();
    assert_eq!(steps, ["try", "release", "place", "place", "forget"]);
}

/// The mover writes no address, spec or status because of the contents of a Service. That includes a journal in the
/// annotation, where earlier versions kept it.
#[tokio::test]
async fn forged_journal_is_ignored() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("forged").await;
    let [forged, _] = fresh();
    let journal = |changes: Value| {
        let mut journal = json!({"phase": "released", "way": "externalName", "from": ["172.21.0.250"], "to": [forged],
            "spec": {"ports": [{"port": 80}]}, "managedFields": []});
        json_patch::merge(&mut journal, &changes);
        journal.to_string()
    };
    let ingress = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.66"}]}});
    let owners = json!([{"manager": "evil", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:type": {}}}}]);
    let ports = json!([{"port": 80}]);
    let cluster_ip = || json!({"ports": ports});
    let half_moved = || json!({"type": "ExternalName", "externalName": MOVING_NAME, "ports": ports});
    let load_balancer = || json!({"type": "LoadBalancer", "loadBalancerClass": "mallory/none", "ports": ports});
    struct Row {
        name: &'static str,
        text: String,
    }
    let rows = [
        Row { name: "empty", text: String::new() },
        Row { name: "rubbish", text: "{".to_owned() },
        Row { name: "null", text: "null".to_owned() },
        Row { name: "no-address", text: journal(json!({"to": ["x"]})) },
        Row { name: "three", text: journal(json!({"from": ["172.21.0.7", "172.21.0.8"]})) },
        Row { name: "phase", text: journal(json!({"phase": "landed"})) },
        Row { name: "spec-type", text: journal(json!({"spec": "x"})) },
        Row { name: "released", text: journal(json!({})) },
        Row { name: "placed", text: journal(json!({"phase": "placed"})) },
        Row { name: "owners", text: journal(json!({"phase": "placed", "managedFields": owners})) },
        Row { name: "status", text: journal(json!({"phase": "placed", "loadBalancer": ingress["loadBalancer"]})) },
        Row { name: "foreign-from", text: journal(json!({"from": ["172.21.1.77"], "to": []})) },
        Row { name: "external", text: journal(json!({"spec": {"externalIPs": ["192.0.2.66"]}})) },
        Row { name: "port", text: journal(json!({"spec": {"ports": [{"port": 99_999}]}})) },
        Row { name: "marker", text: json!({"from": ["172.21.0.250"], "to": [forged]}).to_string() },
    ];
    let specs = [("at-home", cluster_ip()), ("half-moved", half_moved()), ("load-balancer", load_balancer())];
    for Row { name, text } in rows {
        for (state, spec) in &specs {
            let name = format!("{name}-{state}");
            create(&client, &namespace, &name, spec.clone()).await;
            let annotations = json!({"metadata": {"annotations": {MOVING_ANNOTATION: text}}});
            let before = patch(&client, &namespace, &name, annotations).await;
            let ordered = mover(client.clone()).start(&order(&before, &[forged]), &These(vec![vec![forged]])).await;
            assert_eq!(ordered.unwrap(), Outcome::Unmoved(Unmoved::NotRecorded), "{name}");
            assert_eq!(again(&client, &before).await, before, "{name}");
            assert!(!is_recorded(&client, &before).await, "{name}");
            delete(&client, &namespace, &name).await;
        }
    }
}

/// A record belongs to one Service and is deleted at the end of the move, so it can't be replayed.
#[tokio::test]
async fn record_is_deleted_when_its_move_ends() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("replayed").await;
    let [to, _] = fresh();
    let before = create(&client, &namespace, "web", json!({"ports": [{"port": 80}]})).await;
    let proxy = Proxy::start(plane).await;
    let gate = proxy.on(is_step(&namespace, "web", "place"), Fault::PauseBefore);
    let (moving, order) = (mover(proxy.client()), order(&before, &[to]));
    let targets = These(vec![]);
    let watch = async {
        gate.arrived().await;
        let recorded = is_recorded(&client, &before).await;
        let released = again(&client, &before).await;
        gate.release();
        (recorded, released)
    };
    let (outcome, (recorded, released)) = tokio::join!(moving.start(&order, &targets), watch);
    assert_eq!(outcome.unwrap(), moved(&addresses(&before), &[to]));
    assert!(recorded, "while the Service has no address");
    assert!(!is_recorded(&client, &before).await, "afterwards");
    // The author of the Service restores its state from the middle of the move.
    let marker = &released["metadata"]["annotations"];
    let replay =
        json!({"metadata": {"annotations": marker}, "spec": {"type": "ExternalName", "externalName": MOVING_NAME}});
    let replayed = patch(&client, &namespace, "web", replay).await;
    let outcome = mover(client.clone()).start(&order, &targets).await.unwrap();
    assert_eq!((outcome, again(&client, &before).await), (Outcome::Unmoved(Unmoved::NotRecorded), replayed));
}

#[tokio::test]
async fn address_set_by_hand_differs_from_an_allocated_one() {
    let (plane, client) = (plane(), plane().client());
    let namespace = plane.namespace("by-hand").await;
    let [address, _] = fresh();
    let ports = json!([{"port": 80}]);
    let picked = create(&client, &namespace, "picked", json!({"ports": ports})).await;
    let set = create(&client, &namespace, "set", json!({"clusterIP": address, "ports": ports})).await;
    let mut unknown = picked.clone();
    unknown["metadata"].as_object_mut().unwrap().remove("managedFields");
    assert_eq!([set_by_hand(&picked), set_by_hand(&set), set_by_hand(&unknown)], [false, true, true]);
    let set_moved = move_to(&client, &set, &fresh()[..1]).await;
    assert!(set_by_hand(&set_moved), "who owned the address owns it still");
}
