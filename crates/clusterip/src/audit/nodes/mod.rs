//! Auditing Nodes and their blocks: asks the policy about every Node, counts blocks, and describes problems.

pub mod audit;
pub mod evaluate;
pub mod findings;
