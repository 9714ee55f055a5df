//! Reads what a Service says about its external addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use clusterip_core::annotations::recorded_addresses;
use clusterip_core::external::claim::{LOAD_BALANCER_IP, claims};
use clusterip_core::external::stored;
use clusterip_core::service::Service;
use clusterip_core::settings::ExternalSettings;

use crate::snapshot::StoredService;

/// The field of an address that only the status of a Service contains.
const STATUS: &str = "status.loadBalancer.ingress";

/// The external addresses that a Service has recorded; empty if the Service does not get external addresses.
pub fn recorded(service: &StoredService, settings: &ExternalSettings) -> Vec<IpAddr> {
    if service.is_served(settings) { recorded_addresses(service.record()) } else { Vec::new() }
}

/// The addresses of the pools that a Service has without recording them, each with its field or annotation. `shown` are
/// those of its status.
pub fn claimed(
    service: &Service,
    shown: &BTreeSet<IpAddr>,
    settings: &ExternalSettings,
) -> Vec<(&'static str, IpAddr)> {
    let (is_served, recorded) = (settings.is_ours(service), stored::recorded(service));
    let mut claims = claims(service);
    // A Service that this product serves requests its address with this field, too.
    claims.retain(|(place, _)| !is_served || *place != LOAD_BALANCER_IP);
    // The status of a served Service is written by this product.
    let by_others =
        shown.iter().filter(|_| !is_served).filter(|address| !claims.iter().any(|(_, other)| other == *address));
    let by_others: Vec<_> = by_others.map(|address| (STATUS, *address)).collect();
    claims.extend(by_others);
    claims.retain(|(_, address)| settings.pool_of(*address).is_some() && !recorded.contains(address));
    claims
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn recorded_addresses_are_read_from_served_services_only() {
        let settings = |default| ExternalSettings { default, pools: vec![Default::default()], ..Default::default() };
        let service = |kind: &str, class: Value, record: &str| {
            json!({
                "metadata": {"annotations": {"clusterip-policy/external-addresses": record}},
                "spec": {"type": kind, "loadBalancerClass": class},
            })
        };
        let ours = || json!("clusterip-policy/external");
        struct Case {
            name: &'static str,
            service: Value,
            /// Whether the settings include Services without a class.
            default: bool,
            expected: Vec<&'static str>,
        }
        let cases = [
            Case {
                name: "of our class",
                service: service("LoadBalancer", ours(), "10.0.9.10"),
                default: false,
                expected: vec!["10.0.9.10"],
            },
            Case {
                name: "both families",
                service: service("LoadBalancer", ours(), "fd00::9, 10.0.9.10"),
                default: false,
                expected: vec!["fd00::9", "10.0.9.10"],
            },
            Case {
                name: "a record that is not an address",
                service: service("LoadBalancer", ours(), "x"),
                default: false,
                expected: vec![],
            },
            Case {
                name: "of another class",
                service: service("LoadBalancer", json!("other"), "10.0.9.10"),
                default: true,
                expected: vec![],
            },
            Case {
                name: "without a class, which the settings include",
                service: service("LoadBalancer", Value::Null, "10.0.9.10"),
                default: true,
                expected: vec!["10.0.9.10"],
            },
            Case {
                name: "without a class",
                service: service("LoadBalancer", Value::Null, "10.0.9.10"),
                default: false,
                expected: vec![],
            },
            Case {
                name: "of another type",
                service: service("ClusterIP", ours(), "10.0.9.10"),
                default: true,
                expected: vec![],
            },
            Case { name: "an empty object", service: json!({}), default: true, expected: vec![] },
        ];
        for Case { name, service, default, expected } in cases {
            let expected: Vec<IpAddr> = expected.into_iter().map(|address| address.parse().unwrap()).collect();
            assert_eq!(recorded(&StoredService::read(&service), &settings(default)), expected, "{name}");
        }
        let without_pools = ExternalSettings::default();
        assert!(!StoredService::read(&service("LoadBalancer", ours(), "")).is_served(&without_pools), "without pools");
    }

    #[test]
    fn status_is_read() {
        let ingress = json!([{"ip": "10.0.9.10"}, {"hostname": "x"}, {"ip": "fd00::9"}]);
        let service = json!({"status": {"loadBalancer": {"ingress": ingress}}});
        let expected = BTreeSet::from(["10.0.9.10".parse().unwrap(), "fd00::9".parse().unwrap()]);
        assert_eq!(StoredService::read(&service).shown(), expected);
        assert!(StoredService::read(&json!({})).shown().is_empty());
    }
}
