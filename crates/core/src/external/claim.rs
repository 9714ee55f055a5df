//! What a Service says about external addresses, and how it is read.

use std::net::{IpAddr, Ipv4Addr};

use crate::service::Service;

/// The Service's annotation with the external addresses that it has, divided by commas.
pub const RECORD_ANNOTATION: &str = "clusterip-policy/external-addresses";
/// The Service's annotation that asks for an external address, or for one of each family.
pub const ASKED_ANNOTATION: &str = "clusterip-policy/external-address";
/// The annotations by which others are asked for addresses: MetalLB, Cilium and kube-vip, each by its present
/// and its former name.
pub const FOREIGN_ANNOTATIONS: [&str; 5] = [
    "io.cilium/lb-ipam-ips",
    "kube-vip.io/loadbalancerIPs",
    "lbipam.cilium.io/ips",
    "metallb.io/loadBalancerIPs",
    "metallb.universe.tf/loadBalancerIPs",
];

/// `spec.externalIPs`, as a place of claims.
pub const EXTERNAL_IPS: &str = "spec.externalIPs";

/// What a Service claims beside its record: each address with its place, which is a field or one of
/// [`FOREIGN_ANNOTATIONS`]. What can't be read is left out: whoever the place is for has to judge it.
pub fn claims(service: &Service) -> Vec<(&'static str, IpAddr)> {
    let mut claims = Vec::new();
    let mut claim = |place: &'static str, text: &str| {
        for address in addresses(text) {
            if !claims.contains(&(place, address)) {
                claims.push((place, address));
            }
        }
    };
    for text in &service.external_ips {
        claim(EXTERNAL_IPS, text);
    }
    if let Some(text) = &service.load_balancer_ip {
        claim("spec.loadBalancerIP", text);
    }
    for key in FOREIGN_ANNOTATIONS {
        if let Some(text) = service.annotations.get(key) {
            claim(key, text);
        }
    }
    claims
}

/// The addresses in a text with commas between them, those that can't be read left out.
pub fn addresses(text: &str) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for text in texts(text) {
        addresses.extend(parse(text));
    }
    addresses
}

/// Addresses as a Service records them.
pub fn in_record(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The parts of a text with commas between them, without white space around them, none of them empty.
pub(super) fn texts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// Reads an address as everybody might who acts on it: Kubernetes takes leading zeros for decimal, and an
/// IPv4 address inside of IPv6 is that IPv4 address. Otherwise one of ours could be claimed in disguise.
pub(super) fn parse(text: &str) -> Option<IpAddr> {
    let address = text.parse().ok().or_else(|| {
        let (before, dotted) = text.split_at(text.rfind(':').map_or(0, |colon| colon + 1));
        let mut octets = [0_u8; 4];
        let mut parts = dotted.split('.');
        for octet in &mut octets {
            let part = parts.next()?;
            let digits = part.trim_start_matches('0');
            let is_number = !part.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            *octet = if is_number && digits.is_empty() { 0 } else { digits.parse().ok().filter(|_| is_number)? };
        }
        let is_all = parts.next().is_none();
        format!("{before}{}", Ipv4Addr::from(octets)).parse::<IpAddr>().ok().filter(|_| is_all)
    })?;
    Some(address.to_canonical())
}
