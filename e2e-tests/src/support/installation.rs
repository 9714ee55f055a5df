//! `clusterip` as a Deployment in the cluster.

use std::process::Command;

use serde_json::{Value, json};

use super::command::ended;
use super::whole_cluster::WholeCluster;

pub const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
pub const NAMESPACE: &str = "clusterip-policy";
/// The namespace of the agents of `deploy/external`.
pub const AGENTS: &str = "clusterip-policy-agents";

/// Installs a folder of `deploy` as its README says, and waits until the Deployment is complete.
pub async fn install(cluster: &WholeCluster, folder: &str) {
    cluster.kubectl(&["apply", "-k", &format!("{DEPLOY}/api")]).await.ok();
    let wait = ["wait", "--for=condition=Established", "crd", "--selector", "app.kubernetes.io/name=clusterip"];
    cluster.kubectl(&[&wait[..], &["--timeout=60s"]].concat()).await.ok();
    cluster.kubectl(&["apply", "-k", &format!("{DEPLOY}/{folder}")]).await.ok();
    roll_out(cluster).await;
    cluster.kubectl(&["apply", "-k", &format!("{DEPLOY}/fence")]).await.ok();
}

/// Waits until the Deployment is complete.
pub async fn roll_out(cluster: &WholeCluster) {
    let status = ["rollout", "status", "--namespace", NAMESPACE, "deployment/clusterip", "--timeout=90s"];
    let done = cluster.kubectl(&status).await;
    if done.status != 0 {
        let pods = cluster.kubectl(&["describe", "pods", "--namespace", NAMESPACE]).await.ok();
        let log = cluster.kubectl(&["logs", "--namespace", NAMESPACE, "deployment/clusterip", "--tail=50"]).await;
        panic!("{}{pods}{}{}", done.stderr, log.stdout, log.stderr);
    }
}

/// Asserts that no container of the server or of an agent was restarted. The kubelet restarts a container that ended,
/// whose liveness probe failed, or that used more memory than its limit.
pub async fn assert_no_restarts(cluster: &WholeCluster) {
    for namespace in [NAMESPACE, AGENTS] {
        let restarts = field(cluster, namespace, "pods", ".items[*].status.containerStatuses[*].restartCount").await;
        if restarts.split_whitespace().any(|count| count != "0") {
            panic!("{}", cluster.kubectl(&["describe", "pods", "--namespace", namespace]).await.ok());
        }
    }
}

/// Asserts that no container was restarted, and removes what [`install`] created, with `deploy/webhook/uninstall` and
/// the commands of its README.
pub async fn uninstall(cluster: &WholeCluster) {
    assert_no_restarts(cluster).await;
    let mut command = Command::new(format!("{DEPLOY}/webhook/uninstall"));
    let kubectl = cluster.kubectl_program().parent().unwrap();
    command
        .env("PATH", format!("{}:{}", kubectl.display(), std::env::var("PATH").unwrap()))
        .env("KUBECONFIG", cluster.kubeconfig());
    ended(command).await.ok();
    cluster.kubectl(&["delete", "-k", &format!("{DEPLOY}/fence"), "--ignore-not-found"]).await.ok();
    cluster.kubectl(&["delete", "-k", &format!("{DEPLOY}/api"), "--ignore-not-found"]).await.ok();
}

/// Asserts that the Pods of the namespace satisfy the restricted Pod Security level, and leaves the namespace with it.
/// The API server checks the Pods of a namespace when this label is added, and warns of those that violate the level.
pub async fn satisfies_the_restricted_level(cluster: &WholeCluster) {
    let without = "pod-security.kubernetes.io/enforce-";
    cluster.kubectl(&["label", "namespace", NAMESPACE, without]).await.ok();
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    let labelled = cluster.kubectl(&["label", "namespace", NAMESPACE, restricted]).await;
    assert_eq!((labelled.status, labelled.stderr.as_str()), (0, ""));
}

/// A Service with one port, whose Pods have the label `app` with its name.
pub fn service(namespace: &str, name: &str, fields: Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    service["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    service
}

/// A field of an object, as `kubectl get --output jsonpath` prints it.
pub async fn field(cluster: &WholeCluster, namespace: &str, object: &str, path: &str) -> String {
    let output = format!("jsonpath={{{path}}}");
    cluster.kubectl(&["get", "--namespace", namespace, object, "--output", &output]).await.ok()
}
