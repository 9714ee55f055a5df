//! `--register-url`: a server outside of the cluster creates its own webhook configuration.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip::webhook::admission::Reviewer;
use clusterip::webhook::authority::Authority;
use clusterip::webhook::registration::Registration;
use clusterip::webhook::server::{self, Backend, Limits};
use clusterip_cluster::admission_review::AdmissionResponse;
use clusterip_cluster::http::probes::Scrapes;
use clusterip_cluster::http::server::Server;
use clusterip_cluster::live_settings::{LiveSettings, check_settings};
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::support::{Hands, Task, authority_pem, bundle, configuration, configurations, days, soon};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::{path, request, send};
use crate::support::serve_process::ServerBuilder;

/// A reviewer that gives this address to every Service that needs one.
struct OneAddress(Ipv4Addr);

impl Reviewer for OneAddress {
    fn review(&self, request: &Value) -> AdmissionResponse {
        let patch = match request["object"]["spec"]["type"].as_str() {
            Some("ExternalName") => json!([]),
            _ => json!([{"op": "add", "path": "/spec/clusterIP", "value": self.0}]),
        };
        AdmissionResponse {
            uid: request["uid"].as_str().unwrap().to_owned(),
            allowed: true,
            patch_type: Some("JSONPatch".to_owned()),
            patch: Some(STANDARD.encode(patch.to_string())),
            status: None,
            audit_annotations: Some(BTreeMap::from([("pool".to_owned(), "linux".to_owned())])),
            warnings: None,
        }
    }
}

const ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 21, 9, 9);

/// Starts a server with [`OneAddress`] and a certificate of this authority.
async fn serve(authority: &Authority) -> (Task<()>, String) {
    let mut limits = Limits { linger: Duration::ZERO, ..Limits::default() };
    limits.time.drain = Duration::ZERO;
    let server = Server::bind(([127, 0, 0, 1], 0).into(), "the webhook", "--listen").await.unwrap();
    let url = format!("https://{}", server.local_addr());
    let backend = Backend {
        reviewer: Arc::new(OneAddress(ADDRESS)),
        not_ready: Arc::new(Vec::new),
        scrapes: Scrapes::new(String::new),
    };
    let certificate = authority.certificate();
    let task = Task::start(|stopped| async move {
        server::serve(server, limits, backend, &certificate, stopped.wait()).await.unwrap();
    });
    (task, url)
}

/// The address that a new Service would get.
async fn address(plane: &ControlPlane, namespace: &str) -> Result<String, kube::Error> {
    let path = format!("/api/v1/namespaces/{namespace}/services?dryRun=All");
    let web = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"ports": [{"port": 80}]}});
    let created = plane.client().request::<Value>(request(Method::POST, &path, &web)).await?;
    Ok(created["spec"]["clusterIP"].as_str().unwrap().to_owned())
}

/// The address that the Service `moved` would get if its type changed back from `ExternalName`.
async fn address_back(plane: &ControlPlane, namespace: &str, annotations: Value) -> String {
    let patch = json!({
        "metadata": {"annotations": annotations},
        "spec": {"type": "ClusterIP", "externalName": null, "ports": [{"port": 80}]},
    });
    let path = format!("{}?dryRun=All", path(namespace, "moved"));
    let patched = send(&plane.client(), Method::PATCH, &path, Some(&patch)).await.unwrap();
    patched["spec"]["clusterIP"].as_str().unwrap().to_owned()
}

async fn called(plane: &ControlPlane, namespace: &str) {
    let ask = async || (address(plane, namespace).await.unwrap() == ADDRESS.to_string()).then_some(());
    eventually("the webhook to be called", ask).await;
}

/// Settings that need only the webhooks for Services.
fn settings() -> watch::Receiver<Arc<LiveSettings>> {
    let settings = check_settings(json!({}), &ServiceRanges::default()).unwrap();
    watch::channel(Arc::new(settings)).1
}

#[tokio::test]
async fn server_outside_the_cluster_is_called_during_every_certificate_change() {
    let plane = ControlPlane::start(Options::default());
    let (client, namespace) = (plane.client(), plane.namespace("shop").await);
    // The last year of the authority began two days ago. The clock of the API server can't be set.
    let hands = Hands::at(Timestamp::now() - days(9 * 365 + 3));
    let names = vec!["127.0.0.1".to_owned()];
    let mut authority = Authority::open(client.clone(), &namespace, names, hands.clock()).await.unwrap();
    let (server, url) = serve(&authority).await;
    let registration =
        Registration::with_url(client.clone(), "clusterip-policy", &url, authority.bundle(), settings()).await;
    let registration = registration.unwrap();
    let mut registered = registration.registered();
    let task = Task::start(|stopped| registration.run(stopped.wait()));

    hands.pass(days(9 * 365 + 1));
    authority.step("").await.unwrap();
    let both = bundle(&authority);
    assert_eq!(both.matches("BEGIN CERTIFICATE").count(), 2);
    registered.wait_for(|seen| *seen == both).await.unwrap();
    called(&plane, &namespace).await;

    let old = authority.leaf().clone();
    hands.pass(days(2));
    authority.step(&both).await.unwrap();
    assert_ne!(authority.leaf().issued_by, old.issued_by);
    assert_eq!(bundle(&authority), both);
    assert_eq!(address(&plane, &namespace).await.unwrap(), ADDRESS.to_string());
    // After a restart the API server opens a new connection, to a server with a certificate of the new authority.
    plane.stop_api_server();
    plane.start_api_server();
    // An API server that has just started may still refuse a create. No later one may be refused.
    eventually("the API server to accept a create", async || address(&plane, &namespace).await.ok()).await;
    called(&plane, &namespace).await;
    // The webhook ignores the requests of the mover, which runs as this user and sets this annotation.
    let external = ["create", "service", "externalname", "moved", "--external-name=moving.invalid"];
    plane.kubectl(&[&external[..], &["--namespace", &namespace]].concat()).await.ok();
    assert_eq!(address_back(&plane, &namespace, json!({})).await, ADDRESS.to_string());
    let moving = json!({"clusterip-policy/moving": "{}"});
    assert_ne!(address_back(&plane, &namespace, moving).await, ADDRESS.to_string());
    // The same without a dry run.
    plane.kubectl(&["create", "service", "clusterip", "web", "--tcp=80", "--namespace", &namespace]).await.ok();
    let web = Api::<Service>::namespaced(client.clone(), &namespace).get("web").await.unwrap();
    assert_eq!(web.spec.unwrap().cluster_ip, Some(ADDRESS.to_string()));

    task.stop().await.unwrap();
    assert!(configurations(&client).get_opt("clusterip-policy").await.unwrap().is_none());
    server.stop().await;
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
async fn server_reports_whether_the_api_server_calls_its_url() {
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
    assert_eq!(reached.terminate().await, 0);
}

#[tokio::test]
async fn invalid_register_url_is_refused() {
    let plane = ControlPlane::shared().await;
    let client = plane.client();
    let (_sender, trusted) = watch::channel(String::new());
    for url in
        ["http://127.0.0.1:1", "127.0.0.1:1", "https://127.0.0.1:1/mutate", "https://a@127.0.0.1:1", "https://", ""]
    {
        let error =
            Registration::with_url(client.clone(), "x", url, trusted.clone(), settings()).await.err().expect(url);
        let url = url.replace("a@", "");
        assert_eq!(error.to_string(), format!("--register-url {url}: it must be https://HOST:PORT, without a path"));
    }
}
