//! Services that claim external addresses by themselves, and the check of the answers to them.

use super::{FakeCluster, Row, external_answer, service, with_spec};
use serde_json::{Value, json};

/// The warning about `spec.externalIPs`.
pub const DEPRECATED: &str =
    "spec.externalIPs is deprecated (KEP-5707): use type LoadBalancer, loadBalancerClass clusterip-policy/external";

/// How messages call an annotation with claims.
pub const CILIUM: &str = "annotation lbipam.cilium.io/ips";

/// A pool for the namespace `shop`, and one for another namespace.
pub fn settings() -> Value {
    json!({"external": {"pools": [
        {"name": "edge", "cidrs": ["10.0.9.10-10.0.9.40", "fd00::9:0/120"], "exclude": ["10.0.9.11"], "match": {"namespaces": ["shop"]}},
        {"name": "other", "cidrs": ["10.0.6.0/24"], "match": {"namespaces": ["other"]}},
    ]}})
}

/// Another Service has an address of each family.
pub fn cluster() -> FakeCluster {
    FakeCluster::default()
        .external("zoo/db", "10.0.9.20")
        .external("other/db", "10.0.9.20")
        .external("shop/web", "10.0.9.21")
        .external("other/db", "fd00::9:20")
}

/// The Service `shop/web` with these fields of its spec.
pub fn with(fields: Value) -> Value {
    with_spec(service(json!({"clusterIP": "10.96.0.7"})), fields)
}

/// The Service `shop/web` with these addresses in `spec.externalIPs`.
pub fn external_ips(addresses: &[&str]) -> Value {
    with(json!({ "externalIPs": addresses }))
}

/// The Service `shop/web` of type LoadBalancer with this annotation.
pub fn annotated(key: &str, text: &str) -> Value {
    let mut object = with(json!({"type": "LoadBalancer"}));
    object["metadata"]["annotations"][key] = text.into();
    object
}

/// The answer must be the same if the holders are sent by the host and if they are looked up.
#[track_caller]
pub fn check(rows: Vec<Row<'_>>) {
    let held = [("10.0.9.20", "other/db"), ("10.0.9.21", "shop/web"), ("fd00:0:0::9:20", "other/db")];
    for (name, request, expected) in rows {
        let expected = Value::from(expected);
        let looked_up = external_answer(&request, &settings(), None, &cluster());
        assert_eq!(looked_up, expected, "{name}: looked up");
        let sent = external_answer(&request, &settings(), Some(&held), &FakeCluster::default());
        assert_eq!(sent, expected, "{name}: sent by the host");
    }
}
