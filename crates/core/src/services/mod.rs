//! Decides which ClusterIP a Service gets.
//!
//! `triage` says what a request needs, `evidence` finds out on which nodes the Pods of the Service will run, `pool`
//! chooses the pool, and `picker` a free address. `decide` calls them.

mod decide;
mod evidence;
mod object;
mod picker;
mod pool;
mod triage;

pub(crate) use decide::{decide, explain};
pub(crate) use object::second;
pub use object::{FamilyPolicy, Service, addresses};
pub use picker::Picker;
pub(crate) use pool::first_mismatch;
pub use triage::{Triage, triage};
