//! The commands that need no cluster, run as a user runs them: output, exit status and messages are compared whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod audit;
mod audit_external;
mod audit_nodes;
mod bad_input;
mod command;
mod documentation;
mod evaluate;
mod plan;
mod plan_external;
mod plan_nodes;
