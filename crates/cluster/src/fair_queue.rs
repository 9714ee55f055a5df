//! Decides whose work comes next. Work waits in one queue for each client and namespace: if all clients shared the queue
//! of a namespace, a client that names the namespace of others could fill it.
//!
//! A namespace can't keep others waiting, however much of its work waits, and however long each piece of it takes: it
//! has a share of the places. The next free place goes to the client with the least work in progress, and there to the
//! namespace that has used least processor time lately. Namespaces that have used much are *heavy*, and share places of
//! their own.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How much work may be in progress or wait.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Work in progress at once.
    pub all: usize,
    /// Of these, the work of one peer.
    pub of_peer: usize,
    /// Of these, the work of one namespace.
    pub of_namespace: usize,
    /// Of these, the work of all heavy namespaces together.
    pub heavy: usize,
    /// Work of one namespace that waits.
    pub waiting: usize,
}

/// Who wants the work done.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requester {
    /// The client that sent the request; `None` for the work of this program itself.
    pub peer: Option<IpAddr>,
    /// The namespace of the object; empty for objects of the cluster.
    pub namespace: String,
}

impl Requester {
    /// This program itself, for an object of this namespace.
    pub fn own(namespace: &str) -> Self {
        Self { peer: None, namespace: namespace.to_owned() }
    }
}

/// A namespace is heavy while more than this much of its processor time counts.
const HEAVY: Duration = Duration::from_millis(100);
/// At most this much counts.
const MOST_HELD: Duration = Duration::from_secs(2);
/// Of the time that counts, one second expires in so many seconds.
const EXPIRING: u32 = 4;

/// The work that waits, and how much is in progress.
#[derive(Debug)]
pub struct FairQueue<T> {
    places: Places,
    namespaces: BTreeMap<Requester, Namespace<T>>,
    running: BTreeMap<Option<IpAddr>, usize>,
    /// Counts the turns, so that the namespace comes first that had none for the longest time.
    turns: u64,
}

#[derive(Debug)]
struct Namespace<T> {
    waiting: VecDeque<T>,
    running: usize,
    last_turn: u64,
    /// The processor time that counts, as of `at`.
    used: Duration,
    at: Instant,
}

impl<T> Namespace<T> {
    fn used(&self, now: Instant) -> Duration {
        self.used.saturating_sub(now.saturating_duration_since(self.at) / EXPIRING)
    }
}

impl<T> FairQueue<T> {
    /// An empty queue.
    pub fn new(places: Places) -> Self {
        Self { places, namespaces: BTreeMap::new(), running: BTreeMap::new(), turns: 0 }
    }

    /// Adds work to the queue of its namespace.
    ///
    /// # Errors
    /// Returns the work if too much of its namespace waits already.
    pub fn push(&mut self, requester: Requester, work: T) -> Result<(), T> {
        let (turns, now) = (self.turns, Instant::now());
        let new =
            || Namespace { waiting: VecDeque::new(), running: 0, last_turn: turns, used: Duration::ZERO, at: now };
        let namespace = self.namespaces.entry(requester).or_insert_with(new);
        if namespace.waiting.len() >= self.places.waiting {
            return Err(work);
        }
        namespace.waiting.push_back(work);
        Ok(())
    }

    /// Takes the work that comes next. Returns `None` if no place is free for any that waits. Each call that returns
    /// work needs a call of [`Self::done`].
    pub fn take(&mut self, now: Instant) -> Option<(Requester, T)> {
        let running: usize = self.running.values().sum();
        if running >= self.places.all {
            return None;
        }
        let heavy = |namespace: &Namespace<T>| namespace.used(now) > HEAVY;
        let running_heavy: usize = self.namespaces.values().filter(|it| heavy(it)).map(|it| it.running).sum();
        let of_peer = |requester: &Requester| self.running.get(&requester.peer).copied().unwrap_or_default();
        let may_begin = |(requester, namespace): &(&Requester, &mut Namespace<T>)| {
            !namespace.waiting.is_empty()
                && namespace.running < self.places.of_namespace
                && of_peer(requester) < self.places.of_peer
                && (running_heavy < self.places.heavy || !heavy(namespace))
        };
        let next = self.namespaces.iter_mut().filter(may_begin);
        let next = next.min_by_key(|(who, namespace)| (of_peer(who), namespace.used(now), namespace.last_turn));
        let (requester, namespace) = next?;
        let work = namespace.waiting.pop_front()?;
        self.turns += 1;
        namespace.last_turn = self.turns;
        namespace.running += 1;
        *self.running.entry(requester.peer).or_default() += 1;
        Some((requester.clone(), work))
    }

    /// Gives back a place, and notes the processor time that the work took.
    pub fn done(&mut self, requester: &Requester, took: Duration, now: Instant) {
        if let Some(namespace) = self.namespaces.get_mut(requester) {
            namespace.running = namespace.running.saturating_sub(1);
            namespace.used = (namespace.used(now) + took).min(MOST_HELD);
            namespace.at = now;
        }
        if let Some(running) = self.running.get_mut(&requester.peer) {
            *running = running.saturating_sub(1);
        }
        // A client can name any number of namespaces.
        self.running.retain(|_, running| *running > 0);
        self.namespaces.retain(|_, it| it.running > 0 || !it.waiting.is_empty() || !it.used(now).is_zero());
    }

    /// Removes the work that waits.
    pub fn clear(&mut self) {
        self.namespaces.values_mut().for_each(|namespace| namespace.waiting.clear());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PLACES: Places = Places { all: 4, of_peer: 3, of_namespace: 2, heavy: 1, waiting: 10 };

    fn queue(work: &[(&str, usize)]) -> FairQueue<usize> {
        let mut queue = FairQueue::new(PLACES);
        for (namespace, count) in work {
            (0..*count).for_each(|nth| queue.push(Requester::own(namespace), nth).unwrap());
        }
        queue
    }

    fn taken(queue: &mut FairQueue<usize>, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| queue.take(now)).map(|(who, nth)| format!("{}-{nth}", who.namespace)).collect()
    }

    #[test]
    fn namespace_takes_at_most_its_share_of_places_and_of_the_queue() {
        let mut queue = queue(&[("mallory", 10)]);
        let now = Instant::now();
        assert_eq!(queue.push(Requester::own("mallory"), 10), Err(10));
        assert_eq!(taken(&mut queue, now), ["mallory-0", "mallory-1"]);
        queue.push(Requester::own("shop"), 0).unwrap();
        assert_eq!(taken(&mut queue, now), ["shop-0"], "at once, though others wait longer");
        queue.done(&Requester::own("mallory"), Duration::ZERO, now);
        assert_eq!(taken(&mut queue, now), ["mallory-2"], "in their order");
    }

    #[test]
    fn namespaces_take_turns() {
        let mut queue = FairQueue::new(Places { all: 9, of_peer: 9, ..PLACES });
        for namespace in ["a", "b", "c"] {
            (0..2).for_each(|nth| queue.push(Requester::own(namespace), nth).unwrap());
        }
        assert_eq!(taken(&mut queue, Instant::now()), ["a-0", "b-0", "c-0", "a-1", "b-1", "c-1"]);
    }

    #[test]
    fn namespace_that_used_least_processor_time_comes_first() {
        let mut queue = queue(&[("a", 3), ("b", 3)]);
        let now = Instant::now();
        assert_eq!(queue.take(now), Some((Requester::own("a"), 0)));
        queue.done(&Requester::own("a"), Duration::from_millis(50), now);
        assert_eq!(taken(&mut queue, now), ["b-0", "b-1", "a-1"]);
    }

    #[test]
    fn heavy_namespaces_share_their_places_until_their_time_expires() {
        let mut queue = queue(&[("a", 3), ("b", 3), ("c", 3)]);
        let now = Instant::now();
        let long = Duration::from_secs(60);
        assert_eq!(taken(&mut queue, now), ["a-0", "b-0", "c-0"]);
        queue.done(&Requester::own("a"), long, now);
        queue.done(&Requester::own("b"), long, now);
        assert_eq!(taken(&mut queue, now), ["c-1", "a-1"], "only one of them, though a place is free");
        queue.done(&Requester::own("c"), Duration::ZERO, now);
        assert_eq!(taken(&mut queue, now), ["c-2"]);
        let later = now + MOST_HELD * EXPIRING;
        queue.done(&Requester::own("c"), Duration::ZERO, later);
        assert_eq!(taken(&mut queue, later), ["b-1"]);
    }

    #[test]
    fn peer_takes_at_most_its_share_whatever_namespaces_it_names() {
        let mut queue = FairQueue::new(PLACES);
        let of = |last: u8, namespace: &str| Requester {
            peer: Some(IpAddr::from([10, 0, 0, last])),
            namespace: namespace.to_owned(),
        };
        for nth in 0..9 {
            queue.push(of(1, &format!("a-{nth}")), nth).unwrap();
        }
        let now = Instant::now();
        assert_eq!(std::iter::from_fn(|| queue.take(now)).count(), 3);
        queue.push(of(2, "shop"), 0).unwrap();
        assert_eq!(queue.take(now), Some((of(2, "shop"), 0)));
        assert_eq!(queue.take(now), None, "all places are taken");
    }

    #[test]
    fn namespaces_without_work_are_forgotten() {
        let mut queue = queue(&[("a", 1), ("b", 1)]);
        let now = Instant::now();
        assert_eq!(taken(&mut queue, now).len(), 2);
        queue.done(&Requester::own("a"), Duration::ZERO, now);
        queue.done(&Requester::own("b"), Duration::from_millis(1), now);
        assert_eq!(queue.namespaces.len(), 1, "b has used processor time");
        queue.push(Requester::own("c"), 0).unwrap();
        queue.clear();
        queue.done(&Requester::own("c"), Duration::ZERO, now + Duration::from_millis(4));
        assert_eq!(queue.namespaces.len(), 0);
        assert!(queue.running.is_empty());
    }
}
