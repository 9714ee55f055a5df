//! Clusters and requests for the measurements.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;

use clusterip_cluster::snapshot::Snapshot;
use serde_json::{Value, json};

/// The namespace of the Services that are placed.
pub const NAMESPACE: &str = "shop";

/// A Service as the API server stores it.
fn service(number: usize, address: Ipv4Addr) -> Value {
    let (hash, name) = (scattered(number), format!("web-{number:05}"));
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "creationTimestamp": "2026-11-02T08:15:30Z",
            "labels": {"app.kubernetes.io/instance": name, "app.kubernetes.io/name": "web", "team": "shop"},
            "name": name,
            "namespace": format!("team-{:03}", number % 100),
            "resourceVersion": (4_000_000 + number).to_string(),
            "uid": format!(
                "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
                hash >> 32, hash & 0xffff, hash & 0xfff, (hash >> 12) & 0xfff, hash & 0xffff_ffff_ffff
            ),
        },
        "spec": {
            "clusterIP": address.to_string(),
            "clusterIPs": [address.to_string()],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
            "selector": {"app.kubernetes.io/instance": name},
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    })
}

/// A Deployment. Every hundredth Deployment is in [`NAMESPACE`]. The Services of [`create`] select the Pods of the first one.
fn deployment(number: usize) -> Value {
    let namespace = if number.is_multiple_of(100) { NAMESPACE.to_owned() } else { format!("team-{:03}", number % 100) };
    let name = if number == 0 { "web".to_owned() } else { format!("web-{number:05}") };
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "containers": [{"name": "web", "image": "registry.example.com/web:1.0"}],
                },
            },
        },
    })
}

/// The request to create a Service without an address.
pub fn create(name: &str) -> Value {
    let kind = json!({"group": "", "version": "v1", "kind": "Service"});
    let resource = json!({"group": "", "version": "v1", "resource": "services"});
    json!({
        "uid": "b8b0a0c1-3d5e-4b7f-9a51-0c8f4f2d6e11",
        "kind": kind,
        "requestKind": kind,
        "resource": resource,
        "requestResource": resource,
        "namespace": NAMESPACE,
        "name": name,
        "operation": "CREATE",
        "userInfo": {"username": "dev", "groups": ["system:authenticated"]},
        "object": {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "web"}},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
        },
        "oldObject": null,
        "dryRun": false,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    })
}

/// A pool of `2 * services` addresses, half of them used.
pub struct HalfFull {
    pub settings: Value,
    /// The addresses that may be handed out.
    pub usable: Vec<Ipv4Addr>,
    /// Half of them, in an order that is independent of that of the policy.
    pub used: Vec<Ipv4Addr>,
}

impl HalfFull {
    pub fn new(services: usize) -> Self {
        let network = u32::from(Ipv4Addr::new(10, 96, 0, 0));
        // The smallest range that has room for the addresses and the broadcast address; `reserved` covers the rest.
        let size = (2 * services as u32 + 2).next_power_of_two();
        let reserved = size - 1 - 2 * services as u32;
        let usable: Vec<Ipv4Addr> = (reserved..size - 1).map(|offset| Ipv4Addr::from_bits(network + offset)).collect();
        let mut used = usable.clone();
        used.sort_by_key(|address| scattered(address.to_bits()));
        used.truncate(services);
        let settings = json!({"services": {
            "pools": [{
                "name": "linux",
                "cidrs": [format!("10.96.0.0/{}", 32 - size.trailing_zeros())],
                "reserved": reserved,
                "match": {"os": "linux"},
            }],
            "evidence": {"lookups": "namespace"},
        }});
        Self { settings, usable, used }
    }

    /// The objects of a cluster whose Services have the used addresses, and this number of Deployments.
    pub fn objects(&self, deployments: usize) -> impl Iterator<Item = Value> {
        let services = self.used.iter().enumerate().map(|(number, address)| service(number, *address));
        (0..deployments).map(deployment).chain(services)
    }

    /// A cluster with one Deployment, whose Services have the used addresses.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for object in self.objects(1) {
            snapshot.insert(&object);
        }
        snapshot
    }
}

/// A number that is independent of the order of its argument, the same in every run.
fn scattered(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
