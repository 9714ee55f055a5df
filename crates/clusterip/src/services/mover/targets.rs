//! Target addresses for a Service whose move is under way: [`Targets`] chooses and checks them, and an `Attempt` writes one
//! of them, and knows which one is next if it is refused.

use std::net::IpAddr;
use std::time::Duration;

use clusterip_cluster::background;
use clusterip_cluster::evaluator::{Evaluation, Evaluator};
use clusterip_cluster::lookups::snapshot::StoredEndpoints;
use clusterip_cluster::object::namespace;
use clusterip_cluster::watch::stores::Stores;
use clusterip_core::address::parse_address;
use clusterip_core::annotations::Moving;
use clusterip_core::external::stored;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::addresses as service_addresses;
use clusterip_moves::journal::{Journal, ReleaseMethod};
use clusterip_moves::outcome::shown;
use clusterip_moves::step::{TargetAddresses, Without};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};

use crate::services::{endpoints, misplaced};

/// Chooses and checks the target addresses of one Service.
pub trait Targets: Send + Sync {
    /// Other addresses for the Service, as in [`MoveOrder::addresses`](super::MoveOrder::addresses), without any
    /// that is in `refused`; `None` if there are no such addresses.
    fn another<'a>(&'a self, refused: &'a [IpAddr]) -> BoxFuture<'a, Option<Vec<IpAddr>>>;

    /// Whether the policy still gives the Service these addresses, which are the target of a recorded move.
    fn fits<'a>(&'a self, addresses: &'a [IpAddr]) -> BoxFuture<'a, bool>;

    /// Asks the policy about the Service as a resumed move would restore it, with its addresses and external
    /// addresses. The settings may have changed since the move began.
    fn check_with_policy<'a>(&'a self, service: &'a Value) -> BoxFuture<'a, Result<(), String>>;

    /// Whether the Service, as it was before its move, can be reached at its addresses, if it has these EndpointSlices.
    fn is_reachable(&self, slices: &[Value]) -> bool;

    /// Whether the mover may restore this `status.loadBalancer`. A status with an address of an external pool is
    /// written only by the controller of external addresses.
    fn may_show(&self, status: &Map<String, Value>) -> bool;

    /// Those of `addresses` that other Services show or have. `service` is the Service as it was just stored: what is
    /// not known as of then counts as theirs.
    fn of_others<'a>(&'a self, service: &'a Value, addresses: &'a [IpAddr]) -> BoxFuture<'a, Vec<IpAddr>>;
}

/// How long to wait until the watch of Services has shown the last write of a move.
const SEEN_WITHIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Asks the policy for other addresses for a Service that is being moved. Each address is reserved until the move has
/// ended. The policy is asked on a background thread, because a move must neither block the runtime nor delay
/// admission.
pub struct Alternatives {
    evaluator: Evaluator,
    /// The Service as it was before its move.
    service: Value,
    /// The evaluations that reserved the addresses.
    evaluations: Mutex<Vec<Evaluation>>,
}

impl Alternatives {
    /// Targets for this Service, as `evaluator` chooses them.
    pub fn new(evaluator: &Evaluator, service: &Value) -> Self {
        Self { evaluator: evaluator.clone(), service: service.clone(), evaluations: Mutex::default() }
    }
}

impl Targets for Alternatives {
    fn another<'a>(&'a self, refused: &'a [IpAddr]) -> BoxFuture<'a, Option<Vec<IpAddr>>> {
        let (evaluator, service) = (self.evaluator.clone(), self.service.clone());
        let namespace = namespace(&service).to_owned();
        Box::pin(async move {
            // A refused address is reserved, or seen in use, so the policy does not choose it again. If the policy
            // still does, there is no other address.
            let asked =
                background::run(&namespace, move || misplaced::reserve_targets(&evaluator, &service).ok()).await;
            let (addresses, evaluation) = asked.ok()??;
            self.evaluations.lock().push(evaluation);
            let new = !addresses.iter().any(|address| refused.contains(address));
            new.then_some(addresses)
        })
    }

    fn fits<'a>(&'a self, addresses: &'a [IpAddr]) -> BoxFuture<'a, bool> {
        let (evaluator, service, addresses) = (self.evaluator.clone(), self.service.clone(), addresses.to_vec());
        let namespace = namespace(&service).to_owned();
        let ask = background::run(&namespace, move || misplaced::may_have(&evaluator, &service, &addresses));
        Box::pin(async move { ask.await.unwrap_or_default() })
    }

    fn check_with_policy<'a>(&'a self, service: &'a Value) -> BoxFuture<'a, Result<(), String>> {
        let (evaluator, service) = (self.evaluator.clone(), service.clone());
        let namespace = namespace(&service).to_owned();
        let ask = background::run(&namespace, move || misplaced::check_with_policy(&evaluator, &service));
        Box::pin(async move { ask.await.map_err(|error| error.to_string())? })
    }

    fn is_reachable(&self, slices: &[Value]) -> bool {
        let settings = self.evaluator.settings();
        let slices: Vec<StoredEndpoints> = slices.iter().map(StoredEndpoints::read).collect();
        endpoints::of(&slices, self.evaluator.stores(), &settings.settings, &self.service).reachable > 0
    }

    fn may_show(&self, status: &Map<String, Value>) -> bool {
        let settings = self.evaluator.settings();
        let shown = stored::shown(status.get("ingress"));
        !shown.into_iter().any(|address| settings.settings.external.pool_of(address).is_some())
    }

    fn of_others<'a>(&'a self, service: &'a Value, addresses: &'a [IpAddr]) -> BoxFuture<'a, Vec<IpAddr>> {
        let (stores, key) = (self.evaluator.stores(), ServiceKey::of(service));
        Box::pin(async move {
            // The watch shows all Services in the order in which they were written. So it has shown what the others got
            // before the last write of this Service.
            // Before its release, it may have had the same address, but not the marker.
            let is_seen = || {
                let seen = stores.service(&key);
                seen.is_some_and(|seen| Moving::is_on(&seen) && service_addresses(&seen) == service_addresses(service))
            };
            let since = Instant::now();
            while !is_seen() {
                if since.elapsed() > SEEN_WITHIN {
                    return addresses.to_vec();
                }
                sleep(LOOK_AGAIN).await;
            }
            addresses.iter().copied().filter(|address| is_of_another(stores, &key, *address)).collect()
        })
    }
}

/// Whether a Service other than that at `key` shows this address, or has it in a field that kube-proxy acts on. A
/// request for the address does not count: with `spec.loadBalancerIP` or an annotation, any user could keep the status
/// of another user's Service empty.
fn is_of_another(stores: &Stores, key: &ServiceKey, address: IpAddr) -> bool {
    let candidates: Vec<ServiceKey> = {
        let snapshot = stores.read_snapshot();
        if snapshot.ip_addresses().contains(&address) {
            return true;
        }
        let holders = snapshot.external_addresses().filter(|(other, held)| *other != key && held.contains(&address));
        holders.map(|(other, _)| other.clone()).collect()
    };
    candidates.iter().filter_map(|other| stores.service(other)).any(|other| {
        let external_ips = other.pointer("/spec/externalIPs").and_then(Value::as_array).into_iter().flatten();
        let external_ips = external_ips.filter_map(|text| parse_address(text.as_str()?));
        stored::shown(other.pointer("/status/loadBalancer/ingress"))
            .into_iter()
            .chain(external_ips)
            .any(|it| it == address)
    })
}

/// How many targets are tried while the Service has no address.
const MAX_TARGETS: usize = 5;

/// The current attempt to give a Service an address, and what earlier attempts found out.
pub(super) struct Attempt {
    pub(super) target: TargetAddresses,
    refused: Vec<IpAddr>,
    tried: usize,
    /// What went wrong so far, as text for the outcome.
    pub(super) notes: Vec<String>,
    /// When the wait for a node port began.
    waiting: Option<Instant>,
    /// What the Service does not get back.
    pub(super) without: Without,
}

impl Attempt {
    fn new(target: TargetAddresses, refused: Vec<IpAddr>) -> Self {
        let notes = refused.iter().map(|address| format!("{address} is taken")).collect();
        Self { target, refused, tried: 0, notes, waiting: None, without: Without::default() }
    }

    /// The first attempt: at the addresses in the journal, if this process `ordered` them or the policy still gives
    /// them to the Service; otherwise at another target, and without one at the old addresses.
    pub(super) async fn first(
        journal: &Journal,
        ordered: Option<&[IpAddr]>,
        refused: &[IpAddr],
        targets: &dyn Targets,
    ) -> Self {
        let to = journal.to.as_slice();
        let trusted = !to.is_empty() && (ordered == Some(to) || targets.fits(to).await);
        let found = if trusted { Some(to.to_vec()) } else { next_target(targets, &[], &journal.from).await };
        let target = match found {
            Some(to) => TargetAddresses::These(to),
            None => Self::old(journal, &[]),
        };
        let mut attempt = Self::new(target, refused.to_vec());
        if !trusted && !to.is_empty() {
            attempt.notes.push(format!("the policy does not give it {} any more", shown(to)));
        }
        attempt
    }

    /// The addresses of this attempt; empty if the API server picks them.
    pub(super) fn addresses(&self) -> &[IpAddr] {
        match &self.target {
            TargetAddresses::These(addresses) => addresses,
            TargetAddresses::AnyFree => &[],
        }
    }

    /// The old addresses; any address if there are no old ones, or if one of them was refused.
    fn old(journal: &Journal, refused: &[IpAddr]) -> TargetAddresses {
        match journal.from.is_empty() || journal.from.iter().any(|address| refused.contains(address)) {
            true => TargetAddresses::AnyFree,
            false => TargetAddresses::These(journal.from.clone()),
        }
    }

    /// Goes on to the next target after an address was refused. Returns `false` if there is nothing left to try.
    pub(super) async fn after_address(
        &mut self,
        journal: &Journal,
        which: Option<IpAddr>,
        reason: &str,
        targets: &dyn Targets,
    ) -> bool {
        let TargetAddresses::These(tried) = &self.target else { return false };
        self.notes.push(format!("{} is not available: {reason}", shown(tried)));
        // If the second address is refused, the API server keeps the first one allocated for about a minute, so both
        // are lost. The address that a single-stack Service kept is not allocated again, and so never refused.
        let stays = |address: &IpAddr| {
            journal.release_method == ReleaseMethod::SingleStack && journal.from.first() == Some(address)
        };
        let lost = if which.is_some() && which == tried.first().copied() { &tried[..1] } else { tried };
        self.refused.extend(lost.iter().filter(|address| !stays(address)));
        self.tried += 1;
        let next =
            if self.tried < MAX_TARGETS { next_target(targets, &self.refused, &journal.from).await } else { None };
        self.target = match next {
            Some(next) => TargetAddresses::These(next),
            None if *tried == journal.from => TargetAddresses::AnyFree,
            None => Self::old(journal, &self.refused),
        };
        true
    }

    /// Goes on to the old addresses after the new ones were forbidden. Returns `false` if there is nothing left to
    /// try.
    pub(super) fn after_refusal(&mut self, journal: &Journal, reason: &str) -> bool {
        let TargetAddresses::These(tried) = &self.target else { return false };
        self.notes.push(format!("{} was refused: {reason}", shown(tried)));
        self.target = match *tried == journal.from {
            true => TargetAddresses::AnyFree,
            false => Self::old(journal, &self.refused),
        };
        true
    }

    /// Goes on without the external addresses after the policy refused the Service, and if that was refused too, to
    /// the old addresses. Returns `false` if there is nothing left to try.
    pub(super) fn after_policy_refusal(&mut self, journal: &Journal, has_external: bool, reason: &str) -> bool {
        if has_external && !self.without.external {
            self.without.external = true;
            self.notes.push(format!("its external addresses were not restored: {reason}"));
            return true;
        }
        self.after_refusal(journal, reason)
    }

    /// Gives up a node port that was waited for long enough. Returns `false` if the wait goes on, or if the answer
    /// names no port that can be given up.
    pub(super) fn after_port(&mut self, which: Option<u64>, reason: &str, patience: Duration) -> bool {
        let since = *self.waiting.get_or_insert_with(Instant::now);
        if since.elapsed() < patience {
            return false;
        }
        match which.filter(|port| !self.without.ports.contains(port)) {
            Some(port) => {
                self.without.ports.push(port);
                self.notes.push(format!("node port {port} was replaced by another: {reason}"));
                true
            }
            None => false,
        }
    }
}

/// The next target that can be used: with the same address families, and without a refused address.
pub(super) async fn next_target(targets: &dyn Targets, refused: &[IpAddr], from: &[IpAddr]) -> Option<Vec<IpAddr>> {
    let next = targets.another(refused).await?;
    let fresh = !next.is_empty() && next.iter().all(|address| !refused.contains(address));
    (fresh && (from.is_empty() || same_families(from, &next))).then_some(next)
}

/// Whether both lists have the same address families, in the same order.
pub(super) fn same_families(one: &[IpAddr], other: &[IpAddr]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is_ipv4() == other.is_ipv4())
}
