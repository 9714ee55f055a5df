//! What every program of this repository needs to run in a cluster: logging, shutdown, connections to the API server,
//! HTTP, metrics, and work in the background.

pub mod api_error;
mod api_requests;
pub mod api_server;
pub mod background;
pub mod backoff;
pub mod connect;
pub mod http;
pub mod list_pages;
pub mod logging;
pub mod metrics;
pub mod repeated_failures;
pub mod shutdown;
pub mod style;
pub mod terminal;
pub mod watch;
