//! How long things take. All agents of a cluster go by the same times; those that a promise depends on stand
//! in the Leases, too.

use std::time::Duration;

use crate::controller::lease::Timing;

/// A heartbeat counts for 20 s, and is renewed about every 5 s. Its owner relies on it for 17 s: what is left
/// is for letting go, and for clocks that do not run alike.
pub(super) const HEARTBEAT: Timing =
    Timing { lease: Duration::from_secs(20), deadline: Duration::from_secs(17), retry: Duration::from_secs(5) };
/// By how much a renewal may be earlier, so that agents that were started together do not write together.
pub(super) const JITTER: Duration = Duration::from_millis(500);
/// How long after a failure the heartbeat is tried again.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
/// How long a request may take. Several must fit into what is left of a term after a renewal failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// How long an agent that has just been started listens before it claims what nobody holds: others may be
/// starting, too.
pub(super) const SETTLE: Duration = Duration::from_secs(3);
/// For how long a free address is left to each node that should rather have it.
pub(super) const TURN: Duration = Duration::from_secs(2);
/// How many turns are waited for at most: the first nodes may have died together.
pub(super) const TURNS: u32 = 2;
/// For how long a heartbeat may be missing before others put it back: its owner does within a renewal.
pub(super) const MISSING: Duration = Duration::from_secs(10);
/// How long ending a silent heartbeat is left to each agent that comes before.
pub(super) const ENDING_TURN: Duration = Duration::from_millis(500);
/// After how long without an assignment a claim that nobody gave back is removed.
pub(super) const LEFT_BEHIND: Duration = Duration::from_secs(60);
/// How long removing something is left to each agent that comes before.
pub(super) const REMOVING_TURN: Duration = Duration::from_secs(10);
/// After how long a heartbeat that nobody keeps is removed.
pub(super) const FORGOTTEN: Duration = Duration::from_secs(600);
/// How many requests are under way at once.
pub(super) const AT_ONCE: usize = 32;
/// For how long the own heartbeat may be missing from the watch before that is begun anew.
pub(super) const DEAF: Duration = Duration::from_secs(12);
/// How long one step on the network may take: several fit between the end of a term and that of its heartbeat.
pub(super) const STEP: Duration = Duration::from_millis(800);
/// How long it may take to let go of everything when the agent is stopped.
pub(super) const STOP: Duration = Duration::from_millis(1500);
/// After which pauses an address is announced again, once it has come: what is told once may be lost.
pub(super) const ANNOUNCED_AGAIN: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// After how many tries in a row an address is left to other nodes, if this one can't hold it.
pub(super) const TRIES: u32 = 5;
/// For how long it is left to them then. Each time that it can't be held again it is twice as long.
pub(super) const AWAY: Duration = Duration::from_secs(60);
/// For how long it is at most, and how long after that the former times do not count any more.
pub(super) const LONGEST_AWAY: Duration = Duration::from_secs(600);
/// How long nothing may be heard from the loop of an agent before it is taken for dead.
pub(super) const STILL: Duration = Duration::from_secs(60);
/// How often the firewall is written anew though nothing has changed: others may have emptied it.
pub(super) const REFILTERED: Duration = Duration::from_secs(20);
