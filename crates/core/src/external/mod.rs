//! Decides which external address a Service gets, and which Service may claim one.
//!
//! [`claim`] reads the claims of a Service, [`stored`] reads for a host which addresses a stored Service has, `held`
//! determines which addresses a Service may have, and `decide` checks new claims and finds addresses. Its result is an
//! [`External`](crate::decision::External).
//!
//! The API server accepts the same annotation on two Services. Therefore addresses are assigned only if the host says
//! which ones are in use (a host with a ledger); otherwise claims are only checked.

pub mod claim;
mod decide;
mod held;
pub mod stored;

pub(crate) use decide::decide;
pub use held::HolderOf;
