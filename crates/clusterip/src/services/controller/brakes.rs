//! The brakes of the controller: limits on how many Services it moves at once, and how often.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use clusterip_core::service_key::ServiceKey;

use crate::services::misplaced::AskedBy;

/// The most Services that are moved within a minute.
pub const MAX_MOVES_PER_MINUTE: usize = 200;
/// The most Services of one namespace that are moved within a minute: half of [`MAX_MOVES_PER_MINUTE`].
pub const MAX_NAMESPACE_MOVES_PER_MINUTE: usize = 100;
/// How many Services of a namespace may move within a minute even if other namespaces have used up
/// [`MAX_MOVES_PER_MINUTE`].
pub const MIN_MOVES_PER_NAMESPACE: usize = 10;
/// How long a Service stays where it is after a move.
pub const COOLDOWN: Duration = Duration::from_secs(60);
/// How many Services new settings may move without the consent of an administrator. More may move without consent
/// if they are at most [`MAX_PERCENT_WITHOUT_CONSENT`] percent of all that are managed.
const MAX_MOVES_WITHOUT_CONSENT: usize = 20;
/// See [`MAX_MOVES_WITHOUT_CONSENT`].
const MAX_PERCENT_WITHOUT_CONSENT: usize = 10;

const MINUTE: Duration = Duration::from_secs(60);

/// The brake that stops a move for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brake {
    /// The Service was moved less than a minute ago.
    Cooldown {
        /// When the Service may move again.
        until: Instant,
    },
    /// The most Services allowed were moved within the last minute.
    Rate {
        /// When another Service may move.
        until: Instant,
    },
    /// The settings changed so that a large part of the Services would move. An administrator must confirm the moves.
    Settings,
}

/// When a Service was moved.
#[derive(Clone, Copy)]
struct LastMove {
    at: Instant,
    /// The move before, to which [`Brakes::take_back`] returns.
    before: Option<Instant>,
}

/// The brakes of one controller.
#[derive(Default)]
pub struct Brakes {
    /// The start and the namespace of each recent move, oldest first.
    recent: VecDeque<(Instant, String)>,
    /// The last move of each Service in its cooldown.
    moved: HashMap<ServiceKey, LastMove>,
    /// The Services that new settings would move, and that wait for the consent of an administrator.
    waiting: BTreeSet<ServiceKey>,
    /// Whether it is not known yet which Services new settings would move.
    is_undecided: bool,
}

impl Brakes {
    /// Notes that all Services are examined, because settings are in force that were not carried out yet. Until
    /// [`Self::settings_changed`], only those Services may move that an administrator asks for.
    pub fn examine(&mut self) {
        self.is_undecided = true;
    }

    /// Whether it is not known yet which Services new settings would move.
    pub fn is_undecided(&self) -> bool {
        self.is_undecided
    }

    /// Asks for a move, and counts it if it is allowed. The author of a Service may skip its cooldown, and an
    /// administrator may skip every brake. All moves count.
    ///
    /// # Errors
    /// The [`Brake`] that stops the move.
    pub fn take(&mut self, id: &ServiceKey, asked_by: AskedBy, now: Instant) -> Result<(), Brake> {
        self.recent.retain(|(at, _)| now.saturating_duration_since(*at) < MINUTE);
        self.moved.retain(|_, last| now.saturating_duration_since(last.at) < COOLDOWN);
        if asked_by != AskedBy::Administrator {
            if self.waiting.contains(id) {
                return Err(Brake::Settings);
            }
            if let Some(last) = self.moved.get(id).filter(|_| asked_by == AskedBy::Controller) {
                return Err(Brake::Cooldown { until: last.at + COOLDOWN });
            }
            let own = self.recent.iter().filter(|(_, namespace)| *namespace == id.namespace);
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
        self.recent.push_back((now, id.namespace.clone()));
        let before = self.moved.get(id).map(|last| last.at);
        self.moved.insert(id.clone(), LastMove { at: now, before });
        Ok(())
    }

    /// Takes back the last [`Self::take`] of a Service whose move did not begin. The cooldown of the move before stays.
    pub fn take_back(&mut self, id: &ServiceKey) {
        let Some(taken) = self.moved.remove(id) else { return };
        if let Some(at) = taken.before {
            self.moved.insert(id.clone(), LastMove { at, before: None });
        }
        let last = self.recent.iter().rposition(|(at, namespace)| (*at, namespace) == (taken.at, &id.namespace));
        if let Some(last) = last {
            self.recent.remove(last);
        }
    }

    /// Notes that new settings are in force, by which `misplaced` of `managed` Services would move. Returns whether
    /// these Services must wait.
    pub fn settings_changed(&mut self, misplaced: BTreeSet<ServiceKey>, managed: usize) -> bool {
        let too_many = misplaced.len() > MAX_MOVES_WITHOUT_CONSENT
            && misplaced.len() * 100 > managed * MAX_PERCENT_WITHOUT_CONSENT;
        self.waiting = if too_many { misplaced } else { BTreeSet::new() };
        self.is_undecided = false;
        too_many
    }

    /// Stops the wait of a Service that is in place or gone.
    pub fn stop_waiting(&mut self, id: &ServiceKey) {
        self.waiting.remove(id);
    }

    /// The Services that wait for the consent of an administrator.
    pub fn waiting_services(&self) -> &BTreeSet<ServiceKey> {
        &self.waiting
    }

    /// How many Services wait for the consent of an administrator.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
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
        assert_eq!(brakes.take(&id(1), Controller, later), Err(Brake::Cooldown { until: begin + COOLDOWN }));
        assert_eq!(brakes.take(&id(2), Controller, later), Ok(()), "another one");
        assert_eq!(brakes.take(&id(1), Author, later), Ok(()), "its author asks for it");
        assert_eq!(brakes.take(&id(1), Controller, begin + COOLDOWN), Err(Brake::Cooldown { until: later + COOLDOWN }));
        assert_eq!(brakes.take(&id(2), Controller, later + COOLDOWN), Ok(()));
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
        assert_eq!(brakes.take(&id(1), Controller, later), Err(Brake::Cooldown { until: begin + COOLDOWN }));
        assert_eq!(brakes.take(&id(1), Controller, begin + COOLDOWN), Ok(()));
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

    #[test]
    fn settings_that_move_many_services_wait_for_consent() {
        struct Case {
            name: &'static str,
            misplaced: usize,
            managed: usize,
            waits: bool,
        }
        let cases = [
            Case { name: "20 of 20", misplaced: 20, managed: 20, waits: false },
            Case { name: "more than 20, more than a tenth", misplaced: 21, managed: 100, waits: true },
            Case { name: "more than 20, a tenth", misplaced: 21, managed: 210, waits: false },
            Case { name: "more than 20, a little more than a tenth", misplaced: 22, managed: 210, waits: true },
        ];
        for Case { name, misplaced, managed, waits } in cases {
            let mut brakes = Brakes::default();
            assert_eq!(brakes.settings_changed((0..misplaced).map(id).collect(), managed), waits, "{name}");
            let taken = brakes.take(&id(3), AskedBy::Author, Instant::now());
            assert_eq!(taken, if waits { Err(Brake::Settings) } else { Ok(()) }, "{name}");
        }
        let mut brakes = Brakes::default();
        brakes.settings_changed((0..30).map(id).collect(), 30);
        assert_eq!(brakes.take(&id(3), AskedBy::Administrator, Instant::now()), Ok(()), "an administrator asks for it");
        brakes.stop_waiting(&id(3));
        assert_eq!(brakes.waiting(), 29);
        assert_eq!(brakes.take(&id(30), AskedBy::Controller, Instant::now()), Ok(()), "misplaced later");
    }

    #[test]
    fn end_of_a_survey_decides() {
        let mut brakes = Brakes::default();
        assert!(!brakes.is_undecided());
        brakes.examine();
        assert!(brakes.is_undecided());
        brakes.settings_changed(BTreeSet::new(), 0);
        assert!(!brakes.is_undecided());
    }
}
