//! A control plane with the fence, and the pools, tenants and requests of the tests.

use std::ops::Deref;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::Method;
use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::command::{Ended, ended};
use crate::support::control_plane::{ControlPlane, Options};
pub use crate::support::costly_services::{UNFENCED, addresses_outside};
use crate::support::eventually::eventually;
use crate::support::move_helpers::{path, request};
pub use crate::support::pools::fenced_pool;
use crate::support::program;
use crate::support::shared::Shared;
use crate::support::webhook_cluster::{annotated, message, service};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The text that identifies a refusal of a policy: it follows the names of the policy and of its binding.
pub const BY_POLICY: &str = "' denied request: ";

/// A namespace with the Service `old`, which has had [`addresses_outside`] since before the fence: 1,000 in
/// `spec.externalIPs` and 2,000 in an annotation.
pub const BEFORE_THE_FENCE: &str = "before-the-fence";

/// A dual-stack control plane with a fence.
pub struct Fenced {
    plane: ControlPlane,
    /// The folder with the policies if the API server reads them from files.
    files: Option<TempDir>,
}

impl Deref for Fenced {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.plane
    }
}

impl Fenced {
    /// With files of the API server, and without the custom resources; `None` if this version of Kubernetes reads none.
    pub async fn by_files() -> Option<Arc<Self>> {
        static FENCED: Shared<Fenced> = Shared::new();
        if !ControlPlane::shared().await.reads_policies_from_files() {
            return None;
        }
        let fenced = FENCED
            .get(async || {
                let files = tempfile::tempdir().unwrap();
                let policies = Some(files.path().to_owned());
                let plane = ControlPlane::start(Options { audit: false, policies, ..Options::dual_stack() });
                before_the_fence(&plane).await;
                Self { plane, files: Some(files) }
            })
            .await;
        Some(fenced)
    }

    /// Applies pools. Without custom resources, the fences of these pools become a file of the API server.
    pub async fn apply(&self, pools: &str) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let Some(files) = &self.files else { return self.plane.apply(pools).await };
        let given: Value = serde_json::from_str(pools).unwrap();
        // Together, the pools of a test can be unusable: one may leave no Services for another.
        for pool in given["items"].as_array().map_or(std::slice::from_ref(&given), Vec::as_slice) {
            let file = files.path().join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
            std::fs::write(&file, pool.to_string()).unwrap();
            let written = fences(&file, "static-admission").await.ok();
            std::fs::write(&file, written).unwrap();
            // The API server reads a file with this end as soon as it is there, so the file must be complete.
            std::fs::rename(&file, file.with_extension("yaml")).unwrap();
        }
    }

    /// The name of the policy for a pool.
    pub fn policy(&self, pool: &str, fence: &str) -> String {
        match self.files {
            Some(_) => format!("{pool}.{fence}.clusterip-policy.static.k8s.io"),
            None => format!("{fence}.clusterip-policy.io"),
        }
    }
}

/// The policies of the pools in a file, in this form of `clusterip settings`.
pub async fn fences(pools: &Path, form: &str) -> Ended {
    let mut command = Command::new(program());
    command.arg("settings").arg(pools).args(["--to", form]);
    ended(command).await
}

/// Runs each of these functions as two tests in a module of the same name: with pools as parameters of the policies,
/// and with pools that are written into files of the API server.
macro_rules! by_each_fence {
    ($($test:ident),+ $(,)?) => {$(
        mod $test {
            use $crate::fence::support::{Fenced, fenced};

            #[tokio::test]
            async fn by_parameters() {
                super::$test(&*fenced().await).await;
            }

            #[tokio::test]
            async fn by_files() {
                if let Some(fenced) = Fenced::by_files().await {
                    super::$test(&fenced).await;
                }
            }
        }
    )+};
}
pub(crate) use by_each_fence;

/// Creates the Service `old` in the namespace [`BEFORE_THE_FENCE`].
async fn before_the_fence(plane: &ControlPlane) {
    let namespace = plane.namespace(BEFORE_THE_FENCE).await;
    let old = annotated(
        "old",
        json!({"metallb.io/loadBalancerIPs": addresses_outside(2000).join(",")}),
        json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none", "clusterIP": "172.21.0.203",
            "externalIPs": addresses_outside(1000)}),
    );
    create(&plane.client(), &namespace, &old).await.unwrap();
}

/// A dual-stack control plane with the custom resources and the policies.
pub async fn fenced() -> Arc<Fenced> {
    static FENCED: Shared<Fenced> = Shared::new();
    FENCED
        .get(async || {
            let plane = ControlPlane::start(Options { audit: false, ..Options::dual_stack() });
            plane.install_pools().await;
            before_the_fence(&plane).await;
            plane.kubectl(&["apply", "-k", &format!("{ROOT}/deploy/fence")]).await.ok();
            Fenced { plane, files: None }
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
