//! What registries and catalogues want of the policy, made of the module and the files beside it.
//!
//! [`metadata`] is what `policy-metadata.yml` says; [`annotate`] writes it into the module, [`image`]
//! makes an OCI image of that, and [`package`] completes what Artifact Hub is told.

pub mod annotate;
pub mod image;
pub mod metadata;
pub mod package;
