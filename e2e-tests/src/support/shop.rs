//! `examples/shop` in a cluster, and the addresses that `clusterip plan` forecasts for its Services.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::command::Ended;
use super::eventually::eventually;
use super::program;
use super::whole_cluster::WholeCluster;

const SHOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/shop");

/// The addresses of Services, by namespace and name.
pub type Addresses = BTreeMap<(String, String), Vec<String>>;

/// Applies the shop, and waits until its Services have the addresses that `clusterip plan` forecasts with these
/// settings. Services that are created before their workloads are moved when their workloads are there. Returns the
/// addresses.
pub async fn place_as_planned(cluster: &WholeCluster, settings: &Path) -> Addresses {
    cluster.kubectl(&["apply", "-f", &format!("{SHOP}/cluster.yaml"), "-f", SHOP]).await.ok();
    let planned = planned(settings);
    eventually("the planned addresses", async || (placed(cluster, &planned).await == planned).then_some(())).await;
    planned
}

/// Deletes the shop, without waiting for its end.
pub async fn delete(cluster: &WholeCluster) {
    cluster.kubectl(&["delete", "--ignore-not-found", "--wait=false", "-f", SHOP]).await.ok();
}

/// The addresses that `clusterip plan` forecasts, without Services that stay as they are.
fn planned(settings: &Path) -> Addresses {
    let plan = ["plan", SHOP, "-o", "json", "--settings"];
    let output = Command::new(program()).args(plan).arg(settings).output().unwrap();
    let plan: Value = serde_json::from_str(&Ended::from(output).ok()).unwrap();
    let services = plan["services"].as_array().unwrap().iter();
    let allocated = services.filter(|service| service["decision"] == "allocated");
    let planned: Addresses =
        allocated.map(|service| addresses(&service["namespace"], &service["name"], &service["clusterIPs"])).collect();
    assert_ne!(planned, Addresses::new());
    planned
}

/// The addresses of the planned Services in the cluster.
pub async fn placed(cluster: &WholeCluster, planned: &Addresses) -> Addresses {
    let text = cluster.kubectl(&["get", "services", "--all-namespaces", "--output", "json"]).await.ok();
    let list: Value = serde_json::from_str(&text).unwrap();
    let services = list["items"].as_array().unwrap().iter();
    let services = services.map(|service| {
        let metadata = &service["metadata"];
        addresses(&metadata["namespace"], &metadata["name"], &service["spec"]["clusterIPs"])
    });
    services.filter(|(service, _)| planned.contains_key(service)).collect()
}

fn addresses(namespace: &Value, name: &Value, addresses: &Value) -> ((String, String), Vec<String>) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let addresses = addresses.as_array().map_or_else(Vec::new, |addresses| addresses.iter().map(text).collect());
    ((text(namespace), text(name)), addresses)
}
