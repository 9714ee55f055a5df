//! The admission webhook: an HTTPS server, its certificates, and its registration with the API server.

pub mod admission;
pub(crate) mod admission_metrics;
pub mod authority;
pub mod issuer;
pub mod registration;
pub mod server;
pub mod tls;
