//! Journals that a tenant writes into the annotation of a Service.

use axum::http::Method;
use futures::future::join_all;
use serde_json::{Value, json};

use super::support::{BLUE, LOST, MALLORY, MOVING, NOT_RECORDED, Scene, in_state};
use crate::support::move_helpers::path;
use crate::support::webhook_cluster::{addresses, annotated, service, within};

/// A journal of a Service that looks half moved, and what a server that believed it would do.
struct Forged {
    name: &'static str,
    phase: &'static str,
    from: &'static str,
    to: &'static [&'static str],
    spec: Value,
    annotations: Value,
    wrong: fn(&Value) -> Option<String>,
}

impl Forged {
    fn journal(&self) -> Value {
        let Self { phase, from, to, spec, .. } = self;
        let mut journal = json!({"phase": phase, "way": "externalName", "from": [from], "to": to, "spec": spec,
            "managedFields": []});
        if self.name.starts_with("status") {
            journal["loadBalancer"] = json!({"ingress": [{"ip": "192.0.2.66", "ipMode": "VIP"}]});
        }
        journal
    }
}

fn status(service: &Value) -> Option<String> {
    (!service["status"]["loadBalancer"]["ingress"].is_null()).then(|| "the server has written its status".to_owned())
}

fn address_of_others(service: &Value) -> Option<String> {
    let foreign = addresses(service).into_iter().find(|address| within(*address, BLUE));
    foreign.map(|address| format!("it has {address} of the pool of another team"))
}

fn external_address(service: &Value) -> Option<String> {
    let has_one = service["spec"].to_string().contains("192.0.2.");
    has_one.then(|| "it has an external address of another pool".to_owned())
}

fn no_controller() -> Value {
    json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none", "ports": [{"port": 80}]})
}

fn journals() -> Vec<Forged> {
    let nowhere = || json!({"clusterip-policy/pool": "nowhere"});
    let plain = || json!({"type": "ClusterIP", "ports": [{"port": 80}]});
    let row =
        |name, phase, from, to, spec, annotations, wrong| Forged { name, phase, from, to, spec, annotations, wrong };
    let external = json!({"type": "ClusterIP", "externalIPs": ["192.0.2.20"], "ports": [{"port": 80}]});
    let balancer_ip = json!({"type": "LoadBalancer", "loadBalancerIP": "192.0.2.21", "ports": [{"port": 80}]});
    vec![
        row("status-placed", "placed", "172.21.0.250", &[], no_controller(), json!({}), status),
        row("status-released", "released", "172.21.0.250", &[], no_controller(), json!({}), status),
        row("from", "released", "172.21.8.101", &[], plain(), nowhere(), address_of_others),
        row("to", "released", "172.21.0.251", &["172.21.8.102"], plain(), json!({}), address_of_others),
        row("to-nowhere", "released", "172.21.0.252", &["172.21.8.103"], plain(), nowhere(), address_of_others),
        row("placed", "placed", "172.21.8.104", &["172.21.8.104"], plain(), json!({}), address_of_others),
        row("external-ips", "released", "172.21.0.253", &[], external, json!({}), external_address),
        row("balancer-ip", "released", "172.21.0.253", &[], balancer_ip, json!({}), external_address),
    ]
}

/// The annotation would make the server write the status of a load balancer, or give the Service an address or an external
/// address of another team.
#[tokio::test]
async fn forged_journal_gains_neither_a_status_nor_an_address_of_others() {
    let scene = Scene::shared().await;
    let mallory = scene.tenant(MALLORY).await;
    // What the tenant can't do without a journal.
    for (spec, refusal) in [
        (json!({"clusterIP": "172.21.8.100"}), "pool \"blue\""),
        (json!({"externalIPs": ["192.0.2.20"]}), "does not admit this Service"),
    ] {
        let denied = scene.create(&mallory.client, &mallory.namespace, &service("denied", spec), "").await.unwrap_err();
        assert!(denied.contains(refusal), "{denied}");
    }
    let plain = mallory.creates(&service("allowed", no_controller())).await;
    let written = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.66", "ipMode": "VIP"}]}}});
    let of_plain = format!("{}/status", path(&mallory.namespace, "allowed"));
    let forbidden = mallory.request(Method::PATCH, &of_plain, &written).await;
    assert!(forbidden.unwrap_err().contains("forbidden"), "a tenant may write the status: {plain}");

    let journals = journals();
    for forged in &journals {
        mallory.forges(forged.name, &forged.journal(), forged.annotations.clone()).await;
    }
    // The journal of a Service that does not look half moved.
    let balancers = ["placed", "released"].map(|phase| format!("balancer-{phase}"));
    for (name, forged) in balancers.iter().zip(&journals) {
        let annotations = json!({MOVING: forged.journal().to_string()});
        mallory.creates(&annotated(name, annotations, no_controller())).await;
    }
    let half_moved = join_all(journals.iter().map(async |Forged { name, wrong, .. }| {
        let wrong = |service: &Value| wrong(service).or_else(|| in_state("ExternalName")(service));
        scene.stays(&mallory.namespace, name, wrong).await;
        scene.wait_for_event(&mallory.namespace, name, NOT_RECORDED).await;
    }));
    let others = join_all(balancers.iter().map(async |name| scene.stays(&mallory.namespace, name, status).await));
    tokio::join!(half_moved, others);

    // The addresses still belong to the other team, and the server still moves Services.
    scene.plane.namespace("blue").await;
    let blue = service("blue", json!({"clusterIP": "172.21.8.101"}));
    scene.create(&scene.admin(), "blue", &blue, "").await.unwrap();
    let neighbour = scene.plane.namespace("neighbour").await;
    assert!(scene.time_to_move(&neighbour, "web").await < LOST, "a neighbour's Service is not moved");
}
