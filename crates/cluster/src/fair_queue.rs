//! Decides which work comes next. Work waits in one queue for each client and namespace: if all clients shared the
//! queue of a namespace, a client that names the namespace of another client could fill the queue.
//!
//! A namespace can't keep others waiting, however much of its work waits, and however long each piece of work takes:
//! the namespace has a share of the places. The next free place goes to the client with the least work in progress. Of
//! several such clients, it goes to the one that had no turn for the longest time. Among the namespaces of the client,
//! it goes to the one whose work has taken the least time lately. So a client gains nothing by naming another namespace
//! for each request. Every piece of work is short, so a place is soon free again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How much work may be in progress at once.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pub all: usize,
    /// Of these, the work of one peer.
    pub of_peer: usize,
    /// Of these, the work of one namespace.
    pub of_namespace: usize,
}

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

/// At most this much time of a namespace counts.
const MOST_HELD: Duration = Duration::from_secs(2);
/// Of the time that counts, one second expires in so many seconds.
const EXPIRING: u32 = 4;

/// The numbers of work that was not pushed first are larger.
const LATER: u64 = 1 << 63;

/// The work that waits, and how much is in progress. The cost of each operation grows with the number of clients and
/// with the work in progress, not with the number of namespaces.
#[derive(Debug)]
pub struct FairQueue<T> {
    places: Places,
    namespaces: BTreeMap<Requester, Namespace<T>>,
    peers: BTreeMap<Option<IpAddr>, Peer>,
    /// The namespaces without work, by the time until which they are remembered.
    idle: BTreeSet<(Instant, Requester)>,
    /// Counts the turns and the pushed work, so that the client without a turn for the longest time comes first.
    turns: u64,
}

#[derive(Debug)]
struct Peer {
    running: usize,
    last_turn: u64,
    /// The namespaces that have waiting work and a place for it, ordered by when their time has expired, and by
    /// their last turn.
    ready: BTreeSet<(Instant, u64, Requester)>,
}

#[derive(Debug)]
struct Namespace<T> {
    /// In the order of the numbers.
    waiting: VecDeque<(u64, T)>,
    running: usize,
    last_turn: u64,
    /// When no time counts any more. As the time of all namespaces expires at the same rate, their order
    /// stays the same meanwhile.
    until: Instant,
}

impl<T> FairQueue<T> {
    pub fn new(places: Places) -> Self {
        Self { places, namespaces: BTreeMap::new(), peers: BTreeMap::new(), idle: BTreeSet::new(), turns: 0 }
    }

    /// Returns the number of the work, for [`Self::remove`].
    pub fn push(&mut self, requester: Requester, work: T) -> u64 {
        self.push_as(false, requester, work)
    }

    /// As [`Self::push`], but work that is `first` comes before other work of the same requester.
    pub fn push_as(&mut self, first: bool, requester: Requester, work: T) -> u64 {
        self.turns += 1;
        let number = if first { self.turns } else { LATER + self.turns };
        self.change(requester, Instant::now(), |Namespace { waiting, .. }| {
            let at = waiting.partition_point(|(other, _)| *other < number);
            waiting.insert(at, (number, work));
        });
        number
    }

    /// `None` if the work does not wait any more.
    pub fn remove(&mut self, requester: &Requester, number: u64) -> Option<T> {
        let removed = self.change(requester.clone(), Instant::now(), |namespace| {
            let at = namespace.waiting.binary_search_by_key(&number, |(number, _)| *number).ok()?;
            namespace.waiting.remove(at)
        });
        removed.map(|(_, work)| work)
    }

    /// Takes the work that comes next. Returns `None` if no place is free for any that waits. Each call that returns
    /// work needs a call of [`Self::done`].
    pub fn take(&mut self, now: Instant) -> Option<(Requester, T)> {
        if self.peers.values().map(|peer| peer.running).sum::<usize>() >= self.places.all {
            return None;
        }
        let peers = self.peers.values().filter(|peer| peer.running < self.places.of_peer);
        let first = peers.filter_map(|peer| Some((peer.running, peer.last_turn, peer.ready.first()?)));
        let requester = first.min()?.2.2.clone();
        self.turns += 1;
        let turn = self.turns;
        let work = self.change(requester.clone(), now, |namespace| {
            namespace.last_turn = turn;
            namespace.until = namespace.until.max(now);
            namespace.running += 1;
            namespace.waiting.pop_front()
        });
        if let Some(peer) = self.peers.get_mut(&requester.peer) {
            peer.last_turn = turn;
        }
        work.map(|(_, work)| (requester, work))
    }

    pub fn done(&mut self, requester: &Requester, took: Duration, now: Instant) {
        self.change(requester.clone(), now, |namespace| {
            namespace.running = namespace.running.saturating_sub(1);
            namespace.until =
                (namespace.until.max(now) + took.min(MOST_HELD) * EXPIRING).min(now + MOST_HELD * EXPIRING);
        });
    }

    pub fn clear(&mut self) {
        for requester in self.namespaces.keys().cloned().collect::<Vec<_>>() {
            self.change(requester, Instant::now(), |namespace| namespace.waiting.clear());
        }
    }

    /// Changes a namespace, and puts the namespace where it belongs afterwards. A client can name any number of
    /// namespaces, so a namespace without work is forgotten when none of its time counts any more.
    fn change<R>(&mut self, requester: Requester, now: Instant, change: impl FnOnce(&mut Namespace<T>) -> R) -> R {
        while self.idle.first().is_some_and(|(until, _)| *until <= now) {
            let forgotten = self.idle.pop_first();
            forgotten.map(|(_, forgotten)| self.namespaces.remove(&forgotten));
        }
        let last_turn = self.turns;
        let new = || Namespace { waiting: VecDeque::new(), running: 0, last_turn, until: now };
        let namespace = self.namespaces.entry(requester.clone()).or_insert_with(new);
        let new = || Peer { running: 0, last_turn, ready: BTreeSet::new() };
        let peer = self.peers.entry(requester.peer).or_insert_with(new);
        peer.ready.remove(&(namespace.until, namespace.last_turn, requester.clone()));
        self.idle.remove(&(namespace.until, requester.clone()));
        peer.running -= namespace.running;
        let result = change(namespace);
        peer.running += namespace.running;
        let (until, peer_of) = (namespace.until, requester.peer);
        if !namespace.waiting.is_empty() {
            if namespace.running < self.places.of_namespace {
                peer.ready.insert((until, namespace.last_turn, requester));
            }
        } else if namespace.running == 0 && until > now {
            self.idle.insert((until, requester));
        } else if namespace.running == 0 {
            self.namespaces.remove(&requester);
        }
        if peer.running == 0 && peer.ready.is_empty() {
            self.peers.remove(&peer_of);
        }
        result
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PLACES: Places = Places { all: 4, of_peer: 3, of_namespace: 2 };

    fn queue(work: &[(&str, usize)]) -> FairQueue<usize> {
        let mut queue = FairQueue::new(PLACES);
        for (namespace, count) in work {
            (0..*count).for_each(|nth| {
                queue.push(Requester::own(namespace), nth);
            });
        }
        queue
    }

    fn taken(queue: &mut FairQueue<usize>, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| queue.take(now)).map(|(who, nth)| format!("{}-{nth}", who.namespace)).collect()
    }

    #[test]
    fn namespace_takes_at_most_its_share_of_places() {
        let mut queue = queue(&[("mallory", 10)]);
        let now = Instant::now();
        assert_eq!(taken(&mut queue, now), ["mallory-0", "mallory-1"]);
        queue.push(Requester::own("shop"), 0);
        assert_eq!(taken(&mut queue, now), ["shop-0"], "at once, though others wait longer");
        queue.done(&Requester::own("mallory"), Duration::ZERO, now);
        assert_eq!(taken(&mut queue, now), ["mallory-2"], "in their order");
    }

    #[test]
    fn namespaces_take_turns_and_work_that_is_pushed_first_comes_first_in_its_own() {
        let mut queue = queue(&[("a", 2), ("b", 2)]);
        queue.places = Places { all: 9, of_peer: 9, of_namespace: 9 };
        let numbers: Vec<u64> = (7..10).map(|nth| queue.push_as(true, Requester::own("b"), nth)).collect();
        assert_eq!(queue.remove(&Requester::own("b"), numbers[1]), Some(8));
        assert_eq!(taken(&mut queue, Instant::now()), ["a-0", "b-7", "a-1", "b-9", "b-0", "b-1"]);
    }

    #[test]
    fn namespace_that_used_the_least_time_comes_first() {
        let mut queue = queue(&[("a", 3), ("b", 3)]);
        let now = Instant::now();
        assert_eq!(queue.take(now), Some((Requester::own("a"), 0)));
        queue.done(&Requester::own("a"), Duration::from_millis(50), now);
        assert_eq!(taken(&mut queue, now), ["b-0", "b-1", "a-1"]);
    }

    #[test]
    fn peer_takes_at_most_its_share_whatever_namespaces_it_names() {
        let mut queue = FairQueue::new(PLACES);
        let of = |last: u8, namespace: &str| Requester {
            peer: Some(IpAddr::from([10, 0, 0, last])),
            namespace: namespace.to_owned(),
        };
        for nth in 0..9 {
            queue.push(of(1, &format!("a-{nth}")), nth);
        }
        let now = Instant::now();
        assert_eq!(std::iter::from_fn(|| queue.take(now)).count(), 3);
        queue.push(of(2, "shop"), 0);
        assert_eq!(queue.take(now), Some((of(2, "shop"), 0)));
        assert_eq!(queue.take(now), None, "all places are taken");
    }

    #[test]
    fn peer_that_names_a_new_namespace_each_time_keeps_no_other_waiting() {
        let mut queue = FairQueue::new(Places { all: 1, of_peer: 1, ..PLACES });
        let of = |last: u8, namespace: String| Requester { peer: Some(IpAddr::from([10, 0, 0, last])), namespace };
        let now = Instant::now();
        let mut turns = Vec::new();
        for nth in 0..60 {
            // Each of four attackers sends more than there are turns. The namespace `shop` has used time.
            (1..5).for_each(|last| {
                queue.push(of(last, format!("new-{nth}")), nth);
            });
            queue.push(of(9, "shop".to_owned()), nth);
            let (requester, _) = queue.take(now).unwrap();
            queue.done(&requester, Duration::from_millis(1), now);
            turns.push(requester);
        }
        assert_eq!(turns.iter().filter(|requester| requester.namespace == "shop").count(), 60 / 5);
    }

    #[test]
    fn removed_work_leaves_nothing_behind() {
        let mut queue = FairQueue::new(PLACES);
        let of = |nth: usize| Requester::own(&format!("new-{}", nth / 2));
        let numbers: Vec<u64> = (0..20).map(|nth| queue.push(of(nth), nth)).collect();
        let removed: Vec<_> = numbers.iter().enumerate().rev().map(|(nth, it)| queue.remove(&of(nth), *it)).collect();
        assert_eq!(removed, (0..20).rev().map(Some).collect::<Vec<_>>());
        assert_eq!(queue.remove(&of(3), numbers[3]), None);
        assert!(queue.namespaces.is_empty() && queue.peers.is_empty());
    }

    #[test]
    fn namespaces_without_work_are_forgotten() {
        let mut queue = queue(&[("a", 1), ("b", 1)]);
        let now = Instant::now();
        assert_eq!(taken(&mut queue, now).len(), 2);
        queue.done(&Requester::own("a"), Duration::ZERO, now);
        queue.done(&Requester::own("b"), Duration::from_millis(1), now);
        assert_eq!(queue.namespaces.len(), 1, "b has used time");
        queue.push(Requester::own("c"), 0);
        queue.clear();
        queue.done(&Requester::own("c"), Duration::ZERO, now + Duration::from_millis(4));
        assert_eq!(queue.namespaces.len(), 0);
        assert!(queue.peers.is_empty() && queue.idle.is_empty());
    }

    #[test]
    fn each_of_many_namespaces_gets_its_turn() {
        let names: Vec<String> = (0..20_000).map(|nth| format!("a-{nth:05}")).collect();
        let mut queue = FairQueue::new(PLACES);
        for name in &names {
            queue.push(Requester::own(name), 0);
        }
        for name in &names {
            let now = Instant::now();
            assert_eq!(queue.take(now), Some((Requester::own(name), 0)), "in the order of their arrival");
            queue.done(&Requester::own(name), Duration::from_nanos(1), now);
            assert!(queue.peers.len() <= 1, "{name}: a take looks at nothing else");
        }
    }
}
