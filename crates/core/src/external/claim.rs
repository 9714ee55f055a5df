//! Reads which external addresses a Service has recorded, requests and shows, and those that it claims and that other
//! programs assign: MetalLB, Cilium, kube-vip, kube-proxy.

use std::net::IpAddr;
use std::slice::from_ref;

use serde_json::Value;

use crate::address::parse_address;
use crate::annotations::{
    FOREIGN_ANNOTATIONS, RECORD_ANNOTATION, REQUESTED_ADDRESS_ANNOTATION, claimed_addresses, is_too_long_for_addresses,
    parts, recorded_addresses,
};
use crate::distinct;
use crate::label_selector::Labels;
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
        let mut addresses = self.texts.iter().flat_map(|text| parts(text)).filter_map(parse_address);
        addresses.find(|address| !counted.contains(address) && matters(*address))
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

pub(crate) fn claim_fields(service: &Service) -> Vec<ClaimField<'_>> {
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
    let of_field = |field: ClaimField<'_>| field.counted().into_iter().map(move |address| (field.name, address));
    claim_fields(service).into_iter().flat_map(of_field).collect()
}

/// The fields of a stored Service on which its external addresses depend. All others are as in a Service without them.
///
/// A decision reads the whole Service of its request, and refuses the request if a field has the wrong type. The
/// addresses of a Service that is stored already must count as held whatever its other fields contain. Therefore each
/// field is read by itself here, as in a list that a look-up returns, and a field of the wrong type counts as absent.
pub fn read_stored(object: &Value) -> Service {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let spec = |key: &str| object.get("spec").and_then(|spec| spec.get(key));
    let metadata = |key: &str| object.get("metadata").and_then(|metadata| metadata.get(key));
    let annotations = metadata("annotations").and_then(Value::as_object).into_iter().flatten();
    let texts = annotations.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let external_ips = spec("externalIPs").and_then(Value::as_array).into_iter().flatten();
    Service {
        annotations: texts.collect::<Labels>().into(),
        external_name: spec("type").is_some_and(|kind| kind == "ExternalName"),
        load_balancer: spec("type").is_some_and(|kind| kind == "LoadBalancer"),
        load_balancer_class: spec("loadBalancerClass").and_then(text),
        load_balancer_ip: spec("loadBalancerIP").and_then(text),
        external_ips: external_ips.filter_map(|item| item.as_str().map(str::to_owned)).collect(),
        shown: shown(object.pointer("/status/loadBalancer/ingress")),
        deleting: metadata("deletionTimestamp").is_some_and(|time| !time.is_null()),
        ..Service::default()
    }
}

/// The addresses in the record of a Service, whether the Service gets external addresses from this policy or not.
pub fn recorded(service: &Service) -> Vec<IpAddr> {
    service.annotations.get(RECORD_ANNOTATION).map(|text| recorded_addresses(text)).unwrap_or_default()
}

/// The addresses that a Service requests from this policy: those of [`REQUESTED_ADDRESS_ANNOTATION`], then those of
/// `spec.loadBalancerIP`; of each the first of each family. [`ExternalSettings::is_ours`] says whether the policy gives
/// the Service any.
///
/// [`ExternalSettings::is_ours`]: crate::settings::ExternalSettings::is_ours
pub fn requested(service: &Service) -> Vec<IpAddr> {
    let texts = service.annotations.get(REQUESTED_ADDRESS_ANNOTATION).into_iter().chain(&service.load_balancer_ip);
    texts.flat_map(|text| recorded_addresses(text)).collect()
}

/// The addresses in a Service's `status.loadBalancer.ingress`; `None` stands for an absent field.
pub fn shown(ingress: Option<&Value>) -> Vec<IpAddr> {
    let entries = ingress.and_then(Value::as_array).into_iter().flatten();
    let texts = entries.filter_map(|entry| entry.get("ip")?.as_str());
    texts.flat_map(claimed_addresses).collect()
}

/// The addresses that a Service has recorded or claims, in ascending order and without duplicates.
pub fn claimed(service: &Service) -> Vec<IpAddr> {
    let claims = claims(service).into_iter().map(|(_, address)| address);
    sorted(recorded(service).into_iter().chain(claims).collect())
}

/// The addresses that count as held by a Service object: those of [`claimed`], and those that its status shows. In
/// ascending order and without duplicates.
pub fn in_use(object: &Value) -> Vec<IpAddr> {
    let service = read_stored(object);
    sorted(claimed(&service).into_iter().chain(service.shown).collect())
}

fn sorted(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
