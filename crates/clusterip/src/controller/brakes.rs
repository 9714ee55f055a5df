//! What keeps the controller from moving too much at once.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::affected::Id;

/// How many Services are moved in a minute at most.
pub const MOST_A_MINUTE: usize = 200;
/// How long a Service stays where a move brought it.
pub const REST: Duration = Duration::from_secs(60);
/// A change of settings that would move more than so many Services …
const MANY: usize = 20;
/// … and more than one in so many, waits for somebody to agree.
const ONE_IN: usize = 10;

const MINUTE: Duration = Duration::from_secs(60);

/// Why a move has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brake {
    /// It was moved less than a minute ago.
    Rest {
        /// When it may move again.
        until: Instant,
    },
    /// Enough were moved in the last minute.
    Rate {
        /// When another may move.
        until: Instant,
    },
    /// The settings changed so that a large part of the cluster would move: somebody has to agree.
    Settings,
}

/// The brakes of one controller.
#[derive(Default)]
pub struct Brakes {
    recent: VecDeque<Instant>,
    moved: HashMap<Id, Instant>,
    waiting: BTreeSet<Id>,
}

impl Brakes {
    /// Asks for a move, and counts it if there is nothing against it. One that somebody asked for in
    /// person is not kept waiting, but counts.
    ///
    /// # Errors
    /// The brake that is on.
    pub fn take(&mut self, id: &Id, asked_for: bool, now: Instant) -> Result<(), Brake> {
        self.recent.retain(|at| now.saturating_duration_since(*at) < MINUTE);
        self.moved.retain(|_, at| now.saturating_duration_since(*at) < REST);
        if !asked_for {
            if self.waiting.contains(id) {
                return Err(Brake::Settings);
            }
            if let Some(at) = self.moved.get(id) {
                return Err(Brake::Rest { until: *at + REST });
            }
            if let Some(first) = self.recent.front().filter(|_| self.recent.len() >= MOST_A_MINUTE) {
                return Err(Brake::Rate { until: *first + MINUTE });
            }
        }
        self.recent.push_back(now);
        self.moved.insert(id.clone(), now);
        Ok(())
    }

    /// New settings are in force, by which `misplaced` of `managed` Services would move. Gives back
    /// whether these have to wait.
    pub fn settings_changed(&mut self, misplaced: BTreeSet<Id>, managed: usize) -> bool {
        let too_many = misplaced.len() > MANY && misplaced.len() * ONE_IN > managed;
        self.waiting = if too_many { misplaced } else { BTreeSet::new() };
        too_many
    }

    /// A Service is where it belongs, or gone: it waits no more.
    pub fn settled(&mut self, id: &Id) {
        self.waiting.remove(id);
    }

    /// How many Services wait for somebody to agree.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> Id {
        ("shop".to_owned(), format!("web-{number}"))
    }

    #[test]
    fn a_service_rests_for_a_minute() {
        let (mut brakes, begin) = (Brakes::default(), Instant::now());
        assert_eq!(brakes.take(&id(1), false, begin), Ok(()));
        let later = begin + Duration::from_secs(59);
        assert_eq!(brakes.take(&id(1), false, later), Err(Brake::Rest { until: begin + REST }));
        assert_eq!(brakes.take(&id(2), false, later), Ok(()), "another one");
        assert_eq!(brakes.take(&id(1), true, later), Ok(()), "asked for in person");
        assert_eq!(brakes.take(&id(1), false, begin + REST), Err(Brake::Rest { until: later + REST }));
        assert_eq!(brakes.take(&id(2), false, later + REST), Ok(()));
    }

    #[test]
    fn two_hundred_move_in_a_minute() {
        let (mut brakes, begin) = (Brakes::default(), Instant::now());
        for number in 0..MOST_A_MINUTE {
            assert_eq!(brakes.take(&id(number), false, begin + Duration::from_millis(number as u64)), Ok(()));
        }
        let later = begin + Duration::from_secs(30);
        assert_eq!(brakes.take(&id(999), false, later), Err(Brake::Rate { until: begin + MINUTE }));
        assert_eq!(brakes.take(&id(999), true, later), Ok(()), "asked for in person");
        assert_eq!(
            brakes.take(&id(998), false, begin + MINUTE),
            Err(Brake::Rate { until: begin + MINUTE + Duration::from_millis(1) }),
            "the one asked for counts"
        );
        assert_eq!(brakes.take(&id(998), false, begin + MINUTE + Duration::from_millis(1)), Ok(()));
    }

    #[test]
    fn large_changes_of_settings_wait() {
        let rows = [
            ("few, but all of them", 20, 20, false),
            ("many of few", 21, 100, true),
            ("many of many", 21, 210, false),
            ("a little more than one in ten", 22, 210, true),
        ];
        for (name, misplaced, managed, waits) in rows {
            let mut brakes = Brakes::default();
            assert_eq!(brakes.settings_changed((0..misplaced).map(id).collect(), managed), waits, "{name}");
            let taken = brakes.take(&id(3), false, Instant::now());
            assert_eq!(taken, if waits { Err(Brake::Settings) } else { Ok(()) }, "{name}");
        }
        let mut brakes = Brakes::default();
        brakes.settings_changed((0..30).map(id).collect(), 30);
        assert_eq!(brakes.take(&id(3), true, Instant::now()), Ok(()), "asked for in person");
        brakes.settled(&id(3));
        assert_eq!(brakes.waiting(), 29);
        assert_eq!(brakes.take(&id(30), false, Instant::now()), Ok(()), "misplaced later");
    }
}
