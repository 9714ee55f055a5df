//! Finds misplaced Services of a cluster, and moves them to addresses of their pool.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`controller`] | the event loop that moves misplaced Services, its brakes, and what administrators request |
//! | [`mover`] | makes one move: its steps, its journal, and how it restores the Service |
//! | `misplaced` | decides whether a Service is misplaced, and whether it may move |
//! | `endpoints` | counts the endpoints that can be reached at the present address of a Service |
//! | `cluster_dns` | how long clients may know an old address from DNS |
//! | `own_revisions` | writes, lists and deletes the `ControllerRevision` objects in the server's namespace |
//! | `service_metrics` | the metrics of Services |

pub(crate) mod cluster_dns;
pub mod controller;
pub(crate) mod endpoints;
pub(crate) mod misplaced;
pub mod mover;
pub(crate) mod own_revisions;
pub(crate) mod service_metrics;
