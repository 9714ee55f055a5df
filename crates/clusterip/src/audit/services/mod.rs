//! Auditing Services: asks the policy about every Service, counts addresses, and describes problems.

pub mod evaluate;
pub mod findings;
pub mod misplaced;
pub mod ranges;
