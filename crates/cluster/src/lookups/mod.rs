//! Answers the look-ups of the policy.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`snapshot`] | the objects of a cluster at one moment |
//! | [`stored_cluster`] | answers the look-ups of the core from a snapshot |
//! | [`selectors`] | parses label and field selectors |
//! | [`field_mask`] | leaves out the fields that the policy did not ask for |
//! | [`kubewarden_responses`] | writes the answers that are not objects, in the format of policy-server |
//! | [`api_server_lookups`] | answers from the API server, and repeats an answer that it has given |
//! | [`api_server_lists`] | reads the objects of a running cluster, page by page |

pub mod api_server_lists;
pub mod api_server_lookups;
pub mod field_mask;
pub mod kubewarden_responses;
pub mod selectors;
pub mod snapshot;
pub mod stored_cluster;
