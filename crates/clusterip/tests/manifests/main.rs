//! The addresses and blocks that `clusterip plan` writes into manifests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod filled_manifests;
mod filled_manifests_properties;
mod support;
