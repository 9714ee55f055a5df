//! The controller of `clusterip serve`: which Services it moves, which it only reports, and which it leaves alone.

use axum::http::Method;
use clusterip::controller::requests::{self, Request};
use clusterip_core::service::MOVING_ANNOTATION;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all};
use serde_json::{Value, json};

use crate::support::cluster::{Cluster, Place, metrics, pool_of};
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{addresses, but_addresses, is_step, path, send, stored};

const OS: &str = "clusterip-policy/os";
const MOVE: &str = "clusterip-policy/move";

const MOVED: &str = "AddressMoved: moved from linux to windows: it lies in pool linux, and belongs to pool windows: kubernetes.io/os=windows (Deployment web)";
const REACHABLE: &str = "AddressMisplaced: it lies in pool linux, and belongs to pool windows: \
                         kubernetes.io/os=windows (Deployment web); it stays: 1 ready endpoints can be reached at its \
                         present address";

const BY_HAND: &str = "AddressMisplaced: it lies in pool linux, and belongs to pool windows: kubernetes.io/os=windows \
                       (Deployment web); it stays: its address was set by hand, as `metadata.managedFields` shows";
const LOAD_BALANCER: &str = "AddressMisplaced: it lies in pool linux, and belongs to pool windows: \
                             kubernetes.io/os=windows (Deployment web); it stays: type LoadBalancer: a cloud provider \
                             might remove its load balancer";

/// A namespace, the steps in it, and the expected outcome.
struct Row {
    name: &'static str,
    happens: Box<dyn FnOnce(Place) -> LocalBoxFuture<'static, ()>>,
    expected: &'static [&'static str],
}

fn row(name: &'static str, happens: impl AsyncFnOnce(&Place) + 'static, expected: &'static [&'static str]) -> Row {
    let happens = move |place: Place| async move { happens(&place).await }.boxed_local();
    Row { name, happens: Box::new(happens), expected }
}

/// Creates a Service in the Linux pool, and then changes its Deployment to Windows.
async fn turned_to_windows(place: &Place, metadata: Value, spec: Value) {
    place.workload("linux").await;
    place.service(metadata, spec).await;
    place.workload("windows").await;
}

fn rows() -> Vec<Row> {
    vec![
        row("no-endpoints", async |place| turned_to_windows(place, json!({}), json!({})).await, &["windows", MOVED]),
        row(
            "unreachable",
            async |place| {
                place.ready_on("Windows").await;
                turned_to_windows(place, json!({}), json!({})).await;
            },
            &["windows", MOVED],
        ),
        row(
            "not-ready",
            async |place| {
                let node = place.node(json!({"kubernetes.io/os": "linux"})).await;
                place.endpoint(Some(&node), false).await;
                turned_to_windows(place, json!({}), json!({})).await;
            },
            &["windows", MOVED],
        ),
        row(
            "reachable",
            async |place| {
                place.ready_on("linux").await;
                turned_to_windows(place, json!({}), json!({})).await;
            },
            &["linux", REACHABLE],
        ),
        row(
            "reachable-no-more",
            async |place| {
                place.ready_on("linux").await;
                turned_to_windows(place, json!({}), json!({})).await;
                place.comes_to(&["linux", REACHABLE]).await;
                place.endpoint(Some(&format!("{}-node", place.namespace)), false).await;
            },
            &["windows", REACHABLE, MOVED],
        ),
        row(
            "unknown-node",
            async |place| {
                place.endpoint(Some("nowhere"), true).await;
                turned_to_windows(place, json!({}), json!({})).await;
            },
            &["linux", REACHABLE],
        ),
        row(
            "hand-made-endpoints",
            async |place| {
                place.endpoint(None, true).await;
                place.service(json!({}), json!({"selector": null})).await;
                place.annotate(OS, "windows").await;
            },
            &[
                "linux",
                "AddressMisplaced: it lies in pool linux, and belongs to pool windows: kubernetes.io/os=windows \
                 (annotation clusterip-policy/os); it stays: 1 ready endpoints can be reached at its present address",
            ],
        ),
        row(
            "hand-made-endpoints-not-ready",
            async |place| {
                place.endpoint(None, false).await;
                place.service(json!({}), json!({"selector": null})).await;
                place.annotate(OS, "windows").await;
            },
            &[
                "windows",
                "AddressMoved: moved from linux to windows: it lies in pool linux, and belongs to pool windows: kubernetes.io/os=windows (annotation clusterip-policy/os)",
            ],
        ),
        row(
            "team-with-endpoints",
            async |place| {
                place.ready_on("linux").await;
                place.service(json!({}), json!({})).await;
                place
                    .apply(
                        json!({"kind": "Namespace", "metadata": {"name": place.namespace, "labels": {"team": "blue"}}}),
                    )
                    .await;
            },
            &[
                "linux",
                "AddressMisplaced: it lies in pool linux, and belongs to pool labelled: labels of namespace \
                 team-with-endpoints; it stays: 1 ready endpoints can be reached at its present address",
            ],
        ),
        row(
            "team",
            async |place| {
                place.service(json!({}), json!({})).await;
                place
                    .apply(
                        json!({"kind": "Namespace", "metadata": {"name": place.namespace, "labels": {"team": "blue"}}}),
                    )
                    .await;
            },
            &[
                "labelled",
                "AddressMoved: moved from linux to labelled: it lies in pool linux, and belongs to pool labelled: labels of namespace team",
            ],
        ),
        row(
            "labels-of-a-node",
            async |place| {
                let node = place.node(json!({"zone": "west"})).await;
                place.pod(&node).await;
                place.service(json!({}), json!({})).await;
                place.node(json!({"zone": "east"})).await;
            },
            &[
                "east",
                "AddressMoved: moved from linux to east: it lies in pool linux, and belongs to pool east: kubernetes.io/os=linux, zone=east (assumption, Pod web-labels-of-a-node-node on Node labels-of-a-node-node)",
            ],
        ),
        row(
            "runtime-class",
            async |place| {
                place.deployment("web", json!({"runtimeClassName": "hyperv"})).await;
                place.service(json!({}), json!({})).await;
                place
                    .apply(json!({"kind": "RuntimeClass", "metadata": {"name": "hyperv"}, "handler": "runhcs",
                        "scheduling": {"nodeSelector": {"kubernetes.io/os": "windows"}}}))
                    .await;
            },
            &[
                "windows",
                "AddressMoved: moved from linux to windows: it lies in pool linux, and belongs to pool windows: kubernetes.io/os=windows (Deployment web with RuntimeClass hyperv)",
            ],
        ),
        row(
            "workload-deleted-and-created",
            async |place| {
                place.workload("windows").await;
                place.webhook_knows("windows").await;
                place.service(json!({}), json!({})).await;
                place.delete_workload().await;
                place.all_was_looked_at("first").await;
                assert_eq!(place.outcome().await, ["windows"]);
                place.workload("windows").await;
            },
            &["windows"],
        ),
        row(
            "by-hand",
            async |place| turned_to_windows(place, json!({}), json!({"clusterIP": "172.21.0.17"})).await,
            &["linux", BY_HAND],
        ),
        row(
            "never",
            async |place| turned_to_windows(place, json!({"annotations": {MOVE: "never"}}), json!({})).await,
            &[
                "linux, move: never",
                "AddressMisplaced: it lies in pool linux, and belongs to pool windows: kubernetes.io/os=windows (Deployment web); it stays: annotation clusterip-policy/move: never",
            ],
        ),
        row(
            "load-balancer",
            async |place| turned_to_windows(place, json!({}), json!({"type": "LoadBalancer"})).await,
            &["linux", LOAD_BALANCER],
        ),
        row(
            "exempt",
            async |place| {
                place.workload("windows").await;
                place.service_at("web", [172, 21, 0, 19], json!({}), json!({})).await;
            },
            &["linux"],
        ),
        row(
            "headless",
            async |place| turned_to_windows(place, json!({}), json!({"clusterIP": "None"})).await,
            &["None"],
        ),
        row(
            "being-deleted",
            async |place| {
                place.workload("linux").await;
                place.service(json!({"finalizers": ["example.com/keep"]}), json!({})).await;
                send(&place.client, Method::DELETE, &path(&place.namespace, "web"), None).await;
                place.workload("windows").await;
            },
            &["linux"],
        ),
        row(
            "now",
            async |place| {
                place.ready_on("linux").await;
                turned_to_windows(place, json!({}), json!({})).await;
                place.comes_to(&["linux", REACHABLE]).await;
                place.annotate(MOVE, "now").await;
            },
            &["windows", REACHABLE, MOVED],
        ),
        row(
            "now-load-balancer",
            async |place| {
                turned_to_windows(place, json!({}), json!({"type": "LoadBalancer"})).await;
                place.comes_to(&["linux", LOAD_BALANCER]).await;
                place.annotate(MOVE, "now").await;
            },
            // The author of a Service can't disable the protection of load balancers.
            &["linux", LOAD_BALANCER, LOAD_BALANCER],
        ),
        row(
            "now-by-hand",
            async |place| {
                place.ready_on("linux").await;
                turned_to_windows(place, json!({}), json!({"clusterIP": "172.21.0.18"})).await;
                place.comes_to(&["linux", BY_HAND]).await;
                place.annotate(MOVE, "now").await;
            },
            &["linux", BY_HAND, BY_HAND],
        ),
        row(
            "now-in-place",
            async |place| {
                place.service(json!({}), json!({})).await;
                place.annotate(MOVE, "now").await;
            },
            &["linux"],
        ),
    ]
}

#[tokio::test]
async fn misplaced_services_are_moved_or_reported() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(cluster.plane).await;
    let more = json!({"explicit": "deny", "exemptNamespaces": ["kube-system", "exempt"]});
    let host = cluster.host(&proxy, &more).registered().start().await;
    cluster.webhook_in_force().await;

    // Then `kubernetes` is in the wrong pool, which must not be reported.
    let default = Place { client: cluster.client.clone(), namespace: "default".to_owned() };
    let annotated = |os: Value| json!({"kind": "Namespace", "metadata": {"name": "default", "annotations": {OS: os}}});
    default.apply(annotated("windows".into())).await;

    let rows = join_all(rows().into_iter().map(async |row| {
        let place = cluster.place(row.name).await;
        assert_eq!(place.namespace, row.name, "a name of its own");
        (row.happens)(place.clone()).await;
        place.comes_to(row.expected).await;
        (row.name, place, row.expected)
    }))
    .await;

    // The controller has processed all Services by now, so those that must stay have stayed.
    let last = cluster.place("last").await;
    last.all_was_looked_at("first").await;
    last.all_was_looked_at("second").await;
    let (mut moves, mut wrong) = (0, Vec::new());
    for (name, place, expected) in rows {
        moves += expected.iter().filter(|line| line.starts_with("AddressMoved")).count();
        let seen = place.outcome().await;
        if seen != expected {
            wrong.push((name, seen));
        }
    }
    assert_eq!(wrong, []);
    assert_eq!(default.told("kubernetes").await, [""; 0]);
    default.apply(annotated(Value::Null)).await;
    let misplaced = [("by_hand", 2), ("load_balancer", 2), ("never", 1), ("ready_endpoints", 4)];
    let misplaced = misplaced.map(|(reason, count)| format!("_misplaced_services{{reason=\"{reason}\"}} {count}"));
    // The Services of the three calls of `all_was_looked_at` have moved too.
    let moves = format!("_moves_total{{result=\"moved\"}} {}", moves + 3);
    let expected: Vec<String> = misplaced.into_iter().chain([moves]).map(|line| format!("clusterip{line}")).collect();
    let mut counted = Vec::new();
    eventually(&format!("{expected:#?}"), async || {
        counted = metrics(&host, "clusterip_misplaced_services").await;
        counted.sort();
        counted.extend(metrics(&host, "clusterip_moves_total").await);
        (counted == expected).then_some(())
    })
    .await;
    let log = host.log().join("\n");
    assert!(log.contains(r#"misplaced namespace="team-with-endpoints" name="web" reason="ready_endpoints""#), "{log}");
}

#[tokio::test]
async fn full_pool_is_reported_until_an_address_is_free() {
    const FULL: &str =
        "AddressMisplaced: it lies in pool linux, and belongs to pool tiny: labels of the Service; it stays: ";
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(cluster.plane).await;
    let place = cluster.place("full").await;
    for last in 0..4 {
        let spec = json!({"clusterIP": format!("172.21.4.{last}")});
        place.service_named(&format!("tiny-{last}"), json!({"labels": {"size": "tiny"}}), spec).await;
    }
    place.service_at("web", [172, 21, 0, 60], json!({"labels": {"size": "tiny"}}), json!({})).await;
    let _host = cluster.host(&proxy, &json!({})).arg("--no-webhook").start().await;
    let told = eventually("the full pool to be reported", async || place.told("web").await.into_iter().next()).await;
    assert!(told.starts_with(FULL) && told.contains("full"), "{told}");
    // A requested move is also reported, once.
    place.annotate(MOVE, "now").await;
    place.comes_to(&["linux", &told, &told]).await;
    send(&place.client, Method::DELETE, &path(&place.namespace, "tiny-2"), None).await;
    let moved = "AddressMoved: moved from linux to tiny: it lies in pool linux, and belongs to pool tiny: labels of the Service";
    place.comes_to(&["tiny", &told, &told, moved]).await;
    assert_eq!(place.web().await["spec"]["clusterIP"], "172.21.4.2");
}

/// The outcome for a Service after a start with the default arguments, and after one that moves as much as possible.
struct Away {
    name: &'static str,
    address: [u8; 4],
    metadata: Value,
    spec: Value,
    workload: Option<&'static str>,
    ready_on: Option<&'static str>,
    expected: [&'static [&'static str]; 2],
}

#[tokio::test]
async fn services_created_without_the_webhook_are_moved() {
    const HOME: &str = "AddressMoved: moved from windows to linux: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux (Deployment web)";
    const READY: &str = "AddressMisplaced: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux \
                         (Deployment web); it stays: 1 ready endpoints can be reached at its present address";
    let plain = || Away {
        name: "",
        address: [172, 21, 1, 1],
        metadata: json!({}),
        spec: json!({}),
        workload: Some("linux"),
        ready_on: None,
        expected: [&[], &[]],
    };
    const IN_NO_POOL: &str = "AddressMoved: moved from no pool to linux: it lies in no pool, and belongs to pool linux: kubernetes.io/os=linux (assumption)";
    const BY_WORKLOAD: &str = "AddressMoved: moved from no pool to windows: it lies in no pool, and belongs to pool windows: kubernetes.io/os=windows (Deployment web)";
    let rows = [
        Away { name: "wrong-pool", expected: [&["linux", HOME], &["linux", HOME]], ..plain() },
        Away {
            name: "assumed-in-no-pool",
            address: [172, 21, 77, 1],
            workload: None,
            expected: [&["linux", IN_NO_POOL], &["linux", IN_NO_POOL]],
            ..plain()
        },
        Away {
            name: "in-no-pool",
            address: [172, 21, 255, 254],
            workload: Some("windows"),
            // No client reaches it there anyway.
            ready_on: Some("windows"),
            expected: [&["windows", BY_WORKLOAD], &["windows", BY_WORKLOAD]],
            ..plain()
        },
        Away {
            name: "assumed-in-a-pool",
            address: [172, 21, 1, 2],
            workload: None,
            expected: [&["windows"], &["windows"]],
            ..plain()
        },
        Away {
            name: "ready-endpoints",
            address: [172, 21, 1, 3],
            ready_on: Some("windows"),
            expected: [&["windows", READY], &["linux", READY, HOME]],
            ..plain()
        },
        Away {
            name: "named",
            address: [172, 21, 0, 70],
            ready_on: Some("linux"),
            expected: [
                &[
                    "linux",
                    "AddressMisplaced: it lies in pool linux, and belongs to pool named: namespace named; it stays: 1 \
                     ready endpoints can be reached at its present address",
                ],
                &[
                    "named",
                    "AddressMisplaced: it lies in pool linux, and belongs to pool named: namespace named; it stays: 1 \
                     ready endpoints can be reached at its present address",
                    "AddressMoved: moved from linux to named: it lies in pool linux, and belongs to pool named: namespace named",
                ],
            ],
            ..plain()
        },
        Away {
            name: "balanced",
            address: [172, 21, 1, 4],
            spec: json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"]}),
            expected: [
                &[
                    "windows",
                    "AddressMisplaced: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux \
                     (Deployment web); it stays: type LoadBalancer: a cloud provider might remove its load balancer",
                ],
                &[
                    "linux",
                    "AddressMisplaced: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux \
                     (Deployment web); it stays: type LoadBalancer: a cloud provider might remove its load balancer",
                    HOME,
                ],
            ],
            ..plain()
        },
        Away { name: "at-home", address: [172, 21, 0, 71], expected: [&["linux"], &["linux"]], ..plain() },
    ];
    let cluster = Cluster::alone().await;
    let mut places = Vec::new();
    for row in rows {
        let place = cluster.place(row.name).await;
        if let Some(os) = row.workload {
            place.workload(os).await;
        }
        if let Some(os) = row.ready_on {
            place.ready_on(os).await;
        }
        let mut before = place.service_at("web", row.address, row.metadata, row.spec.clone()).await;
        if row.spec["type"] == "LoadBalancer" {
            let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10", "ipMode": "VIP"}]}}});
            let path = format!("{}/status?fieldManager=cloud", path(&place.namespace, "web"));
            before = send(&place.client, Method::PATCH, &path, Some(&status)).await.unwrap();
        }
        places.push((row.name, place, before, row.expected));
    }
    // Services whose addresses the API server picks.
    let picked = cluster.place("picked").await;
    for number in 0..10 {
        let spec = json!({"selector": {"app": "nobody"}});
        picked.service_named(&format!("web-{number}"), json!({"annotations": {OS: "windows"}}), spec).await;
    }
    let by_hand = cluster.place("hand-set").await;
    by_hand.workload("linux").await;
    by_hand.service(json!({}), json!({"clusterIP": "172.21.1.9"})).await;

    let proxy = Proxy::start(cluster.plane).await;
    for (start, more) in [&[][..], &["--move", "always", "--move-load-balancers"]].into_iter().enumerate() {
        let mut host = cluster.host(&proxy, &json!({})).arg("--no-webhook").args(more).start().await;
        join_all(places.iter().map(async |(_, place, _, expected)| place.comes_to(expected[start]).await)).await;
        cluster.place("last").await.all_was_looked_at("first").await;
        for (name, place, before, expected) in &places {
            assert_eq!(place.outcome().await, expected[start], "{name}");
            assert_eq!(but_addresses(&place.web().await), but_addresses(before), "{name}");
        }
        // A process repeats the Events of the process before, because it does not know them.
        let set = by_hand.outcome().await;
        assert_eq!((set[0].as_str(), set.len()), ("windows", 2 + start), "{set:?}");
        for number in 0..10 {
            let service = stored(&picked.client, &picked.namespace, &format!("web-{number}")).await.unwrap();
            assert_eq!(pool_of(addresses(&service)[0]), "windows");
        }
        assert_eq!(host.terminate().await, 0);
    }
}

/// Another Service takes the target address just before or while the moved Service has no address.
#[tokio::test]
async fn target_that_is_taken_during_the_move_is_replaced() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(cluster.plane).await;
    let _host = cluster.host(&proxy, &json!({})).arg("--no-webhook").start().await;
    let rows = ["release", "place"];
    for step in rows {
        let place = cluster.place(&format!("taken-before-{step}")).await;
        let name = place.namespace.clone();
        place.workload("linux").await;
        let gate = proxy.on(is_step(&name, "web", step), Fault::PauseBefore);
        place.service_at("web", [172, 21, 1, 20], json!({}), json!({})).await;
        gate.arrived().await;
        let writes = proxy.writes();
        let write = writes.iter().rev().find(|seen| is_step(&name, "web", step)(seen)).unwrap();
        let journal = write.body["metadata"]["annotations"][MOVING_ANNOTATION].as_str().unwrap();
        let target = serde_json::from_str::<Value>(journal).unwrap()["to"][0].clone();
        place.service_named("thief", json!({}), json!({"clusterIP": target})).await;
        gate.release();
        let told = eventually("the move to be told of", async || place.told("web").await.into_iter().next()).await;
        let begin = "AddressMoved: moved from windows to linux: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux (Deployment web); linux is not available: ";
        assert!(told.starts_with(begin) && told.contains("provided IP is already allocated"), "{step}: {told}");
        let web = place.web().await;
        assert_ne!(web["spec"]["clusterIP"], target, "{step}");
        place.comes_to(&["linux", &told]).await;
    }
}

/// A Service that the control plane calls is only moved if an administrator names it.
#[tokio::test]
async fn service_called_by_the_control_plane_is_moved_only_by_an_administrator() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(cluster.plane).await;
    let place = cluster.place("called").await;
    let name = place.namespace.clone();
    let client_config = json!({"service": {"namespace": name, "name": "web", "path": "/"}});
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "control-plane"},
        "webhooks": [{
            "name": "called.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": client_config, "failurePolicy": "Ignore",
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["limitranges"]}],
        }],
    });
    cluster.plane.apply(&configuration.to_string()).await;
    place.workload("linux").await;
    place.service_at("web", [172, 21, 1, 30], json!({}), json!({})).await;
    let _host = cluster.host(&proxy, &json!({})).arg("--no-webhook").start().await;
    // `told` leaves out the namespace.
    let told = "AddressMisplaced: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux (Deployment \
                web); it stays: called by ValidatingWebhookConfiguration control-plane: the API server could not call it \
                while it moves; `clusterip move --called-by-control-plane web` moves it";
    let first = eventually("it to be told", async || place.told("web").await.into_iter().next()).await;
    assert_eq!(first, told);
    let ask = async |control_plane: bool| {
        let uid = place.web().await["metadata"]["uid"].as_str().unwrap().to_owned();
        let request = Request { namespace: name.clone(), name: "web".to_owned(), uid, control_plane };
        requests::ask(&cluster.client, &cluster.namespace, &request).await.unwrap();
        eventually("the request to be dealt with", async || {
            (!requests::is_open(&cluster.client, &cluster.namespace, &request.uid).await.unwrap()).then_some(())
        })
        .await;
        pool_of(addresses(&place.web().await)[0])
    };
    place.annotate(MOVE, "now").await;
    assert_eq!(ask(false).await, "windows");
    assert_eq!(ask(true).await, "linux");
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/control-plane";
    let path = path.to_owned();
    send(&cluster.client, Method::DELETE, &path, None).await;
}
