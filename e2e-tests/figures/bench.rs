//! A control plane, a `clusterip serve` for each round, and many concurrent requests.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

use super::manifests;
use super::support::control_plane::{ControlPlane, Options};
use super::support::eventually::eventually;
pub use super::support::move_helpers::services;
use super::support::move_helpers::{send, tries};
use super::support::serve_process::{Server, ServerBuilder};
use super::support::webhook_cluster::{address, addresses, within};
use crate::support::process_usage::processor_time;

/// Pools that are larger than needed, and one of 256 addresses.
const SETTINGS: &str = "services:
  pools:
  - {name: full, cidrs: [172.21.2.0/24], match: {namespaces: [full]}}
  - {name: others, cidrs: [172.21.64.0/18], match: {namespaces: [others]}}
  - {name: windows, cidrs: [172.21.16.0/20], match: {os: windows}}
  - {name: linux, cidrs: [172.21.32.0/20], match: {os: linux}}
";
/// The default number of concurrent requests.
pub const PARALLEL: usize = 60;
/// The number of Services that exist besides those of a load.
pub const OTHERS: usize = 10_000;
/// The number of their namespaces. A server leaves out some of the Services if one namespace has all of them.
pub const NAMESPACES_OF_OTHERS: usize = 4;
/// The path of the custom resources.
pub const API: &str = "/apis/clusterip-policy.io/v1alpha1";
/// The path of the ServicePools.
pub const SERVICE_POOLS: &str = "/apis/clusterip-policy.io/v1alpha1/servicepools";
const FIRST_OF_OTHERS: Ipv4Addr = Ipv4Addr::new(172, 21, 66, 0);
/// The first address that bare requests give to a Windows Service. It is in the static band, from which the API server
/// picks no address for the other Services.
pub const FIRST_OF_BARE: Ipv4Addr = Ipv4Addr::new(172, 21, 0, 64);

/// The control plane of the measurements.
pub struct Bench {
    plane: ControlPlane,
    client: Client,
    settings: String,
}

/// A created Service, or the error.
pub type Created = Result<Value, String>;

/// An answered create request.
pub struct Answered {
    /// The time when the request was sent.
    pub sent: Instant,
    /// The answer.
    pub created: Created,
}

impl Bench {
    /// Starts the control plane.
    pub async fn start() -> Self {
        Self::start_with(Options { audit: false, ..Options::default() }, SETTINGS.to_owned()).await
    }

    /// Starts the control plane with these options. Servers get these settings, which must end inside of `services`.
    pub async fn start_with(options: Options, settings: String) -> Self {
        let plane = ControlPlane::start(options);
        let client = plane.client();
        Self { plane, client, settings }
    }

    /// The machine and the versions of the measurements.
    pub fn about(&self, pairs: usize) -> String {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let busy = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let busy = busy.split_whitespace().next().unwrap_or("unknown").to_owned();
        format!(
            "Kubernetes {}, {cores} processors for all of API server, etcd, load and clusterip, load average before {busy}; \
             medians of {pairs} rounds, compared in turns",
            self.plane.version()
        )
    }

    /// The control plane.
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// The administrator's client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Creates a namespace, unless it exists.
    pub async fn namespace(&self, name: &str) {
        let manifest = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let created = self.create("/api/v1/namespaces", &manifest).await;
        assert!(created.as_ref().is_ok() || created.as_ref().is_err_and(|error| error.contains("already exists")));
    }

    /// `clusterip serve` with its webhook. `claims` is where it stores reservations: `memory` or `lease`.
    pub fn server(&self, claims: &str) -> ServerBuilder {
        ServerBuilder::new(&self.plane).settings(&self.settings).args(&["--claims", claims]).registered()
    }

    /// Changes the settings of a server, by a namespace that does not exist. Each `number` gives other settings. The
    /// file is replaced by a complete one, as kubelet replaces a mounted ConfigMap.
    pub fn change_settings(&self, server: &Server, number: usize) {
        let settings = format!("{}  exemptNamespaces: [spare-{number}]\n", self.settings);
        let [new, file] = ["settings.yaml.new", "settings.yaml"].map(|name| server.folder().join(name));
        std::fs::write(&new, settings).unwrap();
        // A file that was written and renamed at the same time counts as one that may still be written.
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::rename(new, file).unwrap();
    }

    /// Starts a [`Self::server`], and waits until the API server calls it and until it has processed all objects.
    pub async fn serve(&self, claims: &str) -> Server {
        let server = self.server(claims).start().await;
        self.wait_until_called(&server).await;
        server
    }

    /// Waits until the API server calls the webhook of a server, and until the server has processed all objects.
    pub async fn wait_until_called(&self, server: &Server) {
        self.wait_for_addresses_in("172.21.2.0/24").await;
        quiet(server).await;
    }

    /// Waits until the API server calls a webhook that gives the Services of the namespace `full` addresses of this range.
    /// Without a webhook, it is unlikely that the addresses of three Services are in this range.
    pub async fn wait_for_addresses_in(&self, range: &str) {
        let path = format!("{}?dryRun=All", services("full"));
        self.namespace("full").await;
        let mut in_a_row = 0;
        eventually("the webhook", async || {
            let created = self.create(&path, &manifests::service("full", 0)).await.ok()?;
            in_a_row = if within(address(&created), range) { in_a_row + 1 } else { 0 };
            (in_a_row == 3).then_some(())
        })
        .await;
    }

    /// Stops the server, which deletes its webhook configuration.
    pub async fn end(&self, mut server: Server) {
        assert_eq!(server.terminate().await, 0, "{:?}", server.log().last());
        let list = self.get("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations").await;
        assert_eq!(list["items"].as_array().map(Vec::len), Some(0), "a webhook is left: {list}");
    }

    /// Gets a list or an object.
    pub async fn get(&self, path: &str) -> Value {
        send(&self.client, Method::GET, path, None).await.unwrap()
    }

    /// Creates an object.
    pub async fn create(&self, path: &str, object: &Value) -> Created {
        tries(&self.client, Method::POST, path, object).await
    }

    /// Creates objects, with this number of concurrent requests.
    pub async fn create_all(
        &self,
        path: &str,
        objects: impl Iterator<Item = Value>,
        at_a_time: usize,
    ) -> Vec<Answered> {
        let create = async |object| {
            let sent = Instant::now();
            Answered { sent, created: self.create(path, &object).await }
        };
        stream::iter(objects).map(create).buffered(at_a_time).collect().await
    }

    /// As [`Self::create_all`]; panics if a request fails.
    pub async fn add(&self, path: &str, objects: impl Iterator<Item = Value>) {
        for answered in self.create_all(path, objects, PARALLEL).await {
            answered.created.unwrap();
        }
    }

    /// Deletes all objects of a list, and waits until they are gone and the addresses of Services are free.
    pub async fn clear(&self, path: &str) {
        let before = self.get(path).await;
        let request = Request::delete(path).body(Vec::new()).unwrap();
        self.client.request_text(request).await.unwrap();
        let items = before["items"].as_array().unwrap();
        let addresses = items.iter().filter_map(|object| object["spec"]["clusterIP"].as_str());
        let gone = addresses.map(async |address| {
            let path = format!("/apis/networking.k8s.io/v1/ipaddresses/{address}");
            eventually("an address to be free", async || {
                let request = Request::get(&path).body(Vec::new()).unwrap();
                self.client.request_text(request).await.is_err().then_some(())
            })
            .await;
        });
        stream::iter(gone).buffer_unordered(PARALLEL).collect::<Vec<()>>().await;
    }

    /// Creates many Services that no load changes, each in its pool.
    pub async fn add_others(&self) {
        let service = |index: usize| {
            let mut service = manifests::service(&namespace_of_other(index), index);
            let address = u32::from(FIRST_OF_OTHERS) + u32::try_from(index).unwrap();
            service["spec"]["clusterIP"] = Ipv4Addr::from(address).to_string().into();
            service
        };
        for nth in 0..NAMESPACES_OF_OTHERS {
            let namespace = nth_namespace_of_others(nth);
            self.namespace(&namespace).await;
            let inside = (0..OTHERS).filter(|index| namespace_of_other(*index) == namespace);
            self.add(&services(&namespace), inside.map(service)).await;
        }
    }
}

/// The namespace of one of the other Services, and of its Deployment. Each namespace has Linux and Windows.
pub fn namespace_of_other(index: usize) -> String {
    nth_namespace_of_others(index / 2 % NAMESPACES_OF_OTHERS)
}

/// The name of one of the namespaces of the other Services.
pub fn nth_namespace_of_others(nth: usize) -> String {
    format!("others-{nth}")
}

/// Whether the API server refused a Service because another one has its address. It never accepts the same address
/// twice, so these refusals show that an address was handed out twice.
pub fn is_duplicate(error: &str) -> bool {
    error.contains("provided IP is already allocated")
}

/// The path of the Deployments of a namespace.
pub fn deployments(namespace: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/deployments")
}

/// Whether the address of the Service with this index is in its pool.
pub fn is_placed(service: &Value, index: usize) -> bool {
    let pool = if manifests::is_windows(index) { "172.21.16.0/20" } else { "172.21.32.0/20" };
    addresses(service).first().is_some_and(|address| within(*address, pool))
}

/// Waits until a process is idle, because it has processed all Services.
pub async fn quiet(server: &Server) {
    const LOOK: Duration = Duration::from_millis(500);
    const NOTHING: Duration = Duration::from_millis(20);
    /// Enough for ten thousand Services on a busy machine.
    const LOOKS: usize = 600;
    server.logged("leading").await;
    for _ in 0..LOOKS {
        let before = processor_time(server.pid());
        tokio::time::sleep(LOOK).await;
        if processor_time(server.pid()) - before <= NOTHING {
            return;
        }
    }
    panic!("clusterip serve does not come to rest");
}

/// The value of a metric in `/metrics`, by its exposed name and labels.
pub async fn metric(server: &Server, name: &str) -> f64 {
    let (_, text) = server.get("/metrics").await.unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no metric {name} in {text}"))
}
