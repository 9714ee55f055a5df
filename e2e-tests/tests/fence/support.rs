//! A control plane with the fence, and the pools, tenants and requests of the tests.

use crate::support::shared::Shared;
use axum::http::Method;
use kube::Client;
use serde_json::{Value, json};
use std::sync::Arc;

use crate::support::control_plane::{ControlPlane, Options};
pub use crate::support::costly_services::{UNFENCED, addresses_outside};
use crate::support::eventually::eventually;
use crate::support::move_helpers::{path, request};
pub use crate::support::pools::fenced_pool;
use crate::support::webhook_cluster::{annotated, message, service};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The text that identifies a refusal of a policy.
pub const BY_POLICY: &str = ".clusterip-policy.io' denied request";

/// A namespace with the Service `old`, which has had [`addresses_outside`] since before the fence: 1,000 in
/// `spec.externalIPs` and 2,000 in an annotation.
pub const BEFORE_THE_FENCE: &str = "before-the-fence";

/// A dual-stack control plane with the custom resources and the policies.
pub async fn fenced() -> Arc<ControlPlane> {
    static FENCED: Shared<ControlPlane> = Shared::new();
    FENCED
        .get(async || {
            let plane = ControlPlane::start(Options { audit: false, ..Options::dual_stack() });
            plane.install_pools().await;
            let namespace = plane.namespace(BEFORE_THE_FENCE).await;
            let old = annotated(
                "old",
                json!({"metallb.io/loadBalancerIPs": addresses_outside(2000).join(",")}),
                json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none", "clusterIP": "172.21.0.203",
                    "externalIPs": addresses_outside(1000)}),
            );
            create(&plane.client(), &namespace, &old).await.unwrap();
            plane.kubectl(&["apply", "-k", &format!("{ROOT}/deploy/fence")]).await.ok();
            plane
        })
        .await
}

/// A Service with a ClusterIP that was set by hand.
pub fn service_at(name: &str, address: &str) -> Value {
    service(name, json!({"clusterIP": address}))
}

/// A Service with this spec merged in, and a ClusterIP in no pool.
pub fn unfenced_service(name: &str, spec: Value) -> Value {
    let mut service = service(name, spec);
    service["spec"]["clusterIP"] = json!(UNFENCED);
    service
}

/// The answer of the API server, or the message of its refusal. Without a body, `body` is null.
pub async fn send(client: &Client, method: Method, path: &str, body: &Value) -> Result<Value, String> {
    client.request(request(method, path, body)).await.map_err(|error| message(&error))
}

/// Creates a Service.
pub async fn create(client: &Client, namespace: &str, service: &Value) -> Result<Value, String> {
    send(client, Method::POST, &format!("/api/v1/namespaces/{namespace}/services"), service).await
}

/// Creates a Service in a dry run.
pub async fn dry_run(client: &Client, namespace: &str, service: &Value) -> Result<Value, String> {
    send(client, Method::POST, &format!("/api/v1/namespaces/{namespace}/services?dryRun=All"), service).await
}

/// Changes a Service with a merge patch.
pub async fn patch(client: &Client, namespace: &str, name: &str, patch: Value) -> Result<Value, String> {
    send(client, Method::PATCH, &path(namespace, name), &patch).await
}

/// `allowed`, `refused` by a policy, or another error.
pub fn outcome(result: Result<Value, String>) -> String {
    match result {
        Ok(_) => "allowed".to_owned(),
        Err(message) if message.contains(BY_POLICY) => "refused".to_owned(),
        Err(message) => message,
    }
}

/// Waits until a policy refuses this Service.
pub async fn until_refused(client: &Client, namespace: &str, service: &Value) {
    eventually("the pool to be in force", async || {
        (outcome(dry_run(client, namespace, service).await) == "refused").then_some(())
    })
    .await;
}

/// A namespace, and a client of the user of the same name, who may write every Service of the namespace.
pub async fn tenant(plane: &ControlPlane, name: &str) -> (String, Client) {
    let namespace = plane.namespace(name).await;
    let group = "rbac.authorization.k8s.io";
    let api_version = "rbac.authorization.k8s.io/v1";
    let metadata = json!({"name": "edit", "namespace": namespace});
    let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let rules = json!([{"apiGroups": [""], "resources": ["services"], "verbs": verbs}]);
    let role = json!({"apiVersion": api_version, "kind": "Role", "metadata": metadata, "rules": rules});
    let binding = json!({"apiVersion": api_version, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "edit"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": namespace}]});
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [role, binding]}).to_string()).await;
    let client = plane.client_as(&namespace);
    eventually("the permissions of a tenant", async || {
        dry_run(&client, &namespace, &service("trial", json!({"clusterIP": "None"}))).await.ok()
    })
    .await;
    (namespace, client)
}

/// A change of a Service.
pub struct Change<'a> {
    pub name: &'static str,
    pub namespace: &'a str,
    pub patch: Value,
    pub expected: &'static str,
}
