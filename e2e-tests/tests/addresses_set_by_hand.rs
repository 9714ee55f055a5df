//! Whether the address of a Service was set by hand, as the managed fields of the API server show it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clusterip_core::service::may_be_set_by_hand;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::helm::Helm;
use crate::support::webhook_cluster::{WebhookCluster, address, all, annotated, deployment, on, place, service};

fn by_hand() -> Value {
    json!({"clusterIP": "172.21.0.30"})
}

#[tokio::test]
async fn set_by_hand_is_detected_for_every_way_to_write_a_service() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("ownership").await;
    let flag = format!("--namespace={namespace}");
    let create = async |name: &str, spec: Value| drop(cluster.create(&namespace, &service(name, spec)).await.unwrap());
    let kubectl = async |verb: &[&str], name: &str, spec: Value| {
        let manifest = service(name, spec).to_string();
        cluster.plane.kubectl_with(&[verb, &[&*flag, "-f", "-"]].concat(), &manifest).await.ok();
    };
    let replace = async |name: &str| {
        let whole = cluster.plane.kubectl(&["get", "service", name, &flag, "-o", "json"]).await.ok();
        cluster.plane.kubectl_with(&["replace", &flag, "-f", "-"], &whole).await.ok();
    };
    let relabel = async |name: &str| {
        cluster.plane.kubectl(&["label", "service", name, "a=b", &flag]).await.ok();
    };

    create("created", json!({})).await;
    kubectl(&["create"], "kubectl-created", json!({})).await;
    kubectl(&["apply"], "applied", json!({})).await;
    kubectl(&["apply"], "applied-twice", json!({})).await;
    kubectl(&["apply"], "applied-twice", json!({"ports": [{"port": 81}]})).await;
    kubectl(&["apply", "--server-side"], "server-side", json!({})).await;
    kubectl(&["apply", "--server-side"], "server-side-twice", json!({})).await;
    kubectl(&["apply", "--server-side"], "server-side-twice", json!({"ports": [{"port": 81}]})).await;
    create("replaced", json!({})).await;
    replace("replaced").await;
    create("labelled", json!({})).await;
    relabel("labelled").await;
    create("back", json!({"type": "ExternalName", "externalName": "example.com"})).await;
    cluster.patch(&namespace, "back", json!({"spec": {"type": "ClusterIP", "externalName": null}})).await.unwrap();

    let hand = |last: u8| json!({"clusterIP": format!("172.21.0.{last}")});
    create("hand-created", hand(31)).await;
    kubectl(&["create"], "hand-kubectl-created", hand(32)).await;
    kubectl(&["apply"], "hand-applied", hand(33)).await;
    kubectl(&["apply", "--server-side"], "hand-server-side", hand(34)).await;
    create("hand-replaced", hand(35)).await;
    replace("hand-replaced").await;
    kubectl(&["apply"], "hand-applied-twice", hand(36)).await;
    kubectl(&["apply"], "hand-applied-twice", {
        let mut spec = hand(36);
        spec["ports"] = json!([{"port": 81}]);
        spec
    })
    .await;
    create("hand-back", json!({"type": "ExternalName", "externalName": "example.com"})).await;
    let back = json!({"spec": {"type": "ClusterIP", "externalName": null, "clusterIP": "172.21.0.37"}});
    cluster.patch(&namespace, "hand-back", back).await.unwrap();

    let services = cluster.list(&namespace).await;
    let found: Vec<(String, bool)> =
        services.iter().map(|(name, service)| (name.clone(), may_be_set_by_hand(service))).collect();
    let expected: Vec<(String, bool)> = services.keys().map(|name| (name.clone(), name.starts_with("hand-"))).collect();
    assert_eq!(found, expected);
    assert_eq!(found.len(), 16);
    let kubernetes = cluster.get("default", "kubernetes").await;
    assert!(may_be_set_by_hand(&kubernetes));
}

/// A move does not change the owners of fields, and the owner can apply the manifest again.
#[tokio::test]
async fn set_by_hand_is_detected_after_a_move() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("ownership-moved").await;
    let services = cluster.services(&namespace);
    let owner = PatchParams::apply("owner");
    let web = service("web", json!({"type": "ClusterIP"}));
    services.patch("web", &owner, &Patch::Apply(&web)).await.unwrap();
    cluster.create(&namespace, &annotated("hand", json!({}), by_hand())).await.unwrap();
    let before = cluster.list(&namespace).await;
    cluster.plane.apply(&all(&namespace, ["web", "hand"].map(|name| deployment(name, on("windows"))))).await;
    let moved = async || {
        let service = cluster.get(&namespace, "web").await;
        let ended = service["spec"]["type"] == "ClusterIP" && !service.to_string().contains("clusterip-policy/moving");
        (ended && place(address(&service)) == "windows").then_some(service)
    };
    let after = eventually("the move", moved).await;
    assert!(!may_be_set_by_hand(&after));
    let owners = |service: &Value| {
        let mut fields = service["metadata"]["managedFields"].clone();
        for entry in fields.as_array_mut().unwrap() {
            entry.as_object_mut().unwrap().remove("time");
        }
        fields
    };
    assert_eq!(owners(&after), owners(&before["web"]));
    let node_port = service("web", json!({"type": "NodePort"}));
    services.patch("web", &owner, &Patch::Apply(&node_port)).await.unwrap();

    // An address that was set by hand stays, and an Event reports it.
    let line =
        async || cluster.server.log().into_iter().find(|line| line.contains("misplaced") && line.contains(&namespace));
    let line = eventually("a line about the Service that stays", line).await;
    assert!(line.contains("name=\"hand\"") && line.contains("reason=\"by_hand\""), "{line}");
    assert_eq!(cluster.list(&namespace).await["hand"], before["hand"]);
}

/// A manifest with an empty address, as charts render it, does not set the address, for every way to send it: the
/// Service moves when a workload shows where it belongs, and the same manifest can be applied again.
#[tokio::test]
async fn empty_address_is_not_set_by_hand() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("ownership-empty").await;
    let flag = format!("--namespace={namespace}");
    let send = async |verb: &[&str], name: &str, fields: Value| {
        let manifest = service(name, fields).to_string();
        cluster.plane.kubectl_with(&[verb, &[&*flag, "-f", "-"]].concat(), &manifest).await.ok();
    };
    let empty = |port: u16| json!({"clusterIP": "", "ports": [{"port": port}]});
    let flux = ["apply", "--server-side", "--field-manager=flux", "--force-conflicts"];

    send(&["apply"], "client-side", empty(80)).await;
    send(&["apply", "--server-side"], "server-side", empty(80)).await;
    send(&flux, "flux", empty(80)).await;
    send(&flux, "flux-again", empty(80)).await;
    send(&flux, "flux-again", empty(81)).await;
    send(&["apply", "--server-side"], "taken-back", json!({"clusterIP": "172.21.0.39"})).await;
    send(&["apply", "--server-side"], "taken-back", empty(80)).await;
    send(&["create"], "created", empty(80)).await;
    send(&["create"], "replaced", json!({})).await;
    send(&["replace"], "replaced", empty(80)).await;
    send(&["apply", "--server-side"], "hand", json!({"clusterIP": "172.21.0.38"})).await;
    let mut charts: Vec<&str> = Vec::new();
    let helm = ServiceChart::of(&cluster.plane, &namespace);
    if let Some(helm) = &helm {
        charts.extend(["helm-installed", "helm-upgraded"]);
        helm.run(&["install", "helm-installed"], 80).await;
        helm.run(&["install", "helm-upgraded"], 80).await;
        helm.run(&["upgrade", "helm-upgraded"], 81).await;
    }

    let before = cluster.list(&namespace).await;
    let owned: Vec<&String> = before.iter().filter(|(_, it)| may_be_set_by_hand(it)).map(|(name, _)| name).collect();
    assert_eq!(owned, ["hand"]);
    let deployments: Vec<Value> = before.keys().map(|name| deployment(name, on("windows"))).collect();
    cluster.plane.apply(&all(&namespace, deployments)).await;
    let at = async || -> BTreeMap<String, IpAddr> {
        let services = cluster.list(&namespace).await;
        let ended = |service: &&Value| service["spec"]["type"] == "ClusterIP";
        services.iter().filter(|(_, it)| ended(it)).map(|(name, it)| (name.clone(), address(it))).collect()
    };
    let moved = eventually("all but one to move", async || {
        let found = at().await;
        let is_there = |(name, address): (&String, &IpAddr)| name == "hand" || place(*address) == "windows";
        (found.len() == before.len() && found.iter().all(is_there)).then_some(found)
    })
    .await;

    send(&["apply"], "client-side", empty(80)).await;
    send(&["apply", "--server-side"], "server-side", empty(80)).await;
    send(&flux, "flux", empty(80)).await;
    send(&flux, "flux-again", empty(82)).await;
    send(&["apply", "--server-side"], "taken-back", empty(81)).await;
    send(&["replace"], "created", empty(80)).await;
    send(&["replace"], "replaced", empty(81)).await;
    if let Some(helm) = &helm {
        for chart in charts {
            helm.run(&["upgrade", chart], 82).await;
        }
    }
    assert_eq!(at().await, moved, "the same manifest leaves the new address");
    let after = cluster.list(&namespace).await;
    let owned: Vec<&String> = after.iter().filter(|(_, it)| may_be_set_by_hand(it)).map(|(name, _)| name).collect();
    assert_eq!(owned, ["hand"], "after the manifests were applied again");
    assert_eq!(after["hand"]["spec"]["clusterIP"], "172.21.0.38");
}

/// Installs a chart of one Service.
struct ServiceChart<'n> {
    helm: Helm,
    namespace: &'n str,
    folder: tempfile::TempDir,
}

impl<'n> ServiceChart<'n> {
    /// Returns `None` if there is no helm.
    fn of(plane: &ControlPlane, namespace: &'n str) -> Option<Self> {
        let helm = Helm::of(plane)?;
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("templates")).unwrap();
        std::fs::write(folder.path().join("Chart.yaml"), "apiVersion: v2\nname: web\nversion: 0.1.0\n").unwrap();
        std::fs::write(folder.path().join("templates/service.yaml"), TEMPLATE).unwrap();
        Some(Self { helm, namespace, folder })
    }

    async fn run(&self, verb: &[&str], port: u16) {
        let folder = self.folder.path().to_str().unwrap();
        let port = format!("port={port}");
        self.helm.run(&[verb, &[folder, "--namespace", self.namespace, "--set", &port]].concat()).await;
    }
}

const TEMPLATE: &str = "\
apiVersion: v1
kind: Service
metadata: {name: '{{ .Release.Name }}'}
spec:
  clusterIP: ''
  selector: {app: '{{ .Release.Name }}'}
  ports: [{port: {{ .Values.port }}}]
";
