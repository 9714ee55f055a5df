//! Which Services the control plane calls, according to a real API server, and when the controller moves them.

use axum::http::Method;
use clusterip::services::controller::requests::{self, MoveRequest};
use clusterip_cluster::host_metrics::ClusterMetrics;
use clusterip_cluster::watch::control_plane_services::{Caller, ControlPlaneServices};
use clusterip_cluster::watch::stores::Stores;
use clusterip_core::settings::Settings;
use serde_json::{Value, json};

use crate::support::cluster::{Cluster, pool_of};
use crate::support::eventually::eventually;
use crate::support::fault_proxy::Proxy;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::{addresses, send};

/// Objects that make the API server call Services of namespace `called`, but not for any request of a test.
fn objects() -> Value {
    let webhook = |service: &str| {
        json!({
            "name": "a.example.org", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore",
            "clientConfig": {"service": {"namespace": "called", "name": service}},
            "rules": [{"apiGroups": ["none.example.org"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nones"]}],
        })
    };
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
         "metadata": {"name": "mutating"}, "webhooks": [webhook("hook")]},
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
         "metadata": {"name": "validating"}, "webhooks": [webhook("hook"), {
            "name": "b.example.org", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore", "clientConfig": {"url": "https://example.org/"},
         }]},
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
         "metadata": {"name": "v1.aggregated.example.org"},
         "spec": {"group": "aggregated.example.org", "version": "v1", "groupPriorityMinimum": 10, "versionPriority": 10,
                  "insecureSkipTLSVerify": true, "service": {"namespace": "called", "name": "api"}}},
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
         "metadata": {"name": "things.example.org"},
         "spec": {
            "group": "example.org", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                          "schema": {"openAPIV3Schema": {"type": "object"}}}],
            "conversion": {"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"service": {"namespace": "called", "name": "convert"}},
            }},
         }},
    ]})
}

fn called(services: &ControlPlaneServices, name: &str) -> Option<Vec<String>> {
    let callers = services.callers("called", name).ok()?;
    Some(callers.iter().map(Caller::to_string).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn services_called_by_the_control_plane_are_tracked() {
    // An API without a server would disturb other tests.
    let plane = LentControlPlane::get().await;
    let stores = Stores::new(plane.client(), ClusterMetrics::default(), |_| (), |_| ());
    assert!(stores.control_plane_services().callers("called", "hook").is_err(), "the stores are empty at first");
    stores.watch(&Settings::default());
    let services = stores.control_plane_services();
    let becomes = async |name: &str, expected: &[&str]| {
        eventually(&format!("the callers of {name}: {expected:?}"), async || {
            (called(services, name)? == expected).then_some(())
        })
        .await;
    };
    services.wait_until_listed().await;
    becomes("hook", &[]).await;
    let states = || stores.states().keys().map(|(_, kind)| kind.clone()).collect::<Vec<_>>();
    assert!(!states().iter().any(|kind| kind == "APIService"), "admission does not wait for it: {:?}", states());

    plane.apply(&objects().to_string()).await;
    becomes("hook", &["MutatingWebhookConfiguration mutating", "ValidatingWebhookConfiguration validating"]).await;
    becomes("api", &["APIService v1.aggregated.example.org"]).await;
    becomes("convert", &["CustomResourceDefinition things.example.org"]).await;
    becomes("other", &[]).await;

    let kinds = "mutatingwebhookconfiguration/mutating validatingwebhookconfiguration/validating \
                 apiservice/v1.aggregated.example.org customresourcedefinition/things.example.org";
    for object in kinds.split_whitespace() {
        plane.kubectl(&["delete", "--wait=false", object]).await.ok();
    }
    for name in ["hook", "api", "convert"] {
        becomes(name, &[]).await;
    }
}

/// A Service that the control plane calls is moved only if an administrator names it and its webhook does not block the
/// move.
#[tokio::test]
async fn service_called_by_the_control_plane_is_moved_only_by_an_administrator() {
    const CALLED: &str = "it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux (Deployment web); it \
                          stays: called by ValidatingWebhookConfiguration control-plane: the API server could not call it \
                          while it moves; ";
    const OPTION: &str = "`clusterip move --called-by-control-plane web` moves it";
    const REMEDY: &str = "for the time of the move, set failurePolicy: Ignore and timeoutSeconds: 1 in webhook \
                           called.example.com of ValidatingWebhookConfiguration control-plane, because the API server \
                           refuses the requests of the move without an answer of the webhook; then ";
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(&cluster.plane).await;
    let place = cluster.place("called").await;
    let name = place.namespace.clone();
    let configure = async |failure_policy: &str, resource: &str| {
        let client_config = json!({"service": {"namespace": name, "name": "web", "path": "/"}});
        let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "control-plane"},
            "webhooks": [{
                "name": "called.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": client_config, "failurePolicy": failure_policy, "timeoutSeconds": 1,
                "namespaceSelector": selector,
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": [resource]}],
            }],
        });
        cluster.plane.apply(&configuration.to_string()).await;
    };
    configure("Ignore", "limitranges").await;
    place.workload("linux").await;
    place.service_at("web", [172, 21, 1, 30], json!({}), json!({})).await;
    let _server = cluster.server(&proxy, &json!({})).arg("--no-webhook").start().await;
    // `events` leaves out the namespace.
    let first = eventually("the Event about the Service", async || place.events("web").await.into_iter().next()).await;
    assert_eq!(first, format!("AddressMisplaced: {CALLED}{OPTION}"));
    let ask = async |control_plane: bool| {
        let uid = place.web().await["metadata"]["uid"].as_str().unwrap().to_owned();
        let request =
            MoveRequest { namespace: name.clone(), name: "web".to_owned(), uid, control_plane, seamless: None };
        requests::ask(&cluster.client, &cluster.namespace, &request).await.unwrap();
        eventually("the request to be finished", async || {
            (!requests::is_open(&cluster.client, &cluster.namespace, &request.uid).await.unwrap()).then_some(())
        })
        .await;
        pool_of(addresses(&place.web().await)[0])
    };
    place.annotate("clusterip-policy/move", "now").await;
    assert_eq!(ask(false).await, "windows");

    configure("Fail", "services").await;
    let refused = format!("AddressMisplaced: {CALLED}{REMEDY}{OPTION}");
    eventually("the Event with the remedy", async || {
        assert_eq!(ask(true).await, "windows");
        place.events("web").await.contains(&refused).then_some(())
    })
    .await;
    // The API server sends each update of the move to the webhook, which does not answer.
    configure("Ignore", "services").await;
    eventually("the move", async || (ask(true).await == "linux").then_some(())).await;
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/control-plane";
    send(&cluster.client, Method::DELETE, path, None).await;
}
