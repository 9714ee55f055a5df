//! Several replicas of `clusterip serve --claims lease`. In a cluster, a Service forwards to the replicas that are
//! ready. Here a `Balancer` for each replica does: it forwards to its own replica, or to another one while its own is
//! unavailable.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip_cluster::yaml;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::control_plane::ControlPlane;
use super::eventually::eventually;
use super::move_helpers::{send, services, tries};
use super::serve_process::{Server, ServerBuilder, free_port};

/// The webhook configuration of all replicas.
const CONFIGURATION: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/clusterip-policy";
const DEPLOYED: &str = include_str!("../../../deploy/webhook/webhook-configuration.yaml");

/// The label of a Service that selects the replica which is called for it.
pub const REPLICA: &str = "replica";

/// Forwards to a replica, or to the next one that is ready. It stops when this value is dropped.
struct Balancer {
    port: u16,
    task: AbortHandle,
}

impl Balancer {
    async fn start(ports: Vec<u16>, ready: Vec<Arc<AtomicBool>>, first: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            loop {
                let Ok((mut client, _)) = listener.accept().await else { continue };
                let (ports, ready) = (ports.clone(), ready.clone());
                tokio::spawn(async move {
                    for nth in 0..ports.len() {
                        let nth = (first + nth) % ports.len();
                        if !ready[nth].load(Ordering::Acquire) {
                            continue;
                        }
                        if let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, ports[nth])).await {
                            let _ = copy_bidirectional(&mut client, &mut server).await;
                            return;
                        }
                    }
                });
            }
        });
        Self { port, task: task.abort_handle() }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How a replica is started.
#[derive(Clone)]
pub struct Kind {
    /// The kubeconfig; without it, the replica runs as the administrator.
    pub kubeconfig: Option<PathBuf>,
    /// Additional arguments.
    pub args: Vec<String>,
    /// Additional environment variables.
    pub environment: Vec<(String, String)>,
}

/// Several replicas.
pub struct Replicas<'p> {
    pub plane: &'p ControlPlane,
    pub client: Client,
    /// The namespace for their Leases and their Secret.
    pub namespace: String,
    pub servers: Vec<Option<Server>>,
    kinds: Vec<Kind>,
    ports: Vec<u16>,
    ready: Vec<Arc<AtomicBool>>,
    balancers: Vec<Balancer>,
    settings: String,
}

impl Kind {
    /// A replica without special options.
    pub fn usual() -> Self {
        Self { kubeconfig: None, args: Vec::new(), environment: Vec::new() }
    }
}

impl<'p> Replicas<'p> {
    /// Starts a replica for each kind at once, and waits until the API server calls all of them. The webhook is that of
    /// `deploy/webhook`, with this failure policy.
    pub async fn start(plane: &'p ControlPlane, settings: &str, failure_policy: &str, kinds: Vec<Kind>) -> Self {
        let namespace = plane.namespace("server").await;
        Self::start_in(plane, namespace, settings, failure_policy, kinds).await
    }

    /// As [`Self::start`], in an existing namespace.
    pub async fn start_in(
        plane: &'p ControlPlane,
        namespace: String,
        settings: &str,
        failure_policy: &str,
        kinds: Vec<Kind>,
    ) -> Self {
        let client = plane.client();
        let ports: Vec<u16> = kinds.iter().map(|_| free_port()).collect();
        let ready: Vec<_> = kinds.iter().map(|_| Arc::new(AtomicBool::new(false))).collect();
        let mut balancers = Vec::new();
        for first in 0..kinds.len() {
            balancers.push(Balancer::start(ports.clone(), ready.clone(), first).await);
        }
        let mut replicas = Self {
            servers: kinds.iter().map(|_| None).collect(),
            settings: settings.to_owned(),
            plane,
            client,
            namespace,
            kinds,
            ports,
            ready,
            balancers,
        };
        replicas.register(failure_policy).await;
        let all: Vec<usize> = (0..replicas.servers.len()).collect();
        for &nth in &all {
            replicas.spawn(nth);
        }
        for &nth in &all {
            replicas.is_ready(nth).await;
        }
        for &nth in &all {
            replicas.is_asked(nth).await;
        }
        replicas
    }

    /// Writes the webhook configuration: a webhook for each replica.
    async fn register(&self, failure_policy: &str) {
        let who: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let me = who.create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
        let me = me.status.unwrap().user_info.unwrap().username.unwrap();
        let deployed = DEPLOYED.replace("system:serviceaccount:clusterip-policy:clusterip", &me);
        let mut configuration = yaml::single(&deployed).unwrap();
        let webhook = configuration["webhooks"][0].clone();
        let webhooks: Vec<Value> = self
            .balancers
            .iter()
            .enumerate()
            .map(|(nth, balancer)| {
                let mut webhook = webhook.clone();
                webhook["name"] = format!("services-{nth}.clusterip-policy.io").into();
                webhook["clientConfig"] = json!({"url": format!("https://127.0.0.1:{}/mutate", balancer.port)});
                webhook["objectSelector"] = json!({"matchLabels": {REPLICA: nth.to_string()}});
                webhook["failurePolicy"] = failure_policy.into();
                webhook
            })
            .collect();
        configuration["webhooks"] = webhooks.into();
        send(&self.client, Method::DELETE, CONFIGURATION, None).await;
        let (all, _) = CONFIGURATION.rsplit_once('/').unwrap();
        send(&self.client, Method::POST, all, Some(&configuration)).await.unwrap();
    }

    /// Starts a replica, which must not run.
    pub fn spawn(&mut self, nth: usize) {
        let kind = &self.kinds[nth];
        let builder = match &kind.kubeconfig {
            Some(kubeconfig) => ServerBuilder::as_user(kubeconfig),
            None => ServerBuilder::new(self.plane),
        };
        let args: Vec<&str> = kind.args.iter().map(String::as_str).collect();
        let builder = kind.environment.iter().fold(builder, |builder, (name, value)| builder.env(name, value));
        let server = builder
            .port(self.ports[nth])
            .settings(&self.settings)
            // The certificate contains the name of the Service.
            .args(&["--claims", "lease", "--service", "127.0.0.1", "--namespace", &self.namespace])
            .args(&args)
            .spawn();
        self.servers[nth] = Some(server);
    }

    /// Waits until a replica is ready. From then on, balancers forward to it.
    pub async fn is_ready(&mut self, nth: usize) {
        self.servers[nth].as_mut().unwrap().ready().await;
        self.ready[nth].store(true, Ordering::Release);
    }

    /// Kills a replica, and starts it again.
    pub async fn replace(&mut self, nth: usize) {
        self.kill(nth);
        self.spawn(nth);
        self.is_ready(nth).await;
    }

    /// Kills a replica.
    pub fn kill(&mut self, nth: usize) {
        self.servers[nth].as_mut().unwrap().kill();
        self.ready[nth].store(false, Ordering::Release);
    }

    /// A running replica.
    pub fn server(&self, nth: usize) -> &Server {
        self.servers[nth].as_ref().unwrap()
    }

    /// The CA bundle of the webhook configuration, in PEM.
    pub async fn trusted(&self) -> String {
        let configuration = send(&self.client, Method::GET, CONFIGURATION, None).await.unwrap();
        let bundle = configuration["webhooks"][0]["clientConfig"]["caBundle"].as_str().unwrap_or_default();
        String::from_utf8(STANDARD.decode(bundle).unwrap()).unwrap()
    }

    /// Changes the settings of one replica.
    pub fn change_settings_of(&self, nth: usize, settings: &str) {
        std::fs::write(self.server(nth).folder().join("settings.yaml"), settings).unwrap();
    }

    /// A Service for which this replica is called.
    pub fn service(nth: usize, name: &str, os: Option<&str>) -> Value {
        let mut service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "labels": {REPLICA: nth.to_string()}},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80}]}});
        if let Some(os) = os {
            service["metadata"]["annotations"] = json!({"clusterip-policy/os": os});
        }
        service
    }

    /// Creates a Service: returns it, or the message of the API server.
    pub async fn create(&self, namespace: &str, service: &Value) -> Result<Value, String> {
        create(&self.client, namespace, service, "").await
    }

    /// Waits until the API server calls this replica.
    pub async fn is_asked(&self, nth: usize) {
        eventually(&format!("replica {nth} to be asked"), async || {
            let mut trial = Self::service(nth, "trial", None);
            trial["metadata"]["annotations"] = json!({"clusterip-policy/pool": "none-of-this-name"});
            // Without a call, the request would be admitted.
            let tried = create(&self.client, "default", &trial, "?dryRun=All").await;
            tried.err().filter(|refused| refused.contains("which is unknown"))
        })
        .await;
    }

    /// The Leases of this kind.
    pub async fn leases(&self, kind: &str) -> Vec<Value> {
        let path = format!("{}?labelSelector=clusterip-policy/lease={kind}", leases(&self.namespace));
        let list = send(&self.client, Method::GET, &path, None).await.unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// The sum of a metric over all replicas.
    pub async fn metric(&self, line: &str) -> u64 {
        let mut sum = 0;
        for server in self.servers.iter().flatten() {
            let (_, all) = server.get("/metrics").await.unwrap_or_default();
            let values = all.lines().filter_map(|found| found.strip_prefix(line)?.trim().parse::<u64>().ok());
            sum += values.sum::<u64>();
        }
        sum
    }
}

/// The path of the Leases of a namespace in the API.
pub fn leases(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

/// Creates a Service: returns it, or the message of the API server.
pub async fn create(client: &Client, namespace: &str, service: &Value, query: &str) -> Result<Value, String> {
    tries(client, Method::POST, &format!("{}{query}", services(namespace)), service).await
}
