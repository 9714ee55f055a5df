//! Addresses in flight.
//!
//! Between the answer to a request and the moment at which its Service is seen, an address is used and
//! nothing in the cluster says so. The ledger does: the look-up that finds an address free holds it in
//! the same step, so two evaluations never find the same address free.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an address is held for a Service that is not seen. A request may live for a minute behind
/// us, in other webhooks and in the API server's own work; then its Service has to be seen, too.
pub const HELD_FOR: Duration = Duration::from_secs(65);

/// How many addresses of one family are held for one Service at most. A client that tries again and
/// again must not eat a pool; but of two requests under way neither must lose what it was given.
const MOST_OF_ONE_NAME: usize = 2;

/// Whom an address is held for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The Service of this namespace and name.
    Named {
        /// `metadata.namespace`
        namespace: String,
        /// `metadata.name`
        name: String,
    },
    /// A Service whose name is yet to be generated: nothing tells two such requests apart but their
    /// UIDs.
    Unnamed {
        /// `metadata.namespace`
        namespace: String,
        /// `request.uid`
        uid: String,
    },
}

impl Owner {
    /// The owner for the object of a request.
    pub fn new(namespace: &str, name: &str, uid: &str) -> Self {
        let namespace = namespace.to_owned();
        if name.is_empty() {
            Self::Unnamed { namespace, uid: uid.to_owned() }
        } else {
            Self::Named { namespace, name: name.to_owned() }
        }
    }

    /// Namespace and name, which is empty where there is none yet.
    pub fn id(&self) -> (&str, &str) {
        match self {
            Self::Named { namespace, name } => (namespace, name),
            Self::Unnamed { namespace, .. } => (namespace, ""),
        }
    }
}

/// Who chose an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// The policy.
    ByPolicy,
    /// The author of the request.
    ByHand,
}

/// What is held. Cheap to clone: all clones are one ledger.
#[derive(Clone)]
pub struct Ledger {
    held: Arc<Mutex<HashMap<IpAddr, Hold>>>,
    clock: Arc<dyn Fn() -> Instant + Send + Sync>,
}

struct Hold {
    owner: Owner,
    since: Instant,
    chosen: Chosen,
    /// Whether an evaluation is still at work on it.
    open: bool,
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

    /// Holds an address for an evaluation, if nobody holds it and `is_used` says no. Both are asked in
    /// one step: nobody else can get the address in between.
    pub fn hold(&self, address: IpAddr, owner: &Owner, is_used: impl FnOnce() -> bool) -> bool {
        let now = (self.clock)();
        let mut held = self.lock();
        if held.get(&address).is_some_and(|hold| hold.lives(now)) || is_used() {
            return false;
        }
        held.insert(address, Hold { owner: owner.clone(), since: now, chosen: Chosen::ByPolicy, open: true });
        true
    }

    /// As [`Self::hold`], without holding it.
    pub fn is_free(&self, address: IpAddr, is_used: impl FnOnce() -> bool) -> bool {
        let now = (self.clock)();
        let held = self.lock();
        !held.get(&address).is_some_and(|hold| hold.lives(now)) && !is_used()
    }

    /// Ends an evaluation that held the addresses `held`: those in `used` stay held until they are seen,
    /// the others are free again.
    pub fn settle(&self, owner: &Owner, held: &[IpAddr], used: &[IpAddr]) {
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
        for address in used {
            drop_oldest(&mut ledger, owner, address.is_ipv4());
        }
    }

    /// Holds an address that the author of a request chose, unless it is held already: nobody else is
    /// given it meanwhile.
    pub fn note_chosen_by_hand(&self, address: IpAddr, owner: &Owner) {
        let now = (self.clock)();
        let mut ledger = self.lock();
        if !ledger.get(&address).is_some_and(|hold| hold.lives(now)) {
            let hold = Hold { owner: owner.clone(), since: now, chosen: Chosen::ByHand, open: false };
            ledger.insert(address, hold);
            drop_oldest(&mut ledger, owner, address.is_ipv4());
        }
    }

    /// Whether the policy chose this address for the Service of this namespace and name. A request that
    /// comes with it is one that we have seen before: the API server asks again after other webhooks,
    /// with another UID. Where the name is yet to be generated, any such request of the namespace may
    /// have been the first.
    pub fn is_ours(&self, address: IpAddr, namespace: &str, name: &str) -> bool {
        let now = (self.clock)();
        let ledger = self.lock();
        ledger.get(&address).is_some_and(|hold| {
            hold.lives(now) && hold.chosen == Chosen::ByPolicy && hold.owner.id() == (namespace, name)
        })
    }

    /// Drops addresses that nobody is going to use.
    pub fn release(&self, addresses: &[IpAddr]) {
        let mut ledger = self.lock();
        for address in addresses {
            ledger.remove(address);
        }
    }

    /// A Service or an `IPAddress` with this address was seen: the cluster tells it from now on.
    pub fn seen(&self, address: IpAddr) {
        let mut ledger = self.lock();
        if ledger.get(&address).is_some_and(|hold| !hold.open) {
            ledger.remove(&address);
        }
    }

    /// Every address that is held, with its owner, in order of the addresses.
    pub fn held(&self) -> Vec<(IpAddr, Owner)> {
        let now = (self.clock)();
        let mut ledger = self.lock();
        ledger.retain(|_, hold| hold.lives(now));
        let mut held: Vec<_> = ledger.iter().map(|(address, hold)| (*address, hold.owner.clone())).collect();
        held.sort_unstable_by_key(|(address, _)| *address);
        held
    }

    /// How many addresses are held.
    pub fn len(&self) -> usize {
        let now = (self.clock)();
        let mut ledger = self.lock();
        ledger.retain(|_, hold| hold.lives(now));
        ledger.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Hold>> {
        // Every change is a single step: whoever panics leaves nothing half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    fn lives(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < HELD_FOR
    }
}

/// Keeps the newest holds of an owner in a family; those of open evaluations don't count.
fn drop_oldest(ledger: &mut HashMap<IpAddr, Hold>, owner: &Owner, is_v4: bool) {
    let mut its: Vec<(Instant, IpAddr)> = ledger
        .iter()
        .filter(|(address, hold)| address.is_ipv4() == is_v4 && !hold.open && hold.owner == *owner)
        .map(|(address, hold)| (hold.since, *address))
        .collect();
    its.sort_unstable_by(|a, b| b.cmp(a));
    for (_, address) in its.into_iter().skip(MOST_OF_ONE_NAME) {
        ledger.remove(&address);
    }
}
