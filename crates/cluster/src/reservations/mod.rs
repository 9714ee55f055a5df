//! Keeps the addresses that were given to requests until their Services are seen.

pub mod ledger;
pub mod replica_claims;
