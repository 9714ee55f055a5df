//! The controller moves Services that were created without the webhook.

use axum::http::Method;
use futures::future::join_all;
use serde_json::{Value, json};

use super::OS;
use crate::support::cluster::{Cluster, pool_of};
use crate::support::fault_proxy::Proxy;
use crate::support::move_helpers::{addresses, but_addresses, path, send, stored};

const HOME: &str = "AddressMoved: moved from windows to linux: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux (Deployment web)";
const READY: &str = "AddressMisplaced: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux \
                     (Deployment web); it stays: 1 ready endpoint can be reached at its present address; \
                     `clusterip move --seamless` moves it";
const READY_IN_NO_POOL: &str = "AddressMisplaced: it lies in no pool, and belongs to pool windows: \
                                kubernetes.io/os=windows (Deployment web); it stays: 1 ready endpoint can be reached at \
                                its present address; `clusterip move --seamless` moves it";
const IN_NO_POOL: &str = "AddressMoved: moved from no pool to linux: it lies in no pool, and belongs to pool linux: kubernetes.io/os=linux (setting assumeOS)";
const BY_WORKLOAD: &str = "AddressMoved: moved from no pool to windows: it lies in no pool, and belongs to pool windows: kubernetes.io/os=windows (Deployment web)";

/// The outcome for a Service after a start with the default arguments, and after one that moves as much as possible.
struct Away {
    name: &'static str,
    address: [u8; 4],
    metadata: Value,
    spec: Value,
    workload: Option<&'static str>,
    ready_on: Option<&'static str>,
    expected: [&'static [&'static str]; 2],
}

fn rows() -> Vec<Away> {
    let plain = || Away {
        name: "",
        address: [172, 21, 1, 1],
        metadata: json!({}),
        spec: json!({}),
        workload: Some("linux"),
        ready_on: None,
        expected: [&[], &[]],
    };
    vec![
        Away { name: "wrong-pool", expected: [&["linux", HOME], &["linux", HOME]], ..plain() },
        Away {
            name: "assumed-in-no-pool",
            address: [172, 21, 77, 1],
            workload: None,
            expected: [&["linux", IN_NO_POOL], &["linux", IN_NO_POOL]],
            ..plain()
        },
        Away {
            name: "in-no-pool",
            address: [172, 21, 255, 254],
            workload: Some("windows"),
            ready_on: Some("windows"),
            expected: [&["no pool", READY_IN_NO_POOL], &["windows", READY_IN_NO_POOL, BY_WORKLOAD]],
            ..plain()
        },
        Away {
            name: "ready-endpoints",
            address: [172, 21, 1, 3],
            ready_on: Some("windows"),
            expected: [&["windows", READY], &["linux", READY, HOME]],
            ..plain()
        },
        Away {
            name: "balanced",
            address: [172, 21, 1, 4],
            spec: json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"]}),
            expected: [
                &[
                    "windows",
                    "AddressMisplaced: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux \
                     (Deployment web); it stays: type LoadBalancer: a cloud provider might remove its load balancer",
                ],
                &[
                    "linux",
                    "AddressMisplaced: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux \
                     (Deployment web); it stays: type LoadBalancer: a cloud provider might remove its load balancer",
                    HOME,
                ],
            ],
            ..plain()
        },
    ]
}

#[tokio::test]
async fn services_created_without_the_webhook_are_moved() {
    let cluster = Cluster::alone().await;
    let mut places = Vec::new();
    for row in rows() {
        let place = cluster.place(row.name).await;
        if let Some(os) = row.workload {
            place.workload(os).await;
        }
        if let Some(os) = row.ready_on {
            place.ready_on(os).await;
        }
        let mut before = place.service_at("web", row.address, row.metadata, row.spec.clone()).await;
        if row.spec["type"] == "LoadBalancer" {
            let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10", "ipMode": "VIP"}]}}});
            let path = format!("{}/status?fieldManager=cloud", path(&place.namespace, "web"));
            before = send(&place.client, Method::PATCH, &path, Some(&status)).await.unwrap();
        }
        places.push((row.name, place, before, row.expected));
    }
    // Services whose addresses the API server picks.
    let picked = cluster.place("picked").await;
    for number in 0..10 {
        let spec = json!({"selector": {"app": "without-pods"}});
        picked.service_named(&format!("web-{number}"), json!({"annotations": {OS: "windows"}}), spec).await;
    }
    let proxy = Proxy::start(&cluster.plane).await;
    for (start, more) in [&[][..], &["--move", "always", "--move-load-balancers"]].into_iter().enumerate() {
        let mut server = cluster.server(&proxy, &json!({})).arg("--no-webhook").args(more).start().await;
        join_all(places.iter().map(async |(_, place, _, expected)| place.comes_to(expected[start]).await)).await;
        cluster.place("last").await.all_was_looked_at("first").await;
        for (name, place, before, expected) in &places {
            assert_eq!(place.outcome().await, expected[start], "{name}");
            assert_eq!(but_addresses(&place.web().await), but_addresses(before), "{name}");
        }
        for number in 0..10 {
            let service = stored(&picked.client, &picked.namespace, &format!("web-{number}")).await.unwrap();
            assert_eq!(pool_of(addresses(&service)[0]), "windows");
        }
        assert_eq!(server.terminate().await, 0);
    }
}
