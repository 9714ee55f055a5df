//! What a policy may ask: Kubewarden's look-ups of Kubernetes objects.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A look-up. The variants are named as Kubewarden's recorded sessions name them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostCall {
    /// Operation `list_resources_all`.
    #[serde(rename = "KubernetesListResourceAll")]
    ListAll {
        /// Such as `apps/v1`.
        api_version: String,
        /// Such as `Deployment`.
        kind: String,
        /// Only objects with these labels.
        label_selector: Option<String>,
        /// Only objects with these fields.
        field_selector: Option<String>,
        /// The only fields that are wanted, beside `metadata`.
        field_masks: Option<BTreeSet<String>>,
    },
    /// Operation `list_resources_by_namespace`.
    #[serde(rename = "KubernetesListResourceNamespace")]
    ListNamespace {
        /// Such as `apps/v1`.
        api_version: String,
        /// Such as `Deployment`.
        kind: String,
        /// The namespace.
        namespace: String,
        /// Only objects with these labels.
        label_selector: Option<String>,
        /// Only objects with these fields.
        field_selector: Option<String>,
        /// The only fields that are wanted, beside `metadata`.
        field_masks: Option<BTreeSet<String>>,
    },
    /// Operation `get_resource`.
    #[serde(rename = "KubernetesGetResource")]
    Get {
        /// Such as `networking.k8s.io/v1`.
        api_version: String,
        /// Such as `IPAddress`.
        kind: String,
        /// The name of the object.
        name: String,
        /// Its namespace; none for a kind that has none.
        namespace: Option<String>,
        /// Whether the answer must be read from the API server now.
        disable_cache: bool,
        /// The only fields that are wanted, beside `metadata`.
        field_masks: Option<BTreeSet<String>>,
    },
}

/// A call that is none of the look-ups.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// Another binding or namespace of Kubewarden's.
    #[error("unknown {what}: {name}")]
    Unknown {
        /// `binding`, `namespace` or `operation`.
        what: &'static str,
        /// What was asked for.
        name: String,
    },
    /// The request of the call can't be read.
    #[error("{operation}: {reason}")]
    Request {
        /// The operation.
        operation: String,
        /// What is wrong.
        reason: String,
    },
}

impl HostCall {
    /// Reads a waPC host call.
    ///
    /// # Errors
    /// [`CallError`] for what Kubewarden does not offer, or this host does not.
    pub fn read(binding: &str, namespace: &str, operation: &str, payload: &[u8]) -> Result<Self, CallError> {
        let unknown = |what, name: &str| Err(CallError::Unknown { what, name: name.to_owned() });
        if binding != "kubewarden" {
            return unknown("binding", binding);
        }
        if namespace != "kubernetes" {
            return unknown("namespace", namespace);
        }
        let variant = match operation {
            "list_resources_all" => "KubernetesListResourceAll",
            "list_resources_by_namespace" => "KubernetesListResourceNamespace",
            "get_resource" => "KubernetesGetResource",
            _ => return unknown("operation", operation),
        };
        let request = |error: serde_json::Error| CallError::Request {
            operation: operation.to_owned(),
            reason: error.to_string(),
        };
        let fields: serde_json::Value = serde_json::from_slice(payload).map_err(request)?;
        serde_json::from_value(serde_json::json!({ variant: fields })).map_err(request)
    }
}

/// In one line, with every field: `KubernetesGetResource {"api_version":"v1",…}`.
impl fmt::Display for HostCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = serde_json::to_value(self).map_err(|_| fmt::Error)?;
        written.as_object().into_iter().flatten().try_for_each(|(operation, fields)| write!(f, "{operation} {fields}"))
    }
}

/// Answers look-ups.
pub trait HostCalls: Send + Sync {
    /// The JSON of the answer, or Kubewarden's text for the error.
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String>;

    /// How many Services a list of all of them has, roughly: the policy needs memory for it.
    fn services(&self) -> usize {
        0
    }
}
