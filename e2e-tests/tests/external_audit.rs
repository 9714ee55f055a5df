//! `clusterip audit` and `clusterip plan` of external addresses in a live cluster, and the map of a running server.

use std::net::IpAddr;
use std::process::{Command, Stdio};

use axum::http::Method;
use clusterip_core::annotations::NODE_ANNOTATION;
use clusterip_failover::claims::{EXTERNAL, HolderClaim};
use clusterip_failover::heartbeat_state;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::{path, send};
use crate::support::program;
use crate::support::serve_process::ServerBuilder;

const SETTINGS: &str = "
services: {serviceCIDRs: [172.21.0.0/16]}
external:
  pools:
  - {name: bank, cidrs: [10.0.10.0/29], match: {namespaces: [bank]}}
  - {name: lan, cidrs: [10.0.9.10-10.0.9.40], nodes: {matchLabels: {edge: 'yes'}}}
";

struct Audited {
    plane: LentControlPlane,
    folder: tempfile::TempDir,
}

impl Audited {
    async fn new() -> Self {
        let plane = LentControlPlane::get().await;
        for name in ["shop", "bank", "own"] {
            plane.kubectl(&["create", "namespace", name]).await.ok();
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("settings.yaml"), SETTINGS).unwrap();
        Self { plane, folder }
    }

    /// Creates a Service of our class with this record.
    async fn service(&self, name: &str, record: Option<&str>, spec: Value) {
        let annotations = record.map(|record| json!({"clusterip-policy/external-addresses": record}));
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external",
                "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}],
            },
        });
        json_patch::merge(&mut service["spec"], &spec);
        send(&self.plane.client(), Method::POST, "/api/v1/namespaces/shop/services", Some(&service)).await.unwrap();
    }

    async fn shows(&self, name: &str, address: &str) {
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}}});
        let path = format!("{}/status", path("shop", name));
        send(&self.plane.client(), Method::PATCH, &path, Some(&status)).await.unwrap();
    }

    async fn node(&self, name: &str) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"edge": "yes"}}});
        send(&self.plane.client(), Method::POST, "/api/v1/nodes", Some(&node)).await.unwrap();
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let path = format!("/api/v1/nodes/{name}/status");
        send(&self.plane.client(), Method::PATCH, &path, Some(&status)).await.unwrap();
    }

    async fn lease(&self, name: &str, of: &str, note: (&str, &str), spec: Value) {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
            "metadata": {"name": name, "labels": {"clusterip-policy/lease": of}, "annotations": {note.0: note.1}},
        });
        let path = "/apis/coordination.k8s.io/v1/namespaces/own/leases";
        send(&self.plane.client(), Method::POST, path, Some(&lease)).await.unwrap();
    }

    /// The heartbeat of the agent on a node, renewed this many seconds ago.
    async fn heartbeat(&self, node: &str, ago: i64) {
        let renewed = Timestamp::now().checked_sub(SignedDuration::from_secs(ago)).unwrap();
        let renewed = format!("{renewed:.6}");
        let spec =
            json!({"holderIdentity": format!("{node}_agent_1"), "leaseDurationSeconds": 20, "renewTime": renewed});
        self.lease(&heartbeat_state::name(node), heartbeat_state::AGENT, (NODE_ANNOTATION, node), spec).await;
    }

    /// The claim of the agent on a node.
    async fn claim(&self, address: &str, node: &str) {
        let name = HolderClaim::lease_name(address.parse::<IpAddr>().unwrap());
        let spec = json!({"holderIdentity": format!("{node}_agent_1")});
        self.lease(&name, EXTERNAL, ("clusterip-policy/address", address), spec).await;
    }

    /// The exit status and the output.
    async fn run(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new(program());
        command.args(arguments).arg("--settings").arg(self.folder.path().join("settings.yaml")).stdin(Stdio::null());
        command.env("KUBECONFIG", self.plane.kubeconfig());
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap_or_else(|| panic!("{stderr}")), String::from_utf8(output.stdout).unwrap())
    }
}

/// Each used address of the pool `lan`: the Services that have it, and its holder.
fn used(audit: &Value) -> Vec<String> {
    let used = audit["external"]["pools"][1]["ranges"][0]["addresses"].as_array().unwrap().iter();
    let line = |used: &Value| {
        let services = used["services"].as_array().unwrap().iter().map(|service| service["name"].as_str().unwrap());
        let holder = &used["holder"];
        let renewed = if holder["renewed"] == true { "" } else { ", not renewed" };
        let holder = holder["node"].as_str().map_or("no holder".to_owned(), |node| format!("{node}{renewed}"));
        let [address, state] = ["address", "state"].map(|key| used[key].as_str().unwrap());
        format!("{address} {state}: {}; {holder}", services.collect::<Vec<_>>().join(","))
    };
    used.map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn external_addresses_are_audited_planned_and_shown_on_the_map() {
    let audited = Audited::new().await;
    for node in ["edge-1", "edge-2"] {
        audited.node(node).await;
    }
    // The first agent is alive as long as this test runs; the other is dead.
    audited.heartbeat("edge-1", -600).await;
    audited.heartbeat("edge-2", 60).await;
    audited.service("cart", Some("10.0.9.25"), json!({})).await;
    audited.shows("cart", "10.0.9.25").await;
    audited.claim("10.0.9.25", "edge-1").await;
    audited.service("orders", Some("10.0.9.26"), json!({})).await;
    audited.claim("10.0.9.26", "edge-2").await;
    for twin in ["twin-a", "twin-b"] {
        audited.service(twin, Some("10.0.9.27"), json!({})).await;
    }
    audited.claim("10.0.9.27", "edge-1").await;
    audited.service("greedy", Some("10.0.10.3"), json!({})).await;
    let claiming = json!({"type": "ClusterIP", "loadBalancerClass": null, "allocateLoadBalancerNodePorts": null, "externalIPs": ["10.0.9.30"]});
    audited.service("old", None, claiming).await;
    audited.service("new", None, json!({})).await;
    audited.claim("10.0.9.40", "edge-1").await;

    let (status, text) =
        audited.run(&["audit", "-o", "json", "--fail-on", "not-held", "--agents-namespace", "own"]).await;
    assert_eq!(status, 1, "{text}");
    let audit: Value = serde_json::from_str(&text).unwrap();
    let finding = |finding: &Value| {
        let of = |key: &str| finding[key].as_str().map(str::to_owned);
        format!("{} {}", of("kind").unwrap(), of("name").or_else(|| of("node")).unwrap())
    };
    let findings: Vec<String> = audit["findings"].as_array().unwrap().iter().map(finding).collect();
    let expected = [
        "shared-external twin-a",
        "shared-external twin-b",
        "refused-external greedy",
        "foreign-external old",
        "not-held orders",
        "no-external new",
        "idle-claim edge-1",
    ];
    assert_eq!(findings, expected, "{text}");
    let expected = [
        "10.0.9.25 used: cart; edge-1",
        "10.0.9.26 used: orders; edge-2, not renewed",
        "10.0.9.27 misplaced: twin-a,twin-b; edge-1",
        "10.0.9.30 misplaced: old; no holder",
    ];
    assert_eq!(used(&audit), expected);
    assert_eq!(audit["notes"], json!([]));

    // A plan gives no address that another Service has or was given, and a Service keeps its recorded address.
    let manifests = audited.folder.path().join("in.yaml");
    let manifest = |name: &str, annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external", "ports": [{"port": 80}]},
        })
        .to_string()
    };
    let asking = |address: &str| json!({"clusterip-policy/external-address": address});
    let documents =
        [manifest("cart", json!({})), manifest("late", asking("10.0.9.30")), manifest("lucky", asking("10.0.9.31"))];
    std::fs::write(&manifests, documents.join("\n---\n")).unwrap();
    let (status, text) = audited.run(&["plan", "--cluster", "-o", "json", manifests.to_str().unwrap()]).await;
    assert_eq!(status, 1, "{text}");
    let plan: Value = serde_json::from_str(&text).unwrap();
    let row =
        |row: &Value| (row["name"].clone(), row["external"]["decision"].clone(), row["external"]["addresses"].clone());
    let rows: Vec<(Value, Value, Value)> = plan["services"].as_array().unwrap().iter().map(row).collect();
    let expected = [
        ("cart", "recorded", json!(["10.0.9.25"])),
        ("late", "denied", json!([])),
        ("lucky", "recorded", json!(["10.0.9.31"])),
    ];
    assert_eq!(rows, expected.map(|(name, decision, addresses)| (json!(name), json!(decision), addresses)));
    let message = plan["services"][1]["message"].as_str().unwrap();
    assert!(message.contains("10.0.9.30 of pool \"lan\" is held by shop/old"), "{message}");

    // A server, whose controller gives the waiting Service an address, reports the same about the others.
    let server = ServerBuilder::new(&audited.plane).settings(SETTINGS);
    let mut server = server.args(&["--no-webhook", "--namespace", "own", "--ui", "127.0.0.1:0"]).spawn();
    server.ready().await;
    let line = server.logged("showing the map").await;
    let url = line[line.find("http://127.0.0.1:").unwrap()..].split(['"', ' ']).next().unwrap().to_owned();
    eventually("the holders on the map", async || {
        let audit: Value = reqwest::get(format!("{url}audit.json")).await.unwrap().json().await.unwrap();
        let used = used(&audit);
        assert_eq!(audit["notes"], json!([]), "{audit}");
        (used.contains(&"10.0.9.25 used: cart; edge-1".to_owned()) && used.len() == 5).then_some(())
    })
    .await;
}
