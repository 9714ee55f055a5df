//! Acts as the kubelet of the node on which `clusterip` runs: starts the program of the Deployment's Pod with the
//! arguments and the permissions of the manifests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use super::cluster::{Place, services};
use super::control_plane::{ControlPlane, Options};
use super::documented_steps::{Operator, Step};
use super::eventually::eventually;
use super::move_helpers::{send, tries};
use super::serve_process::{Server, ServerBuilder, free_port};

const NAMESPACE: &str = "clusterip-policy";
const ACCOUNT: &str = "clusterip";
const PODS: &str = "/api/v1/namespaces/clusterip-policy/pods";

/// A node that runs one Pod at a time, until the test ends.
pub struct Node {
    port: u16,
    server: Arc<Mutex<Option<Server>>>,
    cordoned: Arc<AtomicBool>,
    gone: Arc<AtomicBool>,
}

impl Node {
    /// Starts a node of a control plane with a controller manager, which creates the Pod.
    pub fn start(plane: Arc<ControlPlane>) -> Self {
        let node = Self { port: free_port(), server: Arc::default(), cordoned: Arc::default(), gone: Arc::default() };
        let (port, server) = (node.port, Arc::clone(&node.server));
        let (cordoned, gone) = (Arc::clone(&node.cordoned), Arc::clone(&node.gone));
        // The node has a thread of its own, so that it does not block the test.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(run_pods(&plane, port, &server, &cordoned, &gone));
        });
        node
    }

    /// The URL of the program for the API server.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Whether the node starts no new Pods.
    pub fn cordon(&self, cordoned: bool) {
        self.cordoned.store(cordoned, Ordering::Release);
    }

    /// The program, if it runs.
    pub async fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().await
    }

    /// The log of the running program.
    pub async fn log(&self) -> Vec<String> {
        self.server().await.as_ref().map(Server::log).unwrap_or_default()
    }

    /// Waits for a line of its log with this text.
    pub async fn logged(&self, text: &str) -> String {
        eventually(&format!("a line of the log with {text:?}"), async || {
            self.log().await.into_iter().find(|line| line.contains(text))
        })
        .await
    }

    /// Waits until no program runs.
    pub async fn is_idle(&self) {
        eventually("the program to end", async || self.server().await.is_none().then_some(())).await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
        // If the test has failed, dropping the server prints its log.
        if let Ok(mut server) = self.server.try_lock() {
            drop(server.take());
        }
    }
}

async fn run_pods(
    plane: &ControlPlane,
    port: u16,
    server: &Mutex<Option<Server>>,
    cordoned: &AtomicBool,
    gone: &AtomicBool,
) {
    let client = plane.client();
    let mut running = String::new();
    while !gone.load(Ordering::Acquire) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let list = send(&client, Method::GET, PODS, None).await.unwrap();
        let pods = list["items"].as_array().unwrap();
        if pods.iter().any(|pod| pod["metadata"]["uid"] == running) {
            continue;
        }
        let mut server = server.lock().await;
        if let Some(mut ended) = server.take() {
            assert_eq!(ended.terminate().await, 0);
        }
        let Some(pod) = pods.first().filter(|_| !cordoned.load(Ordering::Acquire)) else { continue };
        *server = Some(as_in_a_pod(plane, port, pod).await.start().await);
        running = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let path = format!("{PODS}/{}/status", pod["metadata"]["name"].as_str().unwrap());
        let ready = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]}});
        send(&client, Method::PATCH, &path, Some(&ready)).await;
    }
}

/// A control plane with `deploy/webhook`, and its node.
pub struct Installed {
    /// The node. It is the first field, because it must be dropped before its control plane.
    pub node: Node,
    pub plane: Arc<ControlPlane>,
    /// A client of the administrator.
    pub client: Client,
}

impl Installed {
    /// Starts a control plane with the definitions of pools, and a node, without `deploy/webhook`.
    pub async fn nothing() -> Self {
        let plane = Arc::new(ControlPlane::start(Options { controller_manager: true, ..Options::default() }));
        plane.install_pools().await;
        Self { node: Node::start(Arc::clone(&plane)), client: plane.client(), plane }
    }

    /// Installs `deploy/webhook` as its README says, and waits until the API server calls it.
    pub async fn install(&self, operator: &Operator<'_>) {
        for command in [
            "kubectl apply -k deploy/api",
            "kubectl wait --for=condition=Established crd --selector app.kubernetes.io/name=clusterip --timeout 60s",
            "kubectl apply -k deploy/webhook",
            "kubectl rollout status --namespace clusterip-policy deployment/clusterip --timeout 120s",
            "kubectl wait mutatingwebhookconfiguration/clusterip-policy --timeout 60s \\\n\
             --for=jsonpath='{.webhooks[0].clientConfig.caBundle}'",
            "kubectl apply -k deploy/fence",
        ] {
            operator.does(&Step::Type(command.to_owned())).await;
        }
        self.is_asked().await;
    }

    /// Waits until creates go through the webhook.
    pub async fn is_asked(&self) {
        let place = self.place("trial").await;
        let path = format!("/api/v1/namespaces/{}/services?dryRun=All", place.namespace);
        let trial = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "trial", "annotations": {"clusterip-policy/pool": "there is none"}},
            "spec": {"ports": [{"port": 80}]}});
        eventually("the webhook to be asked", async || {
            tries(&self.client, Method::POST, &path, &trial).await.is_err().then_some(())
        })
        .await;
    }

    /// Creates a namespace with this name, or with this prefix if it exists.
    pub async fn place(&self, prefix: &str) -> Place {
        Place { client: self.client.clone(), namespace: self.plane.namespace(prefix).await }
    }

    /// UID and first address of every Service, without the Services of the cluster and of the webhooks.
    pub async fn services(&self) -> BTreeMap<String, (String, String)> {
        let mut all = BTreeMap::new();
        for service in services(&self.client).await {
            let text = |path: &str| service.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
            let namespace = text("/metadata/namespace");
            if !["default", "kube-system", "clusterip-policy", "k2s-webhook"].contains(&namespace.as_str()) {
                let name = format!("{namespace}/{}", text("/metadata/name"));
                all.insert(name, (text("/metadata/uid"), text("/spec/clusterIP")));
            }
        }
        all
    }
}

/// The program with the arguments and the service account of a Pod or a Pod template.
pub async fn as_in_a_pod(plane: &ControlPlane, port: u16, pod: &Value) -> ServerBuilder {
    let args = pod["spec"]["containers"][0]["args"].as_array().unwrap();
    let args: Vec<&str> = args.iter().map(|arg| arg.as_str().unwrap()).collect();
    // The node chooses the address to listen on, and the certificate must contain it.
    let Some((&"serve", args)) = args.split_first() else { panic!("{args:?}") };
    let listens = args.iter().position(|arg| *arg == "--listen").unwrap();
    let args = [&args[..listens], &args[listens + 2..]].concat();
    let builder = ServerBuilder::as_user(&plane.kubeconfig_of(NAMESPACE, ACCOUNT).await).port(port);
    builder.args(&["--namespace", NAMESPACE, "--service", "127.0.0.1"]).args(&args).pools()
}
