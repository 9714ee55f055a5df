//! The state of the cluster: answers to the policy's look-ups, and reservations of addresses.
//!
//! Manifests:
//!
//! | module | purpose |
//! | --- | --- |
//! | [`manifests`] | reads manifests from files, folders and standard input |
//! | [`json_list`] | reads a large JSON list item by item |
//! | [`manifest_edit`] | writes addresses and blocks into the text of manifests |
//!
//! Watched stores:
//!
//! | module | purpose |
//! | --- | --- |
//! | [`stores`] | watches the objects that decisions are made from, and keeps their current state |
//! | [`subscriptions`] | sends the complete events of a watch to other parts of the program |
//! | [`control_plane_services`] | watches which Services the control plane calls |
//! | [`service_ranges`] | reads the Service ranges from the `ServiceCIDR` objects |
//! | [`kinds`] | the kinds that are looked up or watched, and their resources in the API |
//! | [`dynamic_resource`] | lets kube read our own types as objects of any kind |
//! | [`partial_object`] | reads only the used fields of an object |
//! | [`watched_fields`] | which fields of each kind are used |
//! | [`projection`] | reduces a watched object to these fields |
//! | [`field_limits`] | limits fields that tenants can fill without limit |
//! | [`address_set_by_hand`] | reads from `managedFields` whether a Service's address was set by hand |
//!
//! Look-ups:
//!
//! | module | purpose |
//! | --- | --- |
//! | [`snapshot`] | the objects of a cluster at one moment, and the answers from them |
//! | [`selectors`] | parses label and field selectors |
//! | [`field_mask`] | leaves out the fields that the policy did not ask for |
//! | [`kubewarden_responses`] | writes the answers that are not objects, in the format of policy-server |
//! | [`watched_lookups`] | answers from the watched stores and the ledger |
//! | [`api_server_lookups`] | answers from the API server, and repeats an answer that it has given |
//! | [`api_server_lists`] | reads the objects of a running cluster, page by page |
//!
//! Reservations:
//!
//! | module | purpose |
//! | --- | --- |
//! | [`ledger`] | the addresses that this process has in flight |
//! | [`namespace_share`] | limits how many addresses of a pool one namespace may have in flight |
//! | [`replica_claims`] | claims addresses in flight as Leases, so that other replicas see them |

pub mod address_set_by_hand;
pub mod api_server_lists;
pub mod api_server_lookups;
pub mod control_plane_services;
pub mod dynamic_resource;
pub mod field_limits;
pub mod field_mask;
pub mod json_list;
pub mod kinds;
pub mod kubewarden_responses;
pub mod ledger;
pub mod manifest_edit;
pub mod manifest_files;
pub mod manifests;
pub mod namespace_share;
pub mod partial_object;
pub mod projection;
pub mod replica_claims;
pub mod selectors;
pub mod service_ranges;
pub mod snapshot;
pub mod stores;
pub mod subscriptions;
pub mod watched_fields;
pub mod watched_lookups;
