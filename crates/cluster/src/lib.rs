//! What a program needs from a cluster.
//!
//! - [`connect`], [`list_pages`], [`api_error`], [`backoff`], [`repeated_failures`] and [`utf8`]: requests to the API
//!   server, its answers, and their errors.
//! - [`watch`] keeps the objects that decisions are made from, [`lookups`] answers the look-ups of the core, and
//!   [`reservations`] keeps the addresses in flight. [`evaluator`] evaluates requests with them.
//! - [`manifests`] reads and edits manifests. [`object`] reads Kubernetes objects that are JSON, and [`yaml`] parses YAML
//!   with the position of each value.
//! - [`live_settings`] follows the settings of a cluster. [`permissions`] checks that the program may do what its
//!   settings require.
//! - [`external`] computes which external addresses Services have, and which nodes may hold them.
//! - [`policy`] runs builds of the policy module.
//! - [`lease_writes`] writes and deletes one version of a Lease.
//! - [`background`] and [`fair_queue`]: the threads for evaluations, and whose turn it is.
//! - [`http`], [`logging`], [`panics`], [`metrics`], [`shutdown`], [`terminal`] and [`style`]: a process, and what it
//!   shows.

pub mod api_error;
mod api_requests;
pub mod background;
pub mod backoff;
pub mod connect;
pub mod evaluator;
pub mod external;
pub mod fair_queue;
pub mod host_metrics;
pub mod http;
pub mod lease_writes;
pub mod list_pages;
pub mod live_settings;
pub mod logging;
pub mod lookups;
pub mod manifests;
pub mod metrics;
mod nesting;
pub mod object;
pub mod panics;
pub mod permissions;
pub mod policy;
pub mod repeated_failures;
pub mod reservations;
pub mod send_if_changed;
pub mod shutdown;
pub mod style;
pub mod terminal;
pub mod utf8;
pub mod watch;
pub mod yaml;
