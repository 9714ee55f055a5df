//! Settings in Kubernetes objects that are not read from a cluster: objects of the API `clusterip-policy.io` in a settings
//! file, among manifests or in a snapshot, or the policy of Kubewarden or the ConfigMap that contains the document.

use std::collections::BTreeSet;

use clusterip_api::{Compilation, GROUP, Kind, ObjectKey, Reason, mistake_of_type};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::WrittenSettings;
use super::pool_objects::compiled;
use crate::object::{api_version, kind};
use crate::snapshot::service_ranges::ServiceRanges;
use crate::yaml::{self, YamlError};

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

pub fn is_settings_object(object: &Value) -> bool {
    is_settings_api(api_version(object))
}

pub fn is_settings_api(api_version: &str) -> bool {
    api_version.split_once('/').is_some_and(|(group, _)| group == GROUP)
}

/// The objects in a text, if some of them are settings: those of all documents, and the items of lists.
fn in_text(text: &str) -> Result<Option<Vec<Value>>, YamlError> {
    if !text.contains(GROUP) {
        return Ok(None);
    }
    let mut objects = Vec::new();
    for document in yaml::documents(text) {
        add(document?.to_value(), &mut objects);
    }
    Ok(objects.iter().any(is_settings_object).then_some(objects))
}

/// Adds an object, or the items of a list. Items without a type get that of a list such as a ServicePoolList.
fn add(object: Value, objects: &mut Vec<Value>) {
    if object.is_null() {
        return;
    }
    let (list_version, list_kind) = (api_version(&object).to_owned(), kind(&object).to_owned());
    let items = object.get("items").and_then(Value::as_array).cloned();
    let (Some(item_kind), Some(items)) = (list_kind.strip_suffix("List"), items) else {
        objects.push(object);
        return;
    };
    for mut item in items {
        if let Some(fields) = item.as_object_mut().filter(|_| !item_kind.is_empty()) {
            fields.entry("apiVersion").or_insert_with(|| list_version.clone().into());
            fields.entry("kind").or_insert_with(|| item_kind.into());
        }
        add(item, objects);
    }
}

/// The document that a server uses after the settings objects of a file were applied to a cluster that has the objects
/// `there` and these Service ranges. All objects of the file must be in use then, and all of `there` that are now. A
/// `serviceCIDRSelector` selects ServiceCIDR objects among `objects` and those of the cluster; other objects are ignored.
pub fn document_of_objects(
    objects: &[Value],
    there: &[Value],
    cluster: &ServiceRanges,
) -> Result<WrittenSettings, String> {
    let own: Vec<Value> = objects.iter().filter(|object| is_settings_object(object)).cloned().collect();
    let mistakes = wrong_names(&own);
    if !mistakes.is_empty() {
        return Err(mistakes.join("\n"));
    }
    let mut ranges = cluster.clone();
    ranges.labelled.extend(ServiceRanges::of(objects).labelled);
    let before = compiled(there, cluster, None);
    let given: BTreeSet<ObjectKey> = own.iter().filter_map(ObjectKey::of).collect();
    let is_kept = |object: &&Value| ObjectKey::of(object).is_none_or(|key| !given.contains(&key));
    let kept: Vec<Value> = there.iter().filter(is_kept).cloned().collect();
    let after = compiled(&[own.as_slice(), &kept].concat(), &ranges, Some(&before.in_use));
    let mistake = |object: &Value| mistake(object, &after, !cluster.labelled.is_empty());
    let mut mistakes: Vec<String> = own.iter().filter_map(mistake).collect();
    let was_in_use = |object: &&Value| {
        let state = ObjectKey::of(object).and_then(|key| before.states.get(&key));
        state.is_some_and(|state| state.reason == Reason::InUse)
    };
    let spoilt = kept.iter().filter(was_in_use).filter_map(mistake);
    mistakes.extend(spoilt.map(|mistake| format!("beside these objects, {mistake}")));
    if mistakes.is_empty() { Ok(after.into()) } else { Err(mistakes.join("\n")) }
}

fn selects_service_cidrs(object: &Value) -> bool {
    let selector = object.pointer("/spec/serviceCIDRSelector");
    is_settings_object(object) && selector.is_some_and(|selector| !selector.is_null())
}

/// The settings that a server with these objects of a cluster uses; `None` if none of them are settings. Objects that
/// can't be used are left out, or their last good version is used.
pub fn compiled_as_in_cluster(objects: &[Value]) -> Option<Compilation> {
    let own: Vec<Value> = objects.iter().filter(|object| is_settings_object(object)).cloned().collect();
    (!own.is_empty()).then(|| compiled(&own, &ServiceRanges::of(objects), None))
}

/// A mistake for each object whose kind or name the API server would refuse, or that is there twice.
fn wrong_names(objects: &[Value]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut mistakes = Vec::new();
    for object in objects {
        let Some(key) = ObjectKey::of(object) else {
            mistakes.push(match Kind::parse(kind(object)) {
                Some(kind) => format!("{}: Invalid: metadata.name is missing", kind.as_str()),
                None => {
                    let known = Kind::ALL.map(Kind::as_str).join(", ");
                    format!("{}: Invalid: unknown kind {:?}: known are {known}", api_version(object), kind(object))
                }
            });
            continue;
        };
        if key.kind == Kind::ClusterIPPolicy && key != ObjectKey::policy() {
            mistakes.push(format!("{key}: Invalid: the name must be {}", ObjectKey::policy().name));
        }
        if !seen.insert(key.clone()) {
            mistakes.push(format!("{key}: Invalid: there is another object of this kind and name: remove one"));
        }
    }
    mistakes
}

fn mistake(object: &Value, compiled: &Compilation, is_cluster_known: bool) -> Option<String> {
    let key = ObjectKey::of(object)?;
    let state = compiled.states.get(&key)?;
    let (reason, message) = match state.reason {
        Reason::InUse => (Reason::Invalid, mistake_of_type(object)?),
        Reason::NoRanges if !is_cluster_known => {
            (Reason::NoRanges, format!("{}; in files, add the ServiceCIDR objects beside the pool", state.message))
        }
        other => (other, state.message.clone()),
    };
    Some(format!("{key}: {}: {message}", reason.as_str()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
