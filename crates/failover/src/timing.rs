//! Time limits and intervals of the agents. All agents of a cluster use the same values, whatever the Leases say. Only
//! the times of a heartbeat are those of its owner ([`Failover`]).

use std::time::Duration;

use tokio::time::Instant;

use k8s_openapi::api::coordination::v1::Lease;

use crate::leases::Timing;

/// How soon other nodes hold the addresses of an agent that has died: the times of its heartbeat. Each agent chooses
/// its own, and writes it into its heartbeat as the duration of the Lease. So agents with different times can run side
/// by side, as in a rolling update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failover {
    #[default]
    Within25s,
    Within5s,
}

impl Failover {
    /// The one that a heartbeat names. Any other duration counts as the longer one: with the token of an agent, an
    /// attacker could write a heartbeat that is valid for years, and claim addresses after its node is gone.
    pub fn of(heartbeat: &Lease) -> Self {
        let seconds = heartbeat.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        if seconds == Some(Self::Within5s.heartbeat().seconds()) { Self::Within5s } else { Self::Within25s }
    }

    /// A heartbeat is valid for 20 s and is renewed about every 5 s. Its owner relies on it for only 17 s: the
    /// remaining 3 s are for releasing addresses, and for clocks that run at different speeds.
    ///
    /// For a failover within 5 s, it is valid for 4 s, and its owner relies on it for 2.75 s. The rest is enough for
    /// the kernel, which may remove an address a second after the end of its lifetime, and for clocks whose speeds
    /// differ by 4 %. The kernel counts lifetimes in whole seconds, so it keeps an address for only 2 s after a
    /// renewal: the second renewal after the last one must still come in time if the first one is lost.
    pub const fn heartbeat(self) -> Timing {
        let (lease, deadline, retry) = match self {
            Self::Within25s => (20_000, 17_000, 5_000),
            Self::Within5s => (4_000, 2_750, 750),
        };
        Timing {
            lease: Duration::from_millis(lease),
            deadline: Duration::from_millis(deadline),
            retry: Duration::from_millis(retry),
        }
    }

    /// A renewal is sent up to this much earlier, so that agents that were started together do not write together.
    pub const fn jitter(self) -> Duration {
        Duration::from_millis(match self {
            Self::Within25s => 500,
            Self::Within5s => 75,
        })
    }

    /// The pause before a failed renewal is retried.
    pub const fn retry_pause(self) -> Duration {
        match self {
            Self::Within25s => RETRY_PAUSE,
            Self::Within5s => Duration::from_millis(250),
        }
    }

    /// The time limit of a request of a renewal. Several requests must fit into what is left of a term after a failed
    /// one.
    pub const fn request_timeout(self) -> Duration {
        match self {
            Self::Within25s => REQUEST_TIMEOUT,
            Self::Within5s => Duration::from_millis(500),
        }
    }

    /// For how long the agent's own heartbeat may be missing from the watch before the watch is restarted.
    pub const fn watch_silence(self) -> Duration {
        match self {
            Self::Within25s => WATCH_SILENCE,
            Self::Within5s => Duration::from_secs(3),
        }
    }
}

/// How long after the end of its lifetime the kernel may still have an address: it looks for such addresses at most
/// once a second (`check_lifetime` in `net/ipv4/devinet.c` of Linux).
pub const KERNEL_DELAY: Duration = Duration::from_secs(1);
/// For how long an agent may rely on a heartbeat at most, so that it may still hold an address whose claim was deleted.
pub(crate) const LONGEST_HEARTBEAT: Duration = Failover::Within25s.heartbeat().lease;
/// The pause before a failed request or a failed step on the network is retried.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The time limit of a request.
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
/// For how long no heartbeat may arrive before a watch of Leases is restarted.
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
