//! Leader election: at most one process leads, by a Lease that is kept as client-go's leader election keeps it.
//!
//! # Guarantees
//! - No clock of another process is trusted. A Lease counts as abandoned only when this process has seen it unchanged
//!   for its whole duration, on a clock that never jumps.
//! - A leader stops leading ([`Leadership`]) before another process may take the Lease. The leader counts from the
//!   moment at which it *began* to renew, the others from when they saw the result, and the renew deadline is shorter
//!   than the Lease.
//! - On an orderly stop the Lease is given back, or deleted, so that the next leader takes it at once.
//!
//! # Caveats
//! A machine that is suspended stops this process and its clock together. When it wakes up, the process believes that
//! it still leads until its next renewal. So every write must carry a precondition (`resourceVersion`).
//!
//! # Modules
//! - [`Candidate`] takes part in the election, and tells whether this process leads.
//! - [`contact`] tells whether the API server answers.
//! - [`competing_server`] finds out from the leader's Lease whether another server is running.
//! - [`activation`] waits until a controller has something to do: the controllers work only while this process leads.
//! - [`event_recorder`] writes the Events of all controllers.

pub mod activation;
mod candidate;
pub mod competing_server;
pub mod contact;
pub mod event_recorder;
mod leader_error;

pub use self::candidate::{Acquisition, Candidate, Leadership};
pub use self::leader_error::LeaderError;
