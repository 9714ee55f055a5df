//! Other programs change a Service before or during its move, and their changes win.

use axum::http::Method;
use clusterip_core::annotations::{MOVING_ANNOTATION, MOVING_NAME};
use clusterip_moves::outcome::{Outcome, Unmoved};
use kube::Client;
use serde_json::{Value, json};

use super::support::{WHY, again, apply_server_side, disturbed, manifest, moved};
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{
    These, addresses, but_addresses, cached, create, delete, fresh, mover, order, patch, path, plane, send, stored,
};

#[tokio::test]
async fn service_is_read_again_only_if_it_has_changed() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("just-read").await;
    let proxy = Proxy::start(&plane).await;
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
        let outcome = moving.start(&order(&before, &[to]), Some(before.clone()), &These(vec![])).await.unwrap();
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
    let chosen = manifest("chosen", &namespace, json!({}), json!({"clusterIP": before["spec"]["clusterIP"]}));
    apply_server_side(&client, "kubectl", &chosen).await;
    let expected = again(&client, &before).await;
    let elsewhere = order(&before, &fresh()[..1]);
    let outcome = mover(client.clone()).start(&elsewhere, Some(before.clone()), &These(vec![])).await.unwrap();
    assert_eq!(
        (outcome, again(&client, &before).await),
        (Outcome::Unmoved(Unmoved::Unfit("its address was set by hand meanwhile")), expected)
    );
}

fn node_port() -> Value {
    json!({"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80}]})
}

/// The owners of the fields of a Service, without their times.
fn owners(service: &Value) -> Vec<Value> {
    let mut entries = service["metadata"]["managedFields"].as_array().unwrap().clone();
    // The map `annotations` belongs to the manager that wrote the first annotation, which was the mover.
    for annotations in entries.iter_mut().filter_map(|entry| entry.pointer_mut("/fieldsV1/f:metadata/f:annotations")) {
        annotations.as_object_mut().unwrap().remove(".");
    }
    let mut owners: Vec<Value> = entries.iter().map(|entry| json!([entry["manager"], entry["fieldsV1"]])).collect();
    owners.sort_by_key(Value::to_string);
    owners
}

#[tokio::test]
async fn concurrent_changes_of_others_win() {
    let plane = plane().await;
    let namespace = plane.namespace("others").await;
    let proxy = Proxy::start(&plane).await;
    changes_are_kept(&plane.client(), &namespace, &proxy).await;
    pointless_moves_end(&plane.client(), &namespace, &proxy).await;
}

/// Changes before or after a step of a move are in the moved Service, with their owners.
async fn changes_are_kept(client: &Client, namespace: &str, proxy: &Proxy) {
    let spec = node_port();
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
    for at in ["release", "assign", "cleanup"] {
        for Concurrent { name: row, change, expected } in &changes {
            let name = format!("{row}-{at}");
            let before = create(client, namespace, &name, spec.clone()).await;
            let [to, _] = fresh();
            let targets = [vec![to]];
            let changed = disturbed(proxy, &before, at, &targets, async || {
                let path = format!("{}?fieldManager=other", path(namespace, &name));
                let changed = send(client, Method::PATCH, &path, Some(change)).await.unwrap();
                // An API server whose cache lacks this change allocates an address for the next write, refuses the
                // write, and does not release the address.
                cached(client, &changed).await;
            });
            assert_eq!(changed.await.0, moved(&addresses(&before), &[to]), "{name}");
            let after = again(client, &before).await;

            // The same change to a Service that is not moved gives the same owners of fields.
            let twin = format!("{name}-twin");
            let unmoved = create(client, namespace, &twin, spec.clone()).await;
            let path = format!("{}?fieldManager=other", path(namespace, &twin));
            let unmoved_after = send(client, Method::PATCH, &path, Some(change)).await.unwrap();
            assert_eq!(owners(&after), owners(&unmoved_after), "{name}");
            let mut wanted = but_addresses(&before);
            json_patch::merge(&mut wanted, expected);
            let bare = |mut service: Value| {
                service["metadata"].as_object_mut().unwrap().remove("managedFields");
                service
            };
            assert_eq!(bare(but_addresses(&after)), bare(wanted), "{name}");
            delete(client, namespace, &name).await;
            delete(client, namespace, unmoved["metadata"]["name"].as_str().unwrap()).await;
        }
    }
}

/// Changes that make the move pointless end it, and leave no trace of it.
async fn pointless_moves_end(client: &Client, namespace: &str, proxy: &Proxy) {
    let spec = node_port();
    let annotations = json!({"annotations": {MOVING_ANNOTATION: null}});
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
        let before = create(client, namespace, name, spec.clone()).await;
        let [to, _] = fresh();
        let disturb = async || {
            let left = match change {
                Some(change) => Some(patch(client, namespace, name, change).await),
                None => {
                    delete(client, namespace, name).await;
                    if name == "recreated" { Some(create(client, namespace, name, spec.clone()).await) } else { None }
                }
            };
            // As in `changes_are_kept`.
            if let Some(left) = &left {
                cached(client, left).await;
            }
            left
        };
        let (outcome, left) = disturbed(proxy, &before, "assign", &[vec![to]], disturb).await;
        let after = stored(client, namespace, name).await;
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
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("ranges").await;
    let proxy = Proxy::start(&plane).await;
    let spec = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"], "ports": [{"port": 80}]});
    let before = create(&client, &namespace, "web", spec).await;
    let restore = async || patch(&client, &namespace, "web", json!({"spec": {"type": "LoadBalancer"}})).await;
    let (outcome, _) = disturbed(&proxy, &before, "assign", &[fresh()[..1].to_vec()], restore).await;
    assert!(matches!(outcome, Outcome::Overtaken { .. }), "{outcome:?}");
    assert_eq!(again(&client, &before).await["spec"]["loadBalancerSourceRanges"], json!(["10.0.0.0/8"]));
}
