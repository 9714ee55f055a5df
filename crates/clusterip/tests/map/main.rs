//! The map: the page, and the server that shows it. The behaviour of the page in a browser is tested in
//! `e2e-tests/map`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod audits;
mod map_server;
mod page;
