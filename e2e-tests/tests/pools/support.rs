//! A control plane with the definitions of the custom resources, and a `clusterip serve` that follows the objects.

use std::ops::Deref;
use std::sync::Arc;

use crate::support::shared::Shared;
use axum::http::Method;
use serde_json::{Value, json};

use crate::support::command;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::{MAX_WAIT, eventually, pause};
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::{self, apply_server_side, send, services, tries};
use crate::support::pools::pool;
use crate::support::serve_process::{Server, ServerBuilder};
use crate::support::webhook_cluster::{address, service, within};

/// A control plane and a server, which moves no Service.
pub struct PoolCluster {
    /// The server is the first field, because it must end before the control plane is given back.
    pub server: Server,
    pub plane: Box<dyn Deref<Target = ControlPlane> + Send + Sync>,
}

impl PoolCluster {
    /// The dual-stack cluster that tests share. Each test has namespaces, pools and ranges of its own.
    pub async fn shared() -> Arc<Self> {
        static SHARED: Shared<PoolCluster> = Shared::new();
        SHARED.get(|| Self::start(Options { audit: false, ..Options::dual_stack() })).await
    }

    /// A cluster with the pools of a few tests: an audit needs settings that do not change all the time.
    pub async fn shared_by_audits() -> Arc<Self> {
        static SHARED: Shared<PoolCluster> = Shared::new();
        SHARED.get(Self::lent).await
    }

    /// An audit of the cluster; `None` if the server does not use the pools as they are now.
    pub async fn audit(&self) -> Option<Value> {
        let arguments = ["audit", "-o", "json"];
        let ended = command::clusterip(self.plane.folder(), self.plane.kubeconfig(), &arguments).await;
        serde_json::from_str(&ended.stdout).ok()
    }

    /// Starts a control plane and a server without any pool.
    pub async fn start(options: Options) -> Self {
        Self::on(Box::new(Box::new(ControlPlane::start(options)))).await
    }

    /// The same on a control plane for one test at a time.
    pub async fn lent() -> Self {
        Self::on(Box::new(LentControlPlane::get().await)).await
    }

    async fn on(plane: Box<dyn Deref<Target = ControlPlane> + Send + Sync>) -> Self {
        plane.install_pools().await;
        if !plane.tells_addresses() {
            apply(&plane, &policy(&plane, json!({}))).await;
        }
        let server = server(&plane).start().await;
        Self { server, plane }
    }

    /// Applies objects.
    pub async fn apply(&self, objects: &[Value]) {
        for object in objects {
            apply(&self.plane, object).await;
        }
    }

    /// Deletes a ServicePool.
    pub async fn delete_pool(&self, name: &str) {
        send(&self.plane.client(), Method::DELETE, &path("ServicePool", name), None).await.unwrap();
    }

    /// An object of the API `clusterip-policy.io`.
    pub async fn object(&self, kind: &str, name: &str) -> Value {
        send(&self.plane.client(), Method::GET, &path(kind, name), None).await.unwrap()
    }

    /// Waits until the status of an object is about its latest version, and its condition `Ready` has this reason and a
    /// message that contains this text. Returns the object.
    pub async fn until_reason(&self, kind: &str, name: &str, reason: &str, message: &str) -> Value {
        self.status_of(kind, name, |object| {
            let ready = condition(object, "Ready");
            let status = if reason == "InUse" { "True" } else { "False" };
            let generation = &object["metadata"]["generation"];
            object["status"]["observedGeneration"] == *generation
                && ready["observedGeneration"] == *generation
                && ready["status"] == status
                && ready["reason"] == reason
                && ready["message"].as_str().is_some_and(|text| text.contains(message))
        })
        .await
    }

    /// Waits until an object is as expected, and returns it.
    pub async fn status_of(&self, kind: &str, name: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
        let (begun, mut last) = (std::time::Instant::now(), Value::Null);
        while begun.elapsed() < MAX_WAIT {
            last = self.object(kind, name).await;
            if is_expected(&last) {
                return last;
            }
            tokio::time::sleep(pause(begun)).await;
        }
        panic!("waited in vain for {kind} {name}: {last:#}");
    }

    /// Creates a Service: returns it, or the message of the API server.
    pub async fn create(&self, namespace: &str, service: &Value) -> Result<Value, String> {
        tries(&self.plane.client(), Method::POST, &services(namespace), service).await
    }

    /// Deletes a Service.
    pub async fn delete(&self, namespace: &str, name: &str) {
        send(&self.plane.client(), Method::DELETE, &move_helpers::path(namespace, name), None).await.unwrap();
    }

    /// Waits until a Service with these labels would get an address of this range.
    pub async fn serves(&self, namespace: &str, labels: &Value, range: &str) {
        let (path, trial) = (format!("{}?dryRun=All", services(namespace)), labelled("trial", labels));
        eventually(&format!("an address of {range} for namespace {namespace}"), async || {
            let tried = tries(&self.plane.client(), Method::POST, &path, &trial).await.ok()?;
            within(address(&tried), range).then_some(())
        })
        .await;
    }
}

/// Applies an object of the API `clusterip-policy.io` on the side of the API server, as GitOps programs do.
pub async fn apply(plane: &ControlPlane, object: &Value) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let path = path(&text(&object["kind"]), &text(&object["metadata"]["name"]));
    let client = plane.client();
    eventually("the API server to serve the kind", async || {
        match apply_server_side(&client, &path, "author", true, object).await {
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            applied => Some(applied.unwrap_or_else(|error| panic!("{object}: {error}"))),
        }
    })
    .await;
}

/// A `clusterip serve` that follows the objects of a control plane, is called by its API server, and moves no Service.
pub fn server(plane: &ControlPlane) -> ServerBuilder {
    ServerBuilder::new(plane).pools().args(&["--move", "never"]).registered()
}

/// The ClusterIPPolicy with this spec, and with the Service ranges if this version of Kubernetes does not publish them.
pub fn policy(plane: &ControlPlane, mut spec: Value) -> Value {
    if !plane.tells_addresses() {
        spec["serviceCIDRs"] = json!(plane.service_ranges());
    }
    pool("ClusterIPPolicy", "default", spec)
}

/// A pool of one range, for the Services of one namespace.
pub fn pool_of(name: &str, range: &str, namespace: &str) -> Value {
    pool("ServicePool", name, json!({"cidrs": [range], "match": {"namespaces": [namespace]}}))
}

/// A Service with these labels.
fn labelled(name: &str, labels: &Value) -> Value {
    let mut service = service(name, json!({}));
    service["metadata"]["labels"] = labels.clone();
    service
}

/// A condition of an object; null if the object does not have it.
pub fn condition(object: &Value, type_: &str) -> Value {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == type_).cloned().unwrap_or_default()
}

/// The path of an object of the API `clusterip-policy.io`.
pub fn path(kind: &str, name: &str) -> String {
    let plural = match kind {
        "ClusterIPPolicy" => "clusterippolicies".to_owned(),
        kind => format!("{}s", kind.to_lowercase()),
    };
    format!("/apis/clusterip-policy.io/v1alpha1/{plural}/{name}")
}
