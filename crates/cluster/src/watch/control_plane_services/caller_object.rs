//! The fields that are read of an object that makes the control plane call Services.

use std::collections::BTreeSet;

use clusterip_core::service_key::ServiceKey;
use kube::api::ObjectMeta;
use serde::Deserialize;

use crate::watch::dynamic_resource::impl_dynamic_resource;
use crate::watch::other_webhooks::{MatchCondition, chooses_addresses};

/// An object that may refer to Services: a webhook configuration, an `APIService` or a `CustomResourceDefinition`.
/// Only its name, its UID, its version, these references, and whether it has webhooks that choose addresses are kept.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Read")]
pub struct CallerObject {
    /// The name, UID and version of the object. All other metadata is dropped.
    pub metadata: ObjectMeta,
    /// The namespaces and names of the Services that the object refers to.
    pub services: BTreeSet<ServiceKey>,
    /// Whether a webhook of another program in it chooses addresses of Services, too.
    pub chooses_addresses: bool,
}

#[derive(Deserialize)]
struct Read {
    #[serde(default)]
    metadata: Metadata,
    webhooks: Option<Vec<Webhook>>,
    spec: Option<Spec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

/// `spec.service` belongs to an `APIService`, `spec.conversion` to a `CustomResourceDefinition`.
#[derive(Deserialize)]
struct Spec {
    service: Option<Reference>,
    conversion: Option<Conversion>,
}

#[derive(Deserialize)]
struct Conversion {
    webhook: Option<Webhook>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Webhook {
    name: Option<String>,
    client_config: Option<ClientConfig>,
    match_conditions: Option<Vec<MatchCondition>>,
}

impl Webhook {
    fn chooses_addresses(&self) -> bool {
        let conditions = self.match_conditions.as_deref().unwrap_or_default();
        chooses_addresses(self.name.as_deref().unwrap_or_default(), conditions)
    }
}

#[derive(Deserialize)]
struct ClientConfig {
    service: Option<Reference>,
}

#[derive(Deserialize)]
struct Reference {
    namespace: Option<String>,
    name: Option<String>,
}

impl From<Read> for CallerObject {
    fn from(read: Read) -> Self {
        let (own, conversion) = read.spec.map(|spec| (spec.service, spec.conversion)).unwrap_or_default();
        let converting = conversion.and_then(|conversion| conversion.webhook);
        let webhooks: Vec<Webhook> = read.webhooks.into_iter().flatten().chain(converting).collect();
        let chooses_addresses = webhooks.iter().any(Webhook::chooses_addresses);
        let services = webhooks.into_iter().filter_map(|webhook| webhook.client_config?.service).chain(own);
        let services = services.filter_map(|service| Some(ServiceKey::new(service.namespace?, service.name?)));
        let Metadata { name, uid, resource_version } = read.metadata;
        Self {
            metadata: ObjectMeta { name, uid, resource_version, ..ObjectMeta::default() },
            services: services.collect(),
            chooses_addresses,
        }
    }
}

impl_dynamic_resource!(CallerObject);
