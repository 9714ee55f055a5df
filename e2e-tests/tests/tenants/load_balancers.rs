//! What the server does about many Services of type LoadBalancer of one namespace.

use std::net::IpAddr;
use std::time::Duration;

use axum::http::Method;
use clusterip_core::annotations::{NODE_ANNOTATION, RECORD_ANNOTATION};
use clusterip_failover::claims::{EXTERNAL, HolderClaim};
use clusterip_failover::heartbeat_state;
use futures::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::support::{MALLORY, Scene, Tenant};
use crate::support::eventually::eventually_within;
use crate::support::move_helpers::{path, send, stored};
use crate::support::process_usage::peak_memory;
use crate::support::webhook_cluster::service;

/// How many requests of a tenant run at once.
const PARALLEL: usize = 16;
/// How long the server may take to ask about all Services of a test.
const PATIENCE: Duration = Duration::from_secs(360);
/// The address of the last namespace by name.
const OF_ZEBRA: &str = "192.0.2.32";

impl Scene {
    /// A cluster in which no server runs yet.
    async fn without_addresses() -> Self {
        let scene = Self::without_server().await;
        scene.install().await;
        scene
    }

    /// Starts a server with two pools of external addresses, and waits until it leads.
    async fn serves(&mut self, range_of_mallory: &str) {
        let settings = format!(
            "external:\n  pools:\n  - {{name: tenant, cidrs: [{range_of_mallory}], match: {{namespaces: [mallory]}}}}\n  \
             - {{name: zebra, cidrs: [{OF_ZEBRA}-{OF_ZEBRA}], match: {{namespaces: [zebra]}}}}\n"
        );
        self.serve(&settings).await;
        let server = self.server.as_mut().unwrap();
        server.ready().await;
        server.logged("leading").await;
    }

    /// The sum of the values of a metric with these labels.
    async fn metric(&self, name: &str) -> f64 {
        let (_, metrics) = self.server.as_ref().unwrap().get("/metrics").await.unwrap();
        let values = metrics.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
        values.sum()
    }

    async fn record(&self, namespace: &str, name: &str) -> Option<String> {
        let service = stored(&self.admin(), namespace, name).await?;
        Some(service["metadata"]["annotations"][RECORD_ANNOTATION].as_str()?.to_owned())
    }

    /// Lets a node hold an address, as an agent does that is alive for 20 s.
    async fn hold(&self, address: &str) {
        let holder = json!("node-1_agent_1");
        let heartbeat = json!({"holderIdentity": holder, "leaseDurationSeconds": 20, "renewTime": format!("{:.6}", Timestamp::now())});
        let leases = [
            (heartbeat_state::name("node-1"), heartbeat_state::AGENT, NODE_ANNOTATION, "node-1", heartbeat),
            (
                HolderClaim::lease_name(address.parse::<IpAddr>().unwrap()),
                EXTERNAL,
                "clusterip-policy/address",
                address,
                json!({"holderIdentity": holder}),
            ),
        ];
        for (name, kind, key, value, spec) in leases {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
                "metadata": {"name": name, "labels": {"clusterip-policy/lease": kind}, "annotations": {key: value}},
            });
            let path = "/apis/coordination.k8s.io/v1/namespaces/clusterip-policy-agents/leases";
            send(&self.admin(), Method::POST, path, Some(&lease)).await.unwrap();
        }
    }
}

impl Tenant<'_> {
    /// Creates Services of our class with so many ports.
    async fn balances(&self, count: usize, ports: usize) {
        let ports: Vec<Value> = (1..=ports).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
        let create = async |number: usize| self.creates(&balancer(&format!("web-{number:05}"), &ports)).await;
        stream::iter(0..count).map(create).buffer_unordered(PARALLEL).for_each(async |_| ()).await;
    }
}

fn balancer(name: &str, ports: &[Value]) -> Value {
    let class = "clusterip-policy/external";
    service(
        name,
        json!({"type": "LoadBalancer", "loadBalancerClass": class, "allocateLoadBalancerNodePorts": false, "ports": ports}),
    )
}

/// The last namespace by name waited until the policy had been asked about all others, and then for its status.
#[tokio::test]
async fn many_refused_services_delay_the_addresses_of_no_other_namespace() {
    const SERVICES: usize = 600;
    let mut scene = Scene::without_addresses().await;
    let mallory = scene.tenant(MALLORY).await;
    let zebra = scene.tenant("zebra").await;
    mallory.balances(SERVICES, 1).await;
    zebra.creates(&balancer("web", &[json!({"port": 80})])).await;
    let (mallory, mallory_client) = (mallory.namespace, mallory.client);
    let zebra = zebra.namespace;

    // A pool with two addresses.
    scene.serves("192.0.2.16-192.0.2.17").await;
    let refused = async || scene.metric("clusterip_external_assignments_total{result=\"refused\"}").await;
    let record = eventually_within(PATIENCE, "an address", async || scene.record(&zebra, "web").await).await;
    let before_address = refused().await;
    assert_eq!(record, OF_ZEBRA);
    scene.hold(OF_ZEBRA).await;
    eventually_within(PATIENCE, "a status", async || {
        let service = stored(&scene.admin(), &zebra, "web").await?;
        (service["status"]["loadBalancer"]["ingress"][0]["ip"] == OF_ZEBRA).then_some(())
    })
    .await;
    let before_status = refused().await;
    eprintln!("{before_address} Services were refused before the address, {before_status} before the status");
    assert!(before_address < SERVICES as f64 / 2.0, "{before_address} Services were refused before the address");
    assert!(before_status < SERVICES as f64 - 2.0, "all other Services were refused before the status");

    // Two Services have the addresses, the policy is asked about each other one once, and few Events are written.
    let waiting = SERVICES as f64 - 2.0;
    eventually_within(PATIENCE, "all Services to be asked about", async || {
        (scene.metric("clusterip_external_services_waiting").await == waiting).then_some(())
    })
    .await;
    // The controller of the API server that repairs addresses may write Events about them, too.
    let events: Vec<Value> = scene.events(&mallory).await;
    let ours: Vec<&Value> = events.iter().filter(|event| event["reportingController"] == "clusterip").collect();
    assert!(ours.len() < 100, "{} Events of {}, such as {}", ours.len(), events.len(), ours[0]);
    let evaluations = async || scene.metric("clusterip_evaluation_duration_seconds_count").await;
    let before = evaluations().await;
    let mut first = None;
    for number in 0..SERVICES {
        let name = format!("web-{number:05}");
        if scene.record(&mallory, &name).await.is_some() {
            first = Some(name);
            break;
        }
    }
    send(&mallory_client, Method::DELETE, &path(&mallory, &first.unwrap()), None).await.unwrap();
    // Another name waits until the reservation of the first one has ended.
    eventually_within(PATIENCE, "another Service to get the address", async || {
        let assigned = scene.metric("clusterip_external_assignments_total{result=\"assigned\"}").await;
        (assigned == 4.0).then_some(())
    })
    .await;
    let asked = evaluations().await - before;
    assert!(asked < 30.0, "{asked} evaluations");
}

/// A server with 384 MiB was killed at each start by 500 Services.
#[tokio::test]
async fn ports_of_load_balancers_take_little_memory_of_a_starting_server() {
    const SERVICES: usize = 80;
    /// A page of a list and a review take up to two thirds of it. As JSON, the ports alone would take all of it.
    const MOST: f64 = 100.0;
    let mut scene = Scene::without_addresses().await;
    scene.serves("198.18.0.0/24").await;
    let addresses = async |scene: &Scene, state: &str, count: f64| {
        eventually_within(PATIENCE, "the addresses to be counted", async || {
            let labels = format!("{{pool=\"tenant\",family=\"IPv4\",state=\"{state}\"}}");
            (scene.metric(&format!("clusterip_external_pool_addresses{labels}")).await == count).then_some(())
        })
        .await;
    };
    addresses(&scene, "usable", 254.0).await;
    let before = peak_memory(scene.server.as_ref().unwrap().pid());
    scene.server.take();
    let mallory = scene.tenant(MALLORY).await;
    mallory.balances(SERVICES, 1024).await;
    let mut peaks = Vec::new();
    for start in ["without addresses", "with addresses"] {
        scene.serves("198.18.0.0/24").await;
        addresses(&scene, "assigned", SERVICES as f64).await;
        let peak = peak_memory(scene.server.take().unwrap().pid());
        eprintln!("{start}: {peak} MB, and {before} MB without Services");
        peaks.push(peak);
    }
    assert!(peaks.iter().all(|peak| peak - before < MOST), "{peaks:?} MB, and {before} MB without Services");
}
