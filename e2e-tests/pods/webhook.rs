//! `deploy/webhook` as a Pod places the Services of `examples/shop` as `clusterip plan` forecasts.

use std::collections::BTreeMap;
use std::process::Command;

use e2e_tests::support::eventually::eventually;
use e2e_tests::support::installation::{install, satisfies_the_restricted_level, uninstall};
use e2e_tests::support::program;
use e2e_tests::support::whole_cluster::WholeCluster;
use serde_json::Value;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

/// The addresses of Services, by namespace and name.
type Addresses = BTreeMap<(String, String), Vec<String>>;

pub async fn shop_is_placed_as_planned(cluster: &WholeCluster) {
    install(cluster, "webhook").await;
    satisfies_the_restricted_level(cluster).await;
    let shop = format!("{EXAMPLES}/shop");
    let nodes_and_namespaces = format!("{shop}/cluster.yaml");
    cluster.kubectl(&["apply", "-f", &nodes_and_namespaces, "-f", &shop]).await.ok();

    let planned = planned(&shop);
    // Services that are created before their workloads are moved when their workloads are there.
    eventually("the planned addresses", async || (placed_in(cluster, &planned).await == planned).then_some(())).await;
    cluster.kubectl(&["delete", "--ignore-not-found", "--wait=false", "-f", &shop]).await.ok();
    uninstall(cluster).await;
}

/// The addresses that `clusterip plan` forecasts, without Services that stay as they are.
fn planned(shop: &str) -> Addresses {
    let settings = format!("{EXAMPLES}/settings/k2s.yaml");
    let output = Command::new(program()).args(["plan", shop, "--settings", &settings, "-o", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let services = plan["services"].as_array().unwrap().iter();
    let allocated = services.filter(|service| service["decision"] == "allocated");
    allocated.map(|service| addresses(&service["namespace"], &service["name"], &service["clusterIPs"])).collect()
}

/// The addresses of the planned Services in the cluster.
async fn placed_in(cluster: &WholeCluster, planned: &Addresses) -> Addresses {
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
