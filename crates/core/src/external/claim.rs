//! Reads the addresses that a Service claims and that other programs assign: MetalLB, Cilium, kube-vip, kube-proxy.

use std::net::IpAddr;
use std::slice::from_ref;

use crate::address::parse_address;
use crate::annotations::{FOREIGN_ANNOTATIONS, claimed_addresses, parts};
use crate::services::Service;

/// `spec.externalIPs` as a field that claims addresses.
pub const EXTERNAL_IPS: &str = "spec.externalIPs";

/// `spec.loadBalancerIP` as a field that claims addresses.
pub const LOAD_BALANCER_IP: &str = "spec.loadBalancerIP";

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
        let mut found: Vec<IpAddr> = Vec::new();
        for text in self.texts.iter().take(MAX_EXTERNAL_IPS) {
            for address in claimed_addresses(text) {
                if !found.contains(&address) {
                    found.push(address);
                }
            }
        }
        found
    }

    /// The first address that `matters` accepts and that does not count, because there are too many or the text is too
    /// long.
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
