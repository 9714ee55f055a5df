//! The Services that lack external addresses: decides about which one the policy is asked next.
//!
//! A tenant can create thousands of Services that get no address, and change them all the time. So the namespaces take
//! turns with one question at a time, and the policy is asked about a Service once for each version of what its answer
//! depends on. When what several Services wait for may have changed, it is asked about them until it refuses one.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use clusterip_core::service_key::ServiceKey;
use tokio::time::{Duration, Instant};

const QUESTIONS: usize = 8;
/// How long after a refusal the policy is asked again about one of the Services that wait for the same thing.
const AGAIN: Duration = Duration::from_secs(30);
/// How many Events about refusals are written for one namespace at once.
const EVENTS: u32 = 16;
/// How long it takes until one more may be written.
const EVENT_PAUSE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitsFor {
    /// A free address of a pool, of one of these families.
    Address { pool: String, families: String },
    /// Another answer of the policy, which gives this namespace no address of any pool.
    Pool { namespace: String },
    /// An answer of the API server.
    ApiServer { namespace: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is nothing to do until the version changes.
    Settled,
    /// The same: the Service has been given its addresses.
    Assigned,
    /// The Service has changed meanwhile: the policy has to be asked again.
    Changed,
    Waits(WaitsFor),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub service: ServiceKey,
    waited_for: Option<WaitsFor>,
    /// The number of calls of [`Waiting::freed`] before the question.
    freed: u64,
}

/// The Services that lack addresses. `V` is the version of what the answer about a Service depends on.
pub struct Waiting<V> {
    services: BTreeMap<ServiceKey, Lacking<V>>,
    namespaces: BTreeMap<String, OfNamespace>,
    /// When the policy is asked again about one of those that wait for this. Without an entry, they may get it now.
    refused: BTreeMap<WaitsFor, Instant>,
    freed: u64,
    /// Counts the turns of namespaces, and the places in queues.
    turns: u64,
    /// When the next Event of a namespace would be written if there were no more than one in [`EVENT_PAUSE`].
    events: BTreeMap<String, Instant>,
}

struct Lacking<V> {
    version: V,
    /// The queue of the Service, and its place there; `None` if it is in no queue.
    place: Option<(Option<WaitsFor>, u64)>,
    /// The hash of the reason that was reported last; `None` if the Service waits for nothing.
    reported: Option<u64>,
}

#[derive(Default)]
struct OfNamespace {
    /// Names of Services by their places. Those about which the policy was not asked yet come first.
    queues: BTreeMap<Option<WaitsFor>, BTreeMap<u64, String>>,
    is_asking: bool,
    last_turn: u64,
}

impl<V> Default for Waiting<V> {
    fn default() -> Self {
        Self {
            services: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            refused: BTreeMap::new(),
            freed: 0,
            turns: 0,
            events: BTreeMap::new(),
        }
    }
}

impl<V: PartialEq> Waiting<V> {
    /// Sets all Services that lack addresses, each with its version.
    pub fn set(&mut self, lacking: BTreeMap<ServiceKey, V>, now: Instant) {
        let gone: Vec<ServiceKey> = self.services.keys().filter(|id| !lacking.contains_key(id)).cloned().collect();
        for id in gone {
            self.leave_queue(&id);
            self.services.remove(&id);
        }
        for (id, version) in lacking {
            match self.services.get_mut(&id) {
                Some(known) if known.version == version => continue,
                Some(known) => known.version = version,
                None => {
                    self.services.insert(id.clone(), Lacking { version, place: None, reported: None });
                }
            }
            self.enqueue(&id, None);
        }
        self.namespaces.retain(|_, of| {
            of.queues.retain(|_, queue| !queue.is_empty());
            of.is_asking || !of.queues.is_empty()
        });
        let namespaces = &self.namespaces;
        let has_waiting = |it: &WaitsFor| namespaces.values().any(|of| of.queues.contains_key(&Some(it.clone())));
        self.refused.retain(|it, again| *again > now || has_waiting(it));
        self.events.retain(|_, next| *next > now);
    }

    /// Notes that an address of each of these pools has become free.
    pub fn freed(&mut self, pools: &[&str]) {
        if !pools.is_empty() {
            self.freed += 1;
            self.refused.retain(|it, _| !matches!(it, WaitsFor::Address { pool, .. } if pools.contains(&&**pool)));
        }
    }

    /// The next question; `None` if there are enough, or none is due. Each needs a call of [`Self::answered`].
    pub fn next(&mut self, now: Instant) -> Option<Question> {
        if self.namespaces.values().filter(|of| of.is_asking).count() >= QUESTIONS {
            return None;
        }
        let is_due = |it: &WaitsFor| self.refused.get(it).is_none_or(|again| *again <= now);
        let due = self.namespaces.iter().filter(|(_, of)| !of.is_asking).filter_map(|(namespace, of)| {
            let mut queues = of.queues.iter();
            let of_due = queues.find(|(it, queue)| !queue.is_empty() && it.as_ref().is_none_or(is_due));
            let (waits_for, queue) = of_due?;
            Some((of.last_turn, namespace, waits_for, queue.values().next()?))
        });
        let (_, namespace, waited_for, name) = due.min_by_key(|(last_turn, ..)| *last_turn)?;
        let (service, waited_for) = (ServiceKey::new(namespace.clone(), name.clone()), waited_for.clone());
        self.leave_queue(&service);
        // Of those that were refused, only one is asked about.
        if let Some(again) = waited_for.as_ref().and_then(|it| self.refused.get_mut(it)) {
            *again = now + AGAIN;
        }
        self.turns += 1;
        let of = self.namespaces.entry(service.namespace.clone()).or_default();
        (of.is_asking, of.last_turn) = (true, self.turns);
        Some(Question { service, waited_for, freed: self.freed })
    }

    /// Notes the answer to a question, with the reason for a refusal.
    pub fn answered(&mut self, question: Question, answer: Answer, reason: &str, now: Instant) -> Report {
        let Question { service: id, waited_for, freed } = question;
        self.namespaces.entry(id.namespace.clone()).or_default().is_asking = false;
        match (&answer, waited_for) {
            (Answer::Waits(waits_for), _) if freed == self.freed => {
                self.refused.entry(waits_for.clone()).or_insert(now + AGAIN);
            }
            // Others may get what they wait for, too.
            (Answer::Settled | Answer::Assigned, Some(waited_for)) => drop(self.refused.remove(&waited_for)),
            _ => {}
        }
        let Some(known) = self.services.get_mut(&id) else { return Report::default() };
        let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one(reason);
        let (again, reported) = match answer {
            Answer::Settled | Answer::Assigned => (None, None),
            Answer::Changed => (Some(None), known.reported),
            Answer::Waits(waits_for) => (Some(Some(waits_for)), Some(hash)),
        };
        let is_new = std::mem::replace(&mut known.reported, reported) != reported && reported.is_some();
        // A version that came meanwhile keeps its place.
        if let Some(waits_for) = again.filter(|_| known.place.is_none()) {
            self.enqueue(&id, waits_for);
        }
        Report { is_new, as_event: is_new && self.may_write_event(&id.namespace, now) }
    }

    /// When the next question is due that is not due yet.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        self.refused.values().copied().filter(|again| *again > now).min()
    }

    /// How many Services wait for something after a question.
    pub fn count(&self) -> usize {
        self.services.values().filter(|known| known.reported.is_some()).count()
    }

    fn may_write_event(&mut self, namespace: &str, now: Instant) -> bool {
        let next = self.events.get(namespace).map_or(now, |next| (*next).max(now));
        let may = next < now + EVENTS * EVENT_PAUSE;
        if may {
            self.events.insert(namespace.to_owned(), next + EVENT_PAUSE);
        }
        may
    }

    fn enqueue(&mut self, id: &ServiceKey, waits_for: Option<WaitsFor>) {
        self.leave_queue(id);
        let Some(known) = self.services.get_mut(id) else { return };
        self.turns += 1;
        let new = OfNamespace { last_turn: self.turns, ..OfNamespace::default() };
        let of = self.namespaces.entry(id.namespace.clone()).or_insert(new);
        of.queues.entry(waits_for.clone()).or_default().insert(self.turns, id.name.clone());
        known.place = Some((waits_for, self.turns));
    }

    fn leave_queue(&mut self, id: &ServiceKey) {
        let place = self.services.get_mut(id).and_then(|known| known.place.take());
        let Some(((waits_for, at), of)) = place.zip(self.namespaces.get_mut(&id.namespace)) else { return };
        of.queues.entry(waits_for).or_default().remove(&at);
    }
}

/// Whether the reason of a refusal is another one than before, and whether an Event about it may be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub is_new: bool,
    pub as_event: bool,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn id(namespace: &str, number: usize) -> ServiceKey {
        ServiceKey::new(namespace, format!("web-{number:04}"))
    }

    /// The first version of so many Services of each namespace.
    fn lacking(counts: &[(&str, usize)]) -> BTreeMap<ServiceKey, u32> {
        let of = |(namespace, count): (&str, usize)| (0..count).map(|number| (id(namespace, number), 1)).collect();
        counts.iter().copied().flat_map::<Vec<_>, _>(of).collect()
    }

    fn full() -> Answer {
        Answer::Waits(WaitsFor::Address { pool: "lan".to_owned(), families: String::new() })
    }

    /// Answers all questions at once until none is due, and returns about which Services they were.
    fn asked(waiting: &mut Waiting<u32>, now: Instant, answer: impl Fn(&ServiceKey) -> Answer) -> Vec<ServiceKey> {
        let question = |waiting: &mut Waiting<u32>| {
            let question = waiting.next(now)?;
            let id = question.service.clone();
            waiting.answered(question, answer(&id), "full", now);
            Some(id)
        };
        std::iter::from_fn(|| question(waiting)).collect()
    }

    #[test]
    fn namespaces_take_turns_with_one_question_each() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        waiting.set(lacking(&[("mallory", 8000), ("shop", 2)]), now);
        let first = waiting.next(now).unwrap();
        assert_eq!(first.service, id("mallory", 0));
        assert_eq!(waiting.next(now).unwrap().service, id("shop", 0));
        assert_eq!(waiting.next(now), None, "each namespace has one question at a time");
        waiting.answered(first, full(), "full", now);
        waiting.set((0..20).map(|number| (id(&format!("team-{number}"), 0), 1)).collect(), now);
        let more = std::iter::from_fn(|| waiting.next(now)).count();
        assert_eq!(more, QUESTIONS - 1, "the question about a Service that is gone still has its place");
    }

    #[test]
    fn services_of_a_full_pool_are_asked_about_once_until_an_address_is_free() {
        let (mut waiting, begin) = (Waiting::default(), Instant::now());
        let all = lacking(&[("mallory", 300), ("shop", 1)]);
        waiting.set(all.clone(), begin);
        let refused = |_: &ServiceKey| full();
        let order = asked(&mut waiting, begin, refused);
        assert_eq!((order.len(), &order[1]), (301, &id("shop", 0)), "once each, in turns");
        assert_eq!(waiting.count(), 301);
        waiting.set(all.clone(), begin);
        assert_eq!(asked(&mut waiting, begin, refused), []);
        waiting.freed(&["wan"]);
        assert_eq!(asked(&mut waiting, begin, refused), [], "of another pool");
        waiting.freed(&["lan"]);
        let one_gets_it = |id: &ServiceKey| if id.namespace == "shop" { Answer::Settled } else { full() };
        let order = asked(&mut waiting, begin, one_gets_it);
        assert_eq!(order, [id("shop", 0), id("mallory", 0)], "until the first refusal; shop had no turn for longer");
        waiting.freed(&["lan"]);
        assert_eq!(asked(&mut waiting, begin, one_gets_it), [id("mallory", 1)]);

        // Without a reason, one Service is asked about from time to time.
        let due = waiting.next_due(begin).unwrap();
        assert_eq!(due, begin + AGAIN);
        waiting.set(all.clone(), due);
        assert_eq!(asked(&mut waiting, due, refused), [id("mallory", 2)]);
        assert_eq!(waiting.next_due(due), Some(due + AGAIN));
        // If it gets an address, the next one is asked about at once.
        let third = |service: &ServiceKey| if *service == id("mallory", 3) { Answer::Settled } else { full() };
        assert_eq!(asked(&mut waiting, due + AGAIN, third), [id("mallory", 3), id("mallory", 4)]);

        // Another version of a Service is asked about at once.
        let mut changed = all;
        changed.insert(id("mallory", 7), 2);
        waiting.set(changed, due + AGAIN);
        assert_eq!(asked(&mut waiting, due + AGAIN, refused), [id("mallory", 7)]);
    }

    #[test]
    fn refusals_that_are_older_than_a_free_address_do_not_count() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        waiting.set(lacking(&[("shop", 1)]), now);
        let question = waiting.next(now).unwrap();
        waiting.freed(&["lan"]);
        waiting.answered(question, full(), "full", now);
        let question = waiting.next(now).unwrap();
        assert_eq!(question.service, id("shop", 0));
        // A version that comes while the question is asked is asked about, too.
        waiting.set(BTreeMap::from([(id("shop", 0), 2)]), now);
        waiting.answered(question, Answer::Settled, "", now);
        assert_eq!(asked(&mut waiting, now, |_| Answer::Settled), [id("shop", 0)]);
        waiting.set(BTreeMap::new(), now);
        assert!(waiting.services.is_empty() && waiting.namespaces.is_empty() && waiting.refused.is_empty());
    }

    #[test]
    fn reasons_are_reported_once_and_events_of_a_namespace_are_limited() {
        let (mut waiting, begin) = (Waiting::default(), Instant::now());
        let mut report = |all: BTreeMap<ServiceKey, u32>, reason: &str, now: Instant| {
            waiting.set(all, now);
            let mut counts = (0, 0);
            while let Some(question) = waiting.next(now) {
                let Report { is_new, as_event } = waiting.answered(question, full(), reason, now);
                counts = (counts.0 + usize::from(is_new), counts.1 + usize::from(as_event));
            }
            counts
        };
        let (all, most) = (lacking(&[("mallory", 100), ("shop", 2)]), EVENTS as usize);
        let changed = |version: u32| all.keys().map(|id| (id.clone(), version)).collect();
        assert_eq!(report(all.clone(), "full", begin), (102, most + 2));
        assert_eq!(report(changed(2), "full", begin), (0, 0), "the same reason");
        assert_eq!(report(changed(3), "denied", begin), (102, 2), "mallory has to wait");
        assert_eq!(report(changed(4), "full", begin + EVENT_PAUSE), (102, 1 + 2));
    }
}
