//! The Services that may have external addresses, and the addresses that count as held.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clusterip_core::annotations::RECORD_ANNOTATION;
use clusterip_core::external::stored::in_use;
use clusterip_core::service_key::ServiceKey;
use serde_json::Value;

use super::Snapshot;
use crate::object::{Packed, text};

/// The Services of type `LoadBalancer`, those with a record of external addresses, and all others that claim or show
/// external addresses. Most clusters have few of them among many Services.
#[derive(Default)]
pub(super) struct ExternalIndex(BTreeMap<ServiceKey, Vec<IpAddr>>);

impl ExternalIndex {
    /// Adds a Service, if it may have external addresses.
    pub(super) fn add(&mut self, service: &Value) {
        let addresses = in_use(service);
        let annotations = || service.get("metadata").and_then(|metadata| metadata.get("annotations"));
        let has_record = || annotations().is_some_and(|annotations| annotations.get(RECORD_ANNOTATION).is_some());
        if !addresses.is_empty() || text(service, &["spec", "type"]) == "LoadBalancer" || has_record() {
            self.0.insert(ServiceKey::of(service), addresses);
        }
    }

    /// Removes a Service.
    pub(super) fn forget(&mut self, service: &Value) {
        self.0.remove(&ServiceKey::of(service));
    }
}

impl Snapshot {
    /// The external addresses that count as held, see [`in_use`], with their Services in the order of namespace and
    /// name. A Service may have none.
    pub fn external_addresses(&self) -> impl Iterator<Item = (&ServiceKey, &[IpAddr])> {
        self.external.0.iter().map(|(service, addresses)| (service, addresses.as_slice()))
    }

    /// The Services of [`Self::external_addresses`].
    pub fn external_services(&self) -> Vec<Packed> {
        let service = |id: &ServiceKey| self.packed("v1", "Service", &id.namespace, &id.name).cloned();
        self.external.0.keys().filter_map(service).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::name;

    #[test]
    fn index_contains_the_services_that_may_have_external_addresses() {
        let service = |name: &str, annotations: Value, spec: Value, status: Value| {
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": "shop", "name": name, "annotations": annotations},
                "spec": spec, "status": status,
            })
        };
        let none = || json!({});
        let record = |text: &str| json!({RECORD_ANNOTATION: text});
        let balancer = || json!({"type": "LoadBalancer"});
        let shown = json!({"loadBalancer": {"ingress": [{"ip": "10.0.9.4"}]}});
        let mut snapshot = Snapshot::default();
        for service in [
            service("balancer", none(), balancer(), none()),
            service("claims", none(), json!({"externalIPs": ["10.0.9.2"]}), none()),
            service("plain", none(), json!({"type": "ClusterIP"}), none()),
            service("recorded", record("10.0.9.3"), none(), none()),
            service("shown", none(), none(), shown),
            service("unreadable", record("x"), none(), none()),
            service("changed", none(), balancer(), none()),
            service("deleted", none(), balancer(), none()),
        ] {
            snapshot.insert(service);
        }
        snapshot.insert(service("changed", none(), none(), none()));
        snapshot.remove("v1", "Service", "shop", "deleted");
        let found: Vec<(&str, String)> = snapshot
            .external_addresses()
            .map(|(id, addresses)| {
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                (id.name.as_str(), addresses.join(","))
            })
            .collect();
        let expected = [
            ("balancer", String::new()),
            ("claims", "10.0.9.2".to_owned()),
            ("recorded", "10.0.9.3".to_owned()),
            ("shown", "10.0.9.4".to_owned()),
            ("unreadable", String::new()),
        ];
        assert_eq!(found, expected);
        let services: Vec<String> =
            snapshot.external_services().iter().map(|service| name(&service.value()).to_owned()).collect();
        assert_eq!(services, expected.map(|(name, _)| name.to_owned()));
    }
}
