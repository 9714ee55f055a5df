//! Decides which external address a Service gets, and which Service may claim one.
//!
//! [`claim`] reads which addresses a Service claims and has, for a host also those of a stored Service. `decide`
//! determines which addresses a Service may have, checks new claims and finds addresses. Its result is an
//! [`External`](crate::decision::External). `announcer` knows what the program reads that announces the addresses.
//!
//! The API server accepts the same annotation on two Services. Therefore addresses are assigned only if the host says
//! which ones are in use (a host with a ledger); otherwise claims are only checked.

mod announcer;
pub mod claim;
mod decide;

pub use announcer::{Announcement, Announcer, Sharer};
pub(crate) use decide::decide;
pub use decide::{Holder, HolderOf, without_pools};
