//! Claims of external addresses: what the API server sends to the webhook, and the decisions.

use serde_json::{Value, json};

use crate::support::control_plane::Options;
use crate::support::eventually::eventually;
use crate::support::webhook_cluster::{WebhookCluster, annotated, service};

const SETTINGS: &str = "
services:
  pools:
  - {name: all, cidrs: [172.21.0.0/24], reserved: 50}
external:
  pools:
  - {name: edge, cidrs: [10.0.9.10-10.0.9.40]}
  - {name: other, cidrs: [10.0.6.0/24], match: {serviceSelector: {matchLabels: {tier: gold}}}}
";
const RECORD: &str = "/metadata/annotations/clusterip-policy~1external-addresses";

fn annotation(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

#[tokio::test]
async fn address_of_another_service_is_refused_in_every_field() {
    let cluster = WebhookCluster::start(Options::default(), SETTINGS).await;
    let namespace = cluster.plane.namespace("external-claims").await;
    let claiming = |name: &str, address: &str| service(name, json!({"externalIPs": [address]}));
    cluster.create(&namespace, &claiming("holder", "10.0.9.20")).await.unwrap();
    let balancer = service("balancer", json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/lan"}));
    cluster.create(&namespace, &balancer).await.unwrap();
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.21"}]}}}).to_string();
    let args =
        ["-n", &namespace, "patch", "service", "balancer", "--subresource=status", "--type=merge", "-p", &status];
    cluster.plane.kubectl(&args).await.ok();
    for address in ["10.0.9.20", "10.0.9.21"] {
        eventually("the holder to be seen", async || {
            cluster.dry_run(&namespace, &claiming("probe", address)).await.err()
        })
        .await;
    }

    cluster.create(&namespace, &service("web", json!({}))).await.unwrap();
    let external_ips = |address: &str| json!({"spec": {"externalIPs": [address]}});
    let field = |address: &str| json!({"spec": {"type": "LoadBalancer", "loadBalancerClass": "a/b", "loadBalancerIP": address}});
    let held = |by: &str| format!("of pool \"edge\" is held by {namespace}/{by}");
    struct Case {
        name: &'static str,
        change: Value,
        /// A part of the message of the refusal.
        message: String,
    }
    let cases = [
        Case { name: "spec.externalIPs", change: external_ips("10.0.9.20"), message: held("holder") },
        Case { name: "spec.externalIPs, of a status", change: external_ips("10.0.9.21"), message: held("balancer") },
        Case {
            name: "spec.externalIPs, of another pool",
            change: external_ips("10.0.6.1"),
            message: "does not admit this Service".to_owned(),
        },
        Case { name: "spec.loadBalancerIP", change: field("10.0.9.20"), message: held("holder") },
        Case {
            name: "MetalLB",
            change: annotation("metallb.io/loadBalancerIPs", "10.0.9.20"),
            message: held("holder"),
        },
        Case {
            name: "MetalLB, formerly",
            change: annotation("metallb.universe.tf/loadBalancerIPs", "10.0.9.20"),
            message: held("holder"),
        },
        Case { name: "Cilium", change: annotation("lbipam.cilium.io/ips", "10.0.9.20"), message: held("holder") },
        Case {
            name: "Cilium, formerly",
            change: annotation("io.cilium/lb-ipam-ips", "10.0.9.20"),
            message: held("holder"),
        },
        Case {
            name: "kube-vip",
            change: annotation("kube-vip.io/loadbalancerIPs", "10.0.9.20"),
            message: held("holder"),
        },
    ];
    let mut wrong = Vec::new();
    for Case { name, change, message: expected } in cases {
        match cluster.patch(&namespace, "web", change).await {
            Err(message) if message.contains(&expected) => {}
            other => wrong.push((name, other)),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");

    let free = cluster.patch(&namespace, "web", external_ips("10.0.9.22")).await.unwrap();
    assert_eq!(free["spec"]["externalIPs"], json!(["10.0.9.22"]));
    let record = annotation("clusterip-policy/external-addresses", "10.0.9.30");
    let without = cluster.patch(&namespace, "web", record).await.unwrap();
    assert_eq!(without.pointer(RECORD), None, "a record is not for Services of type ClusterIP");
}

#[tokio::test]
async fn record_of_a_service_is_kept_until_its_type_changes() {
    let cluster = WebhookCluster::start(Options::default(), SETTINGS).await;
    let namespace = cluster.plane.namespace("external-records").await;
    let ours = json!({"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external"});
    let recorded = json!({"clusterip-policy/external-addresses": "10.0.9.20"});
    let made = cluster.create(&namespace, &annotated("web", recorded, ours.clone())).await.unwrap();
    assert_eq!(made.pointer(RECORD), Some(&json!("10.0.9.20")), "restored");

    let dropped = json!({"metadata": {"annotations": {"clusterip-policy/external-addresses": null}}});
    let kept = cluster.patch(&namespace, "web", dropped).await.unwrap();
    assert_eq!(kept.pointer(RECORD), Some(&json!("10.0.9.20")), "put back");

    let refused = cluster.patch(&namespace, "web", annotation("clusterip-policy/external-address", "10.0.6.1")).await;
    assert!(refused.as_ref().is_err_and(|message| message.contains("does not admit this Service")), "{refused:?}");

    let plain = json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}});
    let released = cluster.patch(&namespace, "web", plain).await.unwrap();
    assert_eq!(released.pointer(RECORD), None, "released");
}
