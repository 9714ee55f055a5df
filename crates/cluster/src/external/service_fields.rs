//! Reads what a Service says about its external addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use clusterip_core::external::claim::{LOAD_BALANCER_IP, claims};
use clusterip_core::external::stored;
use clusterip_core::services::Service;
use clusterip_core::settings::ExternalSettings;
use clusterip_failover::assignments::Protocol;
use serde_json::Value;

use crate::lookups::snapshot::MAX_PORTS;

/// The field of an address that only the status of a Service contains.
const STATUS: &str = "status.loadBalancer.ingress";

/// The external addresses that a Service has recorded; empty if the Service does not get external addresses.
pub fn recorded(service: &Value, settings: &ExternalSettings) -> Vec<IpAddr> {
    if !is_load_balancer(service) {
        return Vec::new();
    }
    let service = stored::read(service);
    if settings.is_ours(&service) { stored::recorded(&service) } else { Vec::new() }
}

/// Whether a Service gets external addresses, see [`ExternalSettings::is_ours`].
pub fn is_served(service: &Value, settings: &ExternalSettings) -> bool {
    is_load_balancer(service) && settings.is_ours(&stored::read(service))
}

/// Whether a Service is of the only type that gets external addresses. Unlike [`stored::read`], this copies nothing of
/// the Service, and most Services are of another type.
fn is_load_balancer(service: &Value) -> bool {
    service.pointer("/spec/type").is_some_and(|kind| kind == "LoadBalancer")
}

/// The addresses in the Service's `status.loadBalancer`.
pub fn shown(service: &Value) -> BTreeSet<IpAddr> {
    stored::shown(service.pointer("/status/loadBalancer/ingress")).into_iter().collect()
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

/// The protocols and ports of a Service, from its first [`MAX_PORTS`] ports. Ports that can't be read are left out.
pub fn ports(service: &Value) -> BTreeSet<(Protocol, u16)> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    let port = |port: &Value| {
        let protocol = match port.get("protocol").and_then(Value::as_str) {
            None | Some("TCP") => Protocol::Tcp,
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            Some(_) => return None,
        };
        Some((protocol, u16::try_from(port.get("port")?.as_u64()?).ok()?))
    };
    ports.into_iter().flatten().take(MAX_PORTS).filter_map(port).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

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
            assert_eq!(recorded(&service, &settings(default)), expected, "{name}");
        }
        assert!(!is_served(&service("LoadBalancer", ours(), ""), &ExternalSettings::default()), "without pools");
    }

    #[test]
    fn ports_and_status_are_read() {
        let service = json!({
            "spec": {"ports": [
                {"port": 80}, {"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 7, "protocol": "SCTP"},
                {"port": 99_999}, {"port": 1, "protocol": "OTHER"}, {},
            ]},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.10"}, {"hostname": "x"}, {"ip": "fd00::9"}]}},
        });
        let expected = [(Protocol::Tcp, 53), (Protocol::Tcp, 80), (Protocol::Udp, 53), (Protocol::Sctp, 7)];
        assert_eq!(ports(&service), BTreeSet::from(expected));
        assert_eq!(shown(&service), BTreeSet::from(["10.0.9.10".parse().unwrap(), "fd00::9".parse().unwrap()]));
        assert!(ports(&json!({})).is_empty() && shown(&json!({})).is_empty());
    }
}
