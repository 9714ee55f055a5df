//! What an agent shows of itself.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tokio::time::Instant;

use super::timing::STILL;

/// How an agent is.
#[derive(Clone, Debug)]
pub struct Signs {
    /// The addresses that may be on the network of its node.
    pub holding: BTreeSet<IpAddr>,
    /// Whether it may hold any: its heartbeat is renewed.
    pub alive: bool,
    /// When its loop was last seen to begin anew.
    pub beat: Instant,
}

impl Signs {
    /// Of an agent that begins.
    pub fn new() -> Self {
        Self { holding: BTreeSet::new(), alive: false, beat: Instant::now() }
    }

    /// Why it can't be alive; nothing where it is, whatever it may wait for.
    pub fn dead(&self, now: Instant) -> Option<String> {
        let still = now.saturating_duration_since(self.beat);
        (still >= STILL).then(|| format!("the loop of the agent has stood still for {} s", still.as_secs()))
    }

    /// Why it does not do its work; nothing where it does, or has none.
    pub fn not_ready(&self) -> Option<String> {
        (!self.alive).then(|| "the heartbeat is not renewed: no address may be held".to_owned())
    }
}

impl Default for Signs {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_signs_mean() {
        let begin = Instant::now();
        let signs = |alive| Signs { alive, beat: begin, ..Signs::new() };
        let (still, unready) = (
            Some("the loop of the agent has stood still for 60 s".to_owned()),
            Some("the heartbeat is not renewed: no address may be held".to_owned()),
        );
        let rows = [
            ("it may hold addresses", true, 0, None, None),
            ("it may hold none", false, 0, None, unready.clone()),
            ("it was silent for a while", false, 59, None, unready.clone()),
            ("it stands still", true, 60, still.clone(), None),
        ];
        for (name, alive, after, dead, not_ready) in rows {
            let signs = signs(alive);
            let found = (signs.dead(begin + Duration::from_secs(after)), signs.not_ready());
            assert_eq!(found, (dead, not_ready), "{name}");
        }
    }
}
