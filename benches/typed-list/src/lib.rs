//! The baseline of a benchmark: a simple policy that lists all Services as typed objects of the SDK, and gives a
//! Service without an address the lowest free one. Only its cost matters here.

use std::collections::{BTreeSet, HashSet};
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Service;
use kubewarden_policy_sdk::host_capabilities::kubernetes::{ListAllResourcesRequest, list_all_resources};
use kubewarden_policy_sdk::request::ValidationRequest;
use kubewarden_policy_sdk::wapc_guest::{CallResult, register_function};
use kubewarden_policy_sdk::{accept_request, mutate_request, protocol_version_guest, reject_request};
use serde::{Deserialize, Serialize};

/// The first and the last address that the policy may assign.
#[derive(Default, Serialize, Deserialize)]
struct Settings {
    first: Option<Ipv4Addr>,
    last: Option<Ipv4Addr>,
}

/// The host calls this once for each instance, before any other function.
#[unsafe(no_mangle)]
pub extern "C" fn wapc_init() {
    register_function("validate", validate);
    register_function("protocol_version", protocol_version_guest);
}

fn validate(payload: &[u8]) -> CallResult {
    let request: ValidationRequest<Settings> = ValidationRequest::new(payload)?;
    let mut service: Service = serde_json::from_value(request.request.object)?;
    if service.spec.as_ref().is_none_or(|spec| spec.cluster_ip.is_some()) {
        return accept_request();
    }

    let masks = ["spec.clusterIP", "spec.clusterIPs"];
    let services = list_all_resources::<Service>(&ListAllResourcesRequest {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        label_selector: None,
        field_selector: None,
        field_masks: Some(BTreeSet::from(masks.map(str::to_owned))),
    })?;
    let specs = services.items.into_iter().filter_map(|service| service.spec);
    let used: HashSet<Ipv4Addr> = specs
        .flat_map(|spec| spec.cluster_ip.into_iter().chain(spec.cluster_ips.unwrap_or_default()))
        .filter_map(|address| address.parse().ok())
        .collect();

    let Settings { first: Some(first), last: Some(last) } = request.settings else { return accept_request() };
    match (first.to_bits()..=last.to_bits()).map(Ipv4Addr::from_bits).find(|address| !used.contains(address)) {
        Some(address) => {
            if let Some(spec) = &mut service.spec {
                spec.cluster_ip = Some(address.to_string());
            }
            mutate_request(serde_json::to_value(service)?)
        }
        None => reject_request(Some("no free address".to_owned()), None, None, None),
    }
}
