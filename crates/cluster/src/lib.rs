//! What a program needs from a cluster. The first lines of each module say what it is for, and CONTRIBUTING.md lists the
//! folders.

pub mod admission_review;
pub mod api_error;
mod api_requests;
pub mod background;
pub mod backoff;
pub mod connect;
pub mod evaluator;
pub mod external;
pub mod fair_queue;
pub mod harmless_text;
pub mod host_metrics;
pub mod http;
pub mod in_order;
pub mod kinds;
pub mod lease_writes;
pub mod list_pages;
pub mod live_settings;
pub mod logging;
pub mod lookups;
pub mod manifests;
pub mod metrics;
pub mod object;
pub mod panics;
pub mod permissions;
pub mod policy;
pub mod readable_json;
pub mod repeated_failures;
pub mod reservations;
pub mod send_if_changed;
pub mod shutdown;
pub mod snapshot;
pub mod style;
pub mod watch;
pub mod yaml;
