//! Checks the pools of Services against each other and against the Service ranges.

use ipnet::IpNet;

use super::check_pools::{self, Common, Kind};
use super::read::PoolPaths;
use super::{AdmissionScope, Match, Mistake, Pool, Reservation, Settings, Unmatched, WhenFull};
use crate::label_selector::LabelSelector;
use crate::pod_spec::OS_LABEL;

/// The mistakes in pools of Services that contradict each other or the other settings. `paths` has one entry for each
/// pool.
pub(super) fn mistakes(settings: &Settings, paths: &[PoolPaths]) -> Vec<Mistake> {
    let pools = settings.pools.iter();
    let pools: Vec<Common<'_>> = pools.map(|pool| Common::new(&pool.name, &pool.cidrs, &pool.exclude)).collect();
    let mut mistakes = check_pools::mistakes(&pools, paths, &OfServices(settings));
    for (pool, pool_paths) in settings.pools.iter().zip(paths) {
        for (index, path) in pool_paths.reservations.iter().enumerate() {
            let reason = wrong_reservation(settings, pool, index);
            mistakes.extend(reason.map(|reason| Mistake { path: path.clone(), reason }));
        }
    }
    mistakes
}

/// What is wrong with a reservation of a pool. No other pool can have a reservation of the same address, because the
/// ranges of pools do not overlap.
fn wrong_reservation(settings: &Settings, pool: &Pool, index: usize) -> Option<String> {
    let Reservation { address, service } = &pool.reservations[index];
    let Some(cidr) = pool.cidrs.iter().find(|cidr| cidr.contains(address)) else {
        return Some(format!("{address} is in no range of the pool"));
    };
    if *address == cidr.network() || (address.is_ipv4() && *address == cidr.broadcast()) {
        return Some(format!("{address} is the network or broadcast address of {cidr}"));
    }
    if Some(*address) == settings.kubernetes_address() {
        return Some(format!("{address} is the address of default/kubernetes"));
    }
    let is_same = |other: &&Reservation| {
        other.address == *address || (other.service == *service && other.address.is_ipv4() == address.is_ipv4())
    };
    let other = pool.reservations[..index].iter().find(is_same)?;
    Some(format!(
        "{} is already reserved for Service {}: reserve an address for one Service, and one address of each family for a \
         Service",
        other.address, other.service
    ))
}

struct OfServices<'s>(&'s Settings);

impl Kind for OfServices<'_> {
    fn of_range(&self, pool: usize, range: usize, say: &mut dyn FnMut(String)) {
        let pool = &self.0.pools[pool];
        let cidr = pool.cidrs[range];
        if let Some(reason) = outside(cidr, &self.0.service_cidrs) {
            say(reason);
        }
        // A range may also be for reservations only.
        if !pool.reservations.iter().any(|reservation| cidr.contains(&reservation.address))
            && self.0.candidates_in(pool, &[cidr], &[]).count() == 0
        {
            // Unusable ranges count as usable, because a range that is unusable for a while is not a mistake of the
            // settings.
            let reason = "has no usable address: all are network or broadcast address, reserved or excluded";
            say(format!("{cidr} {reason}"));
        }
    }

    fn covers(&self, pool: usize, other: usize) -> bool {
        self.0.pools[pool].matches.covers(&self.0.pools[other].matches)
    }
}

pub(super) fn warnings(settings: &Settings) -> Vec<Mistake> {
    let mut warnings = Vec::new();
    if !settings.pools.iter().any(|pool| pool.matches.node_labels.contains_key(OS_LABEL)) {
        return warnings;
    }
    let mut warn = |path: &str, reason: String| warnings.push(Mistake { path: path.into(), reason });
    if settings.when_full == WhenFull::Unmanaged {
        warn("services.whenFull", "unmanaged with pools by os: Kubernetes may pick an address of any pool".into());
    }
    let mut rest = Match::default();
    rest.node_labels.insert(OS_LABEL.into(), settings.assume_os.clone());
    if settings.unmatched == Unmatched::Unmanaged && !settings.pools.iter().any(|pool| pool.matches.covers(&rest)) {
        let reason = format!(
            "no pool matches Services without evidence (assumeOS {:?}): Kubernetes may pick an address of any pool",
            settings.assume_os
        );
        warn("services.pools", reason);
    }
    warnings
}

impl Match {
    /// Whether it certainly matches everything that `other` matches: each of its conditions follows from a condition of
    /// `other`. Selectors are compared for equality only.
    fn covers(&self, other: &Self) -> bool {
        // The namespaces first: of many pools, most are for different namespaces.
        self.scope.covers(&other.scope)
            && self.node_labels.iter().all(|(key, value)| other.node_labels.get(key) == Some(value))
    }
}

impl AdmissionScope {
    fn covers(&self, other: &Self) -> bool {
        let namespaces = self.namespaces.is_empty()
            || (!other.namespaces.is_empty() && other.namespaces.iter().all(|name| self.namespaces.contains(name)));
        let follows = |mine: &LabelSelector, theirs| mine.is_empty() || mine == theirs;
        namespaces
            && follows(&self.namespace_selector, &other.namespace_selector)
            && follows(&self.service_selector, &other.service_selector)
    }
}

/// Whether the API server would refuse addresses of `cidr`, because the range lies in none of these Service ranges.
/// Without Service ranges this is unknown, and `cidr` does not lie outside.
pub fn is_outside_service_ranges(cidr: IpNet, service_cidrs: &[IpNet]) -> bool {
    !service_cidrs.is_empty() && !service_cidrs.iter().any(|range| range.contains(&cidr))
}

/// What a mistake says about a range outside of `serviceCIDRs`.
const OUTSIDE: &str = "lies outside serviceCIDRs";

/// Mistakes of settings whose `serviceCIDRs` the host has filled in from the cluster, in the words of a user who did
/// not write that field.
pub fn with_ranges_of_cluster(mistakes: &str) -> String {
    mistakes.replace(OUTSIDE, "lies outside of the Service ranges of the cluster")
}

fn outside(cidr: IpNet, service_cidrs: &[IpNet]) -> Option<String> {
    if !is_outside_service_ranges(cidr, service_cidrs) {
        return None;
    }
    let ranges: Vec<String> = service_cidrs.iter().map(ToString::to_string).collect();
    Some(format!("{cidr} {OUTSIDE} ({}): the API server would refuse its addresses", ranges.join(", ")))
}
