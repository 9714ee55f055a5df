//! Failures that come again and again, such as those of all watches while the API server is away: the log has one line
//! for each cause, one more for each minute, and one at the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::kinds::Kind;

/// A failure with a known cause is logged again after this time.
const PAUSE: Duration = Duration::from_mins(1);
/// At most this many causes are remembered. If there are more, failures are logged that need not be.
const MAX_CAUSES: usize = 64;

static CAUSES: Mutex<Causes> = Mutex::new(Causes(BTreeMap::new()));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// How many failures with the same cause were not logged since the last line; `None` if there were none.
    pub not_logged: Option<u64>,
}

/// Notes a failure; `None` if it is not logged, because a failure with this cause was logged a moment ago.
pub fn line(cause: &str) -> Option<Line> {
    CAUSES.lock().note(cause, Instant::now())
}

/// Notes that the failures with this cause have ended; `None` if that is not logged, because it is known.
pub fn end(cause: &str) -> Option<Line> {
    CAUSES.lock().end(cause)
}

pub(crate) fn warn_of_watch((api_version, kind): &Kind, error: &str) {
    if let Some(Line { not_logged }) = line(error) {
        tracing::warn!(api_version, kind, error, not_logged, "watch failed, trying again");
    }
}

/// The causes, each with the time of its last line and the number of failures that were not logged since.
struct Causes(BTreeMap<String, (Instant, u64)>);

impl Causes {
    fn note(&mut self, cause: &str, now: Instant) -> Option<Line> {
        if let Some((last, not_logged)) = self.0.get_mut(cause) {
            *not_logged += 1;
            if now.saturating_duration_since(*last) < PAUSE {
                return None;
            }
            let before = *not_logged - 1;
            (*last, *not_logged) = (now, 0);
            return Some(Line { not_logged: (before > 0).then_some(before) });
        }
        if self.0.len() >= MAX_CAUSES {
            self.0.clear();
        }
        self.0.insert(cause.to_owned(), (now, 0));
        Some(Line { not_logged: None })
    }

    fn end(&mut self, cause: &str) -> Option<Line> {
        let (_, not_logged) = self.0.remove(cause)?;
        Some(Line { not_logged: (not_logged > 0).then_some(not_logged) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_a_line_a_minute_and_one_at_the_end() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let line = |not_logged| Some(Line { not_logged });
        let mut causes = Causes(BTreeMap::new());
        assert_eq!(causes.note("refused", at(0)), line(None));
        assert_eq!(causes.note("refused", at(1)), None);
        assert_eq!(causes.note("timeout", at(1)), line(None), "another cause");
        assert_eq!(causes.note("refused", at(2)), None);
        assert_eq!(causes.note("refused", at(60)), line(Some(2)), "after a minute");
        assert_eq!(causes.note("refused", at(61)), None);
        assert_eq!(causes.end("refused"), line(Some(1)));
        assert_eq!(causes.end("refused"), None, "for the next watch that recovers");
        assert_eq!(causes.end("timeout"), line(None));
        assert_eq!(causes.note("refused", at(62)), line(None), "it fails again");
    }

    #[test]
    fn causes_are_bounded() {
        let (now, mut causes) = (Instant::now(), Causes(BTreeMap::new()));
        for number in 0..10 * MAX_CAUSES {
            assert_eq!(causes.note(&number.to_string(), now), Some(Line { not_logged: None }));
        }
        assert!(causes.0.len() <= MAX_CAUSES);
    }
}
