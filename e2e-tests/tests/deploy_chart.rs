//! `deploy/chart` with `helm install`, `helm upgrade` and `helm uninstall`: no command changes pools that are not in the
//! values, and Services can be created at any time.

use serde_json::json;

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::helm::Helm;
use crate::support::pools::pool;
use crate::support::webhook_cluster::service;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/chart");

/// The names of the ServicePools, sorted.
async fn service_pools(plane: &ControlPlane) -> String {
    plane.kubectl(&["get", "servicepools", "--output", "jsonpath={.items[*].metadata.name}"]).await.ok()
}

/// Creates a Service, as a user of the cluster does.
async fn create_service(plane: &ControlPlane, namespace: &str, name: &str) {
    let service = service(name, json!({})).to_string();
    plane.kubectl_with(&["create", "--namespace", namespace, "-f", "-"], &service).await.ok();
}

#[tokio::test]
async fn pools_that_are_not_in_the_values_survive_every_command() {
    let plane = ControlPlane::start(Options { audit: false, ..Options::default() });
    let Some(helm) = Helm::of(&plane) else { return };
    let namespace = plane.namespace("user").await;
    let release = ["clusterip", CHART, "--namespace", "clusterip-policy"];

    let fence = async || {
        let get = ["get", "validatingadmissionpolicybindings", "--output", "name"];
        let names = plane.kubectl(&get).await.ok();
        names.lines().filter(|name| name.contains("-fence")).count()
    };
    // The fence comes last: otherwise the API server may refuse Services meanwhile.
    helm.run(&[&["install"], &release[..], &["--create-namespace"]].concat()).await;
    assert_eq!(fence().await, 0);
    plane.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).await.ok();
    assert_eq!(service_pools(&plane).await, "linux windows");
    // No program runs here, and the API server serves the first list of a kind late.
    plane.kubectl(&["get", "servicepools,externalpools"]).await.ok();
    helm.run(&[&["upgrade"], &release[..], &["--reuse-values"]].concat()).await;
    assert_eq!(fence().await, 4);
    create_service(&plane, &namespace, "installed").await;
    let by_hand = json!({"cidrs": ["172.21.9.0/24"], "fence": "Warn", "match": {"namespaces": ["team-a"]}});
    plane.apply(&pool("ServicePool", "team-a", by_hand).to_string()).await;

    let values = r#"pools.services=[{"name": "all", "cidrs": ["172.21.8.0/24"]}]"#;
    helm.run(&[&["upgrade"], &release[..], &["--set-json", values]].concat()).await;
    assert_eq!(service_pools(&plane).await, "all team-a");
    create_service(&plane, &namespace, "upgraded").await;

    helm.run(&["uninstall", "clusterip", "--namespace", "clusterip-policy"]).await;
    assert_eq!(service_pools(&plane).await, "team-a");
    create_service(&plane, &namespace, "uninstalled").await;
    // The release can be installed again beside the pools that are left.
    helm.run(&[&["install"], &release[..]].concat()).await;
    assert_eq!(service_pools(&plane).await, "linux team-a windows");
}
