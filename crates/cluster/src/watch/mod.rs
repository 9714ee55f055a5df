//! Watches the objects of a cluster that decisions are made from.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`stores`] | watches the objects, and keeps their current state |
//! | [`subscriptions`] | sends the complete events of a watch to other parts of the program |
//! | [`control_plane_services`] | watches which Services the control plane calls |
//! | [`other_webhooks`] | recognizes webhooks of other programs that also choose the addresses of Services |
//! | [`service_ranges`] | reads the Service ranges from the `ServiceCIDR` objects |
//! | [`kinds`] | the kinds that are looked up or watched, and their resources in the API |
//! | [`dynamic_resource`] | lets kube read our own types as objects of any kind |
//! | [`partial_object`] | reads only the used fields of an object |
//! | [`watched_fields`] | which fields of each kind are used |

pub mod control_plane_services;
pub mod dynamic_resource;
pub mod kinds;
pub mod other_webhooks;
pub mod partial_object;
pub mod service_ranges;
pub mod stores;
pub mod subscriptions;
pub mod watched_fields;
