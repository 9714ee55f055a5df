//! What a change of one Service costs the server, if many Services have external addresses.

use std::time::Duration;

use http::Request;
use serde_json::{Value, json};

use super::bench::{Bench, quiet, services};
use super::manifests::name;
use super::support::eventually::eventually;
use super::support::serve_process::ServerBuilder;
use super::table::{Bound, Table};
use crate::support::process_usage::processor_time;

const NAMESPACE: &str = "edge";
const SERVICES: usize = 2_000;
const CHANGES: usize = 20;
/// Longer than the server collects changes.
const PAUSE: Duration = Duration::from_secs(1);
const ROUNDS: usize = 3;
const SETTINGS: &str = "services: {exemptNamespaces: [edge]}
external:
  pools:
  - {name: edge, cidrs: [10.9.0.0/20]}
";

/// The processor time of each round for a change, in milliseconds.
pub struct External {
    with: Vec<f64>,
    /// A change of a Service without external addresses.
    without: Vec<f64>,
}

/// Fills the cluster, and changes Services one after the other.
pub async fn measure(bench: &Bench) -> External {
    bench.namespace(NAMESPACE).await;
    let mut measured = External { with: Vec::new(), without: Vec::new() };
    let server = ServerBuilder::new(bench.plane()).settings(SETTINGS).registered().start().await;
    let path = services(NAMESPACE);
    let dry_run = format!("{path}?dryRun=All");
    eventually("the webhook", async || bench.create(&dry_run, &balancer(0)).await.ok().filter(has_address)).await;
    bench.add(&path, (0..SERVICES).map(balancer)).await;
    bench.add(&path, (0..CHANGES).map(|index| plain(&format!("plain-{index}")))).await;
    quiet(&server).await;
    for round in 0..ROUNDS {
        for (prefix, figures) in [("app", &mut measured.with), ("plain", &mut measured.without)] {
            let before = processor_time(server.pid());
            for index in 0..CHANGES {
                label(bench, &format!("{path}/{prefix}-{index}"), round).await;
                tokio::time::sleep(PAUSE).await;
            }
            let spent = processor_time(server.pid()) - before;
            figures.push(spent.as_secs_f64() * 1e3 / CHANGES as f64);
        }
    }
    bench.end(server).await;
    measured
}

fn balancer(index: usize) -> Value {
    let mut service = plain(&name(index));
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["loadBalancerClass"] = "clusterip-policy/external".into();
    service["spec"]["allocateLoadBalancerNodePorts"] = false.into();
    service
}

fn plain(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80}]},
    })
}

fn has_address(service: &Value) -> bool {
    service["metadata"]["annotations"]["clusterip-policy/external-addresses"].is_string()
}

/// Changes a label of a Service.
async fn label(bench: &Bench, path: &str, value: usize) {
    let patch = json!({"metadata": {"labels": {"round": format!("r{value}")}}});
    let request = Request::patch(path).header("content-type", "application/merge-patch+json");
    bench.client().request::<Value>(request.body(patch.to_string().into_bytes()).unwrap()).await.unwrap();
}

impl External {
    /// Prints the figures.
    pub fn rows(&self, table: &mut Table) {
        let (with, without) =
            ("processor time for a change of one of them", "  of a Service without external addresses");
        table.rounds(with, &self.with, "ms", Bound::AtMost(150.0));
        table.rounds(without, &self.without, "ms", Bound::None);
    }
}
