//! A cluster that one test at a time uses, and the objects of users, workloads and nodes in it. A controller processes
//! all Services of a cluster, so a test that runs a controller needs the cluster for itself.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use axum::http::Method;
use kube::Client;
use serde_json::{Value, json};

use super::eventually::{MAX_WAIT, eventually, pause};
use super::fault_proxy::Proxy;
use super::lent_control_plane::LentControlPlane;
use super::move_helpers::{addresses, apply_server_side, events, path, send, stored};
use super::serve_process::{Server, ServerBuilder};
use super::webhook_cluster::deployment;

/// Pools for all kinds of `match`, by the third number of their addresses.
pub const POOLS: [&str; 6] = ["linux", "windows", "named", "labelled", "tiny", "east"];

/// The settings with [`POOLS`], and with `more` merged into `services`.
pub fn settings(more: &Value) -> String {
    let mut services = json!({"pools": [
        {"name": "named", "cidrs": ["172.21.2.0/24"], "match": {"namespaces": ["named"]}},
        {"name": "labelled", "cidrs": ["172.21.3.0/24"], "match": {"namespaceSelector": {"matchLabels": {"team": "blue"}}}},
        {"name": "tiny", "cidrs": ["172.21.4.0/30"], "match": {"serviceSelector": {"matchLabels": {"size": "tiny"}}}},
        {"name": "east", "cidrs": ["172.21.5.0/24"], "match": {"nodeLabels": {"zone": "east"}}},
        {"name": "windows", "cidrs": ["172.21.1.0/24"], "reserved": 50, "match": {"os": "windows"}},
        {"name": "linux", "cidrs": ["172.21.0.0/24"], "reserved": 50, "match": {"os": "linux"}},
    ]});
    json_patch::merge(&mut services, more);
    json!({ "services": services }).to_string()
}

/// The pool that an address lies in.
pub fn pool_of(address: IpAddr) -> &'static str {
    let IpAddr::V4(address) = address else { return "no pool" };
    let [172, 21, third, _] = address.octets() else { return "no pool" };
    POOLS.get(usize::from(third)).copied().unwrap_or("no pool")
}

/// A control plane that only this test uses now.
pub struct Cluster {
    /// A client of the administrator.
    pub client: Client,
    /// The namespace for the Lease and the Secret of `clusterip serve`.
    pub namespace: String,
    pub plane: LentControlPlane,
}

impl Cluster {
    /// A cluster without Services, webhooks and servers of other tests.
    pub async fn alone() -> Self {
        let plane = LentControlPlane::get().await;
        Self { client: plane.client(), namespace: plane.namespace("server").await, plane }
    }

    /// A `clusterip serve` that reaches the API server through this proxy, with [`settings`].
    pub fn server(&self, proxy: &Proxy, more: &Value) -> ServerBuilder {
        self.server_with(proxy, &settings(more))
    }

    /// The same, with other settings.
    pub fn server_with(&self, proxy: &Proxy, settings: &str) -> ServerBuilder {
        let port = proxy.url().rsplit(':').next().unwrap();
        let file = format!("proxy-{port}.kubeconfig");
        let kubeconfig = self.plane.write_kubeconfig(&file, proxy.url(), self.plane.admin_token());
        ServerBuilder::as_user(&kubeconfig).args(&["--namespace", &self.namespace]).settings(settings)
    }

    /// Creates a namespace with this name, or with this prefix if it exists.
    pub async fn place(&self, prefix: &str) -> Place {
        Place { client: self.client.clone(), namespace: self.plane.namespace(prefix).await }
    }

    /// Waits until creates go through the webhook of this cluster.
    pub async fn webhook_in_force(&self) {
        // The address that the API server picks in a dry run is the first of its range, which is in the Linux pool.
        self.place("trial").await.webhook_gives("windows", json!({"clusterip-policy/os": "windows"})).await;
    }
}

/// All Services of the cluster.
pub async fn services(client: &Client) -> Vec<Value> {
    let list = send(client, Method::GET, "/api/v1/services", None).await.unwrap();
    list["items"].as_array().unwrap().clone()
}

/// The lines of `/metrics` with this prefix, without those that are 0.
pub async fn metrics(server: &Server, name: &str) -> Vec<String> {
    let (_, all) = server.get("/metrics").await.unwrap_or_default();
    let lines = all.lines().filter(|line| line.starts_with(name) && !line.ends_with(" 0"));
    lines.map(str::to_owned).collect()
}

/// A namespace of one test, with a Service `web` and its workload.
#[derive(Clone)]
pub struct Place {
    /// A client of the administrator.
    pub client: Client,
    /// The name of the namespace.
    pub namespace: String,
}

impl Place {
    /// Applies an object, in this namespace if its kind is namespaced.
    pub async fn apply(&self, mut object: Value) -> Value {
        let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        let namespaced = |group: &str, plural: &str| format!("{group}/namespaces/{}/{plural}/{name}", self.namespace);
        let (version, path) = match kind {
            "Service" => ("v1", namespaced("/api/v1", "services")),
            "Deployment" => ("apps/v1", namespaced("/apis/apps/v1", "deployments")),
            "EndpointSlice" => ("discovery.k8s.io/v1", namespaced("/apis/discovery.k8s.io/v1", "endpointslices")),
            "Namespace" => ("v1", format!("/api/v1/namespaces/{name}")),
            "Node" => ("v1", format!("/api/v1/nodes/{name}")),
            other => panic!("unknown kind {other}"),
        };
        object["apiVersion"] = version.into();
        let applied = apply_server_side(&self.client, &path, "author", true, &object).await;
        applied.unwrap_or_else(|error| panic!("{object}: {error}"))
    }

    /// Creates the Service `web`.
    pub async fn service(&self, metadata: Value, spec: Value) -> Value {
        self.service_named("web", metadata, spec).await
    }

    /// Creates a Service. Its address has no owner, unless the spec contains it.
    pub async fn service_named(&self, name: &str, metadata: Value, spec: Value) -> Value {
        let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
        json_patch::merge(&mut service["metadata"], &metadata);
        json_patch::merge(&mut service["spec"], &spec);
        let path = format!("/api/v1/namespaces/{}/services?fieldManager=author", self.namespace);
        send(&self.client, Method::POST, &path, Some(&service)).await.unwrap()
    }

    /// Creates a Service with this address, without an owner of the address, as if a webhook had given it.
    pub async fn service_at(&self, name: &str, address: [u8; 4], metadata: Value, spec: Value) -> Value {
        let mut spec = spec;
        spec["clusterIP"] = Ipv4Addr::from(address).to_string().into();
        // Until the ownership is removed, the annotation names the pool of the address, so that a running controller
        // does not consider the Service misplaced. If there is no such pool, the controller does not move it either.
        let mut meanwhile = metadata.clone();
        meanwhile["annotations"]["clusterip-policy/pool"] = pool_of(Ipv4Addr::from(address).into()).into();
        let mut service = self.service_named(name, meanwhile, spec).await;
        match metadata.get("annotations") {
            Some(annotations) => service["metadata"]["annotations"] = annotations.clone(),
            None => drop(service["metadata"].as_object_mut().unwrap().remove("annotations")),
        }
        for entry in service["metadata"]["managedFields"].as_array_mut().unwrap() {
            let owned = entry["fieldsV1"]["f:spec"].as_object_mut().unwrap();
            owned.remove("f:clusterIP");
            owned.remove("f:clusterIPs");
        }
        let path = format!("{}?fieldManager=author", path(&self.namespace, name));
        send(&self.client, Method::PUT, &path, Some(&service)).await.unwrap()
    }

    async fn webhook_gives(&self, pool: &str, annotations: Value) {
        let path = format!("/api/v1/namespaces/{}/services?dryRun=All", self.namespace);
        let trial = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "annotations": annotations},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
        eventually(&format!("the webhook to know that pool {pool} is for {}", self.namespace), async || {
            let tried = send(&self.client, Method::POST, &path, Some(&trial)).await.unwrap();
            (pool_of(addresses(&tried)[0]) == pool).then_some(())
        })
        .await;
    }

    /// Changes the Service `web`.
    pub async fn change(&self, patch: Value) {
        let path = format!("{}?fieldManager=author", path(&self.namespace, "web"));
        send(&self.client, Method::PATCH, &path, Some(&patch)).await.unwrap();
    }

    /// Annotates the Service `web`.
    pub async fn annotate(&self, name: &str, value: &str) {
        self.change(json!({"metadata": {"annotations": {name: value}}})).await;
    }

    /// Applies a Deployment `web` whose Pods need a node with this OS.
    pub async fn workload(&self, os: &str) {
        self.deployment("web", json!({"nodeSelector": {"kubernetes.io/os": os}})).await;
    }

    /// Applies a Deployment whose Pods have this spec.
    pub async fn deployment(&self, name: &str, pods: Value) {
        self.apply(deployment(name, pods)).await;
    }

    /// Applies a Node with these labels, and returns its name, which is derived from this namespace.
    pub async fn node(&self, labels: Value) -> String {
        let name = format!("{}-node", self.namespace);
        self.apply(json!({"kind": "Node", "metadata": {"name": name, "labels": labels}})).await;
        name
    }

    /// Applies an EndpointSlice of `web` with one endpoint, which may be on a Node.
    pub async fn endpoint(&self, node: Option<&str>, ready: bool) {
        let mut endpoint = json!({"addresses": ["10.0.0.1"], "conditions": {"ready": ready}});
        if let Some(node) = node {
            endpoint["nodeName"] = node.into();
        }
        self.apply(json!({"kind": "EndpointSlice", "addressType": "IPv4", "endpoints": [endpoint],
            "ports": [{"name": "", "port": 80}],
            "metadata": {"name": "web-slice", "labels": {"kubernetes.io/service-name": "web"}}}))
            .await;
    }

    /// Applies a ready endpoint of `web` on a Node with this OS.
    pub async fn ready_on(&self, os: &str) {
        let node = self.node(json!({"kubernetes.io/os": os})).await;
        self.endpoint(Some(&node), true).await;
    }

    /// The Service `web` as it is stored.
    pub async fn web(&self) -> Value {
        stored(&self.client, &self.namespace, "web").await.expect("the Service exists")
    }

    /// The Events of the controller about a Service: reason and note of each, the oldest first. Addresses are replaced
    /// by their pools, and the namespace is left out.
    pub async fn events(&self, service: &str) -> Vec<String> {
        let mut events = events(&self.client, &self.namespace, service).await;
        // The API server writes Events about its repairs too.
        events.retain(|event| event["reportingController"] == "clusterip");
        let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        events.iter().map(|event| self.named(&format!("{}: {}", text(event, "reason"), text(event, "note")))).collect()
    }

    /// Replaces addresses by their pools, and removes the name of this namespace.
    pub fn named(&self, text: &str) -> String {
        let text = text.replace(&format!("{}/", self.namespace), "");
        let words = text.split_inclusive(|c: char| !c.is_ascii_digit() && c != '.');
        words
            .map(|word| {
                let number = word.trim_end_matches(|c: char| !c.is_ascii_digit());
                match number.parse::<IpAddr>() {
                    Ok(address) => word.replace(number, pool_of(address)),
                    Err(_) => word.to_owned(),
                }
            })
            .collect()
    }

    /// Waits until the controller has processed all earlier changes: creates another Service of this name, makes it
    /// misplaced, and waits until it has moved. The controller processes Services in the order of their changes.
    pub async fn all_was_looked_at(&self, name: &str) {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        // An address of the part that is reserved for addresses set by hand, so no other Service gets it.
        let address = [172, 21, 0, 20 + NEXT.fetch_add(1, Ordering::Relaxed) % 30];
        let os = |os: &str| json!({"annotations": {"clusterip-policy/os": os}});
        self.service_at(name, address, os("linux"), json!({"selector": null})).await;
        let path = path(&self.namespace, name);
        send(&self.client, Method::PATCH, &path, Some(&json!({ "metadata": os("windows") }))).await.unwrap();
        eventually(&format!("{name} to move"), async || {
            let service = stored(&self.client, &self.namespace, name).await.unwrap();
            let moved = addresses(&service).first().is_some_and(|address| pool_of(*address) == "windows");
            moved.then_some(())
        })
        .await;
    }

    /// The pool of the Service `web`, its annotation for moves, and the Events about it.
    pub async fn outcome(&self) -> Vec<String> {
        let web = self.web().await;
        let annotation = web["metadata"]["annotations"]["clusterip-policy/move"].as_str();
        let annotation = annotation.map(|annotation| format!(", move: {annotation}")).unwrap_or_default();
        let place = match (web["spec"]["type"].as_str(), addresses(&web).first()) {
            (Some("ExternalName"), _) => "ExternalName",
            (_, Some(address)) => pool_of(*address),
            (_, None) => "None",
        };
        let mut outcome = vec![format!("{place}{annotation}")];
        outcome.extend(self.events("web").await);
        outcome
    }

    /// Waits until [`Self::outcome`] equals `expected`.
    pub async fn comes_to(&self, expected: &[&str]) {
        let mut last = Vec::new();
        let begun = Instant::now();
        let waited = tokio::time::timeout(MAX_WAIT, async {
            loop {
                last = self.outcome().await;
                if last == expected {
                    return;
                }
                tokio::time::sleep(pause(begun)).await;
            }
        });
        let ended = waited.await;
        assert!(ended.is_ok(), "{}: {last:#?} instead of {expected:#?}", self.namespace);
    }
}
