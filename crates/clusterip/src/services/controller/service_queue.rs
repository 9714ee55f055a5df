//! The Services that wait to be reconciled, and those that are being reconciled. The namespaces take turns, so that none
//! keeps others waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use clusterip_cluster::fair_queue::{FairQueue, Places, Requester};
use clusterip_core::service_key::ServiceKey;

/// How many Services are looked at or moved at once.
const MAX_RUNNING: usize = 64;
/// How many Services of one namespace are looked at or moved at once.
const MAX_RUNNING_PER_NAMESPACE: usize = 16;

/// The Services that wait for a place, and those that have one. A Service has at most one place at a time.
#[derive(Debug)]
pub struct ServiceQueue {
    queue: FairQueue<ServiceKey>,
    queued: BTreeSet<ServiceKey>,
    /// The Services that have a place, and whether each was pushed again and needs another turn.
    running: BTreeMap<ServiceKey, bool>,
}

impl Default for ServiceQueue {
    fn default() -> Self {
        let queue =
            FairQueue::new(Places { all: MAX_RUNNING, of_peer: MAX_RUNNING, of_namespace: MAX_RUNNING_PER_NAMESPACE });
        Self { queue, queued: BTreeSet::new(), running: BTreeMap::new() }
    }
}

impl ServiceQueue {
    /// Adds a Service to the queue. A Service that waits already keeps its place in the queue. A Service at work is
    /// only marked, and [`Self::done`] reports that.
    pub fn push(&mut self, id: ServiceKey) {
        if let Some(again) = self.running.get_mut(&id) {
            *again = true;
        } else if self.queued.insert(id.clone()) {
            self.queue.push(Requester::own(&id.namespace), id);
        }
    }

    /// Takes the next Service. Returns `None` if no place is free, or if no waiting Service may take one.
    pub fn take(&mut self) -> Option<ServiceKey> {
        let (_, id) = self.queue.take(Instant::now())?;
        self.queued.remove(&id);
        self.running.insert(id.clone(), false);
        Some(id)
    }

    /// Gives back the place of a Service. Returns whether the Service was pushed meanwhile.
    pub fn done(&mut self, id: &ServiceKey) -> bool {
        let Some(again) = self.running.remove(id) else { return false };
        // The evaluations of a Service wait for their turn on threads that count the processor time.
        self.queue.done(&Requester::own(&id.namespace), Duration::ZERO, Instant::now());
        again
    }

    /// The Services that are at work.
    pub fn running(&self) -> impl Iterator<Item = &ServiceKey> {
        self.running.keys()
    }

    /// Removes the Services that wait. Services at work stay.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.queued.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(namespace: &str, number: usize) -> ServiceKey {
        ServiceKey::new(namespace, format!("web-{number}"))
    }

    fn taken(queue: &mut ServiceQueue) -> Vec<ServiceKey> {
        std::iter::from_fn(|| queue.take()).collect()
    }

    #[test]
    fn a_namespace_takes_at_most_its_share_of_places() {
        let mut queue = ServiceQueue::default();
        (0..100).for_each(|number| queue.push(id("mallory", number)));
        assert_eq!(taken(&mut queue).len(), MAX_RUNNING_PER_NAMESPACE);
        queue.push(id("shop", 1));
        assert_eq!(taken(&mut queue), [id("shop", 1)], "at once, though 84 others wait longer");
        assert!(!queue.done(&id("mallory", 0)));
        assert_eq!(taken(&mut queue), [id("mallory", MAX_RUNNING_PER_NAMESPACE)], "in their order");
    }

    #[test]
    fn namespaces_take_turns() {
        let mut queue = ServiceQueue::default();
        for namespace in ["a", "b", "c"] {
            (0..2).for_each(|number| queue.push(id(namespace, number)));
        }
        let order: Vec<String> = taken(&mut queue).into_iter().map(|id| id.namespace + &id.name).collect();
        assert_eq!(order, ["aweb-0", "bweb-0", "cweb-0", "aweb-1", "bweb-1", "cweb-1"]);
    }

    #[test]
    fn at_most_all_places_are_taken() {
        let mut queue = ServiceQueue::default();
        for namespace in 0..10 {
            (0..10).for_each(|number| queue.push(id(&format!("team-{namespace}"), number)));
        }
        let first = taken(&mut queue);
        assert_eq!((first.len(), queue.running().count()), (MAX_RUNNING, MAX_RUNNING));
        for id in &first {
            queue.done(id);
        }
        assert_eq!(taken(&mut queue).len(), 100 - MAX_RUNNING);
    }

    #[test]
    fn a_service_has_one_place_at_a_time() {
        let mut queue = ServiceQueue::default();
        queue.push(id("shop", 1));
        queue.push(id("shop", 1));
        assert_eq!(taken(&mut queue), [id("shop", 1)]);
        queue.push(id("shop", 1));
        assert_eq!(queue.take(), None, "it is at work");
        assert!(queue.done(&id("shop", 1)), "and is to come again");
        queue.push(id("shop", 2));
        queue.clear();
        assert_eq!(queue.take(), None);
    }
}
