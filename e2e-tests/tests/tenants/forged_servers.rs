//! Leases and stored settings of a tenant that look like those of a server.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{MALLORY, Scene, Tenant, clusterip};
use crate::support::pools::service_pools;
use crate::support::serve_process::ServerBuilder;

/// The settings of the server.
const SERVER: &str = "{services: {pools: [{name: right, cidrs: [172.21.7.0/24]}]}}";
const IDENTITY: &str = "mallory_serve_00000000000000ab";

/// Writes the Lease, and the annotation that an earlier version read.
async fn forges(mallory: &Tenant<'_>, holder: &str) {
    let namespace = &mallory.namespace;
    let in_use = json!({"leader": IDENTITY, "version": "", "agentsNamespace": namespace,
        "source": {"kubewardenPolicy": "forged"}});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "clusterip-leader", "annotations": {"clusterip-policy/settings-in-use": in_use.to_string()}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:00.000000Z"}});
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let _ = mallory.request(Method::DELETE, &format!("{leases}/clusterip-leader"), &json!({})).await;
    mallory.request(Method::POST, &leases, &lease).await.unwrap();
    let revision = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 0, "data": in_use,
        "metadata": {"name": "clusterip-server-00000000000000ab", "labels": {"clusterip-policy/move": "server"}}});
    let revisions = format!("/apis/apps/v1/namespaces/{namespace}/controllerrevisions");
    let refused = mallory.request(Method::POST, &revisions, &revision).await.unwrap_err();
    assert!(refused.contains("forbidden"), "a tenant may write the settings of a server: {refused}");
}

/// Renews the forged Lease for ever.
async fn renews(mallory: &Tenant<'_>) {
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/clusterip-leader", mallory.namespace);
    for second in 0_u32.. {
        let time = format!("2026-01-01T{:02}:{:02}:{:02}.000000Z", second / 3600, second / 60 % 60, second % 60);
        let _ = mallory.request(Method::PATCH, &lease, &json!({"spec": {"renewTime": time}})).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What each command prints while the forged Lease is empty, held, and renewed.
async fn with_each_lease(mallory: &Tenant<'_>, check: impl AsyncFn(&str)) {
    forges(mallory, "").await;
    check("empty").await;
    forges(mallory, IDENTITY).await;
    check("held").await;
    tokio::select! {
        () = check("renewed") => {}
        () = renews(mallory) => unreachable!(),
    }
}

#[tokio::test]
async fn forged_server_is_ignored_without_and_beside_a_server() {
    let scene = Scene::without_server().await;
    let mallory = scene.tenant(MALLORY).await;
    let expected = "error: no server leads in this cluster, so its settings are unknown: use --settings FILE\n";
    with_each_lease(&mallory, async |lease: &str| {
        for arguments in [&["audit"][..], &["move", "--dry-run"][..]] {
            let ended = clusterip(&scene.plane, arguments).await;
            let found = (ended.status, ended.stdout.as_str(), ended.stderr.as_str());
            assert_eq!(found, (2, "", expected), "{lease}: {arguments:?}");
        }
        // The command keeps its Lease in the namespace of the context.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.yaml");
        std::fs::write(&file, SERVER).unwrap();
        let arguments = ["move", "-A", "--yes", "--settings", file.to_str().unwrap()];
        let moved = clusterip(&scene.plane, &arguments).await;
        assert!(!moved.stderr.contains(MALLORY), "{lease}: {}", moved.stderr);
        assert!([0, 1].contains(&moved.status), "{lease}: {}", moved.stderr);
        if lease == "renewed" {
            let arguments = [&arguments[..], &["--server-namespace", "kube-system"][..]].concat();
            let moved = clusterip(&scene.plane, &arguments).await;
            assert!([0, 1].contains(&moved.status), "{lease}: {}", moved.stderr);
        }
    })
    .await;

    let namespace = scene.plane.namespace("installed").await;
    scene.plane.install_pools().await;
    scene.plane.apply(&service_pools(SERVER)).await;
    let server = ServerBuilder::new(&scene.plane).pools().args(&["--namespace", &namespace]);
    let mut server = server.args(&["--no-webhook", "--move", "never"]).start().await;
    let from = format!("settings: the pools of the cluster (server in namespace {namespace})\n");
    with_each_lease(&mallory, async |lease: &str| {
        let audit = clusterip(&scene.plane, &["audit", "-o", "json"]).await;
        assert_eq!((audit.status, &audit.stderr), (0, &from), "{lease}");
        let audit: Value = serde_json::from_str(&audit.stdout).unwrap();
        assert_eq!(audit["pools"][0]["name"], "right", "{lease}");
        let shown = clusterip(&scene.plane, &["move", "-A", "--dry-run"]).await;
        assert_eq!((shown.status, &shown.stderr), (0, &from), "{lease}: {}", shown.stdout);
    })
    .await;
    assert_eq!(server.terminate().await, 0);
}
