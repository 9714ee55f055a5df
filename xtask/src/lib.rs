//! Builds the artifacts of a release from the policy module: for registries and for catalogues.

pub mod image;
pub mod metadata;
pub mod package;
