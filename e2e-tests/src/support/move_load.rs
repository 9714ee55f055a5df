//! Moves a Service while clients on every node send requests to it, and counts the requests that fail. Needs a cluster
//! whose nodes run Pods.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use axum::http::Method;
use futures::future::join_all;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};

use super::command::clusterip;
use super::control_plane::ControlPlane;
use super::eventually::{MAX_WAIT, eventually, eventually_within};
use super::move_helpers::{addresses, path, send};

/// The environment variable with the path of the program that sends the requests.
pub const LOAD: &str = "CLUSTERIP_LOAD";

/// The pool that all Services belong to. The API server picks no addresses there.
const SETTINGS: &str = "services: {pools: [{name: all, cidrs: [172.21.0.128/25]}]}\n";
/// The rate of requests by name, and that of requests by address, to one Service. As four or five Services have clients
/// at the same time, that is about 200 of each in a second.
const RATE: usize = 50;
/// How long requests are sent before the Service moves.
const LEAD: Duration = Duration::from_secs(2);
/// The time between the moves of two Services. It is longer than a move, so one Service moves after the other.
const BETWEEN: Duration = Duration::from_secs(12);
/// How long requests are sent by name, and through connections that stay open. CoreDNS keeps an address for 30 s.
const BY_NAME: Duration = Duration::from_secs(55);
/// How long requests are sent to the old address: shorter than a seamless move and its grace period of 35 s.
const BY_ADDRESS: Duration = Duration::from_secs(38);

/// How a Service gets another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveMethod {
    /// The Service is deleted, and another one is created.
    DeleteAndCreate,
    /// `clusterip move`.
    Plain,
    /// `clusterip move --seamless`.
    Seamless,
}

impl MoveMethod {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::DeleteAndCreate, Self::Plain, Self::Seamless];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeleteAndCreate => "delete and create",
            Self::Plain => "plain move",
            Self::Seamless => "seamless move",
        }
    }

    /// The name in names of objects.
    fn label(self) -> &'static str {
        match self {
            Self::DeleteAndCreate => "created",
            Self::Plain => "plain",
            Self::Seamless => "seamless",
        }
    }
}

/// What became of the requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// The number of requests.
    pub requests: u64,
    /// The number of requests that failed.
    pub failed: u64,
    /// The number of requests that succeeded after a second or more, if the program counts them.
    #[serde(default)]
    pub slow: u64,
    /// The longest time in which no request of a client succeeded, in milliseconds.
    pub longest_pause: u64,
    /// How often each kind of error occurred.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
}

impl Requests {
    /// Adds the requests of another client.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.slow += other.slow;
        self.longest_pause = self.longest_pause.max(other.longest_pause);
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
    }
}

/// What became of all requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    /// Requests that look the name up, each with a new connection.
    pub by_name: Requests,
    /// Requests to the old address, each with a new connection.
    pub by_address: Requests,
    /// Requests through connections to the old address that stay open.
    pub long_lived: Requests,
}

impl Tally {
    /// Adds the requests of another client, or of another move.
    pub fn add(&mut self, other: &Self) {
        self.by_name.add(&other.by_name);
        self.by_address.add(&other.by_address);
        self.long_lived.add(&other.long_lived);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [("by name", &self.by_name), ("to the old address", &self.by_address), ("open", &self.long_lived)];
        let kinds = kinds.map(|(kind, of)| format!("{kind} {} of {} failed {:?}", of.failed, of.requests, of.errors));
        formatter.write_str(&kinds.join("; "))
    }
}

/// Two web servers that all Services lead to, and the clients.
pub struct MoveLoad<'p> {
    plane: &'p ControlPlane,
    client: Client,
    namespace: String,
    nodes: Vec<String>,
    image: String,
    folder: tempfile::TempDir,
    /// How long a client waits for the answer to a request, with its look-up.
    time_limit: &'static str,
}

impl<'p> MoveLoad<'p> {
    /// Creates a namespace with a web server on each of these nodes. `image` is that of agnhost, which is on the nodes.
    pub async fn start(plane: &'p ControlPlane, nodes: &[&str], image: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("settings.yaml"), SETTINGS).unwrap();
        let namespace = plane.namespace("moving").await;
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        let image = image.to_owned();
        let load = Self { plane, client: plane.client(), namespace, nodes, image, folder, time_limit: "1s" };
        for node in &load.nodes {
            let name = format!("web-on-{node}");
            let container = json!({"name": "web", "image": load.image, "args": ["netexec"],
                "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}});
            plane.apply(&load.pod(&name, node, "Always", container, json!([])).to_string()).await;
        }
        let ready = ["wait", "--for=condition=Ready", "pod", "--selector", "app=web", "--timeout=120s"];
        plane.kubectl(&[&ready[..], &["--namespace", &load.namespace]].concat()).await.ok();
        load
    }

    /// Lets clients wait longer for each answer: while programs start on the nodes, a look-up may take a second.
    pub fn patient(self) -> Self {
        Self { time_limit: "5s", ..self }
    }

    /// A Pod on this node.
    fn pod(&self, name: &str, node: &str, restart: &str, container: Value, volumes: Value) -> Value {
        let app = if restart == "Always" { "web" } else { "client" };
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": {"app": app}},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "restartPolicy": restart,
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
                "containers": [container],
                "volumes": volumes,
            },
        })
    }

    /// Moves this number of Services one after the other, while clients on every node send requests to them.
    pub async fn measure(&self, method: MoveMethod, services: usize) -> Tally {
        let moves = (1..=services).map(async |nth| {
            tokio::time::sleep(BETWEEN * u32::try_from(nth - 1).unwrap()).await;
            let tally = self.measure_one(method, nth).await;
            eprintln!("{}, Service {nth} of {services}: {tally}", method.name());
            tally
        });
        let mut all = Tally::default();
        join_all(moves).await.iter().for_each(|tally| all.add(tally));
        all
    }

    /// Creates a Service, sends requests from every node, moves the Service, and deletes it when all requests have
    /// ended.
    async fn measure_one(&self, method: MoveMethod, nth: usize) -> Tally {
        let name = format!("web-{}-{nth}", method.label());
        let before = self.create_service(&name, json!({})).await;
        let moves = async {
            match method {
                MoveMethod::DeleteAndCreate => self.delete_and_create(&name, nth).await,
                MoveMethod::Plain => self.run_move(&name, &[]).await,
                MoveMethod::Seamless => self.run_move(&name, &["--seamless"]).await,
            }
        };
        let tally = self.during(&name, addresses(&before)[0], moves).await;
        send(&self.client, Method::DELETE, &path(&self.namespace, &name), None).await;
        tally
    }

    /// Sends requests from every node to a Service by name and to this address, while `work` is done.
    pub async fn during(&self, service: &str, address: IpAddr, work: impl Future<Output = ()>) -> Tally {
        let mut clients = Vec::new();
        for node in &self.nodes {
            clients.push(self.start_client(service, address, node).await);
        }
        for client in &clients {
            self.has_begun(client).await;
        }
        tokio::time::sleep(LEAD).await;
        work.await;
        let mut tally = Tally::default();
        for client in &clients {
            tally.add(&self.result(client).await);
            self.plane.kubectl(&["delete", "pod", client, "--namespace", &self.namespace]).await.ok();
        }
        tally
    }

    /// The namespace of the web servers, of the Services and of the clients.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Creates a Service that leads to the web servers.
    pub async fn create_service(&self, name: &str, spec: Value) -> Value {
        let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}});
        json_patch::merge(&mut service["spec"], &spec);
        let services = format!("/api/v1/namespaces/{}/services", self.namespace);
        send(&self.client, Method::POST, &services, Some(&service)).await.unwrap()
    }

    /// Starts a Pod that sends requests, and returns its name.
    async fn start_client(&self, service: &str, address: IpAddr, node: &str) -> String {
        let program = std::env::var(LOAD).unwrap_or_else(|_| panic!("{LOAD} is not set: run `make bench-moves`"));
        let name = format!("client-{service}-{node}");
        let rate = (RATE / self.nodes.len()).to_string();
        let (host, address) = (format!("{service}:80"), format!("{address}:80"));
        let by_name = format!("{}s", BY_NAME.as_secs());
        let by_address = format!("{}s", BY_ADDRESS.as_secs());
        let container = json!({
            "name": "load", "image": self.image, "command": ["/load"],
            "args": ["-name", host, "-address", address, "-rate", rate, "-name-duration", by_name,
                "-address-duration", by_address, "-timeout", self.time_limit],
            "volumeMounts": [{"name": "load", "mountPath": "/load", "readOnly": true}],
        });
        // The nodes see the files of this machine.
        let volumes = json!([{"name": "load", "hostPath": {"path": program, "type": "File"}}]);
        self.plane.apply(&self.pod(&name, node, "Never", container, volumes).to_string()).await;
        name
    }

    /// Waits until a client gets answers.
    async fn has_begun(&self, client: &str) {
        let logs = ["logs", "--namespace", &self.namespace, client];
        eventually_within(2 * MAX_WAIT, &format!("{client} to begin"), async || {
            self.plane.kubectl(&logs).await.stdout.starts_with("begun\n").then_some(())
        })
        .await;
    }

    /// Waits until a client has ended, and returns what became of its requests.
    async fn result(&self, client: &str) -> Tally {
        let logs = ["logs", "--namespace", &self.namespace, client];
        let patience = BY_NAME.max(BY_ADDRESS) + MAX_WAIT;
        let printed = eventually_within(patience, &format!("{client} to end"), async || {
            let printed = self.plane.kubectl(&logs).await.stdout;
            printed.lines().nth(1).map(str::to_owned)
        })
        .await;
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{client}: {error}: {printed}"))
    }

    /// The new address is outside of the pool, so that no move picks it, and where the API server picks none either.
    async fn delete_and_create(&self, name: &str, nth: usize) {
        send(&self.client, Method::DELETE, &path(&self.namespace, name), None).await.unwrap();
        self.create_service(name, json!({"clusterIP": format!("172.21.0.{}", 64 + nth)})).await;
    }

    /// Moves a Service with `clusterip move`, which must succeed. Each command has a server namespace of its own,
    /// because only one command may run in it, until the grace period of its moves has ended.
    async fn run_move(&self, name: &str, arguments: &[&str]) {
        let server_namespace = self.plane.namespace("server").await;
        let service = format!("{}/{name}", self.namespace);
        let order = ["move", "--server-namespace", &server_namespace, "--yes", "--service", &service];
        let all = [&order[..], &["--settings", "settings.yaml"], arguments].concat();
        clusterip(self.folder.path(), self.plane.kubeconfig(), &all).await.ok();
        eventually(&format!("the new address of {service}"), async || {
            let now = send(&self.client, Method::GET, &path(&self.namespace, name), None).await?;
            addresses(&now).first().is_some_and(is_in_pool).then_some(())
        })
        .await;
    }

    /// Deletes everything that [`Self::start`] created.
    pub async fn end(self) {
        self.plane.kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]).await.ok();
    }
}

/// Whether an address is in the pool.
fn is_in_pool(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if matches!(address.octets(), [172, 21, 0, last] if last >= 128))
}
