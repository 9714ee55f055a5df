//! Which addresses a Service claims for other programs to give: MetalLB, Cilium, kube-vip, kube-proxy.

use std::net::IpAddr;
use std::slice::from_ref;

use crate::annotations::{address, claimed_addresses, parts};
use crate::service::Service;

pub use crate::annotations::{FOREIGN_ANNOTATIONS, in_record};

/// `spec.externalIPs`, as a place of claims.
pub const EXTERNAL_IPS: &str = "spec.externalIPs";

/// This many items of `spec.externalIPs` count. Others may name one address for each node.
pub const MOST_EXTERNAL_IPS: usize = 8;

/// A field or an annotation of a Service that claims addresses.
///
/// Only its first addresses count as held, so that one Service can't use up a pool. [`Self::beyond`] are the
/// others: a pool's addresses are refused there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'s> {
    /// The path of the field, or one of [`FOREIGN_ANNOTATIONS`].
    pub name: &'static str,
    /// What the author wrote: the items of `spec.externalIPs`, otherwise one text.
    pub texts: &'s [String],
}

impl Place<'_> {
    /// The addresses that count as held, without repetition. What can't be read is left out: the program that
    /// the place is for judges it.
    pub fn counted(&self) -> Vec<IpAddr> {
        let mut found: Vec<IpAddr> = Vec::new();
        for text in self.texts.iter().take(MOST_EXTERNAL_IPS) {
            for address in claimed_addresses(text) {
                if !found.contains(&address) {
                    found.push(address);
                }
            }
        }
        found
    }

    /// The first of the addresses that do not count and that `matters` accepts. There are too many, or the text is
    /// too long.
    pub fn beyond(&self, matters: &dyn Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let counted = self.counted();
        for text in self.texts {
            for part in parts(text) {
                if let Some(address) = address(part)
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

/// The places where a Service claims addresses.
pub fn places(service: &Service) -> Vec<Place<'_>> {
    let mut places = vec![Place { name: EXTERNAL_IPS, texts: &service.external_ips }];
    if let Some(text) = &service.load_balancer_ip {
        places.push(Place { name: "spec.loadBalancerIP", texts: from_ref(text) });
    }
    for name in FOREIGN_ANNOTATIONS {
        if let Some(text) = service.annotations.get(name) {
            places.push(Place { name, texts: from_ref(text) });
        }
    }
    places
}

/// What a Service claims beside its record and what counts as held: each address with its place.
pub fn claims(service: &Service) -> Vec<(&'static str, IpAddr)> {
    let mut claims = Vec::new();
    for place in places(service) {
        for address in place.counted() {
            claims.push((place.name, address));
        }
    }
    claims
}
