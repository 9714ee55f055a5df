//! Builds the artifacts of a release from the policy module: for registries and for catalogues.
//!
//! [`metadata`] reads `policy-metadata.yml` and writes it into the module, [`image`] builds an OCI image of
//! the annotated module, and [`package`] completes the Artifact Hub package. [`deploy_files`] reads the files of
//! `deploy` for the tests that compare them.

pub mod deploy_files;
pub mod image;
pub mod metadata;
pub mod package;
