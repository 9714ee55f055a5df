//! Keeps the addresses that were given to requests until their Services are seen.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`ledger`] | the addresses that this process has in flight, and how many of them one namespace may have |
//! | [`replica_claims`] | claims addresses in flight as Leases, so that other replicas see them |

pub mod ledger;
pub mod replica_claims;
