//! Which misplaced Services the controller moves, and which it only reports.

use std::time::Duration;

use axum::http::Method;
use futures::FutureExt as _;
use futures::future::{LocalBoxFuture, join_all};
use serde_json::{Value, json};

use super::{MOVE, OS};
use crate::support::cluster::{Cluster, Place, metrics};
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy, Seen};
use crate::support::move_helpers::send;

const MOVED: &str = "AddressMoved: moved from linux to windows: it lies in pool linux, and belongs to pool windows: kubernetes.io/os=windows (Deployment web)";
const REACHABLE: &str = "AddressMisplaced: it lies in pool linux, and belongs to pool windows: \
                         kubernetes.io/os=windows (Deployment web); it stays: 1 ready endpoint can be reached at its \
                         present address; `clusterip move --seamless` moves it";
const OUTSIDE: &str = "AddressMisplaced: it lies in no pool, and belongs to pool linux: kubernetes.io/os=linux \
                       (Deployment web); it stays: 1 ready endpoint can be reached at its present address; \
                       `clusterip move --seamless` moves it";
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
    [endpoints(), changed_evidence(), protected_services(), requested_moves()].into_iter().flatten().collect()
}

/// Services whose endpoints clients can reach, and others. `stored_objects.rs` has the conditions of endpoints, and
/// `misplaced.rs` the labels of their Nodes.
fn endpoints() -> Vec<Row> {
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
            "not-ready-for-a-moment",
            async |place| {
                place.ready_on("linux").await;
                turned_to_windows(place, json!({}), json!({})).await;
                place.comes_to(&["linux", REACHABLE]).await;
                let node = format!("{}-node", place.namespace);
                place.endpoint(Some(&node), false).await;
                // The controller moves a Service that is not ready within a second.
                tokio::time::sleep(Duration::from_secs(5)).await;
                place.endpoint(Some(&node), true).await;
            },
            &["linux", REACHABLE],
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
                 (annotation clusterip-policy/os); it stays: 1 ready endpoint can be reached at its present address; \
                 `clusterip move --seamless` moves it",
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
                 team-with-endpoints; it stays: 1 ready endpoint can be reached at its present address; \
                 `clusterip move --seamless` moves it",
            ],
        ),
    ]
}

/// New labels of a Namespace. `affected.rs` has all other changes.
fn changed_evidence() -> Vec<Row> {
    vec![row(
        "team",
        async |place| {
            place.service(json!({}), json!({})).await;
            place
                .apply(json!({"kind": "Namespace", "metadata": {"name": place.namespace, "labels": {"team": "blue"}}}))
                .await;
        },
        &[
            "labelled",
            "AddressMoved: moved from linux to labelled: it lies in pool linux, and belongs to pool labelled: labels of namespace team",
        ],
    )]
}

/// Services that stay although they are misplaced, and Services that the controller ignores.
fn protected_services() -> Vec<Row> {
    vec![
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
    ]
}

/// The annotation of the author asks for a move.
fn requested_moves() -> Vec<Row> {
    vec![
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
    ]
}

#[tokio::test]
async fn misplaced_services_are_moved_or_reported() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(&cluster.plane).await;
    let more = json!({"explicit": "deny", "exemptNamespaces": ["kube-system", "exempt"]});
    let server = cluster.server(&proxy, &more).registered().start().await;
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
    assert_eq!(default.events("kubernetes").await, [""; 0]);
    default.apply(annotated(Value::Null)).await;
    let misplaced = [("by_hand", 2), ("load_balancer", 2), ("never", 1), ("ready_endpoints", 4)];
    let misplaced = misplaced.map(|(reason, count)| format!("_misplaced_services{{reason=\"{reason}\"}} {count}"));
    // The Services of the two calls of `all_was_looked_at` have moved too.
    let moves = format!("_moves_total{{result=\"moved\"}} {}", moves + 2);
    let expected: Vec<String> = misplaced.into_iter().chain([moves]).map(|line| format!("clusterip{line}")).collect();
    let mut counted = Vec::new();
    eventually(&format!("{expected:#?}"), async || {
        counted = metrics(&server, "clusterip_misplaced_services").await;
        counted.sort();
        counted.extend(metrics(&server, "clusterip_moves_total").await);
        (counted == expected).then_some(())
    })
    .await;
    let log = server.log().join("\n");
    assert!(log.contains(r#"misplaced namespace="team-with-endpoints" name="web" reason="ready_endpoints""#), "{log}");
}

/// The endpoints become ready after the controller has decided to move the Service, and before its first write.
#[tokio::test]
async fn service_that_becomes_ready_before_the_first_write_is_not_moved() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(&cluster.plane).await;
    let _server = cluster.server(&proxy, &json!({})).arg("--no-webhook").start().await;
    cluster.place("early-begins").await.all_was_looked_at("first").await;
    let place = cluster.place("early").await;
    place.workload("linux").await;
    let namespace = place.namespace.clone();
    let tries = move |seen: &Seen| {
        seen.method == Method::PUT && seen.is_dry_run() && seen.path.contains(&format!("/{namespace}/services/web"))
    };
    let gate = proxy.on(tries, Fault::PauseAfter);
    place.service_at("web", [172, 21, 77, 9], json!({}), json!({})).await;
    gate.arrived().await;
    place.ready_on("linux").await;
    gate.release();
    place.comes_to(&["no pool", OUTSIDE]).await;
    let path = format!("/apis/apps/v1/namespaces/{}/controllerrevisions", cluster.namespace);
    let records = send(&cluster.client, Method::GET, &path, None).await.unwrap();
    let records = records["items"].as_array().unwrap().iter();
    let records = records.filter(|record| record["metadata"]["labels"]["clusterip-policy/move"] == "record");
    assert_eq!(records.count(), 0, "a move that did not begin has no record");
}
