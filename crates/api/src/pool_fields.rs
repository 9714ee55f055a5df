//! Fields that several kinds of pools have.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

// The rules compare texts, because Kubernetes 1.31 estimates that comparing two CIDRs costs too much. They accept every
// IPv6 range that is not in its canonical form. The core checks such a range.

/// A CIDR without host bits, such as 10.96.1.0/24 or fd00:1::/112.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    inline,
    extend(
        "maxLength" = 43,
        "x-kubernetes-validations" = [
            {"rule": "isCIDR(self)", "message": "must be a CIDR such as 10.96.1.0/24"},
            {
                "rule": "!isCIDR(self) || string(cidr(self)) != self || string(cidr(self).masked()) == self",
                "message": "must not have host bits set: for example, write 10.96.1.0/24 instead of 10.96.1.7/24"
            },
        ]
    )
)]
pub struct Cidr(pub String);

/// A CIDR without host bits, or one address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    inline,
    extend(
        "maxLength" = 43,
        "x-kubernetes-validations" = [
            {"rule": "isIP(self) || isCIDR(self)", "message": "must be an address or a CIDR"},
            {
                "rule": "!isCIDR(self) || string(cidr(self)) != self || string(cidr(self).masked()) == self",
                "message": "must not have host bits set: for example, write 10.96.1.0/24 instead of 10.96.1.7/24"
            },
        ]
    )
)]
pub struct CidrOrAddress(pub String);

/// A CIDR, or a range such as 10.0.9.10-10.0.9.40.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    inline,
    extend(
        "maxLength" = 79,
        "x-kubernetes-validations" = [{
            "rule": "self.contains('-') ? self.split('-').size() == 2 && self.split('-').all(a, isIP(a.trim())) \
                     : isCIDR(self) && (string(cidr(self)) != self || string(cidr(self).masked()) == self)",
            "message": "must be a CIDR without host bits, or a range such as 10.0.9.10-10.0.9.40"
        }]
    )
)]
pub struct AddressRange(pub String);

/// A CIDR, a range such as 10.0.9.10-10.0.9.40, or one address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    inline,
    extend(
        "maxLength" = 79,
        "x-kubernetes-validations" = [{
            "rule": "isIP(self) || (self.contains('-') ? self.split('-').size() == 2 && \
                     self.split('-').all(a, isIP(a.trim())) : \
                     isCIDR(self) && (string(cidr(self)) != self || string(cidr(self).masked()) == self))",
            "message": "must be an address, a CIDR without host bits, or a range such as 10.0.9.10-10.0.9.40"
        }]
    )
)]
pub struct AddressRangeOrAddress(pub String);

/// What the API server does about a Service that gets an address of the pool and is not admitted by the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub enum Fence {
    /// It accepts the Service.
    #[default]
    Allow,
    /// It returns a warning to the client.
    Warn,
    /// It refuses the Service.
    Deny,
}

/// The Services that a pool of ClusterIPs is for. All given conditions must match.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMatch {
    /// The operating system of the Nodes that run the Pods of the Service, such as linux or windows. Short for the Node
    /// label kubernetes.io/os.
    #[schemars(length(min = 1, max = 63))]
    pub os: Option<String>,
    /// Labels of the Nodes that run the Pods of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "labels")]
    pub node_labels: Option<BTreeMap<String, String>>,
    #[serde(flatten)]
    pub services: ExternalMatch,
}

/// The Services that a pool of external addresses is for. All given conditions must match.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalMatch {
    /// The names of the namespaces whose Services may use the pool. If this list is absent, all namespaces may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "namespaces")]
    pub namespaces: Option<Vec<String>>,
    /// Selects the namespaces whose Services may use the pool, by their labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub namespace_selector: Option<LabelSelector>,
    /// Selects the Services that may use the pool, by their labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub service_selector: Option<LabelSelector>,
}

/// The Nodes that a pool of blocks is for. All given conditions must match.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMatch {
    /// The operating system of the Node, such as linux or windows. Short for the label kubernetes.io/os.
    #[schemars(length(min = 1, max = 63))]
    pub os: Option<String>,
    /// Labels of the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "labels")]
    pub node_labels: Option<BTreeMap<String, String>>,
    /// Selects Nodes by their labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub node_selector: Option<LabelSelector>,
}

// The maximum lengths keep the rules of the fence, which read these fields, below the cost limits of the API server.

fn namespaces(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 64,
        "x-kubernetes-list-type": "set",
        "items": {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
    })
}

fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 63},
    })
}

/// A label selector with maximum lengths, which the schema of k8s-openapi does not have.
pub(crate) fn selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "description": "Labels that must all be there with these values.",
                "type": "object",
                "maxProperties": 16,
                "additionalProperties": {"type": "string", "maxLength": 63},
            },
            "matchExpressions": {
                "description": "Requirements that must all be met.",
                "type": "array",
                "maxItems": 16,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"description": "The label.", "type": "string", "maxLength": 317},
                        "operator": {
                            "description": "How the label is compared with the values.",
                            "type": "string",
                            "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                        },
                        "values": {
                            "description": "The values for In and NotIn; absent for the other operators.",
                            "type": "array",
                            "maxItems": 16,
                            "x-kubernetes-list-type": "atomic",
                            "items": {"type": "string", "maxLength": 63},
                        },
                    },
                    "x-kubernetes-validations": [{
                        "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
                        "message": "In and NotIn need at least one value, Exists and DoesNotExist take none",
                    }],
                },
            },
        },
    })
}
