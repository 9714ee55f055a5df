//! Auditing external addresses: asks the policy about them, counts them, and describes problems.

pub mod audit;
pub mod evaluate;
pub mod findings;
pub mod ranges;
