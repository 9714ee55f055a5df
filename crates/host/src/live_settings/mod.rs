//! Settings that can change while the program runs: the objects of the API `clusterip-policy.io`, the policy of
//! Kubewarden, or a file.
//!
//! # Promises
//! - Only settings that the policy itself accepts are ever published. A version with mistakes changes nothing: the
//!   previous version stays in use, and the log and the metrics report it. An object that can't be used does not affect
//!   the others, and its status tells why.
//! - Each published version differs from the one before, so comparing hashes shows whether decisions may differ.

mod completion;
mod follower;
mod mistakes;
mod objects_in_files;
mod pool_objects;
mod settings_file;
mod settings_source;
pub mod startup;
mod validation;

use clusterip_core::settings::Settings;
use clusterip_runtime::api_error::RequestFailure;
use serde_json::Value;
use thiserror::Error;

pub use self::completion::complete;
pub use self::follower::Follower;
pub use self::mistakes::{CheckError, DocumentError, in_lines};
pub use self::objects_in_files::{compiled_as_in_cluster, document_of_objects, is_settings_api, is_settings_object};
pub use self::pool_objects::{compile_cluster, list as list_objects, list_if_defined};
pub use self::settings_file::{SettingsFile, is_service_cidr};
pub use self::settings_source::{SettingsSource, written};
pub use self::validation::{check_settings, version};

/// Settings in use.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveSettings {
    /// The document that the policy gets.
    pub document: Value,
    /// The same settings, parsed.
    pub settings: Settings,
    /// The hash of the document in 32 hexadecimal digits: the same for the same document in every process.
    pub hash: String,
    /// The hash of the settings version: of the document as it was written, see [`version()`]. The Service ranges of
    /// the cluster do not affect it.
    pub version: String,
    /// Settings that are allowed but probably not intended.
    pub warnings: Vec<String>,
}

/// Initial settings that can't be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// The settings have mistakes; all of them are listed, one per line.
    #[error("{}", in_lines(.origin, .mistakes))]
    Mistakes {
        /// The source of the settings.
        origin: String,
        /// The mistakes.
        mistakes: CheckError,
    },
    /// The policy of Kubewarden does not exist.
    #[error(
        "settings: there is no ClusterAdmissionPolicy {name}: create it, or name another one with --policy \
         (kubectl get clusteradmissionpolicies lists them)"
    )]
    NoPolicy {
        /// The name of the policy.
        name: String,
    },
    /// The definitions of the custom resources are not installed.
    #[error(
        "settings: the cluster has no resources of the API clusterip-policy.io: install their definitions with \
         kubectl apply -k deploy/api, or use --settings FILE"
    )]
    NoDefinitions,
    /// The source can't be read.
    #[error("settings: {origin} can't be read: {reason}")]
    Request {
        /// The source of the settings.
        origin: String,
        /// The error of the API server.
        #[source]
        reason: RequestFailure,
    },
}
