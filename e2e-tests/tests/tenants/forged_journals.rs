//! Journals that a tenant writes into the annotation of a Service.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{BLUE, LOST, MALLORY, MOVING, NARROW, NOT_RECORDED, Scene, in_state};
use crate::support::move_helpers::path;
use crate::support::webhook_cluster::{addresses, annotated, service, within};

/// The annotation would make the server write the status of a load balancer.
#[tokio::test]
async fn forged_journal_writes_no_load_balancer_status() {
    let scene = Scene::shared().await;
    let mallory = scene.tenant(MALLORY).await;
    let ingress = json!([{"ip": "192.0.2.66", "ipMode": "VIP"}]);
    let no_controller = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none"});
    let plain = mallory.creates(&service("allowed", no_controller.clone())).await;
    let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
    let of_plain = format!("{}/status", path(&mallory.namespace, "allowed"));
    let forbidden = mallory.request(Method::PATCH, &of_plain, &status).await;
    assert!(forbidden.unwrap_err().contains("forbidden"), "a tenant may write the status: {plain}");

    let no_status = |service: &Value| {
        (!service["status"]["loadBalancer"]["ingress"].is_null())
            .then(|| "the server has written its status".to_owned())
    };
    for phase in ["placed", "released"] {
        let journal = json!({"phase": phase, "way": "externalName", "from": ["172.21.0.250"], "to": [],
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "example.com/none", "ports": [{"port": 80}]},
            "managedFields": [], "loadBalancer": {"ingress": ingress}});
        let name = format!("balancer-{phase}");
        let forged = annotated(&name, json!({MOVING: journal.to_string()}), no_controller.clone());
        mallory.creates(&forged).await;
        scene.stays(&mallory.namespace, &name, no_status).await;
        let alias = format!("alias-{phase}");
        mallory.forges(&alias, &journal, json!({})).await;
        scene.stays(&mallory.namespace, &alias, no_status).await;
        scene.stays(&mallory.namespace, &alias, in_state("ExternalName")).await;
        scene.wait_for_event(&mallory.namespace, &alias, NOT_RECORDED).await;
    }
    let neighbour = scene.plane.namespace("neighbour").await;
    assert!(scene.time_to_move(&neighbour, "web").await < LOST, "a neighbour's Service is not moved");
}

/// The annotation would make the server give the Service an address of another team's pool.
#[tokio::test]
async fn forged_journal_gets_no_address_of_another_pool() {
    let scene = Scene::shared().await;
    let mallory = scene.tenant(MALLORY).await;
    let denied = service("denied", json!({"clusterIP": "172.21.8.100"}));
    let denied = scene.create(&mallory.client, &mallory.namespace, &denied, "").await.unwrap_err();
    assert!(denied.contains("pool \"blue\""), "{denied}");

    let no_foreign = |service: &Value| {
        let foreign = addresses(service).into_iter().find(|address| within(*address, BLUE));
        foreign.map(|address| format!("it has {address} of the pool of another team"))
    };
    let nowhere = json!({"clusterip-policy/pool": "nowhere"});
    let spec = json!({"type": "ClusterIP", "ports": [{"port": 80}]});
    struct Forged {
        name: &'static str,
        phase: &'static str,
        from: Value,
        to: Value,
        annotations: Value,
    }
    let journals = [
        Forged {
            name: "from",
            phase: "released",
            from: json!(["172.21.8.101"]),
            to: json!([]),
            annotations: nowhere.clone(),
        },
        Forged {
            name: "to",
            phase: "released",
            from: json!(["172.21.0.251"]),
            to: json!(["172.21.8.102"]),
            annotations: json!({}),
        },
        Forged {
            name: "to-nowhere",
            phase: "released",
            from: json!(["172.21.0.252"]),
            to: json!(["172.21.8.103"]),
            annotations: nowhere,
        },
        Forged {
            name: "placed",
            phase: "placed",
            from: json!(["172.21.8.104"]),
            to: json!(["172.21.8.104"]),
            annotations: json!({}),
        },
    ];
    for Forged { name, phase, from, to, annotations } in journals {
        let journal = json!({"phase": phase, "way": "externalName", "from": from, "to": to, "spec": spec,
            "managedFields": []});
        mallory.forges(name, &journal, annotations).await;
    }
    for name in ["from", "to", "to-nowhere", "placed"] {
        scene.stays(&mallory.namespace, name, no_foreign).await;
        scene.stays(&mallory.namespace, name, in_state("ExternalName")).await;
        scene.wait_for_event(&mallory.namespace, name, NOT_RECORDED).await;
    }
    // The addresses still belong to the other team.
    scene.plane.namespace("blue").await;
    let blue = service("blue", json!({"clusterIP": "172.21.8.101"}));
    scene.create(&scene.admin(), "blue", &blue, "").await.unwrap();
}

/// The annotation would make the server give the Service an external address of another team.
#[tokio::test]
async fn forged_journal_gets_no_external_address_of_another_pool() {
    let scene = Scene::shared().await;
    let mallory = scene.tenant(MALLORY).await;
    let denied = service("denied", json!({"externalIPs": ["192.0.2.20"]}));
    let denied = scene.create(&mallory.client, &mallory.namespace, &denied, "").await.unwrap_err();
    assert!(denied.contains("does not admit this Service"), "{denied}");

    let rows = [
        ("external-ips", json!({"type": "ClusterIP", "externalIPs": ["192.0.2.20"], "ports": [{"port": 80}]})),
        ("balancer-ip", json!({"type": "LoadBalancer", "loadBalancerIP": "192.0.2.21", "ports": [{"port": 80}]})),
    ];
    for (name, spec) in &rows {
        let journal = json!({"phase": "released", "way": "externalName", "from": ["172.21.0.253"], "to": [],
            "spec": spec, "managedFields": []});
        mallory.forges(name, &journal, json!({})).await;
    }
    let no_external = |service: &Value| {
        service["spec"]
            .to_string()
            .contains("192.0.2.")
            .then(|| "it has an external address of another pool".to_owned())
    };
    for (name, _) in &rows {
        scene.stays(&mallory.namespace, name, no_external).await;
        scene.stays(&mallory.namespace, name, in_state("ExternalName")).await;
        scene.wait_for_event(&mallory.namespace, name, NOT_RECORDED).await;
    }
}

/// An annotation with all addresses of another pool, which is written again and again.
#[tokio::test]
async fn addresses_in_an_annotation_fill_no_pool() {
    let scene = Scene::start().await;
    let mallory = scene.tenant(MALLORY).await;
    scene.plane.namespace("narrow").await;
    let all: Vec<String> = (0..64).map(|last| format!("172.21.9.{last}")).collect();
    let fits = |addresses: &[String]| {
        json!({"phase": "released", "way": "externalName", "from": addresses, "to": addresses,
            "spec": {"ports": [{"port": 80}]}, "managedFields": []})
    };
    // Many addresses in one annotation, and one address in each of many annotations.
    for (nth, address) in all.iter().enumerate() {
        mallory.forges(&format!("one-{nth}"), &fits(std::slice::from_ref(address)), json!({})).await;
    }
    mallory.creates(&service("all", json!({}))).await;
    let shop = Arc::new(tokio::sync::Notify::new());
    let rewriting = async {
        let mut count = 0_u32;
        loop {
            let mut journal = fits(&all);
            journal["why"] = count.to_string().into();
            count += 1;
            // A merge patch has no conflict with the writes of the server.
            mallory.annotates("all", json!({MOVING: journal.to_string()})).await.unwrap();
            if count == 5 {
                shop.notify_one();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let creating = async {
        shop.notified().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut refused = Vec::new();
        for nth in 0..50 {
            match scene.create(&scene.admin(), "narrow", &service(&format!("web-{nth}"), json!({})), "").await {
                Ok(created) => assert!(within(addresses(&created)[0], NARROW), "{created}"),
                Err(error) => refused.push(error),
            }
        }
        refused
    };
    let refused = tokio::select! {
        refused = creating => refused,
        () = rewriting => unreachable!(),
    };
    assert_eq!(refused, [""; 0]);
}
