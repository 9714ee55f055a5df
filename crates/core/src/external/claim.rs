//! Reads the addresses that a Service claims and that other programs assign: MetalLB, Cilium, kube-vip, kube-proxy.

use std::net::IpAddr;
use std::slice::from_ref;

use crate::address::parse_address;
use crate::annotations::{FOREIGN_ANNOTATIONS, claimed_addresses, is_too_long_for_addresses, parts};
use crate::distinct;
use crate::service::Service;

pub const EXTERNAL_IPS: &str = "spec.externalIPs";

pub const LOAD_BALANCER_IP: &str = "spec.loadBalancerIP";

/// The fields in which kube-vip looks up a part as the name of a host if the part is not an address. MetalLB and Cilium
/// refuse such parts, and so do the API server in `spec.externalIPs` and this policy in its own annotations.
const LOOKED_UP: [&str; 2] = [LOAD_BALANCER_IP, "kube-vip.io/loadbalancerIPs"];

/// This many items of `spec.externalIPs` count. Some users list one address for each node.
pub const MAX_EXTERNAL_IPS: usize = 8;

/// A field or an annotation of a Service that claims addresses.
///
/// Only the first addresses count as held, so that one Service can't use up a pool. [`Self::beyond`] finds the others:
/// a pool's addresses are refused there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimField<'s> {
    /// The path of the field, or one of [`FOREIGN_ANNOTATIONS`].
    pub name: &'static str,
    /// The text as written: the items of `spec.externalIPs`, otherwise one text.
    pub texts: &'s [String],
}

impl ClaimField<'_> {
    /// The addresses that count as held, without duplicates. Texts that are not addresses are left out: the program
    /// that reads the field decides what they mean.
    pub fn counted(&self) -> Vec<IpAddr> {
        distinct(self.texts.iter().take(MAX_EXTERNAL_IPS).flat_map(|text| claimed_addresses(text)))
    }

    /// The first address that `matters` accepts and that does not count, because there are too many. The texts must not
    /// be too long.
    pub fn beyond(&self, matters: &dyn Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let counted = self.counted();
        for text in self.texts {
            for part in parts(text) {
                if let Some(address) = parse_address(part)
                    && !counted.contains(&address)
                    && matters(address)
                {
                    return Some(address);
                }
            }
        }
        None
    }

    /// The first part that kube-vip looks up as the name of a host, so that the DNS server chooses the address, and
    /// that the same field did not have before. A part with leading zeros counts as a name: some resolvers do not read the
    /// part as an address, and others read different addresses. In an old text that is too long to be read, no part
    /// counts as old.
    pub fn new_name(&self, old: Option<&Self>) -> Option<&str> {
        let [text] = self.texts else { return None };
        if !LOOKED_UP.contains(&self.name) {
            return None;
        }
        let is_short = |text: &&String| !is_too_long_for_addresses(text);
        let old = old.and_then(|old| old.texts.first()).filter(is_short);
        let is_old = |part: &str| old.is_some_and(|old| parts(old).any(|old| old == part));
        parts(text).find(|part| part.parse::<IpAddr>().is_err() && !is_old(part))
    }
}

/// The fields and annotations in which a Service claims addresses.
pub fn claim_fields(service: &Service) -> Vec<ClaimField<'_>> {
    let mut claim_fields = vec![ClaimField { name: EXTERNAL_IPS, texts: &service.external_ips }];
    if let Some(text) = &service.load_balancer_ip {
        claim_fields.push(ClaimField { name: LOAD_BALANCER_IP, texts: from_ref(text) });
    }
    for name in FOREIGN_ANNOTATIONS {
        if let Some(text) = service.annotations.get(name) {
            claim_fields.push(ClaimField { name, texts: from_ref(text) });
        }
    }
    claim_fields
}

/// The addresses that a Service claims outside of its record and that count as held, each with its field.
pub fn claims(service: &Service) -> Vec<(&'static str, IpAddr)> {
    let mut claims = Vec::new();
    for field in claim_fields(service) {
        for address in field.counted() {
            claims.push((field.name, address));
        }
    }
    claims
}
