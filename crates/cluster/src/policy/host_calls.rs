//! The host calls that a policy may make: Kubewarden's look-ups of Kubernetes objects.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A look-up. The variants have the names that Kubewarden's recorded sessions use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostCall {
    #[serde(rename = "KubernetesListResourceAll")]
    ListAll {
        api_version: String,
        kind: String,
        label_selector: Option<String>,
        field_selector: Option<String>,
        /// The only fields to return in addition to `metadata`; all fields without it.
        field_masks: Option<BTreeSet<String>>,
    },
    #[serde(rename = "KubernetesListResourceNamespace")]
    ListNamespace {
        api_version: String,
        kind: String,
        namespace: String,
        label_selector: Option<String>,
        field_selector: Option<String>,
        field_masks: Option<BTreeSet<String>>,
    },
    #[serde(rename = "KubernetesGetResource")]
    Get {
        api_version: String,
        kind: String,
        name: String,
        namespace: Option<String>,
        /// Whether the answer must be read from the API server instead of a cache.
        disable_cache: bool,
        field_masks: Option<BTreeSet<String>>,
    },
}

impl HostCall {
    pub fn resource(&self) -> (&str, &str) {
        let (Self::ListAll { api_version, kind, .. }
        | Self::ListNamespace { api_version, kind, .. }
        | Self::Get { api_version, kind, .. }) = self;
        (api_version, kind)
    }

    /// Parses a waPC host call. An error if Kubewarden or this host does not offer it.
    pub fn read(binding: &str, namespace: &str, operation: &str, payload: &[u8]) -> Result<Self, String> {
        let unknown = |what, name: &str| Err(format!("unknown {what}: {name}"));
        let variant = match (binding, namespace, operation) {
            ("kubewarden", "kubernetes", "list_resources_all") => "KubernetesListResourceAll",
            ("kubewarden", "kubernetes", "list_resources_by_namespace") => "KubernetesListResourceNamespace",
            ("kubewarden", "kubernetes", "get_resource") => "KubernetesGetResource",
            ("kubewarden", "kubernetes", _) => return unknown("operation", operation),
            ("kubewarden", ..) => return unknown("namespace", namespace),
            _ => return unknown("binding", binding),
        };
        let named = [b"{\"".as_slice(), variant.as_bytes(), b"\":", payload, b"}"].concat();
        serde_json::from_slice(&named).map_err(|error| format!("{operation}: {error}"))
    }
}

/// One line with every field: `KubernetesGetResource {"api_version":"v1",…}`.
impl fmt::Display for HostCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = serde_json::to_value(self).map_err(|_| fmt::Error)?;
        written.as_object().into_iter().flatten().try_for_each(|(operation, fields)| write!(f, "{operation} {fields}"))
    }
}

pub trait HostCalls: Send + Sync {
    /// The JSON of the answer, or Kubewarden's text for the error.
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String>;
}
