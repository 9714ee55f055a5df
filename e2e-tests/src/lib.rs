//! The helpers of the tests on a real control plane.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod missing;
pub mod support;
