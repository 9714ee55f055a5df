//! The brake on changes of settings that would move a large part of a cluster.

use clusterip::services::controller::requests::{self, MoveRequest};
use serde_json::{Value, json};

use crate::support::cluster::{Cluster, Place, metrics, pool_of, settings};
use crate::support::eventually::eventually;
use crate::support::fault_proxy::Proxy;
use crate::support::move_helpers::{addresses, stored};
use crate::support::serve_process::Server;

/// More than twenty Services, and more than one in ten.
const MANY: usize = 24;

/// The pools of the Services `web-0` and so on, in order.
async fn pools(place: &Place, count: usize) -> Vec<&'static str> {
    let mut pools = Vec::new();
    for number in 0..count {
        let service = stored(&place.client, &place.namespace, &format!("web-{number}")).await.unwrap();
        pools.push(addresses(&service).first().map_or("on the move", |address| pool_of(*address)));
    }
    pools
}

async fn all_move_to(place: &Place, count: usize, pool: &str) {
    eventually(&format!("all of {} to be in pool {pool}", place.namespace), async || {
        pools(place, count).await.iter().all(|found| *found == pool).then_some(())
    })
    .await;
}

async fn braked(server: &Server, expected: &[String]) {
    eventually(&format!("{expected:?}"), async || {
        (metrics(server, "clusterip_misplaced_services").await == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn settings_that_would_move_many_services_wait_for_an_administrator_and_addresses_set_by_hand_do_not_count() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(&cluster.plane).await;
    let (many, few, others) =
        (cluster.place("many").await, cluster.place("few").await, cluster.place("many-others").await);
    for number in 0..MANY {
        many.service_at(&format!("web-{number}"), [172, 21, 0, 100 + number as u8], json!({}), json!({})).await;
    }
    for number in 0..3 {
        few.service_at(&format!("web-{number}"), [172, 21, 0, 200 + number as u8], json!({}), json!({})).await;
    }
    for number in 0..3 {
        others.service_at(&format!("web-{number}"), [172, 21, 0, 210 + number as u8], json!({}), json!({})).await;
    }
    // The first pool takes over the Services of these namespaces.
    let taking = |namespaces: &[&str]| {
        let mut settings: Value = serde_json::from_str(&settings(&json!({}))).unwrap();
        settings["services"]["pools"][0]["match"]["namespaces"] = json!(namespaces);
        settings.to_string()
    };
    // Addresses that were set by hand don't count.
    let by_hand = cluster.place("set-by-hand").await;
    for number in 0..MANY {
        let address = format!("172.21.0.{}", 150 + number);
        by_hand.service_named(&format!("web-{number}"), json!({}), json!({ "clusterIP": address })).await;
    }
    let one = "clusterip_misplaced_services{reason=\"brake\"}";

    let server = cluster.server(&proxy, &json!({})).arg("--no-webhook").start().await;
    cluster.place("brake-begins").await.all_was_looked_at("first").await;
    std::fs::write(server.folder().join("settings.yaml"), taking(&["few", "set-by-hand"])).unwrap();
    // A change for three Services is carried out.
    all_move_to(&few, 3, "named").await;
    assert_eq!(pools(&by_hand, MANY).await, ["linux"; MANY]);
    let brakes = || server.log().iter().filter(|line| line.contains("the settings would move a large part")).count();
    assert_eq!(brakes(), 0, "{:#?}", server.log());

    std::fs::write(server.folder().join("settings.yaml"), taking(&["few", "many", "many-others"])).unwrap();
    let log = server.logged("the settings would move a large part of the Services").await;
    // The 24 Services, those set by hand, 6 others, and the probe of `all_was_looked_at`; `kubernetes` is not managed.
    assert!(log.contains("misplaced=27 managed=55 waiting=24"), "{log}");
    // The Services of another namespace don't wait for them.
    all_move_to(&others, 3, "named").await;
    braked(&server, &[format!("{one} {MANY}")]).await;
    let expected = "AddressMisplaced: it lies in pool linux, and belongs to pool named: namespace many; it stays: the settings changed for a large part of its namespace: it waits for `clusterip move`";
    // The Event comes after the metric.
    eventually("the Event", async || (!many.events("web-7").await.is_empty()).then_some(())).await;
    assert_eq!(many.events("web-7").await, [expected]);

    // Other moves continue.
    cluster.place("brake-goes-on").await.all_was_looked_at("first").await;
    assert_eq!(pools(&many, MANY).await, ["linux"; MANY]);

    // The author of a Service can't release the brake: the annotation is removed, and the Service stays.
    let now = json!({"metadata": {"annotations": {"clusterip-policy/move": "now"}}});
    crate::support::move_helpers::patch(&many.client, &many.namespace, "web-7", now).await;
    let web = eventually("the annotation to be removed", async || {
        let web = crate::support::move_helpers::stored(&many.client, &many.namespace, "web-7").await?;
        (web["metadata"]["annotations"]["clusterip-policy/move"].is_null()).then_some(web)
    })
    .await;
    assert_eq!(pools(&many, MANY).await, ["linux"; MANY]);

    // An administrator can move one of them, by a request in the namespace of the server. The others still wait.
    let request = MoveRequest {
        namespace: many.namespace.clone(),
        name: "web-7".to_owned(),
        uid: web["metadata"]["uid"].as_str().unwrap().to_owned(),
        control_plane: false,
        seamless: None,
    };
    requests::ask(&cluster.client, &cluster.namespace, &request).await.unwrap();
    eventually("the request to be dealt with", async || {
        (!requests::is_open(&cluster.client, &cluster.namespace, &request.uid).await.unwrap()).then_some(())
    })
    .await;
    braked(&server, &[format!("{one} {}", MANY - 1)]).await;
    let mut expected = ["linux"; MANY];
    expected[7] = "named";
    assert_eq!(pools(&many, MANY).await, expected);

    // When the settings are reverted, no Service waits any more. The one that was moved returns only after its
    // cooldown.
    std::fs::write(server.folder().join("settings.yaml"), taking(&["few", "many-others"])).unwrap();
    braked(&server, &[format!("{one} 1")]).await;
    assert_eq!(pools(&many, MANY).await, expected);
    assert_eq!(pools(&few, 3).await, ["named"; 3]);
}

/// The Services answered before a server, or other settings, came.
#[tokio::test]
async fn services_with_ready_endpoints_wait_for_an_administrator_when_the_settings_are_new() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(&cluster.plane).await;
    let (outside, wrong, late) =
        (cluster.place("ready-outside").await, cluster.place("ready-wrong").await, cluster.place("late").await);
    for place in [&outside, &wrong] {
        place.workload("linux").await;
        place.ready_on("linux").await;
    }
    outside.service_at("web", [172, 21, 77, 20], json!({}), json!({})).await;
    // By these settings, no client reaches an endpoint on a Linux node through the Windows pool.
    wrong.service_at("web", [172, 21, 1, 20], json!({}), json!({})).await;
    late.service_at("web", [172, 21, 77, 21], json!({}), json!({})).await;
    let before = [outside.web().await, wrong.web().await];
    let waits = |lies_in: &str| {
        format!(
            "AddressMisplaced: it lies in {lies_in}, and belongs to pool linux: kubernetes.io/os=linux (Deployment web); it \
             stays: the settings changed, and the Service has ready endpoints: run `clusterip move --seamless`"
        )
    };
    let (outside_waits, wrong_waits) = (waits("no pool"), waits("pool windows"));
    // The server would move everything. The second start shows that a restart is no consent.
    for start in 1..=2 {
        let mut server = cluster.server(&proxy, &json!({})).args(&["--no-webhook", "--move", "always"]).start().await;
        let log = server.logged("the settings would move Services with ready endpoints").await;
        assert!(log.contains("services=2"), "{log}");
        outside.comes_to(&[vec!["no pool"], vec![&outside_waits; start]].concat()).await;
        wrong.comes_to(&[vec!["windows"], vec![&wrong_waits; start]].concat()).await;
        braked(&server, &["clusterip_misplaced_services{reason=\"brake\"} 2".to_owned()]).await;
        eventually("the Service without endpoints in its pool", async || {
            (addresses(&late.web().await).first().map(|address| pool_of(*address)) == Some("linux")).then_some(())
        })
        .await;
        assert_eq!(server.terminate().await, 0);
    }
    assert_eq!([outside.web().await, wrong.web().await], before, "nothing was written");
}

#[tokio::test]
async fn settings_used_only_with_move_never_still_trigger_the_brake() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(&cluster.plane).await;
    let still = cluster.place("still").await;
    for number in 0..MANY {
        still.service_at(&format!("web-{number}"), [172, 21, 0, 100 + number as u8], json!({}), json!({})).await;
    }
    let mut taking: Value = serde_json::from_str(&settings(&json!({}))).unwrap();
    taking["services"]["pools"][0]["match"]["namespaces"] = json!([still.namespace]);
    let taking = taking.to_string();
    let one = |reason: &str| format!("clusterip_misplaced_services{{reason=\"{reason}\"}} {MANY}");

    let server = cluster.server_with(&proxy, &taking).args(&["--no-webhook", "--move", "never"]).start().await;
    braked(&server, &[one("never")]).await;
    drop(server);
    free_the_lease(&cluster).await;
    // The first process that would move them waits for an administrator.
    let server = cluster.server_with(&proxy, &taking).arg("--no-webhook").start().await;
    braked(&server, &[one("brake")]).await;
    assert_eq!(pools(&still, MANY).await, ["linux"; MANY]);
}

/// Releases the Lease of a process that has ended, so that the test need not wait until the Lease expires.
pub async fn free_the_lease(cluster: &Cluster) {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/clusterip-leader", cluster.namespace);
    let released = json!({"spec": {"holderIdentity": ""}});
    crate::support::move_helpers::send(&cluster.client, axum::http::Method::PATCH, &path, Some(&released))
        .await
        .unwrap();
}
