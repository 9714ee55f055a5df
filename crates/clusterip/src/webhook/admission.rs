//! An admission request on its way through ledger and policy.
