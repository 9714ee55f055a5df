//! The policy module and the host around it: what it imports, how it answers, and what it may look up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod fill;
mod host;
mod kubewarden;
mod module;
mod node_review;
mod on_error;
mod rights;
mod sessions;
mod snapshot;
mod support;
