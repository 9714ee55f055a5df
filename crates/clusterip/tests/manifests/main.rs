//! The addresses and blocks that `clusterip plan` writes into manifests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod filled_manifests;
mod filled_manifests_properties;
mod support;
