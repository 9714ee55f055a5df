//! The ledger of addresses in flight.
//!
//! Between the answer to a request and the moment at which its Service is seen, an address is used but nothing in the
//! cluster shows it. The ledger closes that gap: the look-up that finds an address free reserves it in the same step,
//! so two evaluations never find the same address free.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clusterip_core::address::Family;
use clusterip_core::external::claim::in_use;
use clusterip_core::service::addresses;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_failover::claims::Owner;
use parking_lot::Mutex;
use serde_json::Value;

use crate::object;

/// How long an address is reserved for a Service that has not been seen. After the webhook has answered, a request may
/// take up to a minute in other webhooks and in the API server; then the watch has to deliver the Service.
pub const RESERVATION_TIME: Duration = Duration::from_secs(65);

/// Of ClusterIPs of one family. A client that tries again and again must not use up a pool, but neither of two parallel
/// requests may lose the address that it was given.
const MAX_PER_SERVICE: usize = 2;

/// The Service of a young reservation is probably about to be seen.
pub const YOUNG_TIME: Duration = Duration::from_secs(5);

/// A namespace may reserve a quarter of the usable addresses of a pool and family.
const SHARE_DIVISOR: u128 = 4;
/// In a smaller pool, the share is at most half of the usable addresses.
const MIN_SHARE_OF_LARGE_POOL: u128 = 8;
/// The smallest share of all: of two requests for one Service, neither may lose its address.
const MIN_SHARE: u128 = 2;
/// The largest share: each reservation takes memory, and an IPv6 pool has practically unlimited addresses.
const MAX_SHARE: u128 = 1024;

/// How many addresses one namespace may reserve, and which addresses count: see [`Ledger::commit`].
pub struct NamespaceShare<'a> {
    pub max: usize,
    /// The largest number while reservations are young: when many Services are created at once, the request for each
    /// may still be in progress.
    pub burst: usize,
    /// Whether an address counts. The addresses of one pool and family count together.
    pub counts: Box<dyn Fn(IpAddr) -> bool + 'a>,
}

impl<'a> NamespaceShare<'a> {
    /// The share that `address` counts towards: that of its pool and family, or of all addresses in no pool.
    pub fn of(settings: &'a Settings, address: IpAddr, namespace: &str) -> Self {
        type Counts<'a> = Box<dyn Fn(IpAddr) -> bool + 'a>;
        let family = Family::of(address);
        let mut is_own = false;
        let (usable, is_alike): (u128, Counts<'a>) = if let Some(pool) = settings.pool_of(address) {
            // No other namespace needs a pool that is for this one only.
            is_own = pool.matches.scope.namespaces == [namespace];
            (settings.candidates(pool, family).count(), Box::new(|other| pool.contains(other)))
        } else if let Some(pool) = settings.external.pool_of(address) {
            (pool.candidates(family).count(), Box::new(|other| pool.contains(other)))
        } else {
            let in_no_pool = |other| settings.pool_of(other).is_none() && settings.external.pool_of(other).is_none();
            (settings.candidates(&settings.outside_of_pools(), family).count(), Box::new(in_no_pool))
        };
        let (max, burst) = if is_own { (bounded(usable), bounded(usable)) } else { part(usable) };
        Self { max, burst, counts: Box::new(move |other| Family::of(other) == family && is_alike(other)) }
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

pub type Shares<'a> = &'a (dyn Fn(IpAddr) -> NamespaceShare<'a> + 'a);

/// The reservations. Clones share one ledger.
#[derive(Clone)]
pub struct Ledger {
    /// Every change is a single step, so a panic leaves nothing half done.
    reservations: Arc<Mutex<Reservations>>,
    clock: Arc<dyn Fn() -> Instant + Send + Sync>,
}

type Reservations = HashMap<IpAddr, Reservation>;

struct Reservation {
    owner: Owner,
    since: Instant,
    origin: Origin,
    external: bool,
    duration: Duration,
}

/// Who reserved an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// An evaluation that is still running.
    Evaluation,
    /// The policy, in an answer.
    Policy,
    /// The controller, which writes an external address into a Service itself.
    Controller,
    /// The author of a request, who chose the address.
    Author,
    /// Another replica, as its claim says.
    OtherReplica,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::with_clock(Instant::now)
    }
}

impl Ledger {
    pub fn with_clock(clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self { reservations: Arc::default(), clock: Arc::new(clock) }
    }

    /// Reserves an address for an evaluation if it is not reserved and `is_used` returns false. `is_used` is asked while
    /// the address is reserved, so no other evaluation can get the address in between. The ledger is not locked then:
    /// `is_used` takes a lock of its own, and a thread that holds that one may ask the ledger.
    pub fn reserve(&self, address: IpAddr, owner: &Owner, is_used: impl FnOnce() -> bool) -> bool {
        let reservation = Reservation::new(owner, (self.clock)(), Origin::Evaluation);
        if !insert_if_free(&mut self.reservations.lock(), address, reservation) {
            return false;
        }
        let used = is_used();
        if used {
            self.release(&[address], owner);
        }
        !used
    }

    /// As [`Self::reserve`], for an external address. The caller has checked that the address is not used. An error if
    /// the namespace has too many reservations of addresses that its Services do not show (`is_shown`). The API server
    /// does not notice that an external address is given twice, so none of these reservations is released for another.
    pub(crate) fn reserve_external(
        &self,
        address: IpAddr,
        owner: &Owner,
        share: &NamespaceShare<'_>,
        is_shown: impl Fn(IpAddr) -> bool,
    ) -> Result<bool, String> {
        let now = (self.clock)();
        let mut ledger = self.reservations.lock();
        let namespace = owner.service.namespace.as_str();
        let counts = |(address, it): &(&IpAddr, &Reservation)| {
            it.counts(**address, namespace, share, now) && !is_shown(**address)
        };
        let reserved = ledger.iter().filter(counts).count();
        if reserved >= share.burst {
            return Err(format!(
                "namespace {namespace} has {reserved} external addresses of this pool in flight, of at most {}; an \
                 address without a Service is in flight for {} s after its last request: try again then",
                share.burst,
                RESERVATION_TIME.as_secs()
            ));
        }
        let reservation = Reservation { external: true, ..Reservation::new(owner, now, Origin::Evaluation) };
        Ok(insert_if_free(&mut ledger, address, reservation))
    }

    /// Reserves an external address that an earlier answer gave to the same Service again, for as long as a new one. The
    /// reservation of an evaluation that is still running does not serve, because that evaluation may release it.
    ///
    /// `is_recorded` says whether the request brings the address in its record: the API server asks again about what the
    /// answer wrote, with another UID, and a Service whose name is not generated yet is known only by its record.
    pub(crate) fn renew_external(&self, address: IpAddr, owner: &Owner, is_recorded: bool) -> bool {
        let now = (self.clock)();
        let mut ledger = self.reservations.lock();
        let given = ledger.get_mut(&address).filter(|it| it.is_given() && it.external && it.is_active(now));
        given
            .filter(|it| it.is_of(owner, is_recorded))
            .map(|it| (it.since, it.origin) = (now, Origin::Policy))
            .is_some()
    }

    /// Whether an answer gave an external address to this Service, so that [`Self::share_external`] succeeds.
    pub(crate) fn is_external_given_to(&self, address: IpAddr, service: &ServiceKey) -> bool {
        self.active(address, |it| it.is_given() && it.external && it.owner.service == *service)
    }

    /// Turns the reservation of an external address that an answer gave to `from` into one of `to`, which shares the
    /// address, for as long as a new one. It stays also if the evaluation does not use the address: another create of
    /// `from` may still be in progress.
    pub(crate) fn share_external(&self, address: IpAddr, from: &ServiceKey, to: &Owner) {
        let now = (self.clock)();
        let mut ledger = self.reservations.lock();
        let given = ledger.get_mut(&address).filter(|it| it.is_given() && it.external && it.is_active(now));
        if let Some(it) = given.filter(|it| it.owner.service == *from) {
            (it.owner, it.since, it.origin) = (to.clone(), now, Origin::Policy);
        }
    }

    /// Notes that the controller itself writes these external addresses, as far as its evaluation has reserved them. As
    /// no request was given them, their reservations end when the Service is seen.
    pub(crate) fn written_by_controller(&self, addresses: &[IpAddr]) {
        addresses.iter().for_each(|address| self.end_external(*address, Origin::Controller));
    }

    /// Keeps an external address reserved from now on that an evaluation has reserved, whatever the evaluation decides.
    pub(crate) fn keep_external(&self, address: IpAddr) {
        self.end_external(address, Origin::Policy);
    }

    fn end_external(&self, address: IpAddr, origin: Origin) {
        let mut ledger = self.reservations.lock();
        let of_evaluation = |it: &&mut Reservation| it.origin == Origin::Evaluation && it.external;
        if let Some(it) = ledger.get_mut(&address).filter(of_evaluation) {
            (it.origin, it.since) = (origin, (self.clock)());
        }
    }

    /// By this process rather than by another replica.
    pub(crate) fn is_reserved_here(&self, address: IpAddr) -> bool {
        self.active(address, |it| it.origin != Origin::OtherReplica)
    }

    /// By this process or by another replica. As for `renew_external`, `is_recorded` says whether the request brings
    /// the address in its record.
    pub(crate) fn is_reserved_for(&self, address: IpAddr, owner: &Owner, is_recorded: bool) -> bool {
        self.active(address, |it| it.is_of(owner, is_recorded))
    }

    /// Reserves an address that another replica has claimed for this long, unless this process has reserved it.
    pub fn reserve_claimed(&self, address: IpAddr, owner: &Owner, duration: Duration) {
        self.release_claimed(address);
        let reservation = Reservation::new(owner, (self.clock)(), Origin::OtherReplica);
        insert_if_free(&mut self.reservations.lock(), address, Reservation { duration, ..reservation });
    }

    /// Releases a reservation after the claim of another replica is gone.
    pub(crate) fn release_claimed(&self, address: IpAddr) {
        self.remove_if(address, |it| it.origin == Origin::OtherReplica);
    }

    /// As [`Self::reserve`], without making a reservation.
    pub fn is_free(&self, address: IpAddr, is_used: impl FnOnce() -> bool) -> bool {
        !self.active(address, |_| true) && !is_used()
    }

    /// Ends an evaluation that reserved the addresses `reserved`. Those in `used` stay reserved until they are seen,
    /// as long as new ones, also if another request of the Service reserved them. The others are released.
    ///
    /// A namespace that now has more reservations than its share of a pool loses the oldest of them; their addresses
    /// are returned. [Young](YOUNG_TIME) reservations are released only if they exceed [`NamespaceShare::burst`]. The
    /// reservations of external addresses, of running evaluations and of other replicas count, but they are never
    /// released. The same holds for those in `used`.
    pub fn commit(&self, owner: &Owner, reserved: &[IpAddr], used: &[IpAddr], shares: Shares<'_>) -> Vec<IpAddr> {
        let now = (self.clock)();
        for address in reserved.iter().filter(|address| !used.contains(address)) {
            // Another request of the Service may use the address.
            self.remove_if(*address, |it| it.origin == Origin::Evaluation);
        }
        let mut ledger = self.reservations.lock();
        let mut released = Vec::new();
        for address in used {
            // An earlier request of the Service may have reserved the address.
            if let Some(reservation) = ledger.get_mut(address).filter(|it| it.owner.service == owner.service) {
                if reservation.origin == Origin::Evaluation {
                    reservation.origin = Origin::Policy;
                }
                reservation.since = now;
            }
            released.extend(release_oldest(&mut ledger, owner, *address));
            if ledger.contains_key(address) {
                released.extend(enforce_share(&mut ledger, &owner.service.namespace, used, &shares(*address), now));
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
        let mut ledger = self.reservations.lock();
        if !insert_if_free(&mut ledger, address, Reservation::new(owner, now, Origin::Author)) {
            return Vec::new();
        }
        let mut released = release_oldest(&mut ledger, owner, address);
        released.extend(enforce_share(&mut ledger, &owner.service.namespace, &[address], &shares(address), now));
        released
    }

    /// Whether the policy chose this address for the Service with this key. A request that contains such an address was
    /// reviewed before: the API server calls the webhook again after other webhooks, with another UID. If the name is not
    /// generated yet, any request without a name in the namespace may have been the first one.
    pub fn is_given_to(&self, address: IpAddr, service: &ServiceKey) -> bool {
        self.active(address, |it| it.origin != Origin::Author && it.owner.service == *service)
    }

    /// Whether the policy gave this Service other ClusterIPs, which are still reserved because nothing has shown them.
    /// They are not given again, so a create that was refused because of its address gets another one.
    pub fn has_given_others(&self, service: &ServiceKey, given: &[IpAddr]) -> bool {
        let (ledger, now) = (self.reservations.lock(), (self.clock)());
        !service.name.is_empty()
            && ledger.iter().any(|(address, it)| {
                it.origin == Origin::Policy
                    && !it.external
                    && it.owner.service == *service
                    && it.is_active(now)
                    && !given.contains(address)
            })
    }

    /// Releases those of the addresses that are reserved for the Service of `owner`, which will not use them.
    pub fn release(&self, addresses: &[IpAddr], owner: &Owner) {
        addresses.iter().for_each(|address| self.remove_if(*address, |it| it.owner.service == owner.service));
    }

    /// Ends the reservations of a Service that was seen, for the ClusterIPs that it shows: from now on they count as used.
    /// An `IPAddress` shows its ClusterIP for the Service that it names: the API server takes the address back if it then
    /// refuses the Service. An address that another Service shows stays reserved: with one write, a tenant can have or
    /// name the addresses of others, and no longer have or name them when they are looked for. The Service of a seamless
    /// move gets its address after a temporary Service had it.
    ///
    /// The reservation of an external address stays, unless the controller wrote it: a second create of the same Service
    /// may still be in progress, and succeed after this Service is deleted. Only a name that the API server has generated
    /// is noted.
    pub fn mark_seen(&self, object: &Value) {
        let parent = |field| object::text(object, &["spec", "parentRef", field]);
        let (namespace, name, shown) = match object::kind(object) {
            "IPAddress" => (parent("namespace"), parent("name"), object::name(object).parse().into_iter().collect()),
            _ => (object::namespace(object), object::name(object), addresses(object)),
        };
        let is_its = |it: &Reservation, external: bool| {
            let owner = &it.owner.service;
            let is_owner = owner.namespace == namespace && ["", name].contains(&owner.name.as_str());
            it.origin != Origin::Evaluation && it.external == external && is_owner
        };
        shown.into_iter().for_each(|address| self.remove_if(address, |it| is_its(it, false)));
        for address in in_use(object) {
            self.remove_if(address, |it| it.origin == Origin::Controller && is_its(it, true));
            if let Some(reservation) = self.reservations.lock().get_mut(&address).filter(|it| is_its(it, true)) {
                reservation.owner = Owner::new(namespace, name, "");
            }
        }
    }

    pub fn owner(&self, address: IpAddr) -> Option<Owner> {
        let now = (self.clock)();
        self.reservations.lock().get(&address).filter(|it| it.is_active(now)).map(|it| it.owner.clone())
    }

    /// Ordered by address.
    pub fn reservations(&self) -> Vec<(IpAddr, Owner)> {
        let now = (self.clock)();
        let mut ledger = self.reservations.lock();
        ledger.retain(|_, reservation| reservation.is_active(now));
        let mut reservations: Vec<_> = ledger.iter().map(|(address, it)| (*address, it.owner.clone())).collect();
        reservations.sort_unstable_by_key(|(address, _)| *address);
        reservations
    }

    fn active(&self, address: IpAddr, is_it: impl FnOnce(&Reservation) -> bool) -> bool {
        let now = (self.clock)();
        self.reservations
            .lock()
            .get(&address)
            .is_some_and(|reservation| reservation.is_active(now) && is_it(reservation))
    }

    fn remove_if(&self, address: IpAddr, is_it: impl FnOnce(&Reservation) -> bool) {
        let mut ledger = self.reservations.lock();
        if ledger.get(&address).is_some_and(is_it) {
            ledger.remove(&address);
        }
    }
}

impl Reservation {
    fn new(owner: &Owner, since: Instant, origin: Origin) -> Self {
        Self { owner: owner.clone(), since, origin, external: false, duration: RESERVATION_TIME }
    }

    /// Whether it is for this Service. A name that is not generated yet is the same one only with a record of the address.
    fn is_of(&self, owner: &Owner, is_recorded: bool) -> bool {
        self.owner == *owner || is_recorded && self.owner.service == owner.service
    }

    /// Whether it belongs to an answer of this process, and so may be released for others.
    fn is_given(&self) -> bool {
        matches!(self.origin, Origin::Policy | Origin::Controller | Origin::Author)
    }

    /// Whether the Service has had time to be seen, so that the reservation may be released.
    fn is_releasable(&self, now: Instant) -> bool {
        self.is_given() && now.saturating_duration_since(self.since) >= YOUNG_TIME
    }

    fn is_active(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < self.duration
    }

    fn counts(&self, address: IpAddr, namespace: &str, share: &NamespaceShare<'_>, now: Instant) -> bool {
        self.owner.service.namespace == namespace && self.is_active(now) && (share.counts)(address)
    }
}

/// Adds a reservation unless the address is reserved. Removes all that have ended, unless an evaluation reserves the
/// address, which does so at its end: nothing else may look at them for a long time.
fn insert_if_free(ledger: &mut Reservations, address: IpAddr, reservation: Reservation) -> bool {
    if ledger.get(&address).is_some_and(|other| other.is_active(reservation.since)) {
        return false;
    }
    if reservation.origin != Origin::Evaluation {
        ledger.retain(|_, other| other.is_active(reservation.since));
    }
    ledger.insert(address, reservation);
    true
}

/// The ClusterIPs of such reservations that belong to answers of this process, the oldest first.
fn oldest(ledger: &Reservations, is_it: impl Fn(IpAddr, &Reservation) -> bool) -> Vec<IpAddr> {
    let given = ledger.iter().filter(|(address, it)| it.is_given() && !it.external && is_it(**address, it));
    let mut found: Vec<(Instant, IpAddr)> = given.map(|(address, it)| (it.since, *address)).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, address)| address).collect()
}

/// Keeps the newest reservations of an owner, among those for ClusterIPs of the same family as `address`. Reservations of
/// running evaluations don't count. Returns the released addresses.
fn release_oldest(ledger: &mut Reservations, owner: &Owner, address: IpAddr) -> Vec<IpAddr> {
    let mut own = oldest(ledger, |other, it| other.is_ipv4() == address.is_ipv4() && it.owner == *owner);
    own.truncate(own.len().saturating_sub(MAX_PER_SERVICE));
    own.iter().for_each(|address| drop(ledger.remove(address)));
    own
}

/// Releases the oldest reservations of a namespace until it has no more than its share, but never those in `kept`.
/// Returns the released addresses.
fn enforce_share(
    ledger: &mut Reservations,
    namespace: &str,
    kept: &[IpAddr],
    share: &NamespaceShare<'_>,
    now: Instant,
) -> Vec<IpAddr> {
    let counts = |address: IpAddr, it: &Reservation| it.counts(address, namespace, share, now);
    let mut left = ledger.iter().filter(|(address, it)| counts(**address, it)).count();
    if left <= share.max {
        return Vec::new();
    }
    let mut released = oldest(ledger, |address, it| !kept.contains(&address) && counts(address, it));
    released.retain(|address| {
        let may_go = |it: &Reservation| left > share.burst || it.is_releasable(now);
        let goes = left > share.max && ledger.get(address).is_some_and(may_go);
        if goes {
            ledger.remove(address);
            left -= 1;
        }
        goes
    });
    released
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
