//! Leases of a tenant that look like claims of replicas, and like claims and heartbeats of agents.

use axum::http::Method;
use clusterip_core::annotations::{ADDRESS_ANNOTATION, LEASE_LABEL, NODE_ANNOTATION, SERVICE_ANNOTATION};
use clusterip_failover::claims::{CLAIM, EXTERNAL, HolderClaim, ReplicaClaim};
use clusterip_failover::heartbeat_state;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::support::{MALLORY, Scene, clusterip};
use crate::support::move_helpers::send;

const SETTINGS: &str = "
services: {serviceCIDRs: [172.21.0.0/16], pools: [{name: all, cidrs: [172.21.7.0/24]}]}
external: {pools: [{name: lan, cidrs: [10.0.9.10-10.0.9.40]}]}
";
/// The namespace of the server and of the agents.
const OWN: &str = "own";

fn lease(name: String, label: &str, annotations: Value, holder: &str) -> Value {
    // The Lease is renewed as long as this test runs.
    let renewed = Timestamp::now().checked_add(SignedDuration::from_secs(600)).unwrap();
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "labels": {LEASE_LABEL: label}, "annotations": annotations},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 20, "renewTime": format!("{renewed:.6}")},
    })
}

/// A claim of a replica of an address for a Service of this test.
fn replica_claim(address: &str) -> Value {
    let annotations = json!({ADDRESS_ANNOTATION: address, SERVICE_ANNOTATION: "shop/late"});
    lease(ReplicaClaim::lease_name(address.parse().unwrap()), CLAIM, annotations, "replica_serve_1")
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_claims_are_not_counted_by_an_audit() {
    let scene = Scene::without_server().await;
    let mallory = scene.tenant(MALLORY).await;
    for namespace in ["shop", OWN] {
        assert_eq!(scene.plane.namespace(namespace).await, namespace);
    }
    let cart = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "cart", "annotations": {"clusterip-policy/external-addresses": "10.0.9.25"}},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external", "ports": [{"port": 80}]},
    });
    send(&scene.admin(), Method::POST, "/api/v1/namespaces/shop/services", Some(&cart)).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("settings.yaml");
    std::fs::write(&settings, SETTINGS).unwrap();
    let audit = async || {
        let settings = settings.to_str().unwrap();
        let arguments = ["audit", "-A", "-o", "json", "--settings", settings];
        let namespaces = ["--server-namespace", OWN, "--agents-namespace", OWN];
        let ended = clusterip(&scene.plane, &[&arguments[..], &namespaces[..]].concat()).await;
        assert_eq!(ended.status, 0, "{}", ended.stderr);
        serde_json::from_str::<Value>(&ended.stdout).unwrap()
    };

    struct Case {
        name: &'static str,
        lease: Value,
    }
    let external = "10.0.9.25";
    let cases = [
        Case { name: "a replica's claim of a ClusterIP", lease: replica_claim("172.21.7.77") },
        Case { name: "a replica's claim of an external address", lease: replica_claim("10.0.9.30") },
        Case {
            name: "an agent's claim",
            lease: lease(
                HolderClaim::lease_name(external.parse().unwrap()),
                EXTERNAL,
                json!({ADDRESS_ANNOTATION: external}),
                "edge-1_agent_1",
            ),
        },
        Case {
            name: "an agent's heartbeat",
            lease: lease(
                heartbeat_state::name("edge-1"),
                heartbeat_state::AGENT,
                json!({NODE_ANNOTATION: "edge-1"}),
                "edge-1_agent_1",
            ),
        },
    ];
    let leases = |namespace: &str| format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let mut before = audit().await;
    for Case { name, lease } in cases {
        mallory.request(Method::POST, &leases(&mallory.namespace), &lease).await.unwrap();
        assert_eq!(audit().await, before, "{name}: forged");
        send(&scene.admin(), Method::POST, &leases(OWN), Some(&lease)).await.unwrap();
        let counted = audit().await;
        assert_ne!(counted, before, "{name}: the same Lease in the namespace of the server and the agents");
        before = counted;
    }
}
