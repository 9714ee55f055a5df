//! ServiceCIDRs that are created and deleted.

use std::process::{Command, Stdio};

use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::program;
use crate::support::webhook_cluster::{WebhookCluster, address, service, within};

const SETTINGS: &str = "
services:
  pools:
  - {name: only, cidrs: [10.2.0.0/24], match: {namespaces: [ranges-only]}}
  - {name: both, cidrs: [10.2.1.0/24, 172.21.7.0/24], match: {namespaces: [ranges-both]}}
  - {name: rest, cidrs: [172.21.0.0/24]}
";

const TEAM: &str = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
  "metadata": {"name": "team-a"}, "spec": {"cidrs": ["10.2.0.0/16"]}}"#;

const REFUSED: &str = "addresses of it are refused by the API server";

async fn ready(plane: &ControlPlane) {
    plane.apply(TEAM).await;
    plane.kubectl(&["wait", "--for=condition=Ready", "servicecidr/team-a", "--timeout", "60s"]).await.ok();
}

/// Creates Services in a namespace until one is refused with this text.
async fn refused_with(cluster: &WebhookCluster, namespace: &str, words: &str) -> String {
    let mut number = 0;
    eventually(&format!("a refusal with {words:?}"), async || {
        number += 1;
        let name = format!("late-{number}");
        let message = cluster.create(namespace, &service(&name, json!({}))).await.err()?;
        message.contains(words).then_some(message)
    })
    .await
}

/// Runs `clusterip audit` as the administrator: the exit status and the output.
async fn audit(cluster: &WebhookCluster, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program());
    command.arg("audit").args(args).arg("--kubeconfig").arg(cluster.plane.kubeconfig()).stdin(Stdio::null());
    command.arg("--settings").arg(cluster.server.folder().join("settings.yaml"));
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

fn findings(json: &str, kind: &str) -> Vec<String> {
    let audit: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    let found = audit["findings"].as_array().unwrap().iter().filter(|finding| finding["kind"] == kind);
    found.map(|finding| finding["message"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_of_a_service_cidr_in_deletion_are_not_allocated() {
    let shared = ControlPlane::shared().await;
    if !shared.tells_addresses() {
        return shared.does_not_apply("the deletion of a ServiceCIDR");
    }
    let options = Options { controller_manager: true, ..Options::default() };
    let cluster =
        WebhookCluster::start(options, "\nservices:\n  pools:\n  - {name: rest, cidrs: [172.21.0.0/24]}\n").await;
    ready(&cluster.plane).await;
    eventually("the pool of the range in the metrics", async || {
        std::fs::write(cluster.server.folder().join("settings.yaml"), SETTINGS).unwrap();
        let (_, metrics) = cluster.server.get("/metrics").await?;
        metrics.contains("clusterip_settings_valid 1").then_some(())?;
        metrics.lines().any(|line| line.contains("pool=\"only\"")).then_some(())
    })
    .await;
    for namespace in ["ranges-only", "ranges-both"] {
        cluster.plane.namespace(namespace).await;
    }
    let first = cluster.create("ranges-only", &service("first", json!({}))).await.unwrap();
    assert!(within(address(&first), "10.2.0.0/24"), "{first}");

    // The ServiceCIDR exists as long as a Service has an address of it.
    let service_cidrs: Api<ServiceCIDR> = Api::all(cluster.plane.client());
    service_cidrs.delete("team-a", &DeleteParams::default()).await.unwrap();
    let deleted = format!("ServiceCIDR team-a (10.2.0.0/16) is being deleted: {REFUSED}");
    let message = refused_with(&cluster, "ranges-only", &deleted).await;
    assert!(message.contains("pool \"only\" (10.2.0.0/24) has no usable address"), "{message}");
    assert!(service_cidrs.get("team-a").await.unwrap().metadata.deletion_timestamp.is_some());
    for number in 0..20 {
        let created = cluster.create("ranges-both", &service(&format!("other-{number}"), json!({}))).await.unwrap();
        assert!(within(address(&created), "172.21.7.0/24"), "{created}");
    }
    let warned = |line: &String| line.contains("services.pools[1].cidrs[0]") && line.contains(&deleted);
    eventually("a warning in the log", async || cluster.server.log().iter().any(warned).then_some(())).await;
    let (status, json) = audit(&cluster, &["-o", "json", "--fail-on", "unusable-range"]).await;
    assert_eq!(status, Some(1), "{json}");
    let expected = format!("{deleted}; pool only (10.2.0.0/24), pool both (10.2.1.0/24) have addresses of it");
    assert_eq!(findings(&json, "unusable-range"), [expected]);

    // When the ServiceCIDR no longer exists, the settings are refused, because a pool is outside of all ranges. Other
    // pools can still be used.
    cluster.delete("ranges-only", "first").await;
    eventually("the ServiceCIDR to be deleted", async || {
        service_cidrs.get_opt("team-a").await.unwrap().is_none().then_some(())
    })
    .await;
    refused_with(&cluster, "ranges-only", &format!("ServiceCIDR team-a (10.2.0.0/16) is gone: {REFUSED}")).await;
    for number in 20..30 {
        let created = cluster.create("ranges-both", &service(&format!("other-{number}"), json!({}))).await.unwrap();
        assert!(within(address(&created), "172.21.7.0/24"), "{created}");
    }

    ready(&cluster.plane).await;
    let mut number = 0;
    eventually("addresses of the recreated range", async || {
        number += 1;
        cluster.create("ranges-only", &service(&format!("back-{number}"), json!({}))).await.ok()
    })
    .await;
}
