//! Which addresses a Service claims for other programs to give: MetalLB, Cilium, kube-vip, kube-proxy.

use std::net::IpAddr;

use crate::annotations::{address, claimed_addresses, is_too_long_for_addresses, parts};
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'s> {
    /// The path of the field, or one of [`FOREIGN_ANNOTATIONS`].
    pub name: &'static str,
    /// What the author wrote: the items of `spec.externalIPs`, otherwise one text.
    pub texts: Vec<&'s str>,
}

impl Place<'_> {
    /// The addresses that count as held, without repetition. What can't be read is left out: the program that
    /// the place is for judges it.
    pub fn counted(&self) -> Vec<IpAddr> {
        let mut found: Vec<IpAddr> = Vec::new();
        for address in self.texts.iter().take(MOST_EXTERNAL_IPS).flat_map(|text| claimed_addresses(text)) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        found
    }

    /// The addresses that do not count, as there are too many, or as they stand in a text that is too long.
    pub fn beyond(&self) -> impl Iterator<Item = IpAddr> {
        let counted = self.counted();
        let all = self.texts.iter().flat_map(|text| parts(text)).filter_map(address);
        all.filter(move |address| !counted.contains(address))
    }

    /// How many addresses, or items, of the place count; in words.
    pub fn limit(&self) -> String {
        if self.name == EXTERNAL_IPS {
            return format!("only the first {MOST_EXTERNAL_IPS} items are read");
        }
        if self.texts.iter().any(|text| is_too_long_for_addresses(text)) {
            let longest = crate::annotations::TOO_LONG_FOR_ADDRESSES - 1;
            return format!("only a text of at most {longest} characters is read");
        }
        format!("only the first {} addresses are read", crate::annotations::MOST_ADDRESSES)
    }
}

/// The places where a Service claims addresses.
pub fn places(service: &Service) -> Vec<Place<'_>> {
    let mut places = Vec::new();
    places.push(Place { name: EXTERNAL_IPS, texts: service.external_ips.iter().map(String::as_str).collect() });
    places
        .push(Place { name: "spec.loadBalancerIP", texts: service.load_balancer_ip.as_deref().into_iter().collect() });
    for name in FOREIGN_ANNOTATIONS {
        places.push(Place { name, texts: service.annotations.get(name).map(String::as_str).into_iter().collect() });
    }
    places.retain(|place| !place.texts.is_empty());
    places
}

/// What a Service claims beside its record and what counts as held: each address with its place.
pub fn claims(service: &Service) -> Vec<(&'static str, IpAddr)> {
    let of = |place: &Place<'_>| place.counted().into_iter().map(|address| (place.name, address)).collect::<Vec<_>>();
    places(service).iter().flat_map(of).collect()
}
