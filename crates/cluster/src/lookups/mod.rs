//! Answers the look-ups of decisions, and those of the policy module.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`snapshot`] | the objects of a cluster at one moment, reduced to what is read |
//! | [`stored_cluster`] | answers the look-ups of the core from a snapshot, and reserves addresses |
//! | [`complete_objects`] | answers the look-ups of the policy module from complete objects, as Kubewarden does |
//! | [`selectors`] | parses label and field selectors |
//! | [`field_mask`] | leaves out the fields that the policy did not ask for |
//! | [`api_server_lookups`] | answers from the API server, and repeats an answer that it has given |
//! | [`api_server_lists`] | reads the objects of a running cluster, page by page |

pub mod api_server_lists;
pub mod api_server_lookups;
pub mod complete_objects;
pub mod field_mask;
pub mod selectors;
pub mod snapshot;
pub mod stored_cluster;
