//! What a host with a ledger adds to decisions about external addresses: the addresses that are in use, and the
//! guarantee that no two requests get the same address.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use clusterip_core::external::claim::claims;
use clusterip_core::external::stored::{claimed, recorded};
use clusterip_core::request::{About, Change, Request};
use clusterip_core::service::Service;
use clusterip_core::settings::{ExternalSettings, Settings};
use clusterip_core::{Decision, InUse};

use crate::lookups::stored_cluster::StoredCluster;

/// How many times a decision about external addresses is made, if another request is faster each time.
const TRIES: usize = 32;
/// The pause before the next try. The other request may be about the same Service, which then needs the same address.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether a request may be about external addresses. If so, the decision needs the held addresses.
pub fn concerns(settings: &ExternalSettings, request: &Request) -> bool {
    let concerns = |service: &Service| service.load_balancer || !claimed(service).is_empty();
    let About::Service(change) = &request.about else { return false };
    !settings.pools.is_empty() && (concerns(&change.object) || change.old.as_ref().is_some_and(concerns))
}

/// Decides about a request that may be about external addresses. Reserves and returns the addresses that the Service
/// newly gets or claims, unless the request is a dry run.
pub(crate) fn decide(
    request: &Request,
    settings: &Settings,
    cluster: &StoredCluster,
    dry_run: bool,
) -> Result<(Decision, Vec<IpAddr>), String> {
    // Another request may reserve an external address between the decision and its reservation.
    for _ in 0..TRIES {
        let in_use = InUse { blocks: None, external: Some(&|address| cluster.external_holder(address)) };
        let decision = clusterip_core::decide(request, settings, in_use, cluster);
        if decision.denial().is_some() || dry_run {
            return Ok((decision, Vec::new()));
        }
        let new = newly_claimed(&settings.external, request, &decision);
        // Ascending, and only up to the first address that is taken: of two requests, one gets all of them.
        let reserve = |all, address: &IpAddr| {
            Ok::<_, String>(all && cluster.reserve_external(*address, is_recorded(request, *address), settings)?)
        };
        if new.iter().try_fold(true, reserve)? {
            return Ok((decision, new));
        }
        cluster.release();
        thread::sleep(PAUSE);
    }
    Err(format!("other requests took them first, {TRIES} times in a row; try again"))
}

/// Whether the Service of a request brings the record of this address.
fn is_recorded(request: &Request, address: IpAddr) -> bool {
    matches!(&request.about, About::Service(change) if recorded(&change.object).contains(&address))
}

/// The addresses of the pools that are new to the Service of a request: after the decision, the Service claims them or
/// has recorded them, and the old object did not.
fn newly_claimed(settings: &ExternalSettings, request: &Request, decision: &Decision) -> Vec<IpAddr> {
    let About::Service(change) = &request.about else { return Vec::new() };
    let Change { object, old } = &**change;
    let recorded = match decision.external.as_ref().filter(|external| external.changes()) {
        Some(external) => external.addresses.clone(),
        None => recorded(object),
    };
    let mut all: Vec<IpAddr> = claims(object).into_iter().map(|(_, address)| address).chain(recorded).collect();
    all.sort_unstable();
    all.dedup();
    let before = old.as_ref().map(claimed).unwrap_or_default();
    all.retain(|address| settings.pool_of(*address).is_some() && !before.contains(address));
    all
}
