//! A control plane with ready Pods, Services that are misplaced, and the command that moves them.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use axum::http::Method;
use clusterip_core::annotations::MOVING_ANNOTATION;
use futures::TryStreamExt as _;
use kube::Client;
use kube::api::{DynamicObject, WatchEvent, WatchParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::command::{Ended, ended};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Proxy, Seen};
use crate::support::move_helpers::{addresses, apply_server_side, but_addresses, path, send, stored};
use crate::support::program;
use crate::support::service_webhook_rules::services;
use crate::support::shared::Shared;
use crate::support::webhook_cluster::within;

/// The end of the grace period comes soon, and the command waits for it.
pub const SEAMLESS: [&str; 5] = ["--seamless", "--yes", "--wait", "--grace-period", "2"];

/// The label of the temporary Services.
const TEMPORARY: &str = "clusterip-policy/temporary";

/// The shared control plane of the tests that run only commands: beside a server, a command moves nothing. Its controller
/// manager writes the EndpointSlices of the temporary Services.
async fn of_commands() -> Arc<ControlPlane> {
    static SHARED: Shared<ControlPlane> = Shared::new();
    SHARED.get(async || with_controller_manager()).await
}

/// The shared control plane of the tests that run servers. Each server has pools for the Services of its test alone.
pub async fn of_servers() -> Arc<ControlPlane> {
    static SHARED: Shared<ControlPlane> = Shared::new();
    SHARED.get(async || with_controller_manager()).await
}

/// A control plane with a controller manager.
pub fn with_controller_manager() -> ControlPlane {
    ControlPlane::start(Options { controller_manager: true, audit: false, ..Options::default() })
}

/// A namespace with Services, and another one for the Lease and the records of a command: commands of other tests hold
/// other Leases.
pub struct Stage {
    pub plane: Arc<ControlPlane>,
    /// A client of the administrator.
    pub client: Client,
    /// The namespace of the Services.
    pub namespace: String,
    /// The namespace of the Lease, the records and the temporary Service `trigger`.
    pub server: String,
    /// The range of the only pool of a command. Each stage has one, because a command that waits before it takes an address
    /// does not know those of other commands. The API server picks addresses outside of it: it is in the static band.
    own_range: String,
    /// The range of [`Self::has_a_pool_for`].
    range: OnceLock<String>,
    folder: tempfile::TempDir,
}

impl Stage {
    /// A stage on the shared control plane.
    pub async fn new(prefix: &str) -> Self {
        Self::on(&of_commands().await, prefix).await
    }

    /// A stage on this control plane, which has a controller manager.
    pub async fn on(plane: &Arc<ControlPlane>, prefix: &str) -> Self {
        /// Many more ranges than tests that run at once need.
        const RANGES: usize = 30;
        static STAGES: AtomicUsize = AtomicUsize::new(0);
        let own_range = format!("172.21.0.{}/29", 16 + STAGES.fetch_add(1, Ordering::Relaxed) % RANGES * 8);
        let folder = tempfile::tempdir().unwrap();
        let settings = format!("services: {{pools: [{{name: all, cidrs: [{own_range}]}}]}}\n");
        std::fs::write(folder.path().join("settings.yaml"), settings).unwrap();
        let namespace = plane.namespace(prefix).await;
        let server = plane.namespace(&format!("{prefix}-server")).await;
        let (plane, client) = (Arc::clone(plane), plane.client());
        Self { plane, client, namespace, server, own_range, range: OnceLock::new(), folder }
    }

    /// Gives this stage a pool for the Services of these stages alone, which no other server has.
    pub fn has_a_pool_for(&self, stages: &[&Stage]) {
        static NEXT: AtomicU8 = AtomicU8::new(48);
        let first = NEXT.fetch_add(8, Ordering::Relaxed);
        assert!(first < 128, "the ranges are used up");
        let namespaces: Vec<&str> = stages.iter().map(|stage| stage.namespace.as_str()).collect();
        let range = format!("172.21.0.{first}/29");
        let pool = json!({"name": "all", "cidrs": [range], "match": {"namespaces": namespaces}});
        std::fs::write(self.settings(), json!({"services": {"pools": [pool]}}).to_string()).unwrap();
        for stage in stages {
            stage.range.set(range.clone()).expect("a stage has one pool");
        }
    }

    /// Whether an address is in the pool for the Services of this stage.
    pub fn is_in_pool(&self, address: &IpAddr) -> bool {
        within(*address, self.range())
    }

    fn range(&self) -> &str {
        self.range.get().unwrap_or(&self.own_range)
    }

    /// The settings with the pool.
    pub fn settings(&self) -> PathBuf {
        self.folder.path().join("settings.yaml")
    }

    /// Creates a misplaced Service with this spec merged in, and a ready Pod, and waits until the Pod is its endpoint.
    pub async fn service(&self, name: &str, spec: Value) -> Value {
        self.ready_pod(name).await;
        let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80}]}});
        json_patch::merge(&mut service["spec"], &spec);
        let path = format!("/api/v1/namespaces/{}/services?fieldManager=author", self.namespace);
        let created = send(&self.client, Method::POST, &path, Some(&service)).await.unwrap();
        let slices = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector=kubernetes.io/service-name={name}",
            self.namespace
        );
        if !created["spec"]["selector"].is_null() {
            eventually("the endpoint of the Service", async || {
                let list = send(&self.client, Method::GET, &slices, None).await?;
                let ready = &list["items"][0]["endpoints"][0]["conditions"]["ready"];
                (*ready == true).then_some(())
            })
            .await;
        }
        created
    }

    /// Creates a Pod, and makes it ready, as a kubelet does. A Pod is an endpoint only if its Node exists.
    async fn ready_pod(&self, app: &str) {
        // Several stages may do this at the same time, so it must not fail if the Node exists.
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}});
        apply_server_side(&self.client, "/api/v1/nodes/node-1", "tests", true, &node).await.unwrap();
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let ip = format!("10.1.0.{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let pods = format!("/api/v1/namespaces/{}/pods", self.namespace);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": app, "labels": {"app": app}},
            "spec": {"nodeName": "node-1", "containers": [{"name": "web", "image": "example.com/web"}]}});
        send(&self.client, Method::POST, &pods, Some(&pod)).await.unwrap();
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}]}});
        send(&self.client, Method::PATCH, &format!("{pods}/{app}/status"), Some(&status)).await.unwrap();
    }

    /// `clusterip move` for the Services of this stage, as the administrator, through a proxy.
    pub fn command_through(&self, proxy: &Proxy, arguments: &[&str]) -> Command {
        let file = format!("{}.kubeconfig", self.namespace);
        self.command_as(&self.plane.write_kubeconfig(&file, proxy.url(), self.plane.admin_token()), arguments)
    }

    /// The same, with this kubeconfig.
    pub fn command_as(&self, kubeconfig: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(["move", "-n", &self.namespace, "--server-namespace", &self.server]).args(arguments);
        command.arg("--kubeconfig").arg(kubeconfig).arg("--settings").arg(self.settings());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `clusterip move` with these arguments until it ends.
    pub async fn run(&self, arguments: &[&str]) -> Ended {
        ended(self.command_as(self.plane.kubeconfig(), arguments)).await
    }

    /// As [`Self::run`], until nothing is left of the moves.
    pub async fn run_until_nothing_is_left(&self, arguments: &[&str]) {
        eventually(&format!("the end of the moves in {}", self.namespace), async || {
            if !self.left().await.is_empty() {
                self.run(arguments).await;
            }
            self.left().await.is_empty().then_some(())
        })
        .await;
    }

    /// What is wrong with a Service after moves that may have failed: it has its old address or one of the pool, and all
    /// other fields are the same.
    pub async fn wrong_since(&self, before: &Value) -> Option<String> {
        let after = self.stored(before["metadata"]["name"].as_str().unwrap()).await;
        let (from, now) = (addresses(before), addresses(&after));
        let has_moved = now.len() == 1 && now.iter().all(|address| self.is_in_pool(address));
        let is_right = (has_moved || now == from) && but_addresses(&after) == but_addresses(before);
        (!is_right).then(|| format!("{after} instead of {before}"))
    }

    /// The Service as it is stored.
    pub async fn stored(&self, name: &str) -> Value {
        stored(&self.client, &self.namespace, name).await.expect("the Service exists")
    }

    /// What is left of moves: temporary Services and records, in the namespaces of this stage.
    pub async fn left(&self) -> Vec<String> {
        let lists = [
            format!("/api/v1/namespaces/{}/services?labelSelector={TEMPORARY}", self.namespace),
            format!("/api/v1/namespaces/{}/services?labelSelector={TEMPORARY}", self.server),
            format!(
                "/apis/apps/v1/namespaces/{}/controllerrevisions?labelSelector=clusterip-policy/move=record",
                self.server
            ),
        ];
        let mut left = Vec::new();
        for list in lists {
            let list = send(&self.client, Method::GET, &list, None).await.unwrap();
            let names = list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].to_string());
            left.extend(names);
        }
        left
    }

    /// Releases the Lease of a command that was killed, so that the test need not wait until the Lease expires.
    pub async fn free_the_lease(&self) {
        let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/clusterip-leader", self.server);
        let released = json!({"spec": {"holderIdentity": ""}});
        // The command deletes the Lease if it has ended by itself.
        let _ = send(&self.client, Method::PATCH, &lease, Some(&released)).await;
    }

    /// Whether a request is a write of a move of this stage. Dry runs are writes, too.
    pub fn is_write(&self) -> impl Fn(&Seen) -> bool + Send + Sync + 'static {
        let namespaces = [&self.namespace, &self.server].map(|namespace| format!("/namespaces/{namespace}/"));
        move |seen| {
            let of_move = seen.path.contains("/services") || seen.path.contains("/controllerrevisions");
            seen.is_write() && of_move && namespaces.iter().any(|namespace| seen.path.contains(namespace))
        }
    }

    /// Watches the Services of the namespace until a Service `end` is created, and returns their changes.
    pub async fn watch(&self, moving: &Value) -> JoinHandle<Vec<String>> {
        let list = format!("/api/v1/namespaces/{}/services", self.namespace);
        let list = send(&self.client, Method::GET, &list, None).await.unwrap();
        let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let api = services(self.client.clone(), &self.namespace);
        let (namespace, range) = (self.namespace.clone(), self.range().to_owned());
        let describer = ChangeDescriber { namespace, from: addresses(moving), range };
        tokio::spawn(async move {
            let events = api.watch(&WatchParams::default().disable_bookmarks().timeout(280), &version).await.unwrap();
            let events = events.try_take_while(|event| {
                let ended =
                    matches!(event, WatchEvent::Added(service) if service.metadata.name.as_deref() == Some("end"));
                futures::future::ready(Ok(!ended))
            });
            events.map_ok(|event| describer.line(&event)).try_collect().await.unwrap()
        })
    }

    /// Ends [`Self::watch`].
    pub async fn end_watch(&self, watch: JoinHandle<Vec<String>>) -> Vec<String> {
        let path = format!("/api/v1/namespaces/{}/services", self.namespace);
        let end = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "end"},
            "spec": {"clusterIP": "None", "ports": [{"port": 80}]}});
        send(&self.client, Method::POST, &path, Some(&end)).await.unwrap();
        watch.await.unwrap()
    }
}

/// Describes changes of Services during a move.
struct ChangeDescriber {
    namespace: String,
    /// The old addresses of the Service that moves.
    from: Vec<IpAddr>,
    /// The range of its pool.
    range: String,
}

impl ChangeDescriber {
    /// The change as text: the kind of the event, the role of the Service, and where it is.
    fn line(&self, event: &WatchEvent<DynamicObject>) -> String {
        let (kind, service) = match event {
            WatchEvent::Added(service) => ("added", service),
            WatchEvent::Modified(service) => ("modified", service),
            WatchEvent::Deleted(service) => ("deleted", service),
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => panic!("{event:?}"),
        };
        let service = serde_json::to_value(service).unwrap();
        let name = service["metadata"]["name"].as_str().unwrap();
        let role = service["metadata"]["labels"][TEMPORARY].as_str().unwrap_or(name);
        let marked = !service["metadata"]["annotations"][MOVING_ANNOTATION].is_null();
        let marked = if marked && role == name { ", marked" } else { "" };
        format!("{kind} {role}: {}{marked}", self.place(&service))
    }

    fn place(&self, service: &Value) -> &'static str {
        let external_name = service["spec"]["externalName"].as_str().unwrap_or_default();
        let suffix = format!(".{}.svc.cluster.local", self.namespace);
        match addresses(service) {
            _ if service["spec"]["type"] == "ExternalName" => match external_name.strip_suffix(&suffix) {
                Some(new) if new.starts_with("clusterip-new-") => "the name of new",
                Some(old) if old.starts_with("clusterip-old-") => "the name of old",
                None if external_name == "moving.invalid" => "moving.invalid",
                _ => "another name",
            },
            now if now == self.from => "the old address",
            now if now.iter().all(|address| within(*address, &self.range)) => "the new address",
            _ => "another address",
        }
    }
}

/// The path of the temporary Service of this role for a Service, if it exists.
pub async fn temporary_of(stage: &Stage, role: &str) -> Option<String> {
    let list = format!("/api/v1/namespaces/{}/services?labelSelector={TEMPORARY}={role}", stage.namespace);
    let list = send(&stage.client, Method::GET, &list, None).await.unwrap();
    let name = list["items"][0]["metadata"]["name"].as_str()?;
    Some(path(&stage.namespace, name))
}
