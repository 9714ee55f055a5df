//! Leases of Kubernetes: how long a Lease has been unchanged, which process holds it, and which replica has claimed
//! which address. This module sends no requests.
//!
//! No clock of another process is trusted: a Lease counts as abandoned only after this process has seen it unchanged
//! for its whole duration, on a clock that never jumps ([`observed`]). Every write names the [`version`] that it
//! replaces.

pub mod claim_lease;
pub mod election;
pub mod identity;
pub mod lease_request;
pub mod observed;
pub mod owner;
pub mod version;
