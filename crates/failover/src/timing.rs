//! Time limits and intervals of the agents. All agents of a cluster use the same values, whatever the Leases say.

use std::time::Duration;

use tokio::time::Instant;

use crate::leases::Timing;

/// A heartbeat is valid for 20 s and is renewed about every 5 s. Its owner relies on it for only 17 s: the remaining
/// 3 s are for releasing addresses, and for clocks that run at different speeds.
pub const HEARTBEAT: Timing =
    Timing { lease: Duration::from_secs(20), deadline: Duration::from_secs(17), retry: Duration::from_secs(5) };
/// A renewal is sent up to this much earlier, so that agents that were started together do not write together.
pub const JITTER: Duration = Duration::from_millis(500);
/// The pause before a failed request or a failed step on the network is retried.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The time limit of a request. Several requests must fit into what is left of a term after a failed renewal.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an agent that has just started claims no free address, because other agents may be starting, too.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);
/// For how long a free address is left to each node that is preferred for it.
pub(crate) const TURN: Duration = Duration::from_secs(2);
/// The maximum number of turns that an agent waits: the preferred nodes may have failed together.
pub(crate) const TURNS: u32 = 2;
/// For how long the turn of a preferred node that claims other addresses is extended: a node that can't hold addresses
/// may go on claiming those that come up.
pub const BUSY: Duration = Duration::from_secs(10);
/// How long a heartbeat may be missing: its owner puts it back at its next renewal.
pub(crate) const MISSING_GRACE: Duration = Duration::from_secs(10);
/// For how long ending a silent heartbeat is left to each agent that comes before this one.
pub(crate) const ENDING_TURN: Duration = Duration::from_millis(500);
/// How long after its address became unassigned a claim is removed if its holder did not give it back.
pub const LEFT_BEHIND: Duration = Duration::from_secs(60);
/// For how long removing a Lease is left to each agent that comes before this one.
pub(crate) const REMOVING_TURN: Duration = Duration::from_secs(10);
/// The age at which a heartbeat that was given back or ended is removed.
pub(crate) const HEARTBEAT_RETENTION: Duration = Duration::from_secs(600);
pub(crate) const MAX_WRITES: usize = 32;
/// For how long the agent's own heartbeat may be missing from the watch before the watch is restarted.
pub const WATCH_SILENCE: Duration = Duration::from_secs(12);
/// The time limit of a step on the network: several fit between the end of a term and that of its heartbeat.
pub const STEP_TIMEOUT: Duration = Duration::from_millis(800);
pub const RELEASE_TIMEOUT: Duration = Duration::from_millis(1500);
/// The pauses between the repeated announcements of an address that was added: a single announcement may be lost.
pub const ANNOUNCEMENT_PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// The number of consecutive failures after which an address is left to other nodes.
pub const MAX_FAILURES: u32 = 5;
/// For how long the address is then left to other nodes. The time doubles with each further failure.
pub(crate) const AWAY: Duration = Duration::from_secs(60);
/// The longest time that an address is left to other nodes. After it, earlier failures no longer count.
pub(crate) const MAX_TIME_AWAY: Duration = Duration::from_secs(600);
/// After how long a free address has been left by all nodes that may take it: their turns are over, and a moment more.
pub(crate) const PASSED_OVER: Duration = Duration::from_secs(5);
/// After how long a free address is no longer left to other nodes, because none can hold it either: all nodes may have
/// failed together. Until then, a node that can't hold the address would only move it back and forth.
pub(crate) const UNTAKEN: Duration = Duration::from_secs(300);
/// For how long the loop that renews the heartbeat may not begin a round before the liveness probe fails.
pub const STALLED: Duration = Duration::from_secs(60);
/// The pause before the firewall is written again, because another program may have emptied it.
pub const FIREWALL_REWRITE: Duration = Duration::from_secs(20);

/// Collects the times at which there is something to do, and keeps the earliest one in the future.
pub struct NextDeadline {
    pub now: Instant,
    /// The earliest deadline after `now`; `None` if there is none.
    pub earliest: Option<Instant>,
}

impl NextDeadline {
    /// Adds a deadline. A deadline that has passed is ignored.
    pub fn add(&mut self, deadline: Instant) {
        if deadline > self.now {
            self.earliest = Some(self.earliest.map_or(deadline, |known| known.min(deadline)));
        }
    }

    /// Whether a deadline has passed; adds it if it has not.
    pub fn is_due(&mut self, deadline: Instant) -> bool {
        self.add(deadline);
        self.now >= deadline
    }
}
