//! The brakes of the controller: limits on how many Services it moves at once, and how often.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use clusterip_core::service_key::ServiceKey;

use crate::services::misplaced::AskedBy;
use crate::services::service_metrics::StayReason;

/// The most Services that are moved within a minute.
const MAX_MOVES_PER_MINUTE: usize = 200;
/// The most Services of one namespace that are moved within a minute.
const MAX_NAMESPACE_MOVES_PER_MINUTE: usize = MAX_MOVES_PER_MINUTE / 2;
/// How many Services of a namespace may move within a minute even if others have used up [`MAX_MOVES_PER_MINUTE`].
const MIN_MOVES_PER_NAMESPACE: usize = 10;
/// How many Services of a namespace new settings may move without the consent of an administrator. More may move without
/// consent if they are at most [`MAX_PERCENT_WITHOUT_CONSENT`] percent of all that are managed.
const MAX_MOVES_WITHOUT_CONSENT: usize = 20;
const MAX_PERCENT_WITHOUT_CONSENT: usize = 10;

/// Also how long a Service stays where it is after a move.
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brake {
    Cooldown {
        until: Instant,
    },
    /// The most Services allowed were moved within the last minute.
    Rate {
        until: Instant,
    },
    /// The settings are new, and an administrator must confirm the moves.
    Settings(Why),
}

/// Why an administrator must confirm a move that new settings cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The Service has ready endpoints. They answered with the settings before, so they may answer in spite of these.
    Ready,
    /// Many Services of its namespace would move. Other namespaces don't wait for them.
    Namespace,
    /// Many Services of several namespaces would move.
    Cluster,
}

/// The Services that new settings would move, each with whether it must wait whatever the number is.
pub type WouldMove = BTreeMap<ServiceKey, bool>;

#[derive(Default)]
pub struct Brakes {
    /// The start of each move of the last minute, and its Service, oldest first.
    recent: VecDeque<(Instant, ServiceKey)>,
    /// The Services that new settings would move, and that wait for the consent of an administrator.
    pub waiting: BTreeMap<ServiceKey, Why>,
    /// Whether it is not known yet of any namespace which Services new settings would move.
    is_all_undecided: bool,
    /// The namespaces of which that is not known yet.
    undecided: BTreeSet<String>,
}

impl Brakes {
    /// Notes that all Services are examined, because settings are in force that were not carried out yet. Until
    /// [`Self::settings_changed`], only those Services may move that an administrator asks for.
    pub fn examine(&mut self) {
        self.is_all_undecided = true;
    }

    pub fn is_undecided(&self) -> bool {
        self.is_all_undecided || !self.undecided.is_empty()
    }

    /// Whether it is not known yet which Services of this namespace new settings would move.
    pub fn is_undecided_in(&self, namespace: &str) -> bool {
        self.is_all_undecided || self.undecided.contains(namespace)
    }

    /// Asks for a move, and counts it if it is allowed. The author of a Service may skip its cooldown, and an
    /// administrator may skip every brake. All moves count.
    pub fn take(&mut self, id: &ServiceKey, asked_by: AskedBy, now: Instant) -> Result<(), Brake> {
        self.recent.retain(|(at, _)| now.saturating_duration_since(*at) < MINUTE);
        if asked_by != AskedBy::Administrator {
            if let Some(why) = self.waiting.get(id) {
                return Err(Brake::Settings(*why));
            }
            if let Some(last) = self.last_of(id).filter(|_| asked_by == AskedBy::Controller) {
                return Err(Brake::Cooldown { until: self.recent[last].0 + MINUTE });
            }
            let own = self.recent.iter().filter(|(_, moved)| moved.namespace == id.namespace);
            let of_namespace = own.clone().count();
            let all_is_used = self.recent.len() >= MAX_MOVES_PER_MINUTE && of_namespace >= MIN_MOVES_PER_NAMESPACE;
            let first = if of_namespace >= MAX_NAMESPACE_MOVES_PER_MINUTE {
                own.clone().next()
            } else {
                self.recent.front().filter(|_| all_is_used)
            };
            if let Some((first, _)) = first {
                return Err(Brake::Rate { until: *first + MINUTE });
            }
        }
        self.recent.push_back((now, id.clone()));
        Ok(())
    }

    /// Where the last move of a Service is in `recent`.
    fn last_of(&self, id: &ServiceKey) -> Option<usize> {
        self.recent.iter().rposition(|(_, moved)| moved == id)
    }

    /// Takes back the last [`Self::take`] of a Service whose move did not begin. The cooldown of the move before stays.
    pub fn take_back(&mut self, id: &ServiceKey) {
        if let Some(last) = self.last_of(id) {
            self.recent.remove(last);
        }
    }

    /// Ends the cooldown after the last [`Self::take`] of a Service whose move begins again. Its move still counts.
    pub fn end_cooldown(&mut self, id: &ServiceKey) {
        if let Some(last) = self.last_of(id) {
            // No Service has an empty name.
            self.recent[last].1.name.clear();
        }
    }

    /// Notes that new settings are in force, which would move these of `managed` Services. Those of the namespaces
    /// `undecided` still have to be examined. Returns how many of them must wait.
    ///
    /// A namespace with too many Services that would move waits alone. If the Services of the other namespaces, without
    /// the largest of these, are too many together, the Services of all namespaces wait. So a tenant who may write in
    /// one namespace can't make others wait.
    pub fn settings_changed(&mut self, would_move: WouldMove, managed: usize, undecided: BTreeSet<String>) -> usize {
        let too_many =
            |count: usize| count > MAX_MOVES_WITHOUT_CONSENT && count * 100 > managed * MAX_PERCENT_WITHOUT_CONSENT;
        let mut of_namespaces: BTreeMap<String, usize> = BTreeMap::new();
        for (id, _) in would_move.iter().filter(|(_, waits)| !**waits) {
            *of_namespaces.entry(id.namespace.clone()).or_default() += 1;
        }
        let others = of_namespaces.values().copied().filter(|count| !too_many(*count));
        let (most, all) = (others.clone().max().unwrap_or_default(), others.sum::<usize>());
        let all_wait = too_many(all - most);
        let why = |(id, waits): (ServiceKey, bool)| {
            let is_large = of_namespaces.get(&id.namespace).is_some_and(|count| too_many(*count));
            match (waits, is_large) {
                (true, _) => Some((id, Why::Ready)),
                (false, true) => Some((id, Why::Namespace)),
                (false, false) => all_wait.then_some((id, Why::Cluster)),
            }
        };
        self.waiting = would_move.into_iter().filter_map(why).collect();
        (self.is_all_undecided, self.undecided) = (false, undecided);
        self.waiting.len()
    }

    /// Notes why a Service stays. It no longer waits for consent if its author alone can make it stay for that reason:
    /// otherwise the author could keep the settings from ever being carried out.
    pub fn stays(&mut self, id: &ServiceKey, reason: StayReason) {
        let waits = match reason {
            StayReason::Brake | StayReason::Moving | StayReason::PoolFull | StayReason::ControlPlane => true,
            // Otherwise it had none before, and may move when it has none again.
            StayReason::ReadyEndpoints => self.waiting.get(id) != Some(&Why::Ready),
            _ => false,
        };
        if !waits {
            self.waiting.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> ServiceKey {
        ServiceKey::new("shop", format!("web-{number}"))
    }

    #[test]
    fn a_service_moves_at_most_once_a_minute() {
        use AskedBy::{Author, Controller};
        let (mut brakes, begin) = (Brakes::default(), Instant::now());
        assert_eq!(brakes.take(&id(1), Controller, begin), Ok(()));
        let later = begin + Duration::from_secs(59);
        assert_eq!(brakes.take(&id(1), Controller, later), Err(Brake::Cooldown { until: begin + MINUTE }));
        assert_eq!(brakes.take(&id(2), Controller, later), Ok(()), "another one");
        assert_eq!(brakes.take(&id(1), Author, later), Ok(()), "its author asks for it");
        assert_eq!(brakes.take(&id(1), Controller, begin + MINUTE), Err(Brake::Cooldown { until: later + MINUTE }));
        assert_eq!(brakes.take(&id(2), Controller, later + MINUTE), Ok(()));
    }

    #[test]
    fn a_move_that_did_not_begin_does_not_count() {
        let (mut brakes, begin) = (Brakes::default(), Instant::now());
        for number in 0..MAX_NAMESPACE_MOVES_PER_MINUTE {
            assert_eq!(brakes.take(&id(number), AskedBy::Controller, begin), Ok(()));
        }
        let rate = Err(Brake::Rate { until: begin + MINUTE });
        assert_eq!(brakes.take(&id(1000), AskedBy::Controller, begin), rate);
        brakes.take_back(&id(1000));
        assert_eq!(brakes.take(&id(1000), AskedBy::Controller, begin), rate, "it was not counted");
        brakes.take_back(&id(7));
        assert_eq!(brakes.take(&id(7), AskedBy::Controller, begin), Ok(()));
        assert_eq!(brakes.take(&id(1000), AskedBy::Controller, begin), rate);
    }

    #[test]
    fn a_move_that_did_not_begin_leaves_the_earlier_cooldown() {
        use AskedBy::{Author, Controller};
        let (mut brakes, begin) = (Brakes::default(), Instant::now());
        assert_eq!(brakes.take(&id(1), Controller, begin), Ok(()));
        let later = begin + Duration::from_secs(30);
        assert_eq!(brakes.take(&id(1), Author, later), Ok(()));
        brakes.take_back(&id(1));
        assert_eq!(brakes.take(&id(1), Controller, later), Err(Brake::Cooldown { until: begin + MINUTE }));
        assert_eq!(brakes.take(&id(1), Controller, begin + MINUTE), Ok(()));
    }

    #[test]
    fn a_move_that_begins_again_counts_and_has_no_cooldown() {
        let (mut brakes, begin) = (Brakes::default(), Instant::now());
        for number in 1..MAX_NAMESPACE_MOVES_PER_MINUTE {
            assert_eq!(brakes.take(&id(number), AskedBy::Controller, begin), Ok(()));
        }
        brakes.end_cooldown(&id(1));
        assert_eq!(brakes.take(&id(1), AskedBy::Controller, begin), Ok(()));
        brakes.end_cooldown(&id(1));
        assert_eq!(brakes.take(&id(1), AskedBy::Controller, begin), Err(Brake::Rate { until: begin + MINUTE }));
    }

    #[test]
    fn at_most_two_hundred_services_move_within_a_minute() {
        use AskedBy::{Administrator, Author, Controller};
        let (mut brakes, begin) = (Brakes::default(), Instant::now());
        let later = begin + Duration::from_secs(30);
        let full = Err(Brake::Rate { until: begin + MINUTE });
        let bank = |number: usize| ServiceKey::new("bank", format!("web-{number}"));
        for number in 0..MAX_NAMESPACE_MOVES_PER_MINUTE {
            let at = begin + Duration::from_millis(2 * number as u64);
            assert_eq!(brakes.take(&id(number), Controller, at), Ok(()));
        }
        assert_eq!(brakes.take(&id(999), Controller, later), full, "half of all is of one namespace");
        for number in 0..MAX_MOVES_PER_MINUTE - MAX_NAMESPACE_MOVES_PER_MINUTE {
            assert_eq!(brakes.take(&bank(number), Controller, later), Ok(()), "the other half");
        }
        assert_eq!(brakes.take(&id(999), Controller, later), full);
        assert_eq!(brakes.take(&id(999), Author, later), full, "an author does not lift the brake");
        let other = |number: usize| ServiceKey::new("third", format!("web-{number}"));
        for number in 0..MIN_MOVES_PER_NAMESPACE {
            assert_eq!(brakes.take(&other(number), Controller, later), Ok(()), "the share of another namespace");
        }
        assert_eq!(brakes.take(&other(999), Controller, later), full, "more than its share");
        assert_eq!(brakes.take(&id(999), Administrator, later), Ok(()));
        let until = begin + MINUTE + Duration::from_millis(2);
        assert_eq!(brakes.take(&id(998), Controller, begin + MINUTE), Err(Brake::Rate { until }), "every move counts");
    }

    /// Services of this namespace that would move.
    fn some(namespace: &str, count: usize) -> WouldMove {
        (0..count).map(|number| (ServiceKey::new(namespace, format!("web-{number}")), false)).collect()
    }

    #[test]
    fn settings_that_move_many_services_wait_for_consent() {
        use Why::{Cluster, Namespace};
        struct Case {
            name: &'static str,
            would_move: &'static [(&'static str, usize)],
            managed: usize,
            waiting: &'static [(&'static str, Why)],
        }
        let case = |name, would_move, managed, waiting| Case { name, would_move, managed, waiting };
        let cases = [
            case("20 of 20", &[("a", 20)], 20, &[]),
            case("more than 20, more than a tenth", &[("a", 21)], 100, &[("a", Namespace)]),
            case("more than 20, a tenth", &[("a", 21)], 210, &[]),
            case("more than 20, a little more than a tenth", &[("a", 22)], 210, &[("a", Namespace)]),
            case("a large namespace", &[("a", 3), ("b", 150), ("c", 20)], 200, &[("b", Namespace)]),
            case("two", &[("a", 3), ("b", 150), ("c", 150)], 400, &[("b", Namespace), ("c", Namespace)]),
            case("a namespace with as many as allowed", &[("a", 18), ("b", 20)], 40, &[]),
            case(
                "many in small namespaces",
                &[("a", 11), ("b", 10), ("c", 11)],
                200,
                &[("a", Cluster), ("b", Cluster), ("c", Cluster)],
            ),
            case("many, and at most a tenth", &[("a", 11), ("b", 10), ("c", 11)], 210, &[]),
        ];
        for Case { name, would_move, managed, waiting } in cases {
            let mut brakes = Brakes::default();
            let all = would_move.iter().flat_map(|(namespace, count)| some(namespace, *count)).collect();
            let waits = |(namespace, _): &&(&str, usize)| waiting.iter().any(|(waiting, _)| waiting == namespace);
            let expected: usize = would_move.iter().filter(waits).map(|(_, count)| count).sum();
            assert_eq!(brakes.settings_changed(all, managed, BTreeSet::new()), expected, "{name}");
            for (namespace, count) in would_move {
                let why = waiting.iter().find(|(waiting, _)| waiting == namespace);
                let expected = why.map_or(Ok(()), |(_, why)| Err(Brake::Settings(*why)));
                let last = ServiceKey::new(*namespace, format!("web-{}", count - 1));
                assert_eq!(brakes.take(&last, AskedBy::Author, Instant::now()), expected, "{name}: {namespace}");
            }
        }
        let mut brakes = Brakes::default();
        brakes.settings_changed(some("shop", 30), 30, BTreeSet::new());
        assert_eq!(brakes.take(&id(3), AskedBy::Administrator, Instant::now()), Ok(()), "an administrator asks for it");
        brakes.waiting.remove(&id(3));
        assert_eq!(brakes.waiting.len(), 29);
        assert_eq!(brakes.take(&id(30), AskedBy::Controller, Instant::now()), Ok(()), "misplaced later");
    }

    #[test]
    fn services_that_must_wait_wait_whatever_their_number_and_do_not_count() {
        let mut brakes = Brakes::default();
        let mut would_move = some("shop", 20);
        would_move.insert(id(100), true);
        assert_eq!(brakes.settings_changed(would_move, 21, BTreeSet::new()), 1);
        assert_eq!(brakes.take(&id(100), AskedBy::Controller, Instant::now()), Err(Brake::Settings(Why::Ready)));
        assert_eq!(brakes.take(&id(3), AskedBy::Controller, Instant::now()), Ok(()));
        assert_eq!(brakes.waiting.len(), 1);
    }

    #[test]
    fn service_that_stays_anyway_does_not_wait_for_consent() {
        use StayReason::{Brake, ByHand, ControlPlane, LoadBalancer, Moving, Never, NotRecorded, PoolFull, TooLarge};
        let reasons = |waits: bool| match waits {
            true => vec![Brake, Moving, PoolFull, ControlPlane],
            false => vec![Never, ByHand, LoadBalancer, NotRecorded, TooLarge],
        };
        for (must_wait, waits) in [(false, true), (false, false), (true, true), (true, false)] {
            // Those that must wait have ready endpoints. If others get some, they go on waiting.
            let ready_endpoints = (must_wait != waits).then_some(StayReason::ReadyEndpoints);
            for reason in reasons(waits).into_iter().chain(ready_endpoints) {
                let mut brakes = Brakes::default();
                let would_move = some("shop", 30).into_keys().map(|id| (id, must_wait)).collect();
                brakes.settings_changed(would_move, 30, BTreeSet::new());
                brakes.stays(&id(3), reason);
                assert_eq!(brakes.waiting.contains_key(&id(3)), waits, "{reason:?}");
            }
        }
    }

    #[test]
    fn end_of_a_survey_decides() {
        let mut brakes = Brakes::default();
        assert!(!brakes.is_undecided());
        brakes.examine();
        assert!(brakes.is_undecided());
        brakes.settings_changed(WouldMove::new(), 0, BTreeSet::new());
        assert!(!brakes.is_undecided());
        brakes.settings_changed(WouldMove::new(), 0, BTreeSet::from(["mallory".to_owned()]));
        assert!(brakes.is_undecided());
        assert!(brakes.is_undecided_in("mallory") && !brakes.is_undecided_in("shop"));
    }
}
