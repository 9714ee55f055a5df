//! `clusterip audit` and `clusterip plan` of a live cluster, and the map of a running server. The tests in
//! `crates/clusterip/tests/commands` have what both say about a snapshot.

use std::net::IpAddr;

use axum::http::Method;
use clusterip_core::annotations::NODE_ANNOTATION;
use clusterip_failover::claims::{EXTERNAL, HolderClaim, Owner, ReplicaClaim};
use clusterip_failover::heartbeat_state;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::evaluate::clusterip;
use crate::support::cluster::{Cluster, Place, settings};
use crate::support::eventually::eventually;
use crate::support::move_helpers::{path, send};
use crate::support::serve_process::ServerBuilder;

pub fn os(os: &str) -> Value {
    json!({"annotations": {"clusterip-policy/os": os}})
}

/// The settings of Services, with pools of Nodes and of external addresses.
fn all_settings() -> String {
    let mut all: Value = serde_json::from_str(&settings(&json!({}))).unwrap();
    all["nodes"] = json!({"pools": [{"name": "nodes", "cidrs": ["10.77.0.0/22"]}]});
    all["external"] = json!({"pools": [
        {"name": "bank", "cidrs": ["10.0.10.0/29"], "match": {"namespaces": ["bank"]}},
        {"name": "lan", "cidrs": ["10.0.9.10-10.0.9.40"], "nodes": {"matchLabels": {"edge": "yes"}}},
    ]});
    all.to_string()
}

/// Services with ClusterIPs of each state.
async fn create_services(place: &Place) {
    let none = json!({"selector": null});
    place.service_at("misplaced", [172, 21, 0, 70], os("windows"), none.clone()).await;
    place.service_named("by-hand", os("windows"), json!({"clusterIP": "172.21.0.71", "selector": null})).await;
    place.service_at("unmatched", [172, 21, 0, 72], os("darwin"), none.clone()).await;
    let journal = json!({"phase": "placed", "way": "externalName", "from": ["172.21.1.80"], "to": ["172.21.0.73"],
        "why": "it was elsewhere"});
    let moving = json!({"annotations": {"clusterip-policy/moving": journal.to_string()}});
    place.service_at("half", [172, 21, 0, 73], moving, none.clone()).await;
    for last in [1, 2] {
        let tiny = json!({"labels": {"size": "tiny"}});
        place.service_at(&format!("tiny-{last}"), [172, 21, 4, last], tiny, none.clone()).await;
    }
    let claim = ReplicaClaim {
        address: "172.21.1.77".parse().unwrap(),
        owner: Owner::new(&place.namespace, "soon", ""),
        holder: "pod_serve_1".to_owned(),
        duration: std::time::Duration::from_secs(70),
    };
    create_lease(place, &serde_json::to_value(claim.lease(&place.namespace, Timestamp::UNIX_EPOCH)).unwrap()).await;
}

/// Nodes with blocks of each state. The first two may hold external addresses.
async fn create_nodes(place: &Place) {
    let block = |block: &str| json!({"podCIDR": block, "podCIDRs": [block]});
    let (shared, far) = (block("10.77.1.0/24"), block("10.78.0.0/24"));
    for (name, spec) in [("right", shared.clone()), ("twin", shared), ("far", far), ("bare", json!({}))] {
        let node = json!({"kind": "Node", "metadata": {"name": name, "labels": {"edge": "yes"}}, "spec": spec});
        place.apply(node).await;
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        send(&place.client, Method::PATCH, &format!("/api/v1/nodes/{name}/status"), Some(&status)).await.unwrap();
    }
}

/// External addresses of each state, and agents on two Nodes: the first one is alive, the second one is dead.
async fn create_external_addresses(place: &Place) {
    const OURS: &str = "clusterip-policy/external";
    for (nth, (name, record)) in [
        ("cart", Some("10.0.9.25")),
        ("orders", Some("10.0.9.26")),
        ("twin-a", Some("10.0.9.27")),
        ("twin-b", Some("10.0.9.27")),
        ("greedy", Some("10.0.10.3")),
        ("new", None),
    ]
    .into_iter()
    .enumerate()
    {
        let annotations = record.map(|record| json!({"clusterip-policy/external-addresses": record}));
        let address = format!("172.21.0.{}", 80 + nth);
        let spec = json!({"clusterIP": address, "type": "LoadBalancer", "loadBalancerClass": OURS});
        place.service_named(name, json!({ "annotations": annotations }), spec).await;
    }
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.25", "ipMode": "VIP"}]}}});
    let shown = format!("{}/status", path(&place.namespace, "cart"));
    send(&place.client, Method::PATCH, &shown, Some(&status)).await.unwrap();
    place.service_named("old", json!({}), json!({"clusterIP": "172.21.0.90", "externalIPs": ["10.0.9.30"]})).await;

    let lease = async |name: &str, of: &str, note: (&str, &str), spec: Value| {
        let metadata = json!({"name": name, "labels": {"clusterip-policy/lease": of}, "annotations": {note.0: note.1}});
        create_lease(place, &json!({"metadata": metadata, "spec": spec})).await;
    };
    for (node, ago) in [("right", -600), ("twin", 60)] {
        let renewed = Timestamp::now().checked_sub(SignedDuration::from_secs(ago)).unwrap();
        let spec = json!({"holderIdentity": format!("{node}_agent_1"), "leaseDurationSeconds": 20,
            "renewTime": format!("{renewed:.6}")});
        lease(&heartbeat_state::name(node), heartbeat_state::AGENT, (NODE_ANNOTATION, node), spec).await;
    }
    for (address, node) in
        [("10.0.9.25", "right"), ("10.0.9.26", "twin"), ("10.0.9.27", "right"), ("10.0.9.40", "right")]
    {
        let name = HolderClaim::lease_name(address.parse::<IpAddr>().unwrap());
        let spec = json!({"holderIdentity": format!("{node}_agent_1")});
        lease(&name, EXTERNAL, ("clusterip-policy/address", address), spec).await;
    }
}

/// Creates a Lease in the namespace of the server and the agents.
async fn create_lease(place: &Place, object: &Value) {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", place.namespace);
    send(&place.client, Method::POST, &path, Some(object)).await.unwrap();
}

/// Manifests of new and of existing objects.
fn manifests(namespace: &str) -> [Value; 6] {
    let node = |name: &str| {
        let metadata = json!({"name": name, "labels": {"edge": "yes"}});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    };
    let service = |name: &str, annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external", "ports": [{"port": 80}]},
        })
    };
    let asking = |address: &str| json!({"clusterip-policy/external-address": address});
    [
        node("another"),
        node("bare"),
        node("right"),
        service("cart", json!({})),
        service("late", asking("10.0.9.30")),
        service("lucky", asking("10.0.9.31")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn live_cluster_is_audited_and_planned_like_its_snapshot() {
    let cluster = Cluster::alone().await;
    let place = cluster.place("audit").await;
    create_services(&place).await;
    create_nodes(&place).await;
    create_external_addresses(&place).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("settings.yaml"), all_settings()).unwrap();
    let manifests = manifests(&place.namespace).map(|object| object.to_string());
    std::fs::write(folder.path().join("in.yaml"), manifests.join("\n---\n")).unwrap();
    std::fs::write(folder.path().join("nodes.yaml"), manifests[..3].join("\n---\n")).unwrap();
    let run = async |args: &[&str]| clusterip(folder.path(), cluster.plane.kubeconfig(), args).await;
    // Only claims in the namespaces of the server and of the agents count.
    let own = ["--server-namespace", &*place.namespace, "--agents-namespace", &*place.namespace];
    for output in ["json", "yaml"] {
        let taken = run(&[&["snapshot", "-o", output, "--output-file", output], &own[..]].concat()).await;
        assert_eq!((taken.status, taken.stderr.as_str()), (0, ""));
        let text = std::fs::read_to_string(folder.path().join(output)).unwrap();
        assert!(!text.contains("\"kind\":\"Secret\"") && !text.contains("\"kind\":\"ConfigMap\""), "{text}");
    }

    let audit = ["audit", "-o", "json", "--settings", "settings.yaml"];
    let by_hand = format!("{}/by-hand", place.namespace);
    for more in [&[][..], &["--service", &by_hand]] {
        let live = run(&[&audit, &own[..], more].concat()).await;
        assert_eq!((live.status, live.stderr.as_str()), (0, "settings: settings.yaml\n"), "{}", live.stdout);
        for snapshot in ["json", "yaml"] {
            let of_snapshot = run(&[&audit, &["--snapshot", snapshot][..], more].concat()).await;
            assert_same(&of_snapshot.stdout, &live.stdout);
        }
    }
    let live = run(&[&audit, &own[..]].concat()).await;
    let found: Value = serde_json::from_str(&live.stdout).unwrap();
    let mut kinds: Vec<&str> =
        found["findings"].as_array().unwrap().iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let expected = [
        "by-hand",
        "foreign-external",
        "full",
        "half-moved",
        "idle-claim",
        "misplaced",
        "no-block",
        "no-external",
        "not-held",
        "outside-node-pool",
        "refused-external",
        "shared-block",
        "shared-external",
        "unmatched",
    ];
    assert_eq!(kinds, expected, "{}", live.stdout);

    let plan = ["plan", "-o", "json", "--settings", "settings.yaml", "in.yaml"];
    let live = run(&[&plan[..], &["--cluster"]].concat()).await;
    let of_snapshot = run(&[&plan[..], &["--snapshot", "json"]].concat()).await;
    assert_same(&of_snapshot.stdout, &live.stdout);
    assert!(live.stdout.contains("10.0.9.30 of pool \\\"lan\\\" is held by audit/old"), "{}", live.stdout);
    // The API server accepts the blocks that `-o yaml` prints.
    let filled = run(&["plan", "-o", "yaml", "--settings", "settings.yaml", "nodes.yaml", "--cluster"]).await;
    cluster.plane.apply(&filled.stdout).await;
    let live: Value = serde_json::from_str(&run(&[&audit, &own[..]].concat()).await.stdout).unwrap();
    let blocks = live["nodes"]["pools"][0]["ranges"][0]["blocks"].as_array().unwrap();
    let blocks: Vec<&str> = blocks.iter().map(|block| block["node"].as_str().unwrap()).collect();
    assert_eq!(blocks, ["another", "right", "twin", "bare"]);

    // A server shows the same holders on its map.
    let server = ServerBuilder::new(&cluster.plane).settings(&all_settings());
    let args = ["--no-webhook", "--namespace", &*place.namespace, "--ui", "127.0.0.1:0"];
    let mut server = server.args(&args).spawn();
    server.ready().await;
    let line = server.logged("showing the map").await;
    let url = line[line.find("http://127.0.0.1:").unwrap()..].split(['"', ' ']).next().unwrap().to_owned();
    eventually("the holder on the map", async || {
        let audit: Value = reqwest::get(format!("{url}audit.json")).await.unwrap().json().await.unwrap();
        let addresses = audit["external"]["pools"][1]["ranges"][0]["addresses"].as_array().unwrap().clone();
        let cart = addresses.into_iter().find(|used| used["address"] == "10.0.9.25")?;
        (cart["holder"]["node"] == "right" && cart["holder"]["renewed"] == true).then_some(())
    })
    .await;
    // The map has the settings in use, and the Services of this moment.
    let new = json!({"services": {"pools": [{"name": "new", "cidrs": ["172.21.0.0/24"]}]}});
    std::fs::write(server.folder().join("settings.yaml"), new.to_string()).unwrap();
    place.service_named("late", json!({}), json!({"clusterIP": "172.21.0.99"})).await;
    eventually("the new pool and the new Service on the map", async || {
        let page = reqwest::get(&url).await.unwrap().text().await.unwrap();
        assert!(page.starts_with("<!doctype html>"), "{page}");
        (page.contains("172.21.0.99") && page.contains("\"name\":\"new\"")).then_some(())
    })
    .await;
    assert_eq!(server.terminate().await, 0);
}

/// Compares two JSON documents.
#[track_caller]
fn assert_same(found: &str, expected: &str) {
    let [found, expected] = [found, expected].map(|text| serde_json::from_str::<Value>(text).unwrap());
    assert_eq!(found, expected);
}
