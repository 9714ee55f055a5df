//! The chart with `helm install`, `helm upgrade` and `helm uninstall`, with Pods.

use std::time::Duration;

use e2e_tests::support::helm::Helm;
use e2e_tests::support::installation::{
    DEPLOY, NAMESPACE, assert_no_restarts, field, roll_out, satisfies_the_restricted_level, service,
};
use e2e_tests::support::whole_cluster::WholeCluster;
use serde_json::json;

pub async fn install_upgrade_uninstall(cluster: &WholeCluster) {
    let Some(helm) = Helm::of(cluster) else { return };
    let namespace = &cluster.namespace("chart").await;
    let chart = format!("{DEPLOY}/chart");
    let release = ["clusterip", &chart, "--namespace", NAMESPACE, "--wait", "--timeout", "90s"];
    let place = async |name: &str| {
        cluster.apply(&service(namespace, name, json!({})).to_string()).await;
        field(cluster, namespace, &format!("service/{name}"), ".spec.clusterIP").await
    };

    helm.run(&[&["install", "--create-namespace"], &release[..]].concat()).await;
    satisfies_the_restricted_level(cluster).await;
    // kube-proxy may program the endpoint of the webhook a second after the Pod is ready. Until then the API server
    // can't call the webhook, and picks addresses itself.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let address = place("installed").await;
    assert!(address.starts_with("172.21.0."), "{address}");

    helm.run(&[&["upgrade"], &release[..], &["--set", "replicas=2", "--set", "claims=lease"]].concat()).await;
    roll_out(cluster).await;
    assert_eq!(field(cluster, NAMESPACE, "deployment/clusterip", ".status.readyReplicas").await, "2");
    let address = place("upgraded").await;
    assert!(address.starts_with("172.21.0."), "{address}");

    assert_no_restarts(cluster).await;
    helm.run(&["uninstall", "clusterip", "--namespace", NAMESPACE, "--wait", "--timeout", "90s"]).await;
    // Without the webhook, Services are created as before the installation.
    place("uninstalled").await;
    for object in [namespace, NAMESPACE] {
        cluster.kubectl(&["delete", "namespace", object, "--timeout=60s"]).await.ok();
    }
}
