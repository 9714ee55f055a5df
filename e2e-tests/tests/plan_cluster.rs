//! `clusterip plan --cluster`: existing objects are read from the API server.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::program;
use crate::support::webhook_cluster::{all, on, service, template};

/// Three kinds: one is served with an irregular plural, and the others are not served.
const SETTINGS: &str = "
services:
  pools:
  - {name: windows, cidrs: [172.21.1.0/24], match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24], match: {os: linux}}
  evidence: {kinds: [nowhere.example.org/v1/Goat, barns.example.org/v1/Goat, barns.example.org/v1/Ox, Deployment]}
";

const OXEN: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: oxen.barns.example.org}
spec:
  group: barns.example.org
  scope: Namespaced
  names: {kind: Ox, plural: oxen}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

/// The plan of a Service `web` in a namespace as JSON, or the error.
async fn plan(plane: &ControlPlane, namespace: &str) -> Result<Value, String> {
    let folder = tempfile::tempdir().unwrap();
    let (settings, manifests) = (folder.path().join("settings.yaml"), folder.path().join("web.yaml"));
    std::fs::write(&settings, SETTINGS).unwrap();
    std::fs::write(&manifests, all(namespace, [service("web", json!({}))])).unwrap();
    let mut command = Command::new(program());
    command.args(["plan", "--cluster", "-o", "json", "--settings"]).arg(&settings).arg(&manifests);
    command.env("KUBECONFIG", plane.kubeconfig()).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    match output.status.code() {
        Some(0) => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        code => Err(format!("{code:?}: {}", String::from_utf8(output.stderr).unwrap())),
    }
}

#[tokio::test]
async fn custom_kinds_are_found_by_their_plural() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("plan-cluster").await;
    plane.apply(OXEN).await;
    let ox = json!({
        "apiVersion": "barns.example.org/v1",
        "kind": "Ox",
        "metadata": {"name": "ox", "namespace": namespace},
        "spec": {"template": template("web", on("windows"))},
    });
    eventually("the API server to serve the kind", async || {
        let applied = plane.kubectl_with(&["apply", "-f", "-"], &ox.to_string()).await;
        (applied.status == 0).then_some(())
    })
    .await;

    let mut planned = plan(&plane, &namespace).await.unwrap();
    // Which address is free depends on the other tests.
    let address = planned["services"][0]["clusterIPs"].take();
    assert!(address[0].as_str().is_some_and(|address| address.starts_with("172.21.1.")), "{address}");
    // How many are used depends on them, too.
    for pool in planned["pools"]["services"].as_array_mut().unwrap() {
        assert!(pool["used"].take().is_u64(), "{pool}");
    }
    // Which existing Services are misplaced with these settings depends on them, too.
    planned.as_object_mut().unwrap().remove("misplaced");
    // The first address of the Service range belongs to `default/kubernetes`. Before Kubernetes 1.33, the API does not
    // show that range.
    let shows_ranges = plane.kubectl(&["get", "servicecidrs"]).await.status == 0;
    let of_linux = if shows_ranges { 253 } else { 254 };
    let expected = json!({
        "services": [{
            "namespace": namespace,
            "name": "web",
            "decision": "allocated",
            "pool": "windows",
            "evidence": {"source": format!("Ox {namespace}/ox"), "labels": {"kubernetes.io/os": "windows"}},
            "clusterIPs": null,
            "warnings": [],
            "message": null,
        }],
        "pools": {"services": [
            {"name": "windows", "family": "IPv4", "used": null, "usable": 254},
            {"name": "linux", "family": "IPv4", "used": null, "usable": of_linux},
        ]},
        "summary": {"allocated": 1, "unchanged": 0, "denied": 0},
    });
    assert_eq!(planned, expected);
    plane.kubectl(&["delete", "customresourcedefinition", "oxen.barns.example.org"]).await.ok();
}
