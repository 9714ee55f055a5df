//! Reads addresses in all forms that Kubernetes accepts.

use std::net::{IpAddr, Ipv4Addr};

/// Parses an address as any program that acts on it might: Kubernetes reads octets with leading zeros as decimal, and
/// an IPv4-mapped IPv6 address is that IPv4 address. Before Kubernetes 1.36, the API server accepts and stores both forms
/// in `spec.clusterIP`. A stricter parser would let a Service take an address of a pool in a form that this policy does
/// not recognise.
pub fn parse_address(text: &str) -> Option<IpAddr> {
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
