//! Decides which ClusterIP a Service gets.
//!
//! `evidence` finds out on which nodes the Pods of the Service will run, and `pool` chooses the pool and picks a free
//! address. `decide` calls them, after its `triage` has found out what a request needs.

mod decide;
mod evidence;
mod pool;

pub use decide::{Triage, triage};
pub(crate) use decide::{decide, explain};
pub(crate) use pool::second;
pub use pool::{Picker, first_mismatch};
