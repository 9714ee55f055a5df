//! Records the look-ups of an evaluation.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::host_calls::{HostCall, HostCalls};

type Answer = Result<Vec<u8>, String>;

/// The look-ups that an evaluation has made, with their answers. As long as they would have the same answers, another
/// evaluation with the same request and settings gives the same answer.
#[derive(Debug, Default)]
pub struct RecordedLookups(Mutex<Vec<(HostCall, Answer)>>);

impl RecordedLookups {
    /// Answers a look-up with `calls`, and records it.
    ///
    /// # Errors
    /// As [`HostCalls::answer`].
    pub fn answer(&self, calls: &impl HostCalls, call: &HostCall) -> Answer {
        let answer = calls.answer(call);
        self.lock().push((call.clone(), answer.clone()));
        answer
    }

    /// Whether `calls` give the recorded answer to each look-up.
    pub fn hold(&self, calls: &impl HostCalls) -> bool {
        self.lock().iter().all(|(call, answer)| calls.answer(call) == *answer)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(HostCall, Answer)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
