//! The certificate authority in its Secret, and its registration in the webhook configuration.

mod authority;
mod register_url;
pub mod registration;
mod support;
