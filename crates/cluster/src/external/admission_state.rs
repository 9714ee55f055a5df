//! What a host with a ledger adds to decisions about external addresses: the addresses that are in use, and the
//! guarantee that no two requests get the same address.

use std::net::IpAddr;

use clusterip_core::external::Held;
use clusterip_core::external::stored::{claimed, read};
use clusterip_core::settings::ExternalSettings;
use serde_json::Value;

use crate::lookups::snapshot::Snapshot;
use crate::reservations::ledger::Ledger;

/// Whether a request with these objects, the new and the old one, may be about external addresses. If so, the decision
/// needs the held addresses.
pub fn concerns(settings: &ExternalSettings, objects: [Option<&Value>; 2]) -> bool {
    let concerns = |object: &Value| {
        let service = read(object);
        service.load_balancer || !claimed(&service).is_empty()
    };
    !settings.pools.is_empty() && objects.into_iter().flatten().any(concerns)
}

/// The held addresses of the pools and their Services, from the Services in `snapshot` and from those in flight.
pub fn held(settings: &ExternalSettings, snapshot: &Snapshot, ledger: &Ledger) -> Held {
    let mut held = Held::default();
    for (service, addresses) in snapshot.external_addresses() {
        for address in inside(settings, addresses.to_vec()) {
            held.add(address, service.to_string());
        }
    }
    for (address, owner) in ledger.reservations() {
        if settings.pool_of(address).is_some() {
            let (namespace, name) = owner.id();
            held.add(address, format!("{namespace}/{name}"));
        }
    }
    held
}

/// The addresses of the pools that are new to the Service of a request: `object` has recorded or claims them, and the
/// old object did not.
pub fn newly_claimed(settings: &ExternalSettings, request: &Value, object: &Value) -> Vec<IpAddr> {
    let before = request.get("oldObject").map(|old| claimed(&read(old))).unwrap_or_default();
    inside(settings, claimed(&read(object))).filter(|address| !before.contains(address)).collect()
}

fn inside(settings: &ExternalSettings, addresses: Vec<IpAddr>) -> impl Iterator<Item = IpAddr> + '_ {
    addresses.into_iter().filter(|address| settings.pool_of(*address).is_some())
}
