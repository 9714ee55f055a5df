//! What the tests on a real control plane stand on.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod missing;
pub mod support;
