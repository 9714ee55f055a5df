//! The ledger of addresses in flight.
//!
//! Between the answer to a request and the moment at which its Service is seen, an address is used but nothing in the
//! cluster shows it. The ledger closes that gap: the look-up that finds an address free reserves it in the same step,
//! so two evaluations never find the same address free.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clusterip_leases::owner::Owner;
use thiserror::Error;

/// How long an address is reserved for a Service that has not been seen. After the webhook has answered, a request may
/// take up to a minute in other webhooks and in the API server; then the watch has to deliver the Service.
pub const HELD_FOR: Duration = Duration::from_secs(65);

/// How many addresses of one family are reserved for one Service at most: this many ClusterIPs, and as many external
/// addresses. A client that tries again and again must not use up a pool, but neither of two parallel requests may lose
/// the address that it was given.
const MAX_PER_NAME: usize = 2;

/// How long a reservation is young after its evaluation. The Service of a young reservation is probably about to be
/// seen.
pub const YOUNG: Duration = Duration::from_secs(5);

/// A namespace has so many external addresses in flight that it gets no further one for now.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "namespace {namespace} has {held} external addresses of this pool in flight, of at most {most}; wait until its \
     Services are created"
)]
pub struct ShareExceeded {
    /// The name of the namespace.
    pub namespace: String,
    /// How many external addresses of the pool the namespace has reserved.
    pub held: usize,
    /// How many it may have reserved for a short time.
    pub most: usize,
}

/// How many addresses one namespace may reserve, and which addresses count: see [`Ledger::settle`].
pub struct Share<'a> {
    /// The largest number of reservations.
    pub most: usize,
    /// The largest number while reservations are young: when many Services are created at once, the request for each
    /// may still be in progress.
    pub burst: usize,
    /// Whether an address counts. The addresses of one pool and family count together.
    pub counts: Box<dyn Fn(IpAddr) -> bool + 'a>,
}

/// Returns the share that an address counts towards.
pub type Shares<'a> = &'a (dyn Fn(IpAddr) -> Share<'a> + 'a);

/// Who chose an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// The policy chose it.
    ByPolicy,
    /// The author of the request chose it.
    ByHand,
}

/// The reservations. Clones share one ledger.
#[derive(Clone)]
pub struct Ledger {
    held: Arc<Mutex<HashMap<IpAddr, Hold>>>,
    clock: Arc<dyn Fn() -> Instant + Send + Sync>,
}

struct Hold {
    owner: Owner,
    since: Instant,
    chosen: Chosen,
    /// Whether the address is an external one.
    external: bool,
    /// Whether the evaluation that reserved the address is still running.
    open: bool,
    /// How long the reservation lasts.
    lasts: Duration,
    /// Whether another replica gave the address away, as its claim says.
    elsewhere: bool,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::with_clock(Instant::now)
    }
}

impl Ledger {
    /// An empty ledger that takes the time from `clock`.
    pub fn with_clock(clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self { held: Arc::default(), clock: Arc::new(clock) }
    }

    /// Reserves an address for an evaluation if it is not reserved and `is_used` returns false. Both are checked in one
    /// step, so no other evaluation can get the address in between.
    pub fn hold(&self, address: IpAddr, owner: &Owner, is_used: impl FnOnce() -> bool) -> bool {
        let now = (self.clock)();
        Self::begin(&mut self.lock(), now, address, owner, false, is_used)
    }

    /// As [`Self::hold`], for an external address. The caller has checked that the address is not used.
    ///
    /// # Errors
    /// [`ShareExceeded`] if the namespace has too many reservations that can't be released. The API server does not
    /// notice that an external address is given twice, so a young reservation of one is never released.
    pub fn hold_external(&self, address: IpAddr, owner: &Owner, shares: Shares<'_>) -> Result<bool, ShareExceeded> {
        let now = (self.clock)();
        let mut ledger = self.lock();
        let (namespace, share) = (owner.namespace(), shares(address));
        let held = in_share(&ledger, namespace, &share, now).filter(|(_, hold)| !hold.is_releasable(now)).count();
        if held >= share.burst {
            return Err(ShareExceeded { namespace: namespace.to_owned(), held, most: share.burst });
        }
        Ok(Self::begin(&mut ledger, now, address, owner, true, || false))
    }

    fn begin(
        held: &mut HashMap<IpAddr, Hold>,
        now: Instant,
        address: IpAddr,
        owner: &Owner,
        external: bool,
        is_used: impl FnOnce() -> bool,
    ) -> bool {
        if held.get(&address).is_some_and(|hold| hold.lives(now)) || is_used() {
            return false;
        }
        held.insert(address, Hold { external, ..Hold::new(owner, now, Chosen::ByPolicy, true) });
        true
    }

    /// Whether this process has reserved the address and given it away.
    pub fn holds(&self, address: IpAddr) -> bool {
        let now = (self.clock)();
        self.lock().get(&address).is_some_and(|hold| hold.lives(now) && !hold.elsewhere)
    }

    /// Reserves an address that another replica has claimed for this long, unless it is reserved already.
    pub fn note_claimed(&self, address: IpAddr, owner: &Owner, lasts: Duration) {
        let now = (self.clock)();
        let mut ledger = self.lock();
        if !ledger.get(&address).is_some_and(|hold| hold.lives(now)) {
            let hold = Hold { elsewhere: true, lasts, ..Hold::new(owner, now, Chosen::ByPolicy, false) };
            ledger.insert(address, hold);
        }
    }

    /// Drops a reservation after the claim of another replica is gone.
    pub fn drop_claimed(&self, address: IpAddr) {
        let mut ledger = self.lock();
        if ledger.get(&address).is_some_and(|hold| hold.elsewhere) {
            ledger.remove(&address);
        }
    }

    /// As [`Self::hold`], without making a reservation.
    pub fn is_free(&self, address: IpAddr, is_used: impl FnOnce() -> bool) -> bool {
        let now = (self.clock)();
        let held = self.lock();
        !held.get(&address).is_some_and(|hold| hold.lives(now)) && !is_used()
    }

    /// Ends an evaluation that reserved the addresses `held`: those in `used` stay reserved until they are seen, the
    /// others are released.
    ///
    /// A namespace that now has more reservations than its share of a pool loses the oldest of them; their addresses
    /// are returned. [Young](YOUNG) reservations are released only if they exceed [`Share::burst`], and young
    /// reservations of external addresses not even then. The reservations of running evaluations and of other replicas
    /// count, but they are never released, and neither are those in `used`.
    pub fn settle(&self, owner: &Owner, held: &[IpAddr], used: &[IpAddr], shares: Shares<'_>) -> Vec<IpAddr> {
        let now = (self.clock)();
        let mut ledger = self.lock();
        for address in held {
            if !used.contains(address) {
                ledger.remove(address);
            } else if let Some(hold) = ledger.get_mut(address) {
                hold.open = false;
                hold.since = now;
            }
        }
        let mut released = Vec::new();
        for address in used {
            released.extend(drop_oldest(&mut ledger, owner, *address, now));
            if ledger.contains_key(address) {
                released.extend(enforce_share(&mut ledger, owner.namespace(), used, &shares(*address), now));
            }
        }
        released
    }

    /// Reserves an address that the author of a request chose, unless it is reserved already, so that no other Service
    /// gets it meanwhile. It counts towards the share of the namespace, as in [`Self::settle`]. Returns the addresses
    /// whose reservations were released.
    pub fn note_chosen_by_hand(&self, address: IpAddr, owner: &Owner, shares: Shares<'_>) -> Vec<IpAddr> {
        let now = (self.clock)();
        let mut ledger = self.lock();
        if ledger.get(&address).is_some_and(|hold| hold.lives(now)) {
            return Vec::new();
        }
        ledger.insert(address, Hold::new(owner, now, Chosen::ByHand, false));
        let mut released = drop_oldest(&mut ledger, owner, address, now);
        released.extend(enforce_share(&mut ledger, owner.namespace(), &[address], &shares(address), now));
        released
    }

    /// Whether the policy chose this address for the Service with this namespace and name. A request that contains such
    /// an address was reviewed before: the API server calls the webhook again after other webhooks, with another UID.
    /// If the name is not generated yet, any request of that kind in the namespace may have been the first one.
    pub fn is_ours(&self, address: IpAddr, namespace: &str, name: &str) -> bool {
        let now = (self.clock)();
        let ledger = self.lock();
        ledger.get(&address).is_some_and(|hold| {
            hold.lives(now) && hold.chosen == Chosen::ByPolicy && hold.owner.id() == (namespace, name)
        })
    }

    /// Releases addresses that will not be used.
    pub fn release(&self, addresses: &[IpAddr]) {
        let mut ledger = self.lock();
        for address in addresses {
            ledger.remove(address);
        }
    }

    /// Ends the reservation of an address after a Service or an `IPAddress` with it was seen: from now on the cluster
    /// shows it.
    pub fn seen(&self, address: IpAddr) {
        let mut ledger = self.lock();
        if ledger.get(&address).is_some_and(|hold| !hold.open) {
            ledger.remove(&address);
        }
    }

    /// All reserved addresses with their owners, ordered by address.
    pub fn held(&self) -> Vec<(IpAddr, Owner)> {
        let now = (self.clock)();
        let mut ledger = self.lock();
        ledger.retain(|_, hold| hold.lives(now));
        let mut held: Vec<_> = ledger.iter().map(|(address, hold)| (*address, hold.owner.clone())).collect();
        held.sort_unstable_by_key(|(address, _)| *address);
        held
    }

    /// How many addresses are reserved.
    pub fn len(&self) -> usize {
        let now = (self.clock)();
        let mut ledger = self.lock();
        ledger.retain(|_, hold| hold.lives(now));
        ledger.len()
    }

    /// Whether no address is reserved.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Hold>> {
        // Every change is a single step, so a panic leaves nothing half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    fn new(owner: &Owner, since: Instant, chosen: Chosen, open: bool) -> Self {
        Self { owner: owner.clone(), since, chosen, external: false, open, lasts: HELD_FOR, elsewhere: false }
    }

    /// Whether the Service has had time to be seen, so that the reservation may be released.
    fn is_releasable(&self, now: Instant) -> bool {
        !self.open && !self.elsewhere && now.saturating_duration_since(self.since) >= YOUNG
    }

    fn lives(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < self.lasts
    }
}

/// Keeps the newest reservations of an owner that are of the same family as `address` and external or not like it.
/// Reservations of running evaluations don't count. Young reservations of external addresses stay: a review that names
/// the Service of another tenant must not take away the address that was just given to it. Returns the released
/// addresses.
fn drop_oldest(ledger: &mut HashMap<IpAddr, Hold>, owner: &Owner, address: IpAddr, now: Instant) -> Vec<IpAddr> {
    let Some(external) = ledger.get(&address).map(|hold| hold.external) else { return Vec::new() };
    let is_alike = |other: &IpAddr, hold: &Hold| other.is_ipv4() == address.is_ipv4() && hold.external == external;
    let mut its: Vec<(Instant, IpAddr)> = ledger
        .iter()
        .filter(|(other, hold)| is_alike(other, hold) && !hold.open && !hold.elsewhere && hold.owner == *owner)
        .map(|(address, hold)| (hold.since, *address))
        .collect();
    its.sort_unstable_by(|a, b| b.cmp(a));
    let may_go = |address: &IpAddr| !external || ledger.get(address).is_none_or(|hold| hold.is_releasable(now));
    let oldest = its.into_iter().skip(MAX_PER_NAME).map(|(_, address)| address);
    let dropped: Vec<IpAddr> = oldest.filter(may_go).collect();
    for address in &dropped {
        ledger.remove(address);
    }
    dropped
}

/// The reservations of a namespace that count towards a share.
fn in_share<'l>(
    ledger: &'l HashMap<IpAddr, Hold>,
    namespace: &'l str,
    share: &'l Share<'_>,
    now: Instant,
) -> impl Iterator<Item = (&'l IpAddr, &'l Hold)> {
    ledger.iter().filter(move |(address, hold)| {
        hold.owner.namespace() == namespace && hold.lives(now) && (share.counts)(**address)
    })
}

/// Releases the oldest reservations of a namespace until it has no more than its share, but never those in `kept`.
/// Returns the released addresses.
fn enforce_share(
    ledger: &mut HashMap<IpAddr, Hold>,
    namespace: &str,
    kept: &[IpAddr],
    share: &Share<'_>,
    now: Instant,
) -> Vec<IpAddr> {
    let held = in_share(ledger, namespace, share, now).count();
    if held <= share.most {
        return Vec::new();
    }
    let settled = in_share(ledger, namespace, share, now)
        .filter(|(address, hold)| !hold.open && !hold.elsewhere && !kept.contains(address));
    let mut settled: Vec<(Instant, IpAddr, bool, bool)> =
        settled.map(|(address, hold)| (hold.since, *address, hold.is_releasable(now), hold.external)).collect();
    settled.sort_unstable();
    let mut released = Vec::new();
    for (_, address, is_releasable, external) in settled {
        let left = held - released.len();
        if left > share.most && (is_releasable || (left > share.burst && !external)) {
            ledger.remove(&address);
            released.push(address);
        }
    }
    released
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
