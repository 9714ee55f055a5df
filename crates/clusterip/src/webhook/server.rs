//! The HTTPS server.
