//! Why a settings version is refused.

use std::fmt::Display;

use clusterip_api::GROUP;
use thiserror::Error;
use tokio::task::JoinError;

use super::settings_file::KEY;
use crate::yaml::YamlError;

/// The message about mistakes of settings, which are one per line: each line begins with the name of the settings.
pub fn in_lines(name: &str, mistakes: impl Display) -> String {
    mistakes.to_string().lines().map(|mistake| format!("settings: {name}: {mistake}")).collect::<Vec<_>>().join("\n")
}

/// A text or an object that contains no settings document.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DocumentError {
    /// The text is not YAML.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// The text in the ConfigMap is not YAML.
    #[error("data[{KEY:?}]: {0}")]
    YamlInConfigMap(YamlError),
    /// The file is empty.
    #[error("the file is empty: write {{}} for the pools of K2s")]
    Empty,
    /// The file can't be read.
    #[error("{0}")]
    File(String),
    /// The object is not a ConfigMap, although its type says so.
    #[error("{0}")]
    ConfigMap(String),
    /// The ConfigMap has no settings.
    #[error("the ConfigMap has no key {KEY}: {keys}")]
    NoKey {
        /// Which keys the ConfigMap has, in words.
        keys: String,
    },
    /// The policy of Kubewarden was deleted.
    #[error("the ClusterAdmissionPolicy was deleted")]
    Deleted,
    /// The settings of a group of policies are in its policies.
    #[error(
        "{kind}: its settings are below spec.policies, in the settings of one of its policies: pass them as a file of \
         their own"
    )]
    PolicyGroup {
        /// The kind of the object.
        kind: String,
    },
    /// The object has no settings.
    #[error(
        "{api_version} {kind} has no settings: pass the settings themselves, objects of {GROUP}, a \
         ClusterAdmissionPolicy with them in spec.settings, or a ConfigMap with them in data[{KEY:?}]"
    )]
    OtherObject {
        /// The `apiVersion` of the object.
        api_version: String,
        /// The kind of the object.
        kind: String,
    },
    /// A settings document and objects are in the same file.
    #[error(
        "the file has objects of {GROUP} and a document without apiVersion or kind: remove the document, or write its \
         settings as objects"
    )]
    DocumentBesideObjects,
    /// Objects of the API `clusterip-policy.io` have mistakes. Contains a mistake for each object.
    #[error("{}", .0.join("\n"))]
    Objects(Vec<String>),
}

/// Settings that can't be used. The text has one mistake in each line.
#[derive(Debug, Error)]
pub enum CheckError {
    /// There is no document to check.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The settings have mistakes.
    #[error("{0}")]
    Refused(String),
    /// Ranges of pools lie outside of the Service ranges of the cluster. Contains a mistake for each range.
    #[error("{}", .0.join("\n"))]
    Outside(Vec<String>),
    /// The check panicked, or was cancelled.
    #[error("checking the settings failed: {0}")]
    Unfinished(JoinError),
}
