//! The fields that are read of an object that makes the control plane call Services.

use std::collections::BTreeSet;

use clusterip_core::service_key::ServiceKey;
use kube::api::ObjectMeta;
use serde::Deserialize;

use crate::watch::kinds::impl_dynamic_resource;

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

/// The name of the webhook of K2s that gives addresses to Services. A webhook configuration does not say what its webhook
/// changes, so webhooks of other programs that choose addresses are known by their names. K2s has two, whose names have
/// not changed since its first version. The other one deletes and creates Services of Windows workloads, and its name
/// ends with this name.
pub const K2S: &str = "clusterip.k2s.io";

/// A condition of a webhook. The API server calls the webhook only if all its conditions are true.
#[derive(Deserialize)]
struct MatchCondition {
    expression: Option<String>,
}

/// Whether a webhook of this name chooses addresses of Services, and the API server may call it. The API server never
/// calls a webhook with the condition `false`.
fn chooses_addresses(name: &str, conditions: &[MatchCondition]) -> bool {
    let is_known = name.strip_suffix(K2S).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'));
    let is_false = |condition: &MatchCondition| condition.expression.as_deref().map(str::trim) == Some("false");
    is_known && !conditions.iter().any(is_false)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn webhooks_of_k2s_are_recognized_by_their_names() {
        struct Case {
            name: &'static str,
            webhook: &'static str,
            conditions: Value,
            expected: bool,
        }
        let never = json!({"name": "never", "expression": " false\n"});
        let maybe = json!({"name": "maybe", "expression": "object.metadata.name != 'web'"});
        let cases = [
            Case { name: "of Services", webhook: "clusterip.k2s.io", conditions: json!([]), expected: true },
            Case { name: "of workloads", webhook: "workload.clusterip.k2s.io", conditions: json!([]), expected: true },
            Case { name: "with a condition", webhook: "clusterip.k2s.io", conditions: json!([maybe]), expected: true },
            Case {
                name: "that is never called",
                webhook: "clusterip.k2s.io",
                conditions: json!([maybe, never]),
                expected: false,
            },
            Case { name: "of another domain", webhook: "myclusterip.k2s.io", conditions: json!([]), expected: false },
            Case {
                name: "of this program",
                webhook: "services.clusterip-policy.io",
                conditions: json!([]),
                expected: false,
            },
            Case { name: "without a name", webhook: "", conditions: json!([]), expected: false },
        ];
        for Case { name, webhook, conditions, expected } in cases {
            let conditions: Vec<MatchCondition> = serde_json::from_value(conditions).unwrap();
            assert_eq!(chooses_addresses(webhook, &conditions), expected, "{name}");
        }
    }
}
