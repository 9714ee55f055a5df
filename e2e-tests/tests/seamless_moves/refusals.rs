//! What prevents or disturbs a seamless move is reported, and no other Service is changed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::{Method, Request};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::support::{SEAMLESS, Stage};
use crate::support::command::{self, Ended};
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Gate, Proxy, Seen};
use crate::support::move_helpers::{addresses, allocated, but_addresses, deep_fields, path, send, with_managed_fields};

/// Creates a Service.
async fn create(stage: &Stage, name: &str, spec: Value) -> Value {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    let path = format!("/api/v1/namespaces/{}/services?fieldManager=author", stage.namespace);
    send(&stage.client, Method::POST, &path, Some(&service)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_shows_the_method_of_each_service_and_what_its_clients_notice() {
    let stage = Stage::new("method").await;
    stage.service("serves", json!({})).await;
    create(&stage, "idle", json!({"ports": [{"port": 80}], "selector": {"app": "idle"}})).await;
    let shown = stage.run(&["--seamless", "--dry-run"]).await;
    assert_eq!(shown.status, 0, "{}", shown.stderr);
    let [head, idle, of_idle, serves, of_serves, ..] = shown.stdout.lines().collect::<Vec<_>>()[..] else {
        panic!("{}", shown.stdout);
    };
    assert!(head.contains("METHOD"), "{head}");
    assert!(idle.contains(" plain ") && of_idle.contains("nothing: no endpoint is ready"), "{idle} {of_idle}");
    let notice = "both addresses answer until the grace period ends";
    assert!(serves.contains(" seamless ") && of_serves.contains(notice), "{serves} {of_serves}");
    assert_eq!(stage.left().await, [""; 0]);
}

/// Runs the command, which must fail with these texts, without a write that is not a dry run.
async fn is_refused(stage: &Stage, texts: &[&str]) {
    let before = stage.stored("web").await;
    let proxy = Proxy::start(&stage.plane).await;
    let refused = command::ended(stage.command_through(&proxy, &SEAMLESS)).await.refused();
    for expected in texts {
        assert!(refused.contains(expected), "no {expected}: {refused}");
    }
    let is_write = stage.is_write();
    let writes: Vec<Seen> = proxy.writes().into_iter().filter(|seen| is_write(seen) && !seen.is_dry_run()).collect();
    assert!(writes.is_empty(), "{writes:?}");
    assert_eq!(stage.stored("web").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_without_room_is_reported_before_anything_changes() {
    let stage = Stage::new("quota").await;
    stage.service("web", json!({})).await;
    let quotas = format!("/api/v1/namespaces/{}/resourcequotas", stage.namespace);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "services"},
        "spec": {"hard": {"services": "2"}}});
    send(&stage.client, Method::POST, &quotas, Some(&quota)).await.unwrap();
    eventually("the quota to be counted", async || {
        let quota = send(&stage.client, Method::GET, &format!("{quotas}/services"), None).await?;
        (quota["status"]["used"]["services"] == "1").then_some(())
    })
    .await;
    is_refused(&stage, &["ResourceQuota services"]).await;
}

/// Temporary Services do not have the labels of the Service, which other programs may select.
#[tokio::test(flavor = "multi_thread")]
async fn policy_that_requires_a_label_is_reported_before_anything_changes() {
    let stage = Stage::new("labels").await;
    stage.service("web", json!({})).await;
    let labels = json!({"metadata": {"labels": {"team": "blue"}}});
    send(&stage.client, Method::PATCH, &path(&stage.namespace, "web"), Some(&labels)).await.unwrap();
    let has_team = "has(object.metadata.labels) && 'team' in object.metadata.labels";
    stage.plane.allow_only(&stage.namespace, has_team, "a Service needs the label team").await;
    is_refused(&stage, &["a Service needs the label team", "exempt Services with this label"]).await;
}

/// A command that waits at this request, and the request.
async fn waits_at(stage: &Stage, proxy: &Proxy, matches: fn(&Seen) -> bool) -> (Gate, Seen, JoinHandle<Ended>) {
    let gate = proxy.on(matches, Fault::PauseBefore);
    let ended = tokio::spawn(command::ended(stage.command_through(proxy, &SEAMLESS)));
    gate.arrived().await;
    let seen = proxy.writes().into_iter().rfind(matches).expect("the request that waits");
    (gate, seen, ended)
}

fn creates_new(seen: &Seen) -> bool {
    seen.method == Method::POST
        && !seen.is_dry_run()
        && seen.body["metadata"]["labels"]["clusterip-policy/temporary"] == "new"
}

/// The write that gives `web` its new address.
fn assigns(seen: &Seen) -> bool {
    seen.sets_type("ClusterIP") && seen.path.ends_with("/services/web")
}

/// The write that gives `old` the old address.
fn takes_old(seen: &Seen) -> bool {
    seen.sets_type("ClusterIP") && seen.path.contains("/services/clusterip-old-")
}

#[tokio::test(flavor = "multi_thread")]
async fn service_of_a_user_with_the_name_of_a_temporary_service_is_not_touched() {
    let stage = Stage::new("foreign").await;
    let before = stage.service("web", json!({})).await;
    let proxy = Proxy::start(&stage.plane).await;
    let (gate, seen, ended) = waits_at(&stage, &proxy, creates_new).await;
    let name = seen.body["metadata"]["name"].as_str().unwrap();
    let foreign = create(&stage, name, json!({"ports": [{"port": 80}], "selector": {"app": "other"}})).await;
    gate.release();
    let output = ended.await.unwrap().refused();
    assert!(output.contains(name), "{output}");
    assert_eq!(stage.stored(name).await, foreign);
    let after = stage.stored("web").await;
    assert_eq!((addresses(&after), but_addresses(&after)), (addresses(&before), but_addresses(&before)));
    assert_eq!(stage.left().await, [""; 0]);
}

/// Runs commands until nothing is left of the move of `web`, and returns `web`.
async fn ended_move(stage: &Stage, ended: JoinHandle<Ended>) -> Value {
    ended.await.unwrap();
    stage.run_until_nothing_is_left(&SEAMLESS).await;
    stage.stored("web").await
}

#[tokio::test(flavor = "multi_thread")]
async fn address_that_another_service_takes_meanwhile_stays_with_that_service() {
    struct Case {
        name: &'static str,
        waits: fn(&Seen) -> bool,
        /// Whether the Service moves nevertheless.
        moves: bool,
    }
    let cases = [
        Case { name: "taken-before-the-move", waits: creates_new, moves: true },
        Case { name: "taken-between-the-swaps", waits: assigns, moves: false },
        Case { name: "taken-old", waits: takes_old, moves: true },
    ];
    let ends = cases.map(async |Case { name, waits, moves }| {
        let stage = Stage::new(name).await;
        let before = stage.service("web", json!({})).await;
        let proxy = Proxy::start(&stage.plane).await;
        let (gate, seen, ended) = waits_at(&stage, &proxy, waits).await;
        let taken = seen.body["spec"]["clusterIP"].clone();
        let other = create(&stage, "other", json!({"clusterIP": taken, "ports": [{"port": 80}]})).await;
        gate.release();
        let after = ended_move(&stage, ended).await;
        let now = addresses(&after);
        let has_moved = now.iter().all(|address| stage.is_in_pool(address)) && !now.is_empty();
        assert!(has_moved || now == addresses(&before) && !moves, "{name}: {after}");
        assert_ne!(now, addresses(&other), "{name}");
        assert_eq!(but_addresses(&after), but_addresses(&before), "{name}");
        assert_eq!(stage.stored("other").await, other, "{name}");
    });
    futures::future::join_all(ends).await;
}

/// Up to Kubernetes 1.33, the API server may refuse an address that nothing uses.
#[tokio::test(flavor = "multi_thread")]
async fn new_address_that_is_refused_is_replaced() {
    const REASON: &str = "Service is invalid: failed to allocate IP 172.21.0.1: provided IP is already allocated";
    struct Case {
        name: &'static str,
        refused: usize,
        /// The number of addresses that are tried.
        tried: usize,
        moves: bool,
    }
    let cases = [
        Case { name: "refused-once", refused: 1, tried: 2, moves: true },
        Case { name: "refused-four-times", refused: 4, tried: 5, moves: true },
        Case { name: "refused-always", refused: usize::MAX, tried: 5, moves: false },
    ];
    let ends = cases.map(async |Case { name, refused, tried, moves }| {
        let stage = Stage::new(name).await;
        let before = stage.service("web", json!({})).await;
        let proxy = Proxy::start(&stage.plane).await;
        proxy.on_nth(0, refused, creates_new, Fault::Answer(422, "Invalid", REASON.to_owned()));
        let ended = command::ended(stage.command_through(&proxy, &SEAMLESS)).await;
        let creates = proxy.writes().into_iter().filter(creates_new);
        let creates: Vec<IpAddr> = creates.flat_map(|seen| addresses(&seen.body)).collect();
        let distinct: BTreeSet<&IpAddr> = creates.iter().collect();
        assert_eq!((creates.len(), distinct.len()), (tried, tried), "{name}: {creates:?}");
        let after = stage.stored("web").await;
        let expected = if moves { creates[tried - 1..].to_vec() } else { addresses(&before) };
        assert_eq!((addresses(&after), but_addresses(&after)), (expected, but_addresses(&before)), "{name}");
        assert_eq!(ended.status, i32::from(!moves), "{name}: {}", ended.stderr);
        for address in creates.iter().take(tried - usize::from(moves)) {
            let told = format!("{address} is not available: {REASON}");
            assert!(ended.stderr.contains(&told), "{name}: no {told}: {}", ended.stderr);
        }
        assert_eq!(stage.left().await, [""; 0], "{name}");
    });
    futures::future::join_all(ends).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizer_of_a_temporary_service_does_not_keep_the_command_running() {
    let stage = Stage::new("finalizer").await;
    let before = stage.service("web", json!({})).await;
    let proxy = Proxy::start(&stage.plane).await;
    let (gate, seen, ended) = waits_at(&stage, &proxy, takes_old).await;
    let name = seen.body["metadata"]["name"].as_str().unwrap();
    let finalizers = async |finalizers: Value| {
        let change = json!({"metadata": {"finalizers": finalizers}});
        send(&stage.client, Method::PATCH, &path(&stage.namespace, name), Some(&change)).await.unwrap();
    };
    finalizers(json!(["example.com/keep"])).await;
    gate.release();
    let output = ended.await.unwrap().refused();
    assert!(output.contains("remove the finalizer"), "{output}");
    finalizers(Value::Null).await;
    let after = stage.stored("web").await;
    assert!(addresses(&after).iter().all(|address| stage.is_in_pool(address)), "{after}");
    assert_eq!(but_addresses(&after), but_addresses(&before));
}

/// The API server stores managed fields that are nested so deep that most readers of JSON refuse them.
#[tokio::test(flavor = "multi_thread")]
async fn service_that_its_author_makes_hard_to_read_during_its_move_keeps_no_temporary_service() {
    type Matches = fn(&Seen) -> bool;
    let cases =
        [("deep-new", creates_new as Matches, false), ("deep-old", takes_old, true), ("deep-end", assigns, true)];
    let ends = cases.map(async |(name, matches, moves)| {
        let stage = Stage::new(name).await;
        stage.service("web", json!({})).await;
        let proxy = Proxy::start(&stage.plane).await;
        let (gate, _, ended) = waits_at(&stage, &proxy, matches).await;
        let body = with_managed_fields(&stage.stored("web").await, &deep_fields());
        let request = Request::put(path(&stage.namespace, "web")).header("content-type", "application/json");
        let answer = stage.client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200, "{name}");
        gate.release();
        let errors = ended.await.unwrap().stderr;
        assert_eq!(stage.left().await, [""; 0], "{name}: {errors}");
        if !stage.plane.tells_addresses() {
            return stage.plane.does_not_apply("IPAddress shows the address of a Service that can't be read");
        }
        // The API server deletes the IPAddress of an address after the update that gives the address up.
        let (address, service) = eventually("one address", async || {
            <[_; 1]>::try_from(allocated(&stage.client, &stage.namespace).await).ok().map(|[only]| only)
        })
        .await;
        assert_eq!((service.as_str(), stage.is_in_pool(&address)), ("web", moves), "{name}: {address} {errors}");
    });
    futures::future::join_all(ends).await;
}
