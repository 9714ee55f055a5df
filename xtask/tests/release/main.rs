//! What a release contains and how it is made: the annotated module, its OCI image and Artifact Hub package, the
//! workflows, the monitoring, and the pages and files that must agree with the policy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod documents;
#[path = "../support/files.rs"]
mod files;
mod image;
mod image_names;
mod known_settings;
#[path = "../../../e2e-tests/src/missing.rs"]
mod missing;
mod module;
mod monitoring;
mod policy_metadata;
mod rancher_form;
mod settings_documentation;
mod support;
mod workflows;
