//! Decides which Service comes next. Services wait in one queue for each namespace, and the namespaces take turns.
//!
//! A namespace can't keep others waiting, however many of its Services wait, and however long each of them takes: it
//! has at most [`MAX_RUNNING_PER_NAMESPACE`] of the [`MAX_RUNNING`] places, and the places are given round robin.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use clusterip_core::service_key::ServiceKey;

/// How many Services are looked at or moved at once.
pub const MAX_RUNNING: usize = 64;
/// How many Services of one namespace are looked at or moved at once.
pub const MAX_RUNNING_PER_NAMESPACE: usize = 16;

/// The Services that wait for a place, and those that have one.
#[derive(Debug, Default)]
pub struct FairQueue {
    waiting: BTreeMap<String, VecDeque<ServiceKey>>,
    queued: BTreeSet<ServiceKey>,
    running: BTreeMap<ServiceKey, Again>,
    busy: BTreeMap<String, usize>,
    /// The namespace that had the last turn.
    last: String,
}

/// Whether a Service that has a place was pushed again, and needs another turn.
type Again = bool;

impl FairQueue {
    /// Adds a Service to the queue. A Service that waits already keeps its place in the queue. A Service at work is
    /// only marked, and [`Self::done`] reports that.
    pub fn push(&mut self, id: ServiceKey) {
        if let Some(again) = self.running.get_mut(&id) {
            *again = true;
        } else if self.queued.insert(id.clone()) {
            self.waiting.entry(id.namespace.clone()).or_default().push_back(id);
        }
    }

    /// Takes the next Service. Returns `None` if no place is free, or if no waiting Service may take one.
    pub fn take(&mut self) -> Option<ServiceKey> {
        if self.running.len() >= MAX_RUNNING {
            return None;
        }
        let has_place =
            |namespace: &&String| self.busy.get(*namespace).is_none_or(|busy| *busy < MAX_RUNNING_PER_NAMESPACE);
        let after = (Bound::Excluded(self.last.clone()), Bound::Unbounded);
        let mut namespaces = self.waiting.range(after).chain(&self.waiting).map(|(namespace, _)| namespace);
        let namespace = namespaces.find(has_place)?.clone();
        let ids = self.waiting.get_mut(&namespace)?;
        let id = ids.pop_front()?;
        if ids.is_empty() {
            self.waiting.remove(&namespace);
        }
        self.queued.remove(&id);
        *self.busy.entry(namespace.clone()).or_default() += 1;
        self.running.insert(id.clone(), false);
        self.last = namespace;
        Some(id)
    }

    /// Gives back the place of a Service. Returns whether the Service was pushed meanwhile.
    pub fn done(&mut self, id: &ServiceKey) -> bool {
        let Some(again) = self.running.remove(id) else { return false };
        if let Some(busy) = self.busy.get_mut(&id.namespace) {
            *busy -= 1;
            if *busy == 0 {
                self.busy.remove(&id.namespace);
            }
        }
        again
    }

    /// The Services that are at work.
    pub fn running(&self) -> impl Iterator<Item = &ServiceKey> {
        self.running.keys()
    }

    /// Removes the Services that wait. Services at work stay.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.queued.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(namespace: &str, number: usize) -> ServiceKey {
        ServiceKey::new(namespace, format!("web-{number}"))
    }

    fn taken(queue: &mut FairQueue) -> Vec<ServiceKey> {
        std::iter::from_fn(|| queue.take()).collect()
    }

    #[test]
    fn a_namespace_takes_at_most_its_share_of_places() {
        let mut queue = FairQueue::default();
        (0..100).for_each(|number| queue.push(id("mallory", number)));
        assert_eq!(taken(&mut queue).len(), MAX_RUNNING_PER_NAMESPACE);
        queue.push(id("shop", 1));
        assert_eq!(taken(&mut queue), [id("shop", 1)], "at once, though 84 others wait longer");
        assert!(!queue.done(&id("mallory", 0)));
        assert_eq!(taken(&mut queue), [id("mallory", MAX_RUNNING_PER_NAMESPACE)], "in their order");
    }

    #[test]
    fn namespaces_take_turns() {
        let mut queue = FairQueue::default();
        for namespace in ["a", "b", "c"] {
            (0..2).for_each(|number| queue.push(id(namespace, number)));
        }
        let order: Vec<String> = taken(&mut queue).into_iter().map(|id| id.namespace + &id.name).collect();
        assert_eq!(order, ["aweb-0", "bweb-0", "cweb-0", "aweb-1", "bweb-1", "cweb-1"]);
    }

    #[test]
    fn at_most_all_places_are_taken() {
        let mut queue = FairQueue::default();
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
        let mut queue = FairQueue::default();
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
