//! Requests as a host decides them that knows what is in use.

use std::net::IpAddr;
use std::time::Duration;

use clusterip_core::external::{Holder, HolderOf, Sharer};
use clusterip_core::nodes::Allocation;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_core::{InUse, Response, decide_value, validate};
use serde_json::Value;

use super::FakeCluster;

/// The answer to `{"request": …, "settings": …}`. The host knows the blocks of Nodes in
/// `"allocation": {"held": [CIDR, …], "last": [CIDR, …]}`, and the holders of external addresses in
/// `"external": {"held": [{"address": …, "by": "NAMESPACE/NAME"}, …]}`, if the payload has these fields. With
/// ` (in progress)` behind the name, the address is in flight.
pub fn answer_in_use(payload: &Value, cluster: &FakeCluster) -> Response {
    let Ok(settings) = Settings::from_value(&payload["settings"]) else {
        return validate(payload.to_string().as_bytes(), cluster);
    };
    let list = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let blocks = |list: Vec<Value>| list.iter().filter_map(|block| block.as_str()?.parse().ok()).collect();
    let allocation = payload.get("allocation").filter(|state| state.is_object());
    let state = |state: &Value| Allocation { held: blocks(list(&state["held"])), last: blocks(list(&state["last"])) };
    let allocation = allocation.map(state);
    let held = payload["external"]["held"].as_array().map(|held| {
        let holder = |item: &Value| {
            let (namespace, name) = item["by"].as_str()?.split_once('/')?;
            let (name, in_flight) = match name.strip_suffix(" (in progress)") {
                Some(name) => (name, Some(Duration::from_secs(65))),
                None => (name, None),
            };
            let holder = Holder { service: ServiceKey::new(namespace, name), in_flight };
            Some((item["address"].as_str()?.parse().ok()?, holder))
        };
        held.iter().filter_map(holder).collect::<Vec<(IpAddr, Holder)>>()
    });
    let holder_of = held.as_ref().map(|held| {
        |address: IpAddr, _: &Sharer<'_>| held.iter().find(|(other, _)| *other == address).map(|(_, by)| by.clone())
    });
    let external = holder_of.as_ref().map(|holder_of| holder_of as &HolderOf<'_>);
    let decision =
        decide_value(&payload["request"], &settings, InUse { blocks: allocation.as_ref(), external }, cluster);
    Response::new(decision, payload["request"]["object"].clone())
}
