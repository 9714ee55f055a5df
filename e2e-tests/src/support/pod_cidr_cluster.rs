//! A control plane for the tests of pod CIDRs, with the requests of kubelets and administrators, and the controller
//! manager of Kubernetes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::Method;
use futures::StreamExt as _;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use super::control_plane::{ControlPlane, Options};
use super::eventually::eventually;
use super::fault_proxy::Proxy;
use super::move_helpers::{events, send};
use super::node_ipam_controller::NodeIpam;
use super::serve_process::{Server, ServerBuilder};
use super::shared::Shared;

/// The Service ranges of the control plane.
pub const SERVICE_RANGES: &str = "172.21.0.0/16,fd00:21::/108";

/// A control plane that starts without Nodes. One test uses it at a time, because the program assigns blocks to all
/// Nodes.
pub struct Nodes {
    pub plane: Arc<ControlPlane>,
    pub client: Client,
    /// The namespace for the Lease and the Secret of `clusterip serve`.
    pub namespace: String,
    _alone: MutexGuard<'static, ()>,
}

impl Nodes {
    /// Waits until no other test uses the control plane, and deletes all Nodes.
    pub async fn alone() -> Self {
        static PLANE: Shared<ControlPlane> = Shared::new();
        static USED: Mutex<()> = Mutex::const_new(());
        let plane = PLANE.get(async || ControlPlane::start(Options::dual_stack())).await;
        let alone = USED.lock().await;
        let client = plane.client();
        let namespace = plane.namespace("nodes").await;
        let nodes = Self { plane, client, namespace, _alone: alone };
        nodes.clear().await;
        nodes
    }

    /// Deletes all Nodes, and the Events about them.
    pub async fn clear(&self) {
        for path in ["/api/v1/nodes", "/api/v1/namespaces/default/events"] {
            send(&self.client, Method::DELETE, path, None).await;
        }
    }

    /// A `clusterip serve` with these settings of `nodes` and this URL of the API server.
    pub fn server_at(&self, url: &str, nodes: &Value) -> ServerBuilder {
        let port = url.rsplit(':').next().unwrap();
        let kubeconfig = self.plane.write_kubeconfig(&format!("{port}.kubeconfig"), url, self.plane.admin_token());
        ServerBuilder::as_user(&kubeconfig)
            .args(&["--namespace", &self.namespace, "--no-webhook"])
            .settings(&self.settings(nodes))
    }

    /// The settings, with the Service ranges if this version of Kubernetes does not publish them.
    fn settings(&self, nodes: &Value) -> String {
        if self.plane.tells_addresses() || nodes.is_null() {
            return settings(nodes);
        }
        json!({"services": {"serviceCIDRs": self.plane.service_ranges()}, "nodes": nodes}).to_string()
    }

    /// Starts a `clusterip serve`, and waits until it leads and has listed all Nodes.
    pub async fn serve(&self, nodes: &Value) -> Server {
        self.leading(self.server_at(self.plane.server(), nodes)).await
    }

    /// As [`Self::serve`], through a proxy.
    pub async fn serve_through(&self, proxy: &Proxy, nodes: &Value) -> Server {
        self.leading(self.server_at(proxy.url(), nodes)).await
    }

    async fn leading(&self, server: ServerBuilder) -> Server {
        let server = server.start().await;
        server.logged("leading: Nodes without pod CIDRs get blocks").await;
        server
    }

    /// Starts the controller manager of Kubernetes with only the node IPAM controller.
    pub fn controller_manager(&self, cidrs: &str, args: &[String]) -> NodeIpam {
        NodeIpam::allocating(&self.plane, cidrs, SERVICE_RANGES, args)
    }

    /// Registers a Node, as a kubelet does.
    pub async fn create(&self, name: &str, labels: Value, blocks: &[&str]) {
        let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        if let Some(first) = blocks.first() {
            node["spec"] = json!({"podCIDR": first, "podCIDRs": blocks});
        }
        send(&self.client, Method::POST, "/api/v1/nodes", Some(&node)).await.unwrap();
    }

    /// Registers many Nodes, thirty at a time.
    pub async fn create_all(&self, names: impl IntoIterator<Item = String>) {
        let create = |name: String| async move { self.create(&name, json!({}), &[]).await };
        futures::stream::iter(names).map(create).buffer_unordered(30).collect::<Vec<()>>().await;
    }

    /// Deletes a Node.
    pub async fn delete(&self, name: &str) {
        send(&self.client, Method::DELETE, &path(name), None).await.unwrap();
    }

    /// Changes a Node.
    pub async fn change(&self, name: &str, patch: Value) {
        send(&self.client, Method::PATCH, &path(name), Some(&patch)).await.unwrap();
    }

    /// The current blocks of a Node.
    pub async fn blocks(&self, name: &str) -> Vec<String> {
        blocks(&send(&self.client, Method::GET, &path(name), None).await.unwrap())
    }

    /// Waits until a Node has blocks, and returns them.
    pub async fn given(&self, name: &str) -> Vec<String> {
        eventually(&format!("Node {name} to have a block"), async || {
            let blocks = self.blocks(name).await;
            (!blocks.is_empty()).then_some(blocks)
        })
        .await
    }

    /// Waits until every Node has blocks, and returns them.
    pub async fn all_given(&self) -> BTreeMap<String, Vec<String>> {
        eventually("all Nodes to have blocks", async || {
            let all = self.all().await;
            all.values().all(|blocks| !blocks.is_empty()).then_some(all)
        })
        .await
    }

    /// The current blocks of all Nodes.
    pub async fn all(&self) -> BTreeMap<String, Vec<String>> {
        let list = send(&self.client, Method::GET, "/api/v1/nodes", None).await.unwrap();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|node| (node["metadata"]["name"].as_str().unwrap().to_owned(), blocks(node))).collect()
    }

    /// The Events about a Node: reason and note of each, without repetitions.
    pub async fn events(&self, name: &str) -> Vec<String> {
        let events = events(&self.client, "default", name).await;
        let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        events.iter().map(|event| format!("{}: {}", text(event, "reason"), text(event, "note"))).collect()
    }

    /// Waits for an Event about a Node that contains this text.
    pub async fn wait_for_event(&self, name: &str, text: &str) -> String {
        eventually(&format!("an Event about Node {name} with {text:?}"), async || {
            self.events(name).await.into_iter().find(|event| event.contains(text))
        })
        .await
    }
}

/// Settings that contain only `nodes`.
pub fn settings(nodes: &Value) -> String {
    if nodes.is_null() { "{}".to_owned() } else { json!({ "nodes": nodes }).to_string() }
}

/// A pool with this name and these ranges, with more settings merged in.
pub fn pool(name: &str, cidrs: &[&str], more: &Value) -> Value {
    let mut pool = json!({"name": name, "cidrs": cidrs});
    json_patch::merge(&mut pool, more);
    pool
}

/// Every pair of Nodes whose blocks overlap.
pub fn twice(all: &BTreeMap<String, Vec<String>>) -> Vec<(String, String)> {
    let mut nets: Vec<(ipnet::IpNet, &String)> =
        all.iter().flat_map(|(name, blocks)| blocks.iter().map(move |block| (block.parse().unwrap(), name))).collect();
    nets.sort();
    // The blocks are sorted by their first address, so overlapping blocks are next to each other.
    let meets = |pair: &&[(ipnet::IpNet, &String)]| pair[0].0.contains(&pair[1].0) || pair[1].0.contains(&pair[0].0);
    nets.windows(2).filter(meets).map(|pair| (pair[0].1.clone(), pair[1].1.clone())).collect()
}

/// The path of a Node in the API.
pub fn path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

fn blocks(node: &Value) -> Vec<String> {
    let list = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    let blocks: Vec<String> = list.map(|block| block.as_str().unwrap().to_owned()).collect();
    assert_eq!(node["spec"]["podCIDR"].as_str(), blocks.first().map(String::as_str), "both or none: {node}");
    blocks
}
