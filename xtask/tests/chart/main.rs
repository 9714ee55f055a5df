//! The Helm chart renders the same objects as the kustomizations in `deploy`, apart from order and comments, so the
//! tests of the kustomizations also apply to the chart. Its templates read most objects from the kustomizations. The
//! tests compare what remains: which objects the values select, and the Deployment and the DaemonSet.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/files.rs"]
mod files;
mod kustomizations;
mod optional_parts;
mod package;
mod support;
mod values;
