//! `--register-url`: a server outside of the cluster creates its own webhook configuration.

use std::sync::Arc;

use axum::http::Method;
use clusterip::webhook::registration::Registration;
use clusterip_cluster::live_settings::{LiveSettings, check_settings};
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::support::{Task, authority_pem, configuration, configurations, soon};
use crate::support::cluster::pool_of;
use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::{addresses, path, send};
use crate::support::serve_process::ServerBuilder;

/// Settings that need only the webhooks for Services.
fn settings() -> watch::Receiver<Arc<LiveSettings>> {
    let settings = check_settings(json!({}), &ServiceRanges::default()).unwrap();
    watch::channel(Arc::new(settings)).1
}

#[tokio::test]
async fn registration_takes_over_only_configurations_of_register_url() {
    let plane = LentControlPlane::get().await;
    let client = plane.client();
    let configurations = configurations(&client);
    let (_sender, trusted) = watch::channel(authority_pem());
    let name = "clusterip-policy";
    let start = async |url: &str| {
        let registration =
            Registration::with_url(client.clone(), name, url, trusted.clone(), settings()).await.unwrap();
        let registered = registration.registered();
        (Task::start(|stopped| registration.run(stopped.wait())), registered)
    };
    let seen = async |mut registered: watch::Receiver<String>| {
        registered.wait_for(|seen| !seen.is_empty()).await.map(drop).unwrap();
    };

    // A process that is killed leaves its configuration, which the next process finds, with another port or the same.
    for url in ["https://127.0.0.1:1", "https://127.0.0.1:2", "https://127.0.0.1:2"] {
        let (killed, registered) = start(url).await;
        seen(registered).await;
        killed.done.abort();
        let _ = killed.done.await;
    }
    let (first, registered) = start("https://127.0.0.1:3").await;
    seen(registered).await;
    let now = configurations.get(name).await.unwrap();
    let webhook = &now.webhooks.as_ref().unwrap()[0];
    assert_eq!(webhook.client_config.url.as_deref(), Some("https://127.0.0.1:3/mutate"));
    assert_eq!(webhook.client_config.service, None);
    let selector = serde_json::to_value(&webhook.namespace_selector).unwrap();
    let expected = json!({"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]},
    ]});
    assert_eq!(selector, expected);
    let conditions = serde_json::to_string(&webhook.match_conditions).unwrap();
    assert!(!conditions.contains("system:serviceaccount"), "{conditions}");
    assert_eq!(now.labels().get("app.kubernetes.io/name").map(String::as_str), Some("clusterip"));

    // A configuration that is deleted by hand is created again.
    configurations.delete(name, &<_>::default()).await.unwrap();
    let again = async || {
        let found = configurations.get_opt(name).await.unwrap();
        found.filter(|found| found.uid() != now.uid())
    };
    soon(eventually("the configuration to be recreated", again)).await;

    // If two processes run, the later one owns the configuration, and the first neither writes nor deletes it any more.
    let (second, registered) = start("https://127.0.0.1:4").await;
    seen(registered).await;
    let error = soon(first.done).await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "MutatingWebhookConfiguration clusterip-policy was taken over by another --register-url, for https://127.0.0.1:4"
    );
    let now = configurations.get(name).await.unwrap();
    assert_eq!(now.webhooks.unwrap()[0].client_config.url.as_deref(), Some("https://127.0.0.1:4/mutate"));
    // A process that stops before its first write leaves the configuration of the process with the same URL.
    let unwritten =
        Registration::with_url(client.clone(), name, "https://127.0.0.1:4", trusted.clone(), settings()).await.unwrap();
    unwritten.run(std::future::ready(())).await.unwrap();
    assert!(configurations.get_opt(name).await.unwrap().is_some());
    second.stop().await.unwrap();
    assert!(configurations.get_opt(name).await.unwrap().is_none());

    // The configuration of a deployment is left alone.
    plane.apply(&configuration(name).to_string()).await;
    let before = configurations.get(name).await.unwrap();
    let (refused, _) = start("https://127.0.0.1:5").await;
    assert_eq!(
        soon(refused.done).await.unwrap().unwrap_err().to_string(),
        "MutatingWebhookConfiguration clusterip-policy already exists, and no earlier --register-url made it: delete \
         it, or the deployment that it belongs to, first"
    );
    assert_eq!(configurations.get(name).await.unwrap(), before);
}

#[tokio::test]
async fn server_reports_whether_the_api_server_calls_its_url_and_reviews_no_request_of_its_moves() {
    const REACHED: &str = "the API server calls the webhook at ";
    const UNREACHED: &str = "the API server does not call the webhook at https://127.0.0.1:1, so Services are created \
                             without it: ";
    let plane = LentControlPlane::get().await;
    // The port of another server: no process listens there.
    let mut unreached =
        ServerBuilder::new(&plane).args(&["--register-url", "https://127.0.0.1:1"]).settings("{}").start().await;
    let warning = unreached.logged(UNREACHED).await;
    assert!(warning.contains("WARN"), "{warning}");
    assert!(!unreached.log().iter().any(|line| line.contains(REACHED)), "{:#?}", unreached.log());
    assert_eq!(unreached.terminate().await, 0);

    let mut reached = ServerBuilder::new(&plane).registered().settings("{}").start().await;
    reached.logged(&format!("{REACHED}{}", reached.url())).await;
    let stored = ["get", "service", "clusterip-trial", "--namespace", "default"];
    plane.kubectl(&stored).await.refused();
    // The mover runs as this user and sets this annotation.
    plane.kubectl(&["create", "service", "externalname", "moved", "--external-name=moving.invalid"]).await.ok();
    let back = async |annotations: Value| {
        let mut annotations = annotations;
        annotations["clusterip-policy/os"] = json!("windows");
        let patch = json!({
            "metadata": {"annotations": annotations},
            "spec": {"type": "ClusterIP", "externalName": null, "ports": [{"port": 80}]},
        });
        let path = format!("{}?dryRun=All", path("default", "moved"));
        let patched = send(&plane.client(), Method::PATCH, &path, Some(&patch)).await.unwrap();
        pool_of(addresses(&patched)[0])
    };
    assert_eq!(back(json!({})).await, "windows");
    assert_ne!(back(json!({"clusterip-policy/moving": "{}"})).await, "windows");
    assert_eq!(reached.terminate().await, 0);
}
