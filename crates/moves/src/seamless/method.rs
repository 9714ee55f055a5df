//! How a Service can be moved, and what its clients notice.

use std::fmt;
use std::net::IpAddr;

use clusterip_core::services::addresses;
use serde_json::Value;

/// How a Service is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Both addresses answer during the move.
    Seamless,
    /// The old address stops answering when the Service gets the new one.
    Plain(WhyPlain),
}

/// Why a Service is not moved seamlessly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyPlain {
    /// No seamless move was asked for.
    NotAsked,
    /// No endpoint is ready, so nothing answers at the old address either.
    NoReadyEndpoints,
    /// The Service has no selector, so a temporary Service would have no endpoints.
    NoSelector,
    /// The Service has node ports, which a Service without an address does not have.
    NodePorts,
    /// The Service is a load balancer, which a Service without an address is not.
    LoadBalancer,
    /// The Service has external addresses, which a Service without an address does not have.
    ExternalAddresses,
    /// One of two addresses stays.
    OneStays,
}

impl Method {
    /// The name of the method.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seamless => "seamless",
            Self::Plain(_) => "plain",
        }
    }
}

/// What the clients of the Service notice, as the rest of a sentence about them.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seamless => "notice nothing: both addresses answer until the grace period ends",
            Self::Plain(WhyPlain::NotAsked) => {
                "fail until DNS forgets the old address; with --seamless, the old address answers until then"
            }
            Self::Plain(WhyPlain::NoReadyEndpoints) => "notice nothing: no endpoint is ready",
            Self::Plain(WhyPlain::NoSelector) => {
                "fail until DNS forgets the old address; without a selector, no temporary Service can keep it"
            }
            Self::Plain(WhyPlain::NodePorts) => {
                "fail until DNS forgets the old address; a seamless move would interrupt its node ports for seconds"
            }
            Self::Plain(WhyPlain::LoadBalancer) => {
                "fail until DNS forgets the old address; a seamless move would interrupt its load balancer for seconds"
            }
            Self::Plain(WhyPlain::ExternalAddresses) => {
                "fail until DNS forgets the old address; a seamless move would interrupt its external addresses for seconds"
            }
            Self::Plain(WhyPlain::OneStays) => "fail at the address that moves until DNS forgets it; the other one stays",
        })
    }
}

/// How to move a Service to these addresses, if a seamless move is asked for.
pub fn method(service: &Value, to: &[IpAddr], has_ready_endpoints: bool) -> Method {
    let spec = |field: &str| service.get("spec").and_then(|spec| spec.get(field));
    let is_filled = |field: &str| match spec(field) {
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
        _ => false,
    };
    Method::Plain(match spec("type").and_then(Value::as_str) {
        _ if !has_ready_endpoints => WhyPlain::NoReadyEndpoints,
        _ if !is_filled("selector") => WhyPlain::NoSelector,
        Some("NodePort") => WhyPlain::NodePorts,
        Some("LoadBalancer") => WhyPlain::LoadBalancer,
        _ if is_filled("externalIPs") => WhyPlain::ExternalAddresses,
        _ if addresses(service).iter().any(|address| to.contains(address)) => WhyPlain::OneStays,
        _ => return Method::Seamless,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn method_follows_from_the_service() {
        struct Case {
            name: &'static str,
            change: Value,
            has_ready_endpoints: bool,
            expected: Method,
        }
        let plain = Method::Plain;
        let case = |name, change, has_ready_endpoints, expected| Case { name, change, has_ready_endpoints, expected };
        let cases = [
            case("a Service that serves", json!({}), true, Method::Seamless),
            case("no ready endpoint", json!({}), false, plain(WhyPlain::NoReadyEndpoints)),
            case("no selector", json!({"selector": null}), true, plain(WhyPlain::NoSelector)),
            case("an empty selector", json!({"selector": {"app": null}}), true, plain(WhyPlain::NoSelector)),
            case("node ports", json!({"type": "NodePort"}), true, plain(WhyPlain::NodePorts)),
            case("a load balancer", json!({"type": "LoadBalancer"}), true, plain(WhyPlain::LoadBalancer)),
            case("external addresses", json!({"externalIPs": ["192.0.2.1"]}), true, plain(WhyPlain::ExternalAddresses)),
            case(
                "the second address moves",
                json!({"clusterIP": "fd00::8", "clusterIPs": ["fd00::8", "10.0.0.1"]}),
                true,
                plain(WhyPlain::OneStays),
            ),
        ];
        for Case { name, change, has_ready_endpoints, expected } in cases {
            let mut service = json!({"spec": {"type": "ClusterIP", "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"],
                "selector": {"app": "web"}}});
            json_patch::merge(&mut service, &json!({"spec": change}));
            assert_eq!(method(&service, &["10.0.0.1".parse().unwrap()], has_ready_endpoints), expected, "{name}");
        }
    }
}
