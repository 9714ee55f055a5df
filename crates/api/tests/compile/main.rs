//! Objects are translated into the settings document.
#![allow(clippy::unwrap_used)]

mod document;
mod support;
mod versions_in_use;
