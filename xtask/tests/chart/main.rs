//! The Helm chart renders the same objects as the kustomizations in `deploy`, apart from order and comments, so the
//! tests of the kustomizations also apply to the chart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod kustomizations;
mod optional_parts;
mod package;
mod support;
mod values;
