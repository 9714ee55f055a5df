//! The certificate authority in its Secret, and its registration in the webhook configuration.

mod authority;
mod register_url;
mod registration;
mod support;
