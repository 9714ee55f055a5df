//! The CA bundle in the webhook configuration that `deploy/webhook` creates.

use clusterip::webhook::registration::Registration;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::sync::watch;

use super::support::{
    Hands, Task, authority_pem, bundle, bundles, configuration, configurations, days, open, some_day, soon,
};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;

#[tokio::test]
async fn registration_changes_only_the_ca_bundle_of_each_webhook() {
    let plane = ControlPlane::shared().await;
    let client = plane.client();
    let configurations = configurations(&client);
    let name = "registration-keeps";
    let (sender, trusted) = watch::channel(authority_pem());
    let mut by_hand = Registration::in_cluster(client.clone(), name, trusted.clone());
    assert_eq!(
        by_hand.keep().await.unwrap_err().to_string(),
        "MutatingWebhookConfiguration registration-keeps does not exist: apply deploy/webhook, or use --register-url"
    );
    let registration = Registration::in_cluster(client.clone(), name, trusted.clone());
    let mut registered = registration.registered();
    let task = Task::start(|stopped| registration.run(stopped.wait()));
    // The configuration is applied after the start.
    plane.apply(&configuration(name).to_string()).await;
    let first = trusted.borrow().clone();
    soon(registered.wait_for(|seen| *seen == first)).await.unwrap();
    let now = configurations.get(name).await.unwrap();
    assert_eq!(bundles(&now), [first.clone(), first.clone()]);
    let mut without = serde_json::to_value(&now).unwrap();
    let mut expected = configuration(name);
    for side in [&mut without, &mut expected] {
        for webhook in side["webhooks"].as_array_mut().unwrap() {
            webhook["clientConfig"].as_object_mut().unwrap().remove("caBundle");
        }
    }
    for (field, value) in expected["webhooks"][1].as_object().unwrap() {
        if field != "rules" {
            assert_eq!(without["webhooks"][1][field], *value);
        }
    }
    assert_eq!(without["metadata"]["labels"], expected["metadata"]["labels"]);
    // Without a change, nothing is written.
    by_hand.keep().await.unwrap();
    assert_eq!(configurations.get(name).await.unwrap().resource_version(), now.resource_version());

    // An administrator replaces the configuration.
    plane.kubectl_with(&["replace", "-f", "-"], &configuration(name).to_string()).await.ok();
    let restored = async || (bundles(&configurations.get(name).await.unwrap()) == [&*first, &*first]).then_some(());
    soon(eventually("the bundle to be restored", restored)).await;

    // The trusted bundle changes.
    let second = first.clone() + &authority_pem();
    sender.send(second.clone()).unwrap();
    soon(registered.wait_for(|seen| *seen == second)).await.unwrap();
    assert_eq!(bundles(&configurations.get(name).await.unwrap()), [second.clone(), second]);

    // The configuration is deleted, and not created again.
    configurations.delete(name, &<_>::default()).await.unwrap();
    soon(registered.wait_for(String::is_empty)).await.unwrap();
    task.stop().await.unwrap();
    assert!(configurations.get_opt(name).await.unwrap().is_none());
}

#[tokio::test]
async fn registration_survives_concurrent_writes_of_others() {
    let plane = ControlPlane::shared().await;
    let client = plane.client();
    let configurations = configurations(&client);
    let name = "registration-conflicts";
    plane.apply(&configuration(name).to_string()).await;
    let (sender, trusted) = watch::channel(authority_pem());
    let registration = Registration::in_cluster(client.clone(), name, trusted);
    let mut registered = registration.registered();
    let task = Task::start(|stopped| registration.run(stopped.wait()));
    let others = async {
        for round in 0..60 {
            let patch = json!({"metadata": {"annotations": {format!("round-{round}"): "x"}}});
            configurations.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        }
    };
    let ours = async {
        for _ in 0..3 {
            let next = authority_pem();
            sender.send(next.clone()).unwrap();
            registered.wait_for(|seen| *seen == next).await.unwrap();
        }
    };
    soon(futures::future::join(others, ours)).await;
    let now = configurations.get(name).await.unwrap();
    assert_eq!(bundles(&now), vec![sender.borrow().clone(); 2]);
    assert_eq!(now.annotations().keys().filter(|key| key.starts_with("round-")).count(), 60);
    task.stop().await.unwrap();
    configurations.delete(name, &<_>::default()).await.unwrap();
}

/// The service account of `deploy/webhook` may renew certificates and register them.
pub async fn service_account_of_the_deployment_may_renew_and_register(plane: &ControlPlane) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/webhook");
    let own = "clusterip-policy";
    let client = plane.client_with(&plane.token(own, "clusterip").await);
    let hands = Hands::at(some_day());
    let mut authority = open(&client, own, &hands).await.unwrap();
    let registration = Registration::in_cluster(client.clone(), own, authority.bundle());
    let mut registered = registration.registered();
    let task = Task::start(|stopped| registration.run(stopped.wait()));
    let first = bundle(&authority);
    soon(registered.wait_for(|seen| *seen == first)).await.unwrap();
    // Applying the manifests again changes nothing.
    plane.kubectl(&["apply", "-k", folder]).await.ok();
    assert_eq!(bundles(&configurations(&client).get(own).await.unwrap()), [&*first]);
    plane.kubectl(&["replace", "-f", &format!("{folder}/webhook-configuration.yaml")]).await.ok();
    let restored = async || (bundles(&configurations(&client).get(own).await.unwrap()) == [&*first]).then_some(());
    soon(eventually("the bundle to be restored", restored)).await;
    // The next authority is written into the Secret and the configuration.
    hands.pass(days(9 * 365 + 1));
    authority.step(&first).await.unwrap();
    let both = bundle(&authority);
    soon(registered.wait_for(|seen| *seen == both)).await.unwrap();
    task.stop().await.unwrap();
    // The certificate is renewed even if the API server is unavailable.
    let leaf = authority.leaf().certificate.clone();
    plane.stop_api_server();
    hands.pass(days(61));
    let error = authority.step(&both).await.unwrap_err();
    assert!(error.to_string().starts_with("Secret clusterip-policy/clusterip-authority can't be read: "), "{error}");
    assert_ne!(authority.leaf().certificate, leaf);
    assert_eq!(bundle(&authority), both);
    plane.start_api_server();
}
