//! Whether a Service can be moved seamlessly, and what its clients notice.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use clusterip_core::service::addresses;
use serde_json::Value;
use siphasher::sip::SipHasher24;

/// How a Service is moved, and what its clients notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Seamless,
    /// The old address stops answering when the Service gets the new one. Contains what the clients notice, and why the
    /// move is not seamless, as the rest of a sentence about them.
    Plain(&'static str),
}

impl Method {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seamless => "seamless",
            Self::Plain(_) => "plain",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seamless => "notice nothing: both addresses answer until the grace period ends",
            Self::Plain(notice) => notice,
        })
    }
}

/// What clients notice of a plain move if no seamless one was asked for.
pub const NOT_ASKED: &str =
    "fail until DNS forgets the old address; with --seamless, the old address answers until then";

/// How to move a Service to these addresses, if a seamless move is asked for. A Service without an address has no node
/// ports and no external addresses, and is no load balancer. A temporary Service without a selector has no endpoints.
pub fn method(service: &Value, to: &[IpAddr], has_ready_endpoints: bool) -> Method {
    let spec = |field: &str| service.get("spec").and_then(|spec| spec.get(field));
    let is_filled = |field: &str| match spec(field) {
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
        _ => false,
    };
    Method::Plain(match spec("type").and_then(Value::as_str) {
        _ if !has_ready_endpoints => "notice nothing: no endpoint is ready",
        _ if !is_filled("selector") => {
            "fail until DNS forgets the old address; without a selector, no temporary Service can keep it"
        }
        Some("NodePort") => {
            "fail until DNS forgets the old address; a seamless move would interrupt its node ports for seconds"
        }
        Some("LoadBalancer") => {
            "fail until DNS forgets the old address; a seamless move would interrupt its load balancer for seconds"
        }
        _ if is_filled("externalIPs") => {
            "fail until DNS forgets the old address; a seamless move would interrupt its external addresses for seconds"
        }
        _ if addresses(service).iter().any(|address| to.contains(address)) => {
            "fail at the address that moves until DNS forgets it; the other one stays"
        }
        _ => return Method::Seamless,
    })
}

/// For each ready address in EndpointSlices of a Service, a hash of the address and its ports.
pub fn ready_endpoints(slices: &[Value]) -> impl Iterator<Item = u64> {
    slices.iter().flat_map(move |slice| {
        let ports = ports(slice);
        // An endpoint without the condition is ready (EndpointConditions of `discovery.k8s.io/v1`).
        let is_ready =
            |endpoint: &&Value| endpoint.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false);
        let addresses =
            items(slice, "endpoints").filter(is_ready).flat_map(move |endpoint| items(endpoint, "addresses"));
        addresses.filter_map(Value::as_str).map(move |address| {
            let mut hasher = SipHasher24::new();
            hasher.write_u64(ports);
            hasher.write(address.as_bytes());
            hasher.finish()
        })
    })
}

fn items<'v>(object: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> {
    object.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// The hash of the ports of a slice, in a fixed order.
fn ports(slice: &Value) -> u64 {
    let port = |port: &Value| {
        let field = |key: &str| port.get(key).map(Value::to_string).unwrap_or_default();
        format!("{} {} {},", field("name"), field("protocol"), field("port"))
    };
    let mut hasher = SipHasher24::new();
    items(slice, "ports").map(port).collect::<BTreeSet<_>>().iter().for_each(|port| hasher.write(port.as_bytes()));
    hasher.finish()
}

/// The first of these ResourceQuotas that has no room for the temporary Services, as text; `None` if all have. A
/// quantity that is not a plain number is left to the API server.
pub fn without_room(quotas: &[Value]) -> Option<String> {
    const NEEDED: u64 = 2;
    let full = |quota: &Value| {
        let name = quota.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let amount = |list: &str, resource: &str| -> Option<u64> {
            quota.get("status")?.get(list)?.get(resource)?.as_str()?.parse().ok()
        };
        ["services", "count/services"].into_iter().find_map(|resource| {
            let (hard, used) = (amount("hard", resource)?, amount("used", resource)?);
            (used.saturating_add(NEEDED) > hard).then(|| {
                format!(
                    "ResourceQuota {name} has no room for {NEEDED} temporary Services: {used} of {hard} {resource} are \
                     used; raise the quota, or move without --seamless"
                )
            })
        })
    };
    quotas.iter().find_map(full)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
