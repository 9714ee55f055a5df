//! The procedures of `docs/operations.md` for upgrades, rollbacks and incidents.

use axum::http::Method;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::pools::access::user_with_the_role_edit_in_a_namespace_has_no_access_to_pools;
use crate::support::cluster::Place;
use crate::support::documented_steps::{Operator, Step, steps};
use crate::support::eventually::eventually;
use crate::support::fake_kubelet::Installed;
use crate::support::move_helpers::{send, stored};
use crate::support::service_webhook_rules::{MOVING, moving, service, services};
use crate::validating_admission_policies::support::{editor, marked, outcome};

async fn create(place: &Place, name: &str) -> String {
    let windows = json!({"annotations": {"clusterip-policy/os": "windows"}});
    let created = place.service_named(name, windows, json!({"selector": {"app": name}})).await;
    created["metadata"]["uid"].as_str().unwrap().to_owned()
}

async fn comes_to_windows(cluster: &Installed, name: &str, uid: &str) {
    eventually(&format!("{name} to be in its pool"), async || {
        let services = cluster.services().await;
        let (found, address) = &services[name];
        assert_eq!(found, uid, "{name} is the same");
        address.starts_with("172.21.1.").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_rollback_and_incident_procedures_work() {
    let cluster = Installed::nothing().await;
    let operator = Operator::new(&cluster.plane, &cluster.node.url());
    cluster.install(&operator).await;
    let shop = cluster.place("shop").await;
    let image = "kubectl get --namespace clusterip-policy deployment/clusterip \
                 --output jsonpath='{.spec.template.spec.containers[0].image}'";
    let all = steps("Upgrades and rollbacks");
    let [definitions, set, wait, fence, undo, wait_again] = &all[..] else { panic!("{all:?}") };
    operator.does(definitions).await;
    let uid = create(&shop, "first").await;
    let placed = cluster.services().await["shop/first"].clone();
    struct Rollout<'a> {
        name: &'static str,
        begin: &'a Step,
        end: &'a Step,
        image: &'static str,
    }
    for Rollout { name, begin, end, image: expected } in [
        Rollout { name: "upgrade", begin: set, end: wait, image: "ghcr.io/clusterip-policy/clusterip:v0.2.0" },
        Rollout { name: "rollback", begin: undo, end: wait_again, image: "ghcr.io/clusterip-policy/clusterip:v0.1.0" },
    ] {
        // The new image takes a while to start.
        cluster.node.cordon(true);
        operator.does(begin).await;
        cluster.node.is_idle().await;
        let uid = create(&shop, name).await;
        cluster.node.cordon(false);
        operator.does(end).await;
        assert_eq!(operator.does(&Step::Type(image.to_owned())).await, expected, "{name}");
        comes_to_windows(&cluster, &format!("shop/{name}"), &uid).await;
    }
    operator.does(fence).await;
    comes_to_windows(&cluster, "shop/first", &uid).await;
    assert_eq!(cluster.services().await["shop/first"], placed);
    moves_with_the_policies(&cluster, &shop).await;

    incident_procedures_work(&cluster, &operator, &shop).await;
    user_with_the_role_edit_in_a_namespace_has_no_access_to_pools(&cluster.plane).await;
}

/// The server moves a Service with the account, the arguments and the policies of `deploy/webhook`, and no policy refuses a
/// request of the server.
async fn moves_with_the_policies(cluster: &Installed, shop: &Place) {
    let mallory = services(editor(&cluster.plane, &shop.namespace).await, &shop.namespace);
    eventually("the policy to be in force", async || {
        let new = marked(service("new", json!({})), Some("{}"));
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        (outcome(mallory.create(&dry_run, &new).await) == "refused").then_some(())
    })
    .await;
    let created = mallory.create(&PostParams::default(), &service("web", json!({"selector": null}))).await.unwrap();
    let windows = Patch::Merge(json!({"metadata": {"annotations": {"clusterip-policy/os": "windows"}}}));
    assert!(created.data["spec"]["clusterIP"].as_str().unwrap().starts_with("172.21.0."), "{created:?}");
    mallory.patch("web", &PatchParams::default(), &windows).await.unwrap();
    comes_to_windows(cluster, "shop/web", created.metadata.uid.as_deref().unwrap()).await;
    eventually("the end of the move", async || {
        let web = stored(&cluster.client, &shop.namespace, "web").await.unwrap();
        web["metadata"]["annotations"][MOVING].is_null().then_some(())
    })
    .await;
    let log = cluster.node.log().await;
    let refused: Vec<&String> = log.iter().filter(|line| line.contains("denied request")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

async fn incident_procedures_work(cluster: &Installed, operator: &Operator<'_>, shop: &Place) {
    operator.does_all(&steps("Stop all moves")).await;
    cluster.node.is_idle().await;
    let mut half = service("half", json!({"type": "ExternalName", "externalName": "moving.invalid"}));
    moving(&mut half);
    services(cluster.client.clone(), &shop.namespace).create(&PostParams::default(), &half).await.unwrap();
    let by_hand = steps("Finish a move by hand");
    let [look, delete_temporaries, mend] = &by_hand[..] else { panic!("{by_hand:?}") };
    assert!(!operator.does(look).await.is_empty());
    operator.does(delete_temporaries).await;
    operator.does(mend).await;
    let mended = stored(&cluster.client, &shop.namespace, "half").await.unwrap();
    assert_eq!(mended["spec"]["type"], "ClusterIP");
    assert!(mended["spec"]["clusterIP"].as_str().is_some_and(|address| address.starts_with("172.21.")), "{mended}");
    assert_eq!((&mended["spec"]["externalName"], &mended["metadata"]["annotations"]), (&json!(null), &json!(null)));

    // While the server is unavailable, Services are created without it, and moved later.
    let uid = create(shop, "meanwhile").await;
    operator.does(&Step::Type("kubectl scale -n clusterip-policy deployment/clusterip --replicas 1".into())).await;
    comes_to_windows(cluster, "shop/meanwhile", &uid).await;

    // The API server does not call the webhook until it is restored.
    operator.does_all(&steps("Disable the webhook")).await;
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/clusterip-policy";
    assert_eq!(send(&cluster.client, Method::GET, path, None).await, None);
    let uid = create(shop, "unasked").await;
    comes_to_windows(cluster, "shop/unasked", &uid).await;
    operator.does(&Step::Type("kubectl apply -k deploy/webhook".to_owned())).await;
    cluster.is_asked().await;
}
