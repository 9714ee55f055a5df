//! `clusterip serve --seamless-moves`: it moves Services with ready endpoints, and the next leader finishes its moves.

use std::time::{Duration, Instant};

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{Stage, of_servers, temporary_of};
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Gate, Proxy, Seen};
use crate::support::move_helpers::{addresses, but_addresses, send};
use crate::support::serve_process::ServerBuilder;

/// A server that moves the Services with ready endpoints seamlessly.
pub fn server(stage: &Stage, proxy: &Proxy, grace_period: &str) -> ServerBuilder {
    builder(stage, proxy, &["--seamless-moves", "--grace-period", grace_period])
}

/// Runs a server before its pool has Services, so that its settings are not new for the next one.
pub async fn carry_out_settings(stage: &Stage, proxy: &Proxy) {
    let mut server = server(stage, proxy, "2").start().await;
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/clusterip-leader", stage.server);
    eventually("the record of the settings", async || {
        let lease = send(&stage.client, Method::GET, &lease, None).await?;
        lease["metadata"]["annotations"]["clusterip-policy/settings-hash"].as_str().map(drop)
    })
    .await;
    assert_eq!(server.terminate().await, 0);
}

/// A server without a webhook, with these arguments.
fn builder(stage: &Stage, proxy: &Proxy, args: &[&str]) -> ServerBuilder {
    let port = proxy.url().rsplit(':').next().unwrap();
    let file = format!("{port}.kubeconfig");
    let kubeconfig = stage.plane.write_kubeconfig(&file, proxy.url(), stage.plane.admin_token());
    let settings = std::fs::read_to_string(stage.settings()).unwrap();
    let builder = ServerBuilder::as_user(&kubeconfig).args(&["--no-webhook", "--namespace", &stage.server]);
    builder.args(args).settings(&settings)
}

/// Waits until these Services have moved and nothing is left of the moves, and compares the Services with those before.
async fn end(stage: &Stage, before: &[Value]) {
    eventually("the end of the moves", async || stage.left().await.is_empty().then_some(())).await;
    for before in before {
        let name = before["metadata"]["name"].as_str().unwrap();
        let after = stage.stored(name).await;
        let now = addresses(&after);
        assert!(now.len() == 1 && now.iter().all(|address| stage.is_in_pool(address)), "{name}: {now:?}");
        assert_eq!(but_addresses(&after), but_addresses(before), "{name}");
    }
}

/// Waits until only the old address of `web` is left of its move.
pub async fn moves(stage: &Stage) {
    eventually("the new address", async || {
        let has_moved = addresses(&stage.stored("web").await).first().is_some_and(|address| stage.is_in_pool(address));
        (has_moved && temporary_of(stage, "new").await.is_none()).then_some(())
    })
    .await;
}

/// The temporary Service that keeps the old address of this Service takes it.
fn takes_old(of: &'static str) -> impl Fn(&Seen) -> bool + Send + Sync + 'static {
    move |seen| seen.sets_type("ClusterIP") && seen.body["metadata"]["ownerReferences"][0]["name"] == of
}

/// This Service takes its new address.
fn assigns(of: &'static str) -> impl Fn(&Seen) -> bool + Send + Sync + 'static {
    let path = format!("/services/{of}");
    move |seen| seen.sets_type("ClusterIP") && seen.path.ends_with(&path)
}

#[tokio::test(flavor = "multi_thread")]
async fn next_leader_finishes_the_seamless_moves_of_a_killed_leader() {
    let plane = of_servers().await;
    let stage = Stage::on(&plane, "leaders").await;
    stage.has_a_pool_for(&[&stage]);
    let (one, two) = (Proxy::start(&plane).await, Proxy::start(&plane).await);
    carry_out_settings(&stage, &one).await;
    // The leader is killed when each Service is at another step.
    let gates: [Gate; 4] = [
        one.on(takes_old("before-the-old-address"), Fault::PauseBefore),
        one.on(takes_old("after-the-old-address"), Fault::PauseAfter),
        one.on(assigns("before-the-new-address"), Fault::PauseBefore),
        one.on(assigns("after-the-new-address"), Fault::PauseAfter),
    ];
    // Before the server starts: it moves a Service plainly as long as the Service has no endpoint.
    let mut before = Vec::new();
    for name in ["before-the-old-address", "after-the-old-address", "before-the-new-address", "after-the-new-address"] {
        before.push(stage.service(name, json!({})).await);
    }
    let mut first = server(&stage, &one, "2").start().await;
    for gate in &gates {
        gate.arrived().await;
    }
    first.kill();
    gates.iter().for_each(Gate::discard);
    stage.free_the_lease().await;
    let _second = server(&stage, &two, "2").start().await;
    end(&stage, &before).await;
}

/// The next leader can't list the records when it begins to lead. In its grace period, a Service has no annotation by
/// which a leader could find the move.
#[tokio::test(flavor = "multi_thread")]
async fn next_leader_keeps_the_grace_period_of_the_one_that_stopped_although_the_list_fails_at_first() {
    const GRACE_PERIOD: Duration = Duration::from_secs(30);
    const FAILURES: usize = 4;
    let plane = of_servers().await;
    let stage = Stage::on(&plane, "grace").await;
    stage.has_a_pool_for(&[&stage]);
    let (one, two) = (Proxy::start(&plane).await, Proxy::start(&plane).await);
    carry_out_settings(&stage, &one).await;
    let before = stage.service("web", json!({})).await;
    let mut first = server(&stage, &one, &GRACE_PERIOD.as_secs().to_string()).start().await;
    moves(&stage).await;
    let stopped = Instant::now();
    assert_eq!(first.terminate().await, 0);
    assert!(stopped.elapsed() < GRACE_PERIOD / 2, "the server waits for the grace period: {:?}", stopped.elapsed());
    assert!(temporary_of(&stage, "old").await.is_some(), "the old address answers until the grace period ends");
    let lists = |seen: &Seen| {
        let are_records = seen.query.contains("record");
        seen.method == Method::GET && seen.path.ends_with("/controllerrevisions") && are_records
    };
    let fault = Fault::Answer(500, "InternalError", "the list fails".to_owned());
    let failures = two.on_nth(0, FAILURES, lists, fault);
    let _second = server(&stage, &two, "2").start().await;
    end(&stage, &[before]).await;
    assert_eq!(failures.count(), FAILURES);
}

#[tokio::test(flavor = "multi_thread")]
async fn record_of_a_service_that_is_replaced_in_the_grace_period_is_deleted() {
    let plane = of_servers().await;
    let stage = Stage::on(&plane, "replaced").await;
    stage.has_a_pool_for(&[&stage]);
    let proxy = Proxy::start(&plane).await;
    carry_out_settings(&stage, &proxy).await;
    stage.service("web", json!({})).await;
    let _server = server(&stage, &proxy, "3600").start().await;
    moves(&stage).await;
    let services = format!("/api/v1/namespaces/{}/services", stage.namespace);
    send(&stage.client, Method::DELETE, &format!("{services}/web"), None).await.unwrap();
    let another = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"clusterIP": "None", "ports": [{"port": 80}]}});
    send(&stage.client, Method::POST, &services, Some(&another)).await.unwrap();
    eventually("the end of the move", async || stage.left().await.is_empty().then_some(())).await;
}

/// `clusterip move` hands its moves over to the server that leads. The command decides the method.
#[tokio::test(flavor = "multi_thread")]
async fn requested_move_is_made_by_the_method_of_the_request() {
    struct Case {
        name: &'static str,
        server: &'static [&'static str],
        command: &'static [&'static str],
        has_temporary_services: bool,
    }
    let cases = [
        Case {
            name: "plain-by-a-seamless-server",
            server: &["--seamless-moves", "--grace-period", "2"],
            command: &["--yes"],
            has_temporary_services: false,
        },
        Case {
            name: "seamless-by-a-plain-server",
            server: &[],
            command: &["--yes", "--wait", "--seamless", "--grace-period", "2"],
            has_temporary_services: true,
        },
    ];
    let plane = of_servers().await;
    for Case { name, server, command, has_temporary_services } in cases {
        let stage = Stage::on(&plane, name).await;
        stage.has_a_pool_for(&[&stage]);
        let before = stage.service("web", json!({})).await;
        let proxy = Proxy::start(&plane).await;
        let server = builder(&stage, &proxy, &[&["--move", "never"], server].concat()).start().await;
        server.logged("this server does not move Services").await;
        let ended = stage.run(command).await;
        assert_eq!(ended.status, 0, "{name}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains("handed over to"), "{name}: {}", ended.stderr);
        let is_temporary = |seen: &Seen| {
            seen.method == Method::POST && seen.body["metadata"]["labels"]["clusterip-policy/temporary"].is_string()
        };
        assert_eq!(proxy.writes().iter().any(is_temporary), has_temporary_services, "{name}");
        end(&stage, &[before]).await;
    }
}
