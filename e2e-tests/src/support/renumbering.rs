//! Renumbers a cluster with two nodes and two API servers from the first command to the last, while clients on every
//! node send requests to its Services, to its DNS and to the API servers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};

use super::command::{Ended, ended};
use super::control_plane::Options;
use super::eventually::{MAX_WAIT, eventually, eventually_within};
use super::installation::{DEPLOY, NAMESPACE};
use super::move_load::{LOAD, Requests};
use super::program;
use super::whole_cluster::{AGNHOST, WholeCluster};

const NODES: [&str; 2] = ["node-1", "node-2"];
const OLD: &str = "10.96.0.0/16";
const NEW: &str = "10.100.0.0/16";
const OLD_DNS: &str = "10.96.0.10";
const NEW_DNS: &str = "10.100.0.10";
/// With this argument, which `clusterip renumber check` lets an administrator set together with the new range, an API
/// server that ends serves on until no kube-proxy leads clients to it.
const SHUTDOWN_DELAY: &str = "--shutdown-delay-duration=5s";
/// Requests a second of each client to the API server, with new connections, with a kept one, and by name.
const API_RATE: u32 = 5;
/// When clients end by themselves.
const LONGEST: Duration = Duration::from_secs(3600);

/// What is renumbered, and how many requests are sent meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The number of Services.
    pub services: usize,
    /// How many requests of each kind a client sends in a second. Each node has a client.
    pub rate: u32,
    /// For how many seconds old addresses of Services answer after their moves; by default as long as DNS may know them.
    pub grace_period: Option<u32>,
    /// How long requests are sent after each step.
    pub rest: Duration,
    /// Whether the API servers and the Pods are also restarted without a renumbering, and the API servers once more after
    /// the switch.
    pub compares_restarts: bool,
}

/// The kinds of requests. A request fails without an answer within five seconds. A look-up before a request to a Service
/// is repeated once, as resolvers do, and a query to DNS is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// To a Service, whose name is looked up for each request.
    ByName,
    /// To the address of a Service, which is remembered for as long as DNS says.
    ByAddress,
    /// To a Service, through a connection that stays open.
    Open,
    /// A query to DNS at its old address.
    OldDns,
    /// A query to DNS at its new address, from the first answer on.
    NewDns,
    /// To the API server at `KUBERNETES_SERVICE_HOST`, each with a new connection.
    ApiNew,
    /// To the API server at `KUBERNETES_SERVICE_HOST`, through a kept connection.
    ApiKept,
    /// To the API server at `kubernetes.default.svc`, which is looked up for each request.
    ApiByName,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::ByName,
        Self::ByAddress,
        Self::Open,
        Self::OldDns,
        Self::NewDns,
        Self::ApiNew,
        Self::ApiKept,
        Self::ApiByName,
    ];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::ByName => "Service by name",
            Self::ByAddress => "Service by address",
            Self::Open => "Service, open connection",
            Self::OldDns => "DNS, old address",
            Self::NewDns => "DNS, new address",
            Self::ApiNew => "API server",
            Self::ApiKept => "API server, kept connection",
            Self::ApiByName => "API server by name",
        }
    }

    /// Whether the API server answers these requests.
    pub fn is_to_api_server(self) -> bool {
        matches!(self, Self::ApiNew | Self::ApiKept | Self::ApiByName)
    }
}

/// A step of the renumbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// All Pods are restarted before the renumbering, while clients as in [`Self::Pods`] send requests.
    PodsAlone,
    Before,
    /// Both API servers are restarted one after the other, with the flag that they have.
    RestartsAlone,
    Begin,
    /// Both API servers are restarted with the new range and `SHUTDOWN_DELAY`.
    Restarts,
    Switch,
    AfterSwitch,
    /// Both API servers are restarted once more.
    RestartsAfterSwitch,
    Kubelets,
    /// All Pods are restarted, while new clients send the requests.
    Pods,
    Finish,
}

impl Step {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::PodsAlone => "restarts of the Pods without a renumbering",
            Self::Before => "before",
            Self::RestartsAlone => "restarts of the API servers without a renumbering",
            Self::Begin => "`begin`",
            Self::Restarts => "restarts of the API servers with the new range",
            Self::Switch => "`switch`",
            Self::AfterSwitch => "after `switch`",
            Self::RestartsAfterSwitch => "restarts of the API servers after `switch`",
            Self::Kubelets => "restarts of the kubelets",
            Self::Pods => "restarts of the Pods",
            Self::Finish => "`finish`",
        }
    }

    /// Whether something is restarted without a renumbering.
    pub fn is_alone(self) -> bool {
        matches!(self, Self::PodsAlone | Self::RestartsAlone)
    }

    /// The same restart without a renumbering, if it also interrupts requests of this kind, with their kind in it: nothing
    /// answers at the new address of DNS then.
    fn alone(self, kind: Kind) -> Option<(Self, Kind)> {
        match (self, kind) {
            (Self::Pods, Kind::NewDns) => Some((Self::PodsAlone, Kind::OldDns)),
            (Self::Restarts | Self::RestartsAfterSwitch, _) if kind.is_to_api_server() => {
                Some((Self::RestartsAlone, kind))
            }
            _ => None,
        }
    }
}

/// What became of the requests of each kind during a step.
#[derive(Clone, Debug)]
pub struct StepResult {
    pub step: Step,
    pub seconds: u64,
    pub kinds: BTreeMap<Kind, Requests>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Second {
    at: u64,
    #[serde(flatten)]
    requests: Requests,
}

/// The options of a cluster that is renumbered, with the images of these archives.
pub fn options(images: Vec<PathBuf>, proxy_mode: &str) -> Options {
    Options {
        service_ranges: vec![OLD.to_owned()],
        nodes: NODES.len(),
        api_servers: NODES.len(),
        proxy_mode: proxy_mode.to_owned(),
        images,
        ..Options::default()
    }
}

/// Renumbers the cluster, and returns what became of the requests in each step. The cluster has the image of
/// `clusterip`.
pub async fn renumber(cluster: &WholeCluster, plan: Plan) -> Vec<StepResult> {
    let folder = tempfile::tempdir().unwrap();
    let namespace = cluster.namespace("shop").await;
    let services = (1..=plan.services).map(|nth| format!("web-{nth}")).collect();
    let mut run =
        Run { cluster, plan, folder: folder.path(), namespace, services, begun: Vec::new(), results: Vec::new() };
    run.prepare().await;
    let (old_dns, new_dns) = (format!("-old-dns={OLD_DNS}:53"), format!("-new-dns={NEW_DNS}:53"));
    if plan.compares_restarts {
        let clients = run.start_clients("alone", &[&old_dns]).await;
        run.step(Step::PodsAlone).await;
        run.restart_pods().await;
        run.end_clients("alone", &clients).await;
    }

    let clients = run.start_clients("first", &["-open", &old_dns, &new_dns]).await;
    run.step(Step::Before).await;
    run.rest(plan.rest).await;
    if plan.compares_restarts {
        run.step(Step::RestartsAlone).await;
        run.restart_api_servers(OLD, &[]).await;
    }
    run.step(Step::Begin).await;
    let grace_period = plan.grace_period.map(|seconds| seconds.to_string());
    let grace_period: Vec<&str> = grace_period.iter().flat_map(|seconds| ["--grace-period", seconds]).collect();
    run.command(&[&["begin", "--to", NEW, "--yes"], &grace_period[..]].concat()).await.ok();
    // kube-proxy waits up to a second after it has programmed a change, and would program the end of an API server later.
    run.rest(plan.rest).await;
    run.step(Step::Restarts).await;
    run.restart_api_servers(NEW, &[SHUTDOWN_DELAY]).await;
    run.step(Step::Switch).await;
    run.command(&["switch"]).await.ok();
    run.step(Step::AfterSwitch).await;
    run.rest(plan.rest).await;
    if plan.compares_restarts {
        run.step(Step::RestartsAfterSwitch).await;
        run.restart_api_servers(NEW, &[SHUTDOWN_DELAY]).await;
        let log = ["logs", "--namespace", NAMESPACE, "deployment/clusterip-renumbering"];
        eprintln!("clusterip renumber keep: {}", cluster.kubectl(&log).await.stdout);
    }
    run.step(Step::Kubelets).await;
    run.restart_kubelets().await;
    // This run records when the kubelets had changed.
    let in_use = run.command(&["finish"]).await;
    assert!(in_use.stderr.contains("Pods older than the change"), "{in_use:?}");
    run.end_clients("first", &clients).await;

    // A Pod that is created in the second of the change counts as older.
    tokio::time::sleep(Duration::from_secs(2)).await;
    // Open connections to a Pod end with the Pod.
    let clients = run.start_clients("second", &[&new_dns]).await;
    run.step(Step::Pods).await;
    run.restart_pods().await;
    run.step(Step::Finish).await;
    run.command(&["finish"]).await.ok();
    run.rest(plan.rest).await;
    run.end_clients("second", &clients).await;
    run.results
}

/// The goals that are missed. `least` is the smallest accepted number of requests to Services and DNS during the
/// renumbering.
pub fn missed_goals(results: &[StepResult], least: u64) -> Vec<String> {
    let mut missed_goals = Vec::new();
    let all = || {
        let all = results.iter().flat_map(|result| result.kinds.iter().map(move |(kind, of)| (result.step, *kind, of)));
        all.filter(|(step, ..)| !step.is_alone())
    };
    let alone = |(step, kind): (Step, Kind)| {
        let result = results.iter().find(|result| result.step == step)?;
        Some(result.kinds.get(&kind)?.failed)
    };
    for (step, kind, requests) in all() {
        // No kubelet gives Pods the new address of DNS before the end of the switch.
        if (step, kind) == (Step::Switch, Kind::NewDns) {
            continue;
        }
        let accepted = match step.alone(kind) {
            None => 0,
            Some(compared) => match alone(compared) {
                Some(alone) => accepted(alone),
                // Nothing says how many fail without a renumbering.
                None => continue,
            },
        };
        if requests.failed > accepted {
            missed_goals.push(format!(
                "{}, {}: {} of {} requests failed {:?}, accepted: {accepted}",
                step.name(),
                kind.name(),
                requests.failed,
                requests.requests,
                requests.errors
            ));
        }
    }
    let sent: u64 =
        all().filter(|(_, kind, _)| !kind.is_to_api_server()).map(|(_, _, requests)| requests.requests).sum();
    if sent < least {
        missed_goals.push(format!("{sent} requests to Services and DNS, at least {least} are wanted"));
    }
    for kind in Kind::ALL {
        if !all().any(|(_, of, requests)| of == kind && requests.requests > requests.failed) {
            missed_goals.push(format!("{}: no request succeeded", kind.name()));
        }
    }
    missed_goals
}

/// The largest accepted number of requests that fail during a restart, if `alone` failed during the same restart without
/// a renumbering. A restart interrupts requests by chance: which server a connection or a query leads to. If both numbers
/// are of one Poisson distribution, their difference has a variance equal to their sum. The accepted difference is two
/// standard deviations.
fn accepted(alone: u64) -> u64 {
    alone + 2 + (8 * alone + 4).isqrt()
}

struct Run<'c> {
    cluster: &'c WholeCluster,
    plan: Plan,
    /// The folder of this machine with the files whose existence ends clients.
    folder: &'c Path,
    namespace: String,
    services: Vec<String>,
    /// The steps since the present clients were started, each with its first second since 1970.
    begun: Vec<(Step, u64)>,
    results: Vec<StepResult>,
}

impl Run<'_> {
    /// Creates what the clients need, and the account and the Deployment of the renumbering.
    async fn prepare(&self) {
        let Self { cluster, namespace, .. } = self;
        // As kubeadm does.
        let coredns = ["--namespace", "kube-system", "deployment/coredns"];
        cluster.kubectl(&[&["scale", "--replicas=2"], &coredns[..]].concat()).await.ok();
        cluster.apply(&web(namespace).to_string()).await;
        for name in &self.services {
            let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
                "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}});
            cluster.apply(&service.to_string()).await;
        }
        cluster
            .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}).to_string())
            .await;
        cluster.kubectl(&["apply", "-k", &format!("{DEPLOY}/api")]).await.ok();
        for file in ["account", "account-writes", "old-addresses", "keep"] {
            let file = std::fs::read_to_string(format!("{DEPLOY}/renumbering/{file}.yaml")).unwrap();
            cluster.apply(&file).await;
        }
        for (namespace, deployment) in self.deployments() {
            self.roll_out(namespace, deployment).await;
        }
    }

    /// All Deployments, with their namespaces.
    fn deployments(&self) -> [(&str, &'static str); 3] {
        [
            ("kube-system", "deployment/coredns"),
            (&self.namespace, "deployment/web"),
            (NAMESPACE, "deployment/clusterip-renumbering"),
        ]
    }

    async fn roll_out(&self, namespace: &str, deployment: &str) {
        let status = ["rollout", "status", "--namespace", namespace, deployment, "--timeout=120s"];
        self.cluster.kubectl(&status).await.ok();
    }

    /// Runs `clusterip renumber` as an administrator on the first node, from where all API servers can be reached.
    async fn command(&self, arguments: &[&str]) -> Ended {
        let pid = std::fs::read_to_string(self.cluster.folder().join("pid")).unwrap();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", pid.trim())).arg(program()).arg("renumber").args(arguments);
        command.args(["--server-namespace", NAMESPACE]).arg("--kubeconfig").arg(self.cluster.kubeconfig());
        let ended = ended(command).await;
        eprintln!("clusterip renumber {}: {}\n{}{}", arguments.join(" "), ended.status, ended.stdout, ended.stderr);
        ended
    }

    /// Begins a step with the next second.
    async fn step(&mut self, step: Step) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let next = Duration::from_secs(now.as_secs() + 1);
        tokio::time::sleep(next - now).await;
        eprintln!("step: {}", step.name());
        self.begun.push((step, next.as_secs()));
        // A restart also interrupts requests that were sent shortly before it.
        self.rest(Duration::from_secs(1)).await;
    }

    async fn rest(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// Restarts one API server after the other, as an administrator does: waits until the first one serves again.
    async fn restart_api_servers(&self, range: &str, arguments: &[&str]) {
        for nth in 1..=NODES.len() {
            tokio::task::block_in_place(|| self.cluster.restart_api_server(nth, range, arguments));
            eventually("the endpoints of both API servers", async || {
                let selector = "--selector=kubernetes.io/service-name=kubernetes";
                let output = "--output=jsonpath={.items[*].endpoints[*].addresses[*]}";
                let get = ["get", "endpointslices", "--namespace=default", selector, output];
                let addresses = self.cluster.kubectl(&get).await.stdout;
                (addresses.split_whitespace().count() == NODES.len()).then_some(())
            })
            .await;
            self.rest(self.plan.rest).await;
        }
    }

    async fn restart_kubelets(&self) {
        self.cluster.set_cluster_dns(NEW_DNS.parse().unwrap());
        for node in NODES {
            let path = format!("/api/v1/nodes/{node}/proxy/configz");
            eventually(&format!("the kubelet of {node}"), async || {
                let answer = self.cluster.kubectl(&["get", "--raw", &path]).await.stdout;
                let configuration: Value = serde_json::from_str(&answer).ok()?;
                (configuration["kubeletconfig"]["clusterDNS"] == json!([NEW_DNS])).then_some(())
            })
            .await;
        }
        self.rest(self.plan.rest).await;
    }

    async fn restart_pods(&self) {
        for (namespace, deployment) in self.deployments() {
            self.cluster.kubectl(&["rollout", "restart", "--namespace", namespace, deployment]).await.ok();
            self.roll_out(namespace, deployment).await;
        }
        // Those that end serve for some seconds.
        eventually("the end of the old Pods", async || {
            let output = "--output=jsonpath={.items[*].metadata.deletionTimestamp}";
            let deleted = self.cluster.kubectl(&["get", "pods", "--all-namespaces", output]).await.stdout;
            deleted.is_empty().then_some(())
        })
        .await;
        self.rest(self.plan.rest).await;
    }

    /// Starts a client on each node, and waits until it gets answers. The arguments name further kinds of requests.
    async fn start_clients(&self, generation: &str, arguments: &[&str]) -> Vec<String> {
        let mut clients = Vec::new();
        for node in NODES {
            let name = format!("{generation}-client-on-{node}");
            self.cluster.apply(&self.client(&name, node, generation, arguments).to_string()).await;
            clients.push(name);
        }
        for client in &clients {
            let logs = ["logs", "--namespace", &self.namespace, client];
            eventually_within(2 * MAX_WAIT, &format!("{client} to begin"), async || {
                self.cluster.kubectl(&logs).await.stdout.starts_with("begun\n").then_some(())
            })
            .await;
        }
        clients
    }

    fn client(&self, name: &str, node: &str, generation: &str, further: &[&str]) -> Value {
        let program = std::env::var(LOAD).unwrap_or_else(|_| panic!("{LOAD} is not set: run `make bench-renumber`"));
        let mut arguments = vec![
            "cluster".to_owned(),
            format!("-services={}", self.services.join(",")),
            format!("-rate={}", self.plan.rate),
            format!("-api-rate={API_RATE}"),
            format!("-duration={}s", LONGEST.as_secs()),
            format!("-until=/ends/{generation}"),
        ];
        arguments.extend(further.iter().map(|argument| (*argument).to_owned()));
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": {"app": "client"}},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "restartPolicy": "Never",
                "containers": [{
                    "name": "load", "image": AGNHOST, "command": ["/load"], "args": arguments,
                    "volumeMounts": [
                        {"name": "load", "mountPath": "/load", "readOnly": true},
                        {"name": "ends", "mountPath": "/ends", "readOnly": true},
                    ],
                }],
                // The nodes see the files of this machine.
                "volumes": [
                    {"name": "load", "hostPath": {"path": program, "type": "File"}},
                    {"name": "ends", "hostPath": {"path": self.folder, "type": "Directory"}},
                ],
            },
        })
    }

    /// Ends the clients, and adds up what became of their requests in each step.
    async fn end_clients(&mut self, generation: &str, clients: &[String]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        std::fs::write(self.folder.join(generation), "").unwrap();
        let mut begun = std::mem::take(&mut self.begun);
        let first = self.results.len();
        for (nth, (step, from)) in begun.iter().enumerate() {
            let until = begun.get(nth + 1).map_or(now, |(_, next)| *next);
            self.results.push(StepResult { step: *step, seconds: until - from, kinds: BTreeMap::new() });
        }
        begun.reverse();
        for client in clients {
            for (kind, seconds) in self.result(client).await {
                for Second { at, requests } in seconds {
                    let Some(nth) = begun.iter().position(|(_, from)| *from <= at) else { continue };
                    if requests.failed + requests.slow > 0 {
                        let (step, second) = (begun[nth].0.name(), at - begun[nth].1);
                        eprintln!("{client}, {}, {step}, second {second}: {requests:?}", kind.name());
                    }
                    let result = &mut self.results[first + begun.len() - 1 - nth];
                    result.kinds.entry(kind).or_default().add(&requests);
                }
            }
        }
    }

    async fn result(&self, client: &str) -> BTreeMap<Kind, Vec<Second>> {
        let logs = ["logs", "--namespace", &self.namespace, client];
        let printed = eventually(&format!("{client} to end"), async || {
            let phase = ["get", "pod", "--namespace", &self.namespace, client, "--output=jsonpath={.status.phase}"];
            if self.cluster.kubectl(&phase).await.stdout != "Succeeded" {
                return None;
            }
            self.cluster.kubectl(&logs).await.stdout.lines().nth(1).map(str::to_owned)
        })
        .await;
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{client}: {error}: {printed}"))
    }
}

/// A web server on each node. kube-proxy stops sending requests to a web server before the server ends.
fn web(namespace: &str) -> Value {
    let labels = json!({"app": "web"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "replicas": NODES.len(), "selector": {"matchLabels": labels}, "minReadySeconds": 3,
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    // agnhost ends only when it is killed.
                    "terminationGracePeriodSeconds": 6,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": labels}, "matchLabelKeys": ["pod-template-hash"],
                    }],
                    "containers": [{
                        "name": "web", "image": AGNHOST, "args": ["netexec"],
                        "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
                        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}
