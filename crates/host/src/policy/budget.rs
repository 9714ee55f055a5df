//! The memory that all evaluations of a process share.
//!
//! Before its instance is created, an evaluation takes a part of the [`Budget`]: as much as the instance may grow to.
//! It returns the part afterwards. All instances together therefore never have more than the budget, however many and
//! however large the requests are: an evaluation waits for its part, or fails.
//!
//! Admission has priority. An evaluation on a thread of [`clusterip_runtime::background`] waits while an evaluation for
//! admission waits, and leaves half of the budget free if it can.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clusterip_runtime::background::is_background;
use thiserror::Error;

/// How long an evaluation for admission waits for memory.
const ADMISSION_WAITS: Duration = Duration::from_secs(5);
/// How long an evaluation in the background gives way to admission. After that it queues with admission.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// How long an evaluation in the background waits for memory.
const BACKGROUND_WAITS: Duration = Duration::from_secs(30);

/// There was no memory for an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no memory for an evaluation within {waited:?}: {needed} of {total} bytes are needed")]
pub struct Exhausted {
    needed: usize,
    total: usize,
    waited: Duration,
}

/// Memory for evaluations. Clones share one budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    total: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    /// How many evaluations have asked for memory so far.
    tickets: u64,
    /// The tickets of the evaluations that wait, in order.
    admission: VecDeque<u64>,
    background: VecDeque<u64>,
}

/// A part of a budget. Dropping it returns the memory.
#[derive(Debug)]
pub struct Part {
    budget: Budget,
    bytes: usize,
}

impl Budget {
    /// A budget of this many bytes.
    pub fn new(total: usize) -> Self {
        Self(Arc::new(Inner { total, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// The size of the whole budget in bytes.
    pub fn total(&self) -> usize {
        self.0.total
    }

    /// Takes a part of the budget, and waits until it is available. Parts are given out in order.
    ///
    /// # Errors
    /// [`Exhausted`] if the memory is not available in time.
    pub fn take(&self, bytes: usize) -> Result<Part, Exhausted> {
        let background = is_background();
        self.take_within(bytes, background, if background { BACKGROUND_WAITS } else { ADMISSION_WAITS })
    }

    fn take_within(&self, bytes: usize, background: bool, longest: Duration) -> Result<Part, Exhausted> {
        let inner = &self.0;
        let (mut background, begin) = (background, Instant::now());
        let end = begin + longest;
        let mut state = self.state();
        let ticket = state.tickets;
        state.tickets += 1;
        state.queue(background).push_back(ticket);
        loop {
            // Admission has priority, but continuous admission must not stop all moves.
            if background && begin.elapsed() >= MAX_WAIT && state.queue(true).front() == Some(&ticket) {
                state.queue(true).pop_front();
                background = false;
                state.queue(false).push_back(ticket);
            }
            if state.admits(ticket, bytes, background, inner.total) {
                state.used += bytes;
                state.queue(background).pop_front();
                inner.changed.notify_all();
                return Ok(Part { budget: self.clone(), bytes });
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.queue(background).retain(|other| *other != ticket);
                inner.changed.notify_all();
                return Err(Exhausted { needed: bytes, total: inner.total, waited: longest });
            }
            let left = if background { left.min(MAX_WAIT) } else { left };
            state = inner.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn queue(&mut self, background: bool) -> &mut VecDeque<u64> {
        if background { &mut self.background } else { &mut self.admission }
    }

    /// Whether the evaluation with this ticket may take this many bytes now.
    fn admits(&mut self, ticket: u64, bytes: usize, background: bool, total: usize) -> bool {
        if self.queue(background).front() != Some(&ticket) || (background && !self.admission.is_empty()) {
            return false;
        }
        // An evaluation that needs more than half of the budget leaves less free.
        let left_free = if background { (total / 2).min(total.saturating_sub(bytes)) } else { 0 };
        self.used.saturating_add(bytes).saturating_add(left_free) <= total
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        state.used = state.used.saturating_sub(self.bytes);
        self.budget.0.changed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    fn waiting(budget: &Budget) -> usize {
        let state = budget.state();
        state.admission.len() + state.background.len()
    }

    #[test]
    fn request_beyond_the_budget_waits_and_then_fails() {
        struct Row {
            name: &'static str,
            used: usize,
            bytes: usize,
            background: bool,
            fits: bool,
        }
        let row = |name, used, bytes, background, fits| Row { name, used, bytes, background, fits };
        let rows = [
            row("the whole budget", 0, 100, false, true),
            row("the rest", 60, 40, false, true),
            row("more than the rest", 60, 41, false, false),
            row("more than there is", 0, 101, false, false),
            row("half in the background", 0, 50, true, true),
            row("beside others in the background", 30, 20, true, true),
            row("into the half for admission", 30, 21, true, false),
            row("more than half in the background, alone", 0, 70, true, true),
            row("more than half in the background, beside others", 1, 100, true, false),
        ];
        for Row { name, used, bytes, background, fits } in rows {
            let budget = Budget::new(100);
            let held = budget.take_within(used, false, SHORT).unwrap();
            let taken = budget.take_within(bytes, background, SHORT);
            assert_eq!(taken.is_ok(), fits, "{name}: {taken:?}");
            drop((held, taken));
            let used = budget.state().used;
            assert_eq!((used, waiting(&budget)), (0, 0), "{name}: all is given back");
        }
    }

    #[test]
    fn admission_has_priority_over_background_work() {
        let budget = Budget::new(100);
        let all = budget.take_within(100, false, SHORT).unwrap();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let take = |name: &'static str, background: bool| {
                let (budget, order) = (&budget, &order);
                let before = waiting(budget);
                scope.spawn(move || {
                    let part = budget.take_within(50, background, LONG).unwrap();
                    order.lock().unwrap().push(name);
                    drop(part);
                });
                while waiting(budget) == before {
                    thread::yield_now();
                }
            };
            take("background", true);
            take("admission", false);
            drop(all);
        });
        assert_eq!(order.into_inner().unwrap(), ["admission", "background"]);
    }

    #[test]
    fn parts_never_exceed_the_budget() {
        let (budget, used, most) = (Budget::new(100), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for number in 0..16 {
                let (budget, used, most) = (&budget, &used, &most);
                scope.spawn(move || {
                    for round in 0..50 {
                        let bytes = 10 + (number * 7 + round * 13) % 60;
                        let part = budget.take_within(bytes, number % 4 == 0, LONG).unwrap();
                        most.fetch_max(used.fetch_add(bytes, Ordering::SeqCst) + bytes, Ordering::SeqCst);
                        used.fetch_sub(bytes, Ordering::SeqCst);
                        drop(part);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 100);
    }
}
