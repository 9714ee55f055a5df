//! The Services that cost the fence most.

use clusterip_core::annotations::{FOREIGN_ANNOTATIONS, RECORD_ANNOTATION, REQUESTED_ADDRESS_ANNOTATION};
use serde_json::{Value, json};

use super::pools::fenced_pool;
use super::webhook_cluster::{annotated, service};

/// The fenced pools of each kind beside which these Services are created.
pub const POOLS: u8 = 41;
/// A ClusterIP for dry runs. It is in no pool, and in the static band, where the API server picks no addresses.
pub const UNFENCED: &str = "172.21.0.200";

/// A Service with many addresses.
pub struct CostlyService {
    pub name: &'static str,
    pub object: Value,
    /// Whether the API server accepts it.
    pub is_allowed: bool,
}

/// Fenced pools of other teams, [`POOLS`] of each kind. The last ones have 172.21.140.0/24 and 198.18.40.0/24.
pub fn fenced_pools() -> impl Iterator<Item = Value> {
    let fenced = |kind: &str, nth: u8, range: String| {
        let team = format!("team-{nth}");
        fenced_pool(kind, &team, &[range.as_str()], &team)
    };
    (0..POOLS).flat_map(move |nth| {
        [
            fenced("ServicePool", nth, format!("172.21.{}.0/24", 100 + nth)),
            fenced("ExternalPool", nth, format!("198.18.{nth}.0/24")),
        ]
    })
}

/// A Service with a ClusterIP in no pool, and without other addresses.
pub fn ordinary() -> Value {
    service("web", json!({ "clusterIP": UNFENCED }))
}

/// Services of type LoadBalancer with as many addresses as the fence reads.
pub fn costly() -> [CostlyService; 5] {
    let balancer = |annotations: Value, addresses: Vec<String>| {
        let spec = json!({"type": "LoadBalancer", "clusterIP": UNFENCED, "externalIPs": addresses});
        annotated("web", annotations, spec)
    };
    let in_each_annotation = |text: &str| {
        let keys = [REQUESTED_ADDRESS_ANNOTATION, RECORD_ANNOTATION].into_iter().chain(FOREIGN_ANNOTATIONS);
        Value::Object(keys.map(|key| (key.to_owned(), text.into())).collect())
    };
    let of_each_pool = (0..POOLS).map(|nth| format!("198.18.{nth}.7")).collect();
    [
        ("64 external addresses", balancer(json!({}), addresses_outside(64)), true),
        ("an address in each annotation", balancer(in_each_annotation("203.0.113.7"), addresses_outside(32)), true),
        (
            "64 addresses in each field",
            balancer(in_each_annotation(&addresses_outside(64).join(",")), addresses_outside(64)),
            false,
        ),
        ("short parts in each annotation", balancer(in_each_annotation(&["1"; 128].join(",")), Vec::new()), false),
        ("an address of each pool", balancer(json!({}), of_each_pool), false),
    ]
    .map(|(name, object, is_allowed)| CostlyService { name, object, is_allowed })
}

/// `count` external addresses that are in no pool.
pub fn addresses_outside(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("100.64.{}.{}", nth / 250, 1 + nth % 250)).collect()
}
