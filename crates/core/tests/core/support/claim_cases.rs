//! Services that claim external addresses by themselves, and the table of their tests.

use super::{FakeCluster, Now, external_answer, now, service, with_spec};
use serde_json::{Value, json};

/// The warning about `spec.externalIPs`.
pub const DEPRECATED: &str =
    "spec.externalIPs is deprecated (KEP-5707): use type LoadBalancer, loadBalancerClass clusterip-policy/external";

/// The remedy in every refusal.
pub const REMEDY: &str = "use an address of a pool that matches this Service, or get one with type: LoadBalancer and \
     loadBalancerClass: clusterip-policy/external";

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

/// The expected refusal for this mistake.
pub fn refused(what: &str) -> Now {
    now("denied").denied(403, &format!("Service shop/web: {what}; {REMEDY}"))
}

/// The answer to a request that concerns no address of our pools.
pub fn nothing(warnings: &[&str]) -> Value {
    let mut answer = now("").with(warnings);
    answer["audit_annotations"].as_object_mut().unwrap().remove("external");
    answer
}

/// A request with the expected answer.
pub struct Case {
    pub name: &'static str,
    pub request: Value,
    pub expected: Value,
}

/// The answer must be the same if the holders are sent by the host and if they are looked up.
#[track_caller]
pub fn check(cases: Vec<Case>) {
    let held = [("10.0.9.20", "other/db"), ("10.0.9.21", "shop/web"), ("fd00:0:0::9:20", "other/db")];
    for Case { name, request, expected } in cases {
        let looked_up = external_answer(&request, &settings(), None, &cluster());
        assert_eq!(looked_up, expected, "{name}: looked up");
        assert_eq!(
            external_answer(&request, &settings(), Some(&held), &FakeCluster::default()),
            expected,
            "{name}: sent by the host"
        );
    }
}
