//! The ledger of addresses in flight.
//!
//! Between the answer to a request and the moment at which its Service is seen, an address is used but nothing in the
//! cluster shows it. The ledger closes that gap: the look-up that finds an address free reserves it in the same step,
//! so two evaluations never find the same address free.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clusterip_core::address::Family;
use clusterip_core::settings::Settings;
use clusterip_failover::claims::Owner;
use thiserror::Error;

/// How long an address is reserved for a Service that has not been seen. After the webhook has answered, a request may
/// take up to a minute in other webhooks and in the API server; then the watch has to deliver the Service.
pub const RESERVATION_TIME: Duration = Duration::from_secs(65);

/// The most addresses of one family that are reserved for one Service: this many ClusterIPs, and as many external
/// addresses. A client that tries again and again must not use up a pool, but neither of two parallel requests may lose
/// the address that it was given.
const MAX_PER_SERVICE: usize = 2;

/// How long a reservation is young after its evaluation. The Service of a young reservation is probably about to be
/// seen.
pub const YOUNG_TIME: Duration = Duration::from_secs(5);

/// The divisor of a share: a namespace may reserve a quarter of the usable addresses of a pool and family.
const SHARE_DIVISOR: u128 = 4;
/// The smallest share of a pool that is large enough. In a smaller pool, the share is at most half of the usable
/// addresses.
const MIN_SHARE_OF_LARGE_POOL: u128 = 8;
/// The smallest share of all: of two requests for one Service, neither may lose its address.
const MIN_SHARE: u128 = 2;
/// The largest share: each reservation takes memory, and an IPv6 pool has practically unlimited addresses.
const MAX_SHARE: u128 = 1024;

/// A namespace has so many external addresses in flight that it gets no further one for now.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "namespace {namespace} has {reserved} external addresses of this pool in flight, of at most {max}; wait until its \
     Services are created"
)]
pub struct ShareExceeded {
    /// The name of the namespace.
    pub namespace: String,
    /// How many external addresses of the pool the namespace has reserved.
    pub reserved: usize,
    /// How many the namespace may have reserved for a short time, see [`NamespaceShare::burst`].
    pub max: usize,
}

/// How many addresses one namespace may reserve, and which addresses count: see [`Ledger::commit`].
pub struct NamespaceShare<'a> {
    /// The largest number of reservations.
    pub max: usize,
    /// The largest number while reservations are young: when many Services are created at once, the request for each
    /// may still be in progress.
    pub burst: usize,
    /// Whether an address counts. The addresses of one pool and family count together.
    pub counts: Box<dyn Fn(IpAddr) -> bool + 'a>,
}

impl<'a> NamespaceShare<'a> {
    /// The share of `namespace` that `address` counts towards: that of its pool and family. The addresses
    /// of a family that no pool contains count together.
    pub fn of(settings: &'a Settings, address: IpAddr, namespace: &str) -> Self {
        let family = Family::of(address);
        if let Some(pool) = settings.pool_of(address) {
            let usable = settings.candidates(pool, family).count();
            // No other namespace needs a pool that is for this one only.
            let is_own = pool.matches.scope.namespaces == [namespace];
            let (max, burst) = if is_own { (bounded(usable), bounded(usable)) } else { part(usable) };
            return Self {
                max,
                burst,
                counts: Box::new(move |other| Family::of(other) == family && pool.contains(other)),
            };
        }
        if let Some(pool) = settings.external.pool_of(address) {
            let (max, burst) = part(pool.candidates(family).count());
            return Self {
                max,
                burst,
                counts: Box::new(move |other| Family::of(other) == family && pool.contains(other)),
            };
        }
        let in_no_pool = move |other: IpAddr| {
            Family::of(other) == family
                && settings.pool_of(other).is_none()
                && settings.external.pool_of(other).is_none()
        };
        let (max, burst) = part(settings.candidates(&settings.outside_of_pools(), family).count());
        Self { max, burst, counts: Box::new(in_no_pool) }
    }
}

/// The share, and the share for a short time: half of the usable addresses.
fn part(usable: u128) -> (usize, usize) {
    let half = usable.div_ceil(2);
    (bounded((usable / SHARE_DIVISOR).max(MIN_SHARE_OF_LARGE_POOL).min(half)), bounded(half))
}

fn bounded(max: u128) -> usize {
    usize::try_from(max.clamp(MIN_SHARE, MAX_SHARE)).unwrap_or(usize::MAX)
}

/// Returns the share that an address counts towards.
pub type Shares<'a> = &'a (dyn Fn(IpAddr) -> NamespaceShare<'a> + 'a);

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
    reservations: Arc<Mutex<HashMap<IpAddr, Reservation>>>,
    clock: Arc<dyn Fn() -> Instant + Send + Sync>,
}

struct Reservation {
    owner: Owner,
    since: Instant,
    chosen: Chosen,
    /// Whether the address is an external one.
    external: bool,
    /// Whether the evaluation that reserved the address is still running.
    in_evaluation: bool,
    /// How long the reservation lasts.
    duration: Duration,
    /// Whether another replica reserved the address, as its claim says.
    by_other_replica: bool,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::with_clock(Instant::now)
    }
}

impl Ledger {
    /// An empty ledger that takes the time from `clock`.
    pub fn with_clock(clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self { reservations: Arc::default(), clock: Arc::new(clock) }
    }

    /// Reserves an address for an evaluation if it is not reserved and `is_used` returns false. `is_used` is asked while
    /// the address is reserved, so no other evaluation can get the address in between. The ledger is not locked then:
    /// `is_used` takes a lock of its own, and a thread that holds that one may ask the ledger.
    pub fn reserve(&self, address: IpAddr, owner: &Owner, is_used: impl FnOnce() -> bool) -> bool {
        let now = (self.clock)();
        if !Self::insert_if_free(&mut self.lock(), now, address, owner, false) {
            return false;
        }
        let used = is_used();
        if used {
            self.release(&[address], owner);
        }
        !used
    }

    /// As [`Self::reserve`], for an external address. The caller has checked that the address is not used.
    ///
    /// # Errors
    /// [`ShareExceeded`] if the namespace has too many reservations that can't be released. The API server does not
    /// notice that an external address is given twice, so a young reservation of one is never released.
    pub fn reserve_external(&self, address: IpAddr, owner: &Owner, shares: Shares<'_>) -> Result<bool, ShareExceeded> {
        let now = (self.clock)();
        let mut ledger = self.lock();
        let (namespace, share) = (owner.namespace(), shares(address));
        let reserved = in_share(&ledger, namespace, &share, now)
            .filter(|(_, reservation)| !reservation.is_releasable(now))
            .count();
        if reserved >= share.burst {
            return Err(ShareExceeded { namespace: namespace.to_owned(), reserved, max: share.burst });
        }
        Ok(Self::insert_if_free(&mut ledger, now, address, owner, true))
    }

    fn insert_if_free(
        ledger: &mut HashMap<IpAddr, Reservation>,
        now: Instant,
        address: IpAddr,
        owner: &Owner,
        external: bool,
    ) -> bool {
        if ledger.get(&address).is_some_and(|reservation| reservation.is_active(now)) {
            return false;
        }
        ledger.insert(address, Reservation { external, ..Reservation::new(owner, now, Chosen::ByPolicy, true) });
        true
    }

    /// Whether the address is reserved, and by this process rather than by another replica.
    pub fn is_reserved_here(&self, address: IpAddr) -> bool {
        self.active(address, |reservation| !reservation.by_other_replica)
    }

    /// Whether the address is reserved for this owner, by this process or by another replica.
    pub fn is_reserved_for(&self, address: IpAddr, owner: &Owner) -> bool {
        self.active(address, |reservation| reservation.owner == *owner)
    }

    /// Reserves an address that another replica has claimed for this long, unless it is reserved already.
    pub fn reserve_claimed(&self, address: IpAddr, owner: &Owner, duration: Duration) {
        let now = (self.clock)();
        let mut ledger = self.lock();
        if !ledger.get(&address).is_some_and(|reservation| reservation.is_active(now)) {
            let reservation = Reservation {
                by_other_replica: true,
                duration,
                ..Reservation::new(owner, now, Chosen::ByPolicy, false)
            };
            insert(&mut ledger, now, address, reservation);
        }
    }

    /// Releases a reservation after the claim of another replica is gone.
    pub fn release_claimed(&self, address: IpAddr) {
        let mut ledger = self.lock();
        if ledger.get(&address).is_some_and(|reservation| reservation.by_other_replica) {
            ledger.remove(&address);
        }
    }

    /// As [`Self::reserve`], without making a reservation.
    pub fn is_free(&self, address: IpAddr, is_used: impl FnOnce() -> bool) -> bool {
        !self.active(address, |_| true) && !is_used()
    }

    /// Ends an evaluation that reserved the addresses `reserved`. Those in `used` stay reserved until they are seen,
    /// as long as new ones, also if another request of the Service reserved them. The others are released.
    ///
    /// A namespace that now has more reservations than its share of a pool loses the oldest of them; their addresses
    /// are returned. [Young](YOUNG_TIME) reservations are released only if they exceed [`NamespaceShare::burst`], and
    /// young reservations of external addresses not even then. The reservations of running evaluations and of other
    /// replicas count, but they are never released. The same holds for those in `used`.
    pub fn commit(&self, owner: &Owner, reserved: &[IpAddr], used: &[IpAddr], shares: Shares<'_>) -> Vec<IpAddr> {
        let now = (self.clock)();
        let mut ledger = self.lock();
        for address in reserved.iter().filter(|address| !used.contains(address)) {
            // Another request of the Service may use the address.
            if ledger.get(address).is_some_and(|reservation| reservation.in_evaluation) {
                ledger.remove(address);
            }
        }
        let mut released = Vec::new();
        for address in used {
            // An earlier request of the Service may have reserved the address.
            if let Some(reservation) = ledger.get_mut(address).filter(|it| it.owner.id() == owner.id()) {
                reservation.in_evaluation = false;
                reservation.since = now;
            }
            released.extend(release_oldest(&mut ledger, owner, *address, now));
            if ledger.contains_key(address) {
                released.extend(enforce_share(&mut ledger, owner.namespace(), used, &shares(*address), now));
            }
        }
        ledger.retain(|_, reservation| reservation.is_active(now));
        released
    }

    /// Reserves an address that the author of a request chose, unless it is reserved already, so that no other Service
    /// gets it meanwhile. It counts towards the share of the namespace, as in [`Self::commit`]. Returns the addresses
    /// whose reservations were released.
    pub fn reserve_chosen_by_hand(&self, address: IpAddr, owner: &Owner, shares: Shares<'_>) -> Vec<IpAddr> {
        let now = (self.clock)();
        let mut ledger = self.lock();
        if ledger.get(&address).is_some_and(|reservation| reservation.is_active(now)) {
            return Vec::new();
        }
        insert(&mut ledger, now, address, Reservation::new(owner, now, Chosen::ByHand, false));
        let mut released = release_oldest(&mut ledger, owner, address, now);
        released.extend(enforce_share(&mut ledger, owner.namespace(), &[address], &shares(address), now));
        released
    }

    /// Whether the policy chose this address for the Service with this namespace and name. A request that contains such
    /// an address was reviewed before: the API server calls the webhook again after other webhooks, with another UID.
    /// If the name is not generated yet, any request without a name in the namespace may have been the first one.
    pub fn is_chosen_for(&self, address: IpAddr, namespace: &str, name: &str) -> bool {
        self.active(address, |reservation| {
            reservation.chosen == Chosen::ByPolicy && reservation.owner.id() == (namespace, name)
        })
    }

    /// Releases those of the addresses that are reserved for the Service of `owner`, which will not use them.
    pub fn release(&self, addresses: &[IpAddr], owner: &Owner) {
        let mut ledger = self.lock();
        for address in addresses {
            if ledger.get(address).is_some_and(|reservation| reservation.owner.id() == owner.id()) {
                ledger.remove(address);
            }
        }
    }

    /// Ends the reservation of an address after a Service or an `IPAddress` with it was seen: from now on the cluster
    /// shows it.
    pub fn mark_seen(&self, address: IpAddr) {
        let mut ledger = self.lock();
        if ledger.get(&address).is_some_and(|reservation| !reservation.in_evaluation) {
            ledger.remove(&address);
        }
    }

    /// The owner of a reserved address; `None` if it is not reserved.
    pub fn owner(&self, address: IpAddr) -> Option<Owner> {
        let now = (self.clock)();
        self.lock().get(&address).filter(|reservation| reservation.is_active(now)).map(|it| it.owner.clone())
    }

    /// All reserved addresses with their owners, ordered by address.
    pub fn reservations(&self) -> Vec<(IpAddr, Owner)> {
        let now = (self.clock)();
        let mut ledger = self.lock();
        ledger.retain(|_, reservation| reservation.is_active(now));
        let mut reservations: Vec<_> =
            ledger.iter().map(|(address, reservation)| (*address, reservation.owner.clone())).collect();
        reservations.sort_unstable_by_key(|(address, _)| *address);
        reservations
    }

    /// Whether there is an active reservation like this of the address.
    fn active(&self, address: IpAddr, is_it: impl FnOnce(&Reservation) -> bool) -> bool {
        let now = (self.clock)();
        self.lock().get(&address).is_some_and(|reservation| reservation.is_active(now) && is_it(reservation))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Reservation>> {
        // Every change is a single step, so a panic leaves nothing half done.
        self.reservations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    fn new(owner: &Owner, since: Instant, chosen: Chosen, in_evaluation: bool) -> Self {
        Self {
            owner: owner.clone(),
            since,
            chosen,
            external: false,
            in_evaluation,
            duration: RESERVATION_TIME,
            by_other_replica: false,
        }
    }

    /// Whether the Service has had time to be seen, so that the reservation may be released.
    fn is_releasable(&self, now: Instant) -> bool {
        !self.in_evaluation && !self.by_other_replica && now.saturating_duration_since(self.since) >= YOUNG_TIME
    }

    fn is_active(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < self.duration
    }
}

/// Adds a reservation, and removes all that have ended: nothing else may look at them for a long time.
fn insert(ledger: &mut HashMap<IpAddr, Reservation>, now: Instant, address: IpAddr, reservation: Reservation) {
    ledger.retain(|_, reservation| reservation.is_active(now));
    ledger.insert(address, reservation);
}

/// Keeps the newest reservations of an owner, among those for addresses of the same family as `address`; external
/// addresses and ClusterIPs count separately. Reservations of running evaluations don't count. Young reservations of
/// external addresses stay: a review that names the Service of another tenant must not take away the address that was
/// just given to that Service. Returns the released addresses.
fn release_oldest(
    ledger: &mut HashMap<IpAddr, Reservation>,
    owner: &Owner,
    address: IpAddr,
    now: Instant,
) -> Vec<IpAddr> {
    let Some(external) = ledger.get(&address).map(|reservation| reservation.external) else { return Vec::new() };
    let is_alike = |other: &IpAddr, reservation: &Reservation| {
        other.is_ipv4() == address.is_ipv4() && reservation.external == external
    };
    let mut own: Vec<(Instant, IpAddr)> = ledger
        .iter()
        .filter(|(other, reservation)| {
            is_alike(other, reservation)
                && !reservation.in_evaluation
                && !reservation.by_other_replica
                && reservation.owner == *owner
        })
        .map(|(address, reservation)| (reservation.since, *address))
        .collect();
    own.sort_unstable_by(|a, b| b.cmp(a));
    let may_be_released =
        |address: &IpAddr| !external || ledger.get(address).is_none_or(|reservation| reservation.is_releasable(now));
    let oldest = own.into_iter().skip(MAX_PER_SERVICE).map(|(_, address)| address);
    let released: Vec<IpAddr> = oldest.filter(may_be_released).collect();
    for address in &released {
        ledger.remove(address);
    }
    released
}

/// The reservations of a namespace that count towards a share.
fn in_share<'l>(
    ledger: &'l HashMap<IpAddr, Reservation>,
    namespace: &'l str,
    share: &'l NamespaceShare<'_>,
    now: Instant,
) -> impl Iterator<Item = (&'l IpAddr, &'l Reservation)> {
    ledger.iter().filter(move |(address, reservation)| {
        reservation.owner.namespace() == namespace && reservation.is_active(now) && (share.counts)(**address)
    })
}

/// Releases the oldest reservations of a namespace until it has no more than its share, but never those in `kept`.
/// Returns the released addresses.
fn enforce_share(
    ledger: &mut HashMap<IpAddr, Reservation>,
    namespace: &str,
    kept: &[IpAddr],
    share: &NamespaceShare<'_>,
    now: Instant,
) -> Vec<IpAddr> {
    let reserved = in_share(ledger, namespace, share, now).count();
    if reserved <= share.max {
        return Vec::new();
    }
    let committed = in_share(ledger, namespace, share, now).filter(|(address, reservation)| {
        !reservation.in_evaluation && !reservation.by_other_replica && !kept.contains(address)
    });
    let mut committed: Vec<(Instant, IpAddr, bool, bool)> = committed
        .map(|(address, reservation)| {
            (reservation.since, *address, reservation.is_releasable(now), reservation.external)
        })
        .collect();
    committed.sort_unstable();
    let mut released = Vec::new();
    for (_, address, is_releasable, external) in committed {
        let left = reserved - released.len();
        if left > share.max && (is_releasable || (left > share.burst && !external)) {
            ledger.remove(&address);
            released.push(address);
        }
    }
    released
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
