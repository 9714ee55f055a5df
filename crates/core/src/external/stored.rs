//! Reads which external addresses a stored Service has, for a host that knows all Services.
//!
//! A decision reads the whole Service of its request, and refuses the request if a field has the wrong type. The
//! addresses of a Service that is stored already must count as held whatever its other fields contain. Therefore each
//! field is read by itself here, as in a list that a look-up returns, and a field of the wrong type counts as absent.

use std::net::IpAddr;

use serde_json::Value;

use super::claim::claims;
use crate::annotations::{RECORD_ANNOTATION, REQUESTED_ADDRESS_ANNOTATION, claimed_addresses, recorded_addresses};
use crate::label_selector::Labels;
use crate::service::Service;

/// The fields of a Service object on which its external addresses depend. All others are as in a Service without them.
pub fn read(object: &Value) -> Service {
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
    let mut found = claimed(&read(object));
    let balancer = object.get("status").and_then(|status| status.get("loadBalancer"));
    found.extend(shown(balancer.and_then(|balancer| balancer.get("ingress"))));
    sorted(found)
}

fn sorted(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
