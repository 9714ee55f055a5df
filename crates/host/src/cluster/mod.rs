//! The state of the cluster: answers to the policy's look-ups, and reservations of addresses.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`manifests`] | reads and edits manifests |
//! | [`watch`] | watches the objects that decisions are made from |
//! | [`lookups`] | answers look-ups: from manifests, from the watched objects, or from the API server |
//! | [`reservations`] | the addresses in flight |

pub mod lookups;
pub mod manifests;
pub mod reservations;
pub mod watch;
