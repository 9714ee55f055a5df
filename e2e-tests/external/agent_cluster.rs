//! Nodes with agents, a client, and a control plane to which each agent has its own link.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kube::Client;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::arp_probe::Probe;
use super::network::{Host as Machine, Network, run};
use super::support::control_plane::{ControlPlane, Options};
use super::support::move_helpers::{events, send};
use super::support::program;
use super::support::serve_process::{Server, ServerBuilder};

/// The time limit until an address has its first holder.
pub const BEGIN: Duration = Duration::from_secs(30);

/// The port on which an agent serves its health and metrics.
const STATUS: u16 = 9634;

/// The runtime of all asynchronous work of these tests.
pub static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// Three nodes with an agent each, and a client.
pub struct AgentCluster {
    pub network: Network,
    pub client: Client,
    namespace: String,
    agents: Vec<Option<Agent>>,
    names: Vec<String>,
    links: Vec<String>,
    /// The addresses at which the tests reach the nodes.
    far: Vec<Ipv4Addr>,
    kubeconfigs: Vec<std::path::PathBuf>,
    arguments: Vec<String>,
    folder: tempfile::TempDir,
    server: Option<Server>,
}

/// How agents are started, and their accounts.
pub struct AgentOptions<'w> {
    pub plane: &'w ControlPlane,
    /// The URL of the API server, or of a proxy in front of it.
    pub server: &'w str,
    /// The token of the agent on the node of this name.
    pub token: &'w dyn Fn(&str) -> String,
    /// Their arguments, with `$(NODE_NAME)` for the name of the node.
    pub arguments: Vec<String>,
}

/// `clusterip agent` on a node.
pub struct Agent {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

/// Repeats `ask` until it returns a value; panics after the time limit.
#[track_caller]
pub fn within<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The control plane of all tests of this program.
fn plane() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(|| ControlPlane::start(Options::default()))
}

impl AgentCluster {
    /// Starts agents on three nodes, for the addresses from 10.0.9.10 to 10.0.9.240 of `10.0.9.0/24`, the network of
    /// the bridge. Each cluster has its own Nodes and namespace.
    pub fn new() -> Self {
        Self::with_arguments(&[])
    }

    /// As [`Self::new`], with more arguments of the agents.
    pub fn with_arguments(more: &[&str]) -> Self {
        let plane = plane();
        let namespace = RUNTIME.block_on(plane.namespace("external"));
        let folder = tempfile::tempdir().unwrap();
        let settings = json!({"external": {"pools": [
            {"name": "all", "cidrs": ["10.0.9.10-10.0.9.240"], "match": {"namespaces": [namespace]}},
        ]}});
        let file = folder.path().join("settings.yaml");
        std::fs::write(&file, settings.to_string()).unwrap();
        let listen = format!("0.0.0.0:{STATUS}");
        let arguments = ["agent", "--interface", "eth0", "--node", "$(NODE_NAME)", "--listen", &listen];
        let arguments = arguments.into_iter().chain(more.iter().copied()).chain(["--settings", file.to_str().unwrap()]);
        let arguments = arguments.map(str::to_owned).collect();
        let token = |_: &str| plane.admin_token().to_owned();
        let options = AgentOptions { plane, server: plane.server(), token: &token, arguments };
        Self::with(&options, namespace, folder)
    }

    /// Starts agents on three nodes with these options, in this namespace.
    pub fn with(options: &AgentOptions<'_>, namespace: String, folder: tempfile::TempDir) -> Self {
        static NUMBER: AtomicU8 = AtomicU8::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let client = RUNTIME.block_on(async { options.plane.client() });
        let mut cluster = Self {
            network: Network::new(3),
            client,
            namespace,
            agents: vec![],
            names: vec![],
            links: vec![],
            far: vec![],
            kubeconfigs: vec![],
            arguments: options.arguments.clone(),
            folder,
            server: None,
        };
        for index in 0..3_u8 {
            let name = format!("{}-node-{}", cluster.namespace, index + 1);
            cluster.create("/api/v1/nodes", &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}));
            cluster.names.push(name);
            cluster.ready(index.into(), true);
            cluster.connect(options, number, index);
            cluster.agents.push(None);
            cluster.start(index.into());
        }
        cluster
    }

    /// Creates a link from a node to the API server.
    fn connect(&mut self, options: &AgentOptions<'_>, number: u8, index: u8) {
        let (link, node) = (format!("m{number}-{index}"), &self.network.nodes[usize::from(index)].namespace);
        run("ip", &["link", "add", &link, "type", "veth", "peer", "name", "mgmt", "netns", &node.0]);
        let (near, far) =
            (Ipv4Addr::new(10, 250, number, 4 * index + 1), Ipv4Addr::new(10, 250, number, 4 * index + 2));
        run("ip", &["address", "add", &format!("{near}/30"), "dev", &link]);
        run("ip", &["link", "set", &link, "up"]);
        node.ip(&format!("address add {far}/30 dev mgmt"));
        node.ip("link set mgmt up");
        // No host has this address. The default route selects the interface for external addresses.
        node.ip("route add default via 10.0.9.254 dev eth0");
        let (scheme, server) = options.server.split_once("://").unwrap();
        let server: SocketAddr = server.parse().unwrap();
        let listener = RUNTIME.block_on(TcpListener::bind((near, 0))).unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        RUNTIME.spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut to = TcpStream::connect(server).await?;
                    tokio::io::copy_bidirectional(&mut from, &mut to).await
                });
            }
        });
        let token = (options.token)(&self.names[usize::from(index)]);
        let file = options.plane.write_kubeconfig(&format!("{link}.kubeconfig"), &url, &token);
        let mut kubeconfig: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        kubeconfig["clusters"][0]["cluster"]["tls-server-name"] = server.ip().to_string().into();
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        self.kubeconfigs.push(file);
        self.links.push(link);
        self.far.push(far);
    }

    /// Sends a GET request to the agent of a node: the status and the body; `None` without an answer.
    pub fn get(&self, index: usize, path: &str) -> Option<(u16, String)> {
        RUNTIME.block_on(async {
            let url = format!("http://{}:{STATUS}{path}", self.far[index]);
            let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).build().unwrap();
            let answer = client.get(url).send().await.ok()?;
            Some((answer.status().as_u16(), answer.text().await.ok()?))
        })
    }

    /// The metrics of the agent of a node, or of the controller: the lines with this prefix, sorted.
    pub fn measured(&self, agent: Option<usize>, prefix: &str) -> Vec<String> {
        let answer = match (agent, &self.server) {
            (Some(index), _) => self.get(index, "/metrics"),
            (None, Some(server)) => RUNTIME.block_on(server.get("/metrics")),
            (None, None) => None,
        };
        let Some((200, text)) = answer else { return vec![] };
        let mut lines: Vec<String> = text.lines().filter(|line| line.starts_with(prefix)).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// The notes of the Events about a Service with this reason, by time.
    pub fn events(&self, service: &str, reason: &str) -> Vec<String> {
        let mut events = RUNTIME.block_on(events(&self.client, &self.namespace, service));
        events.retain(|event| event["reason"] == reason && event["regarding"]["kind"] == "Service");
        events.iter().map(|event| event["note"].as_str().unwrap().replace(&self.namespace, "")).collect()
    }

    /// Whether there is a claim of an address.
    pub fn is_claimed(&self, address: IpAddr) -> bool {
        let name = clusterip_failover::claims::HolderClaim::lease_name(address);
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{name}", self.namespace);
        RUNTIME.block_on(send(&self.client, Method::GET, &path, None)).is_some()
    }

    /// Deletes a Service.
    pub fn delete_service(&self, name: &str) {
        let path = format!("/api/v1/namespaces/{}/services/{name}", self.namespace);
        RUNTIME.block_on(send(&self.client, Method::DELETE, &path, None)).unwrap();
    }

    /// Runs an agent without any permissions: its exit status and its standard error.
    pub fn run_without_rights(&self, index: usize) -> (Option<i32>, String) {
        let plane = plane();
        let token = RUNTIME.block_on(async {
            let args = ["create", "serviceaccount", "without-permissions", "--namespace", &self.namespace];
            plane.kubectl(&args).await.ok();
            plane.token(&self.namespace, "without-permissions").await
        });
        let file = self.folder.path().join("without-permissions.kubeconfig");
        let mut kubeconfig: Value = serde_json::from_slice(&std::fs::read(&self.kubeconfigs[index]).unwrap()).unwrap();
        kubeconfig["users"][0]["user"] = json!({"token": token});
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        let output = Command::new("ip")
            .args(["netns", "exec", &self.network.nodes[index].namespace.0])
            .arg(program())
            .args(["agent", "--interface", "eth0", "--node", &self.names[index], "--namespace", &self.namespace])
            .args(["--listen", "127.0.0.1:9635", "--kubeconfig"])
            .arg(&file)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).replace(&self.namespace, ""))
    }

    /// Deletes the Node object of a node.
    pub fn delete_node(&self, index: usize) {
        let path = format!("/api/v1/nodes/{}", self.names[index]);
        RUNTIME.block_on(send(&self.client, Method::DELETE, &path, None)).unwrap();
    }

    /// Sets whether a Node is ready.
    pub fn ready(&self, index: usize, ready: bool) {
        let status = if ready { "True" } else { "Unknown" };
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        self.patch(&format!("/api/v1/nodes/{}/status", self.names[index]), &status);
    }

    /// Starts the agent of a node.
    pub fn start(&mut self, index: usize) {
        let (namespace, name) = (&self.network.nodes[index].namespace.0, &self.names[index]);
        let programs = format!("{}:{}", self.programs().display(), std::env::var("PATH").unwrap());
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "ip", "netns", "exec", namespace])
            // As root with only these capabilities.
            .args(["setpriv", "--bounding-set=-all,+net_admin,+net_raw", "--inh-caps=-all", "--no-new-privs", "--"])
            .arg(program())
            .args(self.arguments.iter().map(|argument| argument.replace("$(NODE_NAME)", name)))
            .args(["--namespace", &self.namespace])
            .arg("--kubeconfig")
            .arg(&self.kubeconfigs[index])
            .env("PATH", programs)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (log, name, begin) = (Arc::default(), index + 1, Instant::now());
        let kept: Arc<Mutex<Vec<String>>> = Arc::clone(&log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let line = format!("{:7.2} node-{name} {line}", begin.elapsed().as_secs_f64());
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        self.agents[index] = Some(Agent { child, log });
    }

    /// The folder in which agents look for programs first.
    fn programs(&self) -> std::path::PathBuf {
        self.folder.path().join("programs")
    }

    /// From now on, `nft` of all agents takes longer than a step on the network may take, and fails.
    pub fn break_nft(&self) {
        let nft = self.programs().join("nft");
        std::fs::create_dir_all(self.programs()).unwrap();
        std::fs::write(&nft, "#!/bin/sh\nsleep 2\nexit 1\n").unwrap();
        std::fs::set_permissions(nft, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Translates packets to external addresses on each node, as kube-proxy does, with the node itself as the Pod. The
    /// ports stay the same, also those that no Service has.
    pub fn proxy(&self) {
        for node in &self.network.nodes {
            let translation = |family, addresses: &str, own: String| {
                format!(
                    "table {family} proxy {{ chain services {{ type nat hook prerouting priority dstnat; \
                     {family} daddr {addresses} meta l4proto {{ tcp, udp }} dnat to {own}; }}; }}"
                )
            };
            let number = node.number;
            for table in [
                translation("ip", "10.0.9.10-10.0.9.199", format!("10.0.9.{number}")),
                translation("ip6", "fd00:9::100-fd00:9::1ff", format!("fd00:9::{number}")),
            ] {
                node.namespace.exec(&["nft", &table]);
            }
        }
    }

    /// Sends a signal to the agent of a node.
    pub fn signal(&self, index: usize, signal: Signal) {
        let pid = self.agents[index].as_ref().unwrap().child.id();
        kill(Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
    }

    /// Waits for the exit status of the agent of a node.
    pub fn ended(&mut self, index: usize) -> ExitStatus {
        self.agents[index].as_mut().unwrap().child.wait().unwrap()
    }

    /// Cuts the link of a node to the API server, or restores it. The network of the clients is not affected.
    pub fn cut(&self, index: usize, cut: bool) {
        run("ip", &["link", "set", &self.links[index], if cut { "down" } else { "up" }]);
    }

    /// Starts the controller.
    pub fn control(&mut self) {
        let server = ServerBuilder::new(plane()).arg("--no-webhook").args(&["--namespace", &self.namespace]);
        let server = server.arg("--settings").arg(self.folder.path().join("settings.yaml"));
        self.server = Some(RUNTIME.block_on(server.start()));
    }

    /// Replaces the settings of the agents, which read their file again.
    pub fn write_settings(&self, settings: &str) {
        std::fs::write(self.arguments.last().unwrap(), settings).unwrap();
    }

    /// The name of the Node object of a node.
    pub fn name(&self, index: usize) -> &str {
        &self.names[index]
    }

    /// The logs of all agents.
    pub fn log(&self) -> Vec<String> {
        let of = |agent: &Agent| agent.log.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.agents.iter().flatten().flat_map(of).collect()
    }

    /// The stored Service.
    pub fn service(&self, name: &str) -> Value {
        let path = format!("/api/v1/namespaces/{}/services/{name}", self.namespace);
        RUNTIME.block_on(send(&self.client, Method::GET, &path, None)).unwrap()
    }

    /// Changes a Service.
    pub fn patch_service(&self, name: &str, change: &Value) {
        self.patch(&format!("/api/v1/namespaces/{}/services/{name}", self.namespace), change);
    }

    /// Creates a Service that serves TCP port 80, with this address as its record.
    pub fn serve(&self, name: &str, address: IpAddr) {
        self.create_service(name, &json!({"clusterip-policy/external-addresses": address}));
    }

    /// Creates a Service of our class that serves TCP port 80.
    pub fn create_service(&self, name: &str, annotations: &Value) {
        let object = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external",
                "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}],
            },
        });
        self.create(&format!("/api/v1/namespaces/{}/services", self.namespace), &object);
    }

    fn endpoint(&self, service: &str, index: usize, is_ready: bool) -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
            "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": self.names[index], "conditions": {"ready": is_ready}}],
            "ports": [{"port": 80}],
        })
    }

    /// Creates an EndpointSlice of a Service, with a ready endpoint on this node.
    pub fn create_endpoint(&self, service: &str, index: usize) {
        let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", self.namespace);
        self.create(&path, &self.endpoint(service, index, true));
    }

    /// Replaces the endpoint of a Service by one on this node.
    pub fn change_endpoint(&self, service: &str, index: usize, is_ready: bool) {
        let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices/{service}", self.namespace);
        self.patch(&path, &self.endpoint(service, index, is_ready));
    }

    fn create(&self, path: &str, object: &Value) {
        RUNTIME.block_on(send(&self.client, Method::POST, path, Some(object))).unwrap();
    }

    fn patch(&self, path: &str, object: &Value) {
        RUNTIME.block_on(send(&self.client, Method::PATCH, path, Some(object))).unwrap();
    }

    /// The external addresses on each node.
    pub fn held(&self) -> Vec<BTreeSet<IpAddr>> {
        let of = |host: &Machine| {
            let addresses = host.addresses();
            let single =
                addresses.iter().filter_map(|line| line.split_whitespace().find_map(|word| word.strip_suffix("/32")));
            single.map(|address| address.parse().unwrap()).collect()
        };
        self.network.nodes.iter().map(of).collect()
    }

    /// The node that holds an address, if there is one; panics if there are several.
    pub fn holder(&self, address: IpAddr) -> Option<usize> {
        let held = self.held();
        let holders: Vec<usize> = (0..held.len()).filter(|index| held[*index].contains(&address)).collect();
        assert!(holders.len() < 2, "{address} is on nodes {holders:?}");
        holders.first().copied()
    }

    /// Sends ARP requests for these addresses from the client, until [`Probe::end`].
    pub fn probe(&self, addresses: &[IpAddr]) -> Probe {
        Probe::start(&self.network.client.namespace.0, addresses)
    }
}

impl Drop for AgentCluster {
    fn drop(&mut self) {
        for link in &self.links {
            let _ = Command::new("ip").args(["link", "delete", link]).status();
        }
        for agent in self.agents.iter_mut().flatten() {
            let _ = agent.child.kill();
            let _ = agent.child.wait();
        }
        if thread::panicking() {
            eprintln!("{}", self.log().join("\n"));
        }
        // Other clusters use the same addresses.
        let path = format!("/api/v1/namespaces/{}/services", self.namespace);
        let request = http::Request::delete(path).body(Vec::new()).unwrap();
        let _ = RUNTIME.block_on(self.client.request::<Value>(request));
    }
}
