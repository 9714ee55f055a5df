//! A cluster whose Service range changes.

use axum::http::Method;
use futures::TryStreamExt as _;
use kube::api::{DynamicObject, WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::support::cluster::{Place, services};
use crate::support::command::{self, Ended};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::move_helpers::send;
use crate::support::service_webhook_rules::services as of_namespace;

pub const OLD: &str = "10.96.0.0/24";
pub const NEW: &str = "10.100.0.0/24";

/// Runs `clusterip renumber` as the administrator.
pub async fn renumber(plane: &ControlPlane, arguments: &[&str]) -> Ended {
    let arguments = [&["renumber"], arguments].concat();
    command::clusterip(plane.folder(), plane.kubeconfig(), &arguments).await
}

pub async fn begin(plane: &ControlPlane) -> Ended {
    renumber(plane, &["begin", "--to", NEW, "--yes", "--grace-period", "1"]).await
}

/// A cluster with a controller manager, the Service of its DNS with a ready Pod, and two Services in namespace shop.
pub async fn cluster() -> ControlPlane {
    let plane = cluster_without_services().await;
    let shop = Place { client: plane.client(), namespace: plane.namespace("shop").await };
    shop.service_at("web", [10, 96, 0, 101], json!({}), json!({})).await;
    shop.service_at("cart", [10, 96, 0, 102], json!({}), json!({})).await;
    plane
}

/// The same, without the two Services.
pub async fn cluster_without_services() -> ControlPlane {
    cluster_with_ranges(&[OLD], json!({"clusterIP": "10.96.0.10"})).await
}

/// A cluster with these ranges, whose DNS has the spec merged in.
pub async fn cluster_with_ranges(ranges: &[&str], of_dns: Value) -> ControlPlane {
    let service_ranges = ranges.iter().map(ToString::to_string).collect();
    let plane = ControlPlane::start(Options { service_ranges, controller_manager: true, ..Options::default() });
    let mut dns = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"},
            "annotations": {"example.com/kept": "yes"}},
        "spec": {"selector": {"k8s-app": "kube-dns"}, "internalTrafficPolicy": "Local", "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}});
    json_patch::merge(&mut dns["spec"], &of_dns);
    plane.apply(&dns.to_string()).await;
    plane.apply(r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}"#).await;
    ready_pod(&plane, "coredns-a").await;
    plane
}

/// Creates a Pod of DNS, which is ready.
pub async fn ready_pod(plane: &ControlPlane, name: &str) {
    let metadata = json!({"name": name, "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"nodeName": "node-a", "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "registry.example.com/coredns"}]}});
    plane.apply(&pod.to_string()).await;
    let status = json!({"status": {"phase": "Running", "podIP": "10.1.0.9", "podIPs": [{"ip": "10.1.0.9"}, {"ip": "fd00:1::9"}],
        "conditions": [{"type": "Ready", "status": "True"}]}});
    let path = format!("/api/v1/namespaces/kube-system/pods/{name}/status");
    send(&plane.client(), Method::PATCH, &path, Some(&status)).await.unwrap();
}

pub async fn delete_pod(plane: &ControlPlane, name: &str) {
    let path = format!("/api/v1/namespaces/kube-system/pods/{name}?gracePeriodSeconds=0");
    send(&plane.client(), Method::DELETE, &path, None).await.unwrap();
}

/// Each Service with its addresses, or the name to which it points, ordered by namespace and name.
pub async fn addresses(plane: &ControlPlane) -> Vec<String> {
    let text = |service: &Value, path: &str| service.pointer(path).unwrap().as_str().unwrap_or_default().to_owned();
    let mut all: Vec<String> = services(&plane.client())
        .await
        .iter()
        .map(|service| {
            let (namespace, name) = (text(service, "/metadata/namespace"), text(service, "/metadata/name"));
            if let Some(external) = service["spec"]["externalName"].as_str() {
                return format!("{namespace}/{name} points to {external}");
            }
            let all = service["spec"]["clusterIPs"].as_array().unwrap().iter();
            format!("{namespace}/{name} {}", all.map(|it| it.as_str().unwrap()).collect::<Vec<_>>().join(","))
        })
        .collect();
    all.sort();
    all
}

/// The version of the Services of a namespace.
pub async fn version(plane: &ControlPlane, namespace: &str) -> String {
    let list = format!("/api/v1/namespaces/{namespace}/services");
    let list = send(&plane.client(), Method::GET, &list, None).await.unwrap();
    list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// The changes of the Services of a namespace since this version: what happened, the name of the Service, and its address
/// or the name to which it points.
pub async fn changes_since(plane: &ControlPlane, namespace: &str, version: &str) -> Vec<String> {
    let watched = WatchParams::default().disable_bookmarks().timeout(2);
    let events = of_namespace(plane.client(), namespace).watch(&watched, version).await.unwrap();
    let line = |event: &WatchEvent<DynamicObject>| {
        let (kind, service) = match event {
            WatchEvent::Added(service) => ("added", json!(service)),
            WatchEvent::Modified(service) => ("modified", json!(service)),
            WatchEvent::Deleted(service) => ("deleted", json!(service)),
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => panic!("{event:?}"),
        };
        let (name, spec) = (service["metadata"]["name"].as_str().unwrap(), &service["spec"]);
        let place = spec["externalName"].as_str().or(spec["clusterIP"].as_str()).unwrap();
        format!("{kind} {name}: {place}")
    };
    events.map_ok(|event| line(&event)).try_collect().await.unwrap()
}

/// Each ServiceCIDR with its ranges.
pub async fn ranges(plane: &ControlPlane) -> Vec<String> {
    let listed = send(&plane.client(), Method::GET, "/apis/networking.k8s.io/v1/servicecidrs", None).await.unwrap();
    let items = listed["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| format!("{} {}", item["metadata"]["name"].as_str().unwrap(), item["spec"]["cidrs"]))
        .collect()
}
