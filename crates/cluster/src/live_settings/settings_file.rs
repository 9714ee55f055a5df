//! Settings in Kubernetes objects: objects of the API `clusterip-policy.io`, or the policy of Kubewarden or the
//! ConfigMap that contains the document.

use clusterip_api::GROUP;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::WrittenSettings;
use super::objects_in_files::{document_of_objects, in_text, is_settings_object, selects_service_cidrs};
use crate::object::{api_version, kind};
use crate::snapshot::service_ranges::ServiceRanges;
use crate::yaml;

const KEY: &str = "settings.yaml";

#[derive(Clone, Debug, PartialEq)]
pub enum SettingsFile {
    Document(Value),
    /// Objects of the API `clusterip-policy.io`, and perhaps ServiceCIDR objects that they select.
    Objects(Vec<Value>),
}

impl SettingsFile {
    /// Reads the text of a file: the document itself, the settings in it if it is a policy of Kubewarden
    /// (`spec.settings`) or a ConfigMap (the key `settings.yaml`), or objects of the API `clusterip-policy.io`.
    pub fn read(text: &str) -> Result<Self, String> {
        if let Some(objects) = in_text(text).map_err(|error| error.to_string())? {
            return match objects.iter().find(|object| !is_settings_object(object) && !is_service_cidr(object)) {
                None => Ok(Self::Objects(objects)),
                Some(other) if api_version(other).is_empty() || kind(other).is_empty() => Err(format!(
                    "the file has objects of {GROUP} and a document without apiVersion or kind: remove the document, \
                     or write its settings as objects"
                )),
                Some(other) => Err(without_settings(other)),
            };
        }
        let document = yaml::single(text).map_err(|error| error.to_string())?;
        if document.is_null() {
            return Err("the file is empty: write {} for the pools of K2s".to_owned());
        }
        settings_of(document).map(Self::Document)
    }

    /// The document. Objects are compiled in a cluster with these Service ranges: pools may select its ServiceCIDRs.
    pub fn document(&self, cluster: &ServiceRanges) -> Result<WrittenSettings, String> {
        match self {
            Self::Document(document) => Ok(document.clone().into()),
            Self::Objects(objects) => document_of_objects(objects, &[], cluster),
        }
    }

    /// The document without the pools whose ranges are those of ServiceCIDR objects.
    pub fn document_without_cluster(&self) -> Result<WrittenSettings, String> {
        let known = match self {
            Self::Document(document) => return Ok(document.clone().into()),
            Self::Objects(objects) => objects.iter().filter(|object| !selects_service_cidrs(object)),
        };
        document_of_objects(&known.cloned().collect::<Vec<_>>(), &[], &ServiceRanges::default())
    }

    /// Whether the ranges of some pools are those of ServiceCIDR objects.
    pub fn selects_service_cidrs(&self) -> bool {
        matches!(self, Self::Objects(objects) if objects.iter().any(selects_service_cidrs))
    }
}

pub fn is_service_cidr(object: &Value) -> bool {
    kind(object) == "ServiceCIDR" && api_version(object).starts_with("networking.k8s.io/")
}

fn without_settings(object: &Value) -> String {
    format!(
        "{} {} has no settings: pass the settings themselves, objects of {GROUP}, a ClusterAdmissionPolicy with them in \
         spec.settings, or a ConfigMap with them in data[{KEY:?}]",
        api_version(object),
        kind(object)
    )
}

/// The settings document in a document that may be a policy of Kubewarden or a ConfigMap.
fn settings_of(document: Value) -> Result<Value, String> {
    let (api_version, kind) = (api_version(&document), kind(&document));
    if api_version.is_empty() || kind.is_empty() {
        return Ok(document);
    }
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    match (group, kind) {
        ("policies.kubewarden.io", "ClusterAdmissionPolicy" | "AdmissionPolicy") => Ok(of_policy(document.get("spec"))),
        ("policies.kubewarden.io", "ClusterAdmissionPolicyGroup" | "AdmissionPolicyGroup") => Err(format!(
            "{kind}: its settings are below spec.policies, in the settings of one of its policies: pass them as a file \
             of their own"
        )),
        ("", "ConfigMap") => match document.pointer("/data").and_then(|data| data.get(KEY)).and_then(Value::as_str) {
            Some(text) => yaml::single(text).map_err(|error| format!("data[{KEY:?}]: {error}")),
            None => {
                let config_map: ConfigMap = serde_json::from_value(document).map_err(|error| error.to_string())?;
                let keys: Vec<String> = config_map.data.unwrap_or_default().into_keys().collect();
                let keys = if keys.is_empty() { "no keys".to_owned() } else { keys.join(", ") };
                Err(format!("the ConfigMap has no key {KEY}: it has {keys}"))
            }
        },
        _ => Err(without_settings(&document)),
    }
}

/// The settings of a policy of Kubewarden with this `spec`. Without settings they are `{}`.
pub(super) fn of_policy(spec: Option<&Value>) -> Value {
    let settings = spec.and_then(|spec| spec.get("settings")).filter(|settings| !settings.is_null());
    settings.cloned().unwrap_or_else(|| json!({}))
}
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_out_of_objects() {
        struct Case {
            name: &'static str,
            text: &'static str,
            expected: Result<Value, &'static str>,
        }
        let settings = || Ok(json!({"services": {"order": "lowest"}}));
        let cases = [
            Case { name: "the settings themselves", text: "services: {order: lowest}", expected: settings() },
            Case { name: "nothing", text: "", expected: Err("the file is empty: write {} for the pools of K2s") },
            Case { name: "only comments", text: "# services: {}\n", expected: Err("the file is empty: write {}") },
            Case { name: "null", text: "null", expected: Err("the file is empty: write {}") },
            Case { name: "the defaults", text: "{}", expected: Ok(json!({})) },
            Case {
                name: "a ConfigMap with an empty key",
                text: "apiVersion: v1\nkind: ConfigMap\ndata: {settings.yaml: ''}",
                expected: Ok(Value::Null),
            },
            Case {
                name: "a ClusterAdmissionPolicy",
                text: "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\n\
                       spec: {mode: protect, settings: {services: {order: lowest}}}",
                expected: settings(),
            },
            Case {
                name: "an AdmissionPolicy of another version",
                text: "apiVersion: policies.kubewarden.io/v1alpha2\nkind: AdmissionPolicy\n\
                       spec: {settings: {services: {order: lowest}}}",
                expected: settings(),
            },
            Case {
                name: "a policy without settings",
                text: "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\nspec: {settings: null}",
                expected: Ok(json!({})),
            },
            Case {
                name: "a group of policies",
                text: "apiVersion: policies.kubewarden.io/v1\nkind: AdmissionPolicyGroup",
                expected: Err("AdmissionPolicyGroup: its settings are below spec.policies"),
            },
            Case {
                name: "a ConfigMap",
                text: "apiVersion: v1\nkind: ConfigMap\ndata:\n  settings.yaml: |\n    services:\n      order: lowest\n",
                expected: settings(),
            },
            Case {
                name: "a ConfigMap with broken settings",
                text: "apiVersion: v1\nkind: ConfigMap\ndata: {settings.yaml: '['}",
                expected: Err("data[\"settings.yaml\"]: line "),
            },
            Case {
                name: "a ConfigMap with another key",
                text: "apiVersion: v1\nkind: ConfigMap\ndata: {pools.yaml: x}",
                expected: Err("the ConfigMap has no key settings.yaml: it has pools.yaml"),
            },
            Case {
                name: "a ConfigMap with several other keys",
                text: "apiVersion: v1\nkind: ConfigMap\ndata: {settings.yml: x, a: x}",
                expected: Err("the ConfigMap has no key settings.yaml: it has a, settings.yml"),
            },
            Case {
                name: "a ConfigMap without keys",
                text: "apiVersion: v1\nkind: ConfigMap\ndata: {}",
                expected: Err("the ConfigMap has no key settings.yaml: it has no keys"),
            },
            Case {
                name: "a ConfigMap without data",
                text: "apiVersion: v1\nkind: ConfigMap",
                expected: Err("the ConfigMap has no key settings.yaml: it has no keys"),
            },
            Case {
                name: "a ConfigMap of the wrong shape",
                text: "apiVersion: v1\nkind: ConfigMap\ndata: []",
                expected: Err("invalid type"),
            },
            Case {
                name: "another object",
                text: "apiVersion: apps/v1\nkind: Deployment",
                expected: Err("apps/v1 Deployment has no settings: pass the settings themselves"),
            },
            Case {
                name: "a policy of another project",
                text: "apiVersion: example.com/v1\nkind: ClusterAdmissionPolicy",
                expected: Err("example.com/v1 ClusterAdmissionPolicy has no settings"),
            },
            Case {
                name: "objects, with the ServiceCIDR that one selects",
                text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: a}\n\
                       spec: {serviceCIDRSelector: {matchLabels: {team: a}}}\n---\n\
                       apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
                       metadata: {name: a, labels: {team: a}}\nspec: {cidrs: [10.96.1.0/24]}",
                expected: Ok(json!({"services": {"pools": [{"name": "a", "cidrs": ["10.96.1.0/24"]}]}})),
            },
            Case {
                name: "an object with a mistake",
                text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: a}\n\
                       spec: {cidrs: [10.96.1.1/24]}",
                expected: Err("ServicePool a: Invalid: spec.cidrs[0]: 10.96.1.1/24 has host bits set"),
            },
            Case {
                name: "another object beside objects",
                text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: a}\n\
                       ---\napiVersion: v1\nkind: Service\n",
                expected: Err("v1 Service has no settings: pass the settings themselves, objects of "),
            },
            Case {
                name: "a document beside objects",
                text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: a}\n\
                       ---\nservices: {order: lowest}\n",
                expected: Err("the file has objects of clusterip-policy.io and a document without apiVersion"),
            },
            Case { name: "two documents", text: "services: {}\n---\nnodes: {}", expected: Err("line 3: more than") },
            Case { name: "no YAML", text: "services: [", expected: Err("line 2: ") },
        ];
        for Case { name, text, expected } in cases {
            let found = SettingsFile::read(text).and_then(|file| file.document(&ServiceRanges::default()));
            let found = found.map(|written| written.document);
            match (found.map_err(|error| error.to_string()), expected) {
                (Err(reason), Err(begin)) => assert!(reason.starts_with(begin), "{name}: {reason}"),
                (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{name}"),
            }
        }
    }
}
