//! Reserves the addresses that were given to requests until their Services are seen.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`ledger`] | the addresses that this process has in flight |
//! | [`namespace_share`] | limits how many addresses of a pool one namespace may have in flight |
//! | [`subject_addresses`] | reserves addresses for the Service of one request |
//! | [`replica_claims`] | claims addresses in flight as Leases, so that other replicas see them |

pub mod ledger;
pub mod namespace_share;
pub mod replica_claims;
pub mod subject_addresses;
