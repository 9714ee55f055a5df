//! The Services that wait to be reconciled, and those that are being reconciled. The namespaces take turns, so that none
//! keeps others waiting. In a namespace, the moves that go on come before all others. A Service that turns out to be large
//! when its move begins gives its place back, and waits for one of the few places for large Services. So the moves at once
//! take little memory, however large their Services are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clusterip_cluster::fair_queue::{FairQueue, Places, Requester};
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::outcome::Size;

/// How many Services are looked at or moved at once.
const MAX_RUNNING: usize = 64;
const MAX_RUNNING_PER_NAMESPACE: usize = 16;
/// How many large Services are looked at or moved at once, besides the others.
const MAX_LARGE: usize = 2;
const MAX_LARGE_PER_NAMESPACE: usize = 1;

/// The Services that wait for a place, and those that have one. A Service has at most one place at a time.
#[derive(Debug)]
pub struct ServiceQueue {
    usual: FairQueue<ServiceKey>,
    large: FairQueue<ServiceKey>,
    /// With the number of the Service in its queue, and whether it was pushed first.
    queued: BTreeMap<ServiceKey, (Size, u64, bool)>,
    /// The Services that have a place, with its size, and whether each was pushed again and needs another turn.
    running: BTreeMap<ServiceKey, (Size, bool)>,
}

impl Default for ServiceQueue {
    fn default() -> Self {
        let queue = |all, of_namespace| FairQueue::new(Places { all, of_peer: all, of_namespace });
        Self {
            usual: queue(MAX_RUNNING, MAX_RUNNING_PER_NAMESPACE),
            large: queue(MAX_LARGE, MAX_LARGE_PER_NAMESPACE),
            queued: BTreeMap::new(),
            running: BTreeMap::new(),
        }
    }
}

impl ServiceQueue {
    /// Adds a Service that may be of this size to the queue. `first`: before the others of its namespace, also if it waits
    /// already. Otherwise, a Service that waits already keeps its place in the queue. A Service at work is only marked, and
    /// [`Self::done`] reports that.
    pub fn push(&mut self, id: ServiceKey, size: Size, first: bool) {
        if let Some((_, again)) = self.running.get_mut(&id) {
            *again = true;
            return;
        }
        let (requester, waits) = (Requester::own(&id.namespace), self.queued.get(&id).copied());
        let size = match waits {
            Some((_, _, is_first)) if is_first || !first => return,
            Some((size, number, _)) => {
                self.places(size).remove(&requester, number);
                size
            }
            None => size,
        };
        let number = self.places(size).push_as(first, requester, id.clone());
        self.queued.insert(id, (size, number, first));
    }

    /// Takes the next Service, with the size up to which it may move; `None` if no waiting Service may take a place.
    pub fn take(&mut self) -> Option<(ServiceKey, Size)> {
        let take = |size| Some((self.places(size).take(Instant::now())?.1, size));
        let (id, size) = [Size::Large, Size::Usual].into_iter().find_map(take)?;
        self.queued.remove(&id);
        self.running.insert(id.clone(), (size, false));
        Some((id, size))
    }

    /// Gives back the place of a Service. Returns whether the Service was pushed meanwhile.
    pub fn done(&mut self, id: &ServiceKey) -> bool {
        let Some((size, again)) = self.running.remove(id) else { return false };
        // The evaluations of a Service wait for their turn on threads that count the time of each namespace.
        self.places(size).done(&Requester::own(&id.namespace), Duration::ZERO, Instant::now());
        again
    }

    pub fn running(&self) -> impl Iterator<Item = &ServiceKey> {
        self.running.keys()
    }

    /// Removes the Services that wait. Services at work stay.
    pub fn clear(&mut self) {
        self.usual.clear();
        self.large.clear();
        self.queued.clear();
    }

    fn places(&mut self, size: Size) -> &mut FairQueue<ServiceKey> {
        match size {
            Size::Usual => &mut self.usual,
            Size::Large => &mut self.large,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(namespace: &str, number: usize) -> ServiceKey {
        ServiceKey::new(namespace, format!("web-{number}"))
    }

    fn taken(queue: &mut ServiceQueue) -> Vec<ServiceKey> {
        std::iter::from_fn(|| queue.take()).map(|(id, _)| id).collect()
    }

    /// The order of turns is tested with `FairQueue`.
    #[test]
    fn a_namespace_and_all_together_have_limited_places() {
        let mut queue = ServiceQueue::default();
        for namespace in ["mallory", "a", "b", "c", "d", "e"] {
            (0..100).for_each(|number| queue.push(id(namespace, number), Size::Usual, false));
            let all = queue.running().count();
            assert_eq!(taken(&mut queue).len(), MAX_RUNNING_PER_NAMESPACE.min(MAX_RUNNING - all), "{namespace}");
        }
        assert!(!queue.done(&id("mallory", 0)));
        assert_eq!(taken(&mut queue).len(), 1);
    }

    #[test]
    fn service_that_is_pushed_first_comes_before_the_others_of_its_namespace() {
        for size in [Size::Usual, Size::Large] {
            let mut queue = ServiceQueue::default();
            (0..3).for_each(|number| queue.push(id("shop", number), size, false));
            queue.push(id("shop", 2), Size::Usual, true);
            queue.push(id("shop", 2), Size::Usual, false);
            assert_eq!(queue.take(), Some((id("shop", 2), size)), "it waited already, as one of this size");
            queue.done(&id("shop", 2));
            queue.push(id("shop", 3), size, true);
            for number in [3, 0, 1] {
                assert_eq!(queue.take(), Some((id("shop", number), size)));
                queue.done(&id("shop", number));
            }
        }
    }

    #[test]
    fn large_services_take_turns_and_keep_no_other_waiting() {
        let mut queue = ServiceQueue::default();
        for namespace in ["a", "b", "c", "d"] {
            (0..20).for_each(|number| queue.push(id(namespace, number), Size::Large, false));
        }
        let large = |namespace, number| Some((id(namespace, number), Size::Large));
        assert_eq!([queue.take(), queue.take(), queue.take()], [large("a", 0), large("b", 0), None], "of all");
        queue.push(id("a", 20), Size::Usual, false);
        assert_eq!(queue.take(), Some((id("a", 20), Size::Usual)), "at once, though 78 large ones wait longer");
        assert!(!queue.done(&id("a", 20)));
        assert_eq!(queue.take(), None, "its place was another one");
        queue.done(&id("b", 0));
        assert_eq!([queue.take(), queue.take()], [large("c", 0), None]);
        queue.done(&id("a", 0));
        assert_eq!([queue.take(), queue.take()], [large("d", 0), None]);
        queue.done(&id("c", 0));
        queue.done(&id("d", 0));
        assert_eq!([queue.take(), queue.take()], [large("b", 1), large("a", 1)], "the namespaces take turns");
        queue.clear();
        queue.done(&id("a", 1));
        assert_eq!(queue.take(), None);
    }

    #[test]
    fn a_service_has_one_place_at_a_time() {
        let mut queue = ServiceQueue::default();
        queue.push(id("shop", 1), Size::Usual, false);
        queue.push(id("shop", 1), Size::Usual, false);
        assert_eq!(taken(&mut queue), [id("shop", 1)]);
        queue.push(id("shop", 1), Size::Usual, false);
        assert_eq!(queue.take(), None, "it is at work");
        assert!(queue.done(&id("shop", 1)), "and is to come again");
        queue.push(id("shop", 2), Size::Usual, false);
        queue.clear();
        assert_eq!(queue.take(), None);
    }
}
