//! What a policy says of itself to Kubewarden.

use std::collections::{BTreeMap, BTreeSet};

use semver::Version;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The annotation that holds the policy's name.
pub const TITLE: &str = "io.kubewarden.policy.title";
/// The annotation that holds its version, without a `v`.
pub const VERSION: &str = "io.kubewarden.policy.version";
/// The annotation that holds the address of its sources.
pub const SOURCE: &str = "io.kubewarden.policy.source";
/// The annotation that holds the text for its users. It is not written by hand, but taken from a file.
pub const USAGE: &str = "io.kubewarden.policy.usage";

/// The metadata of a policy, as policy-server and kwctl read it. Nothing is optional here that
/// Kubewarden would guess, and nothing unknown is accepted: it would be a misspelt field.
///
/// Sets are sorted and fields in a fixed order, so that the same metadata gives the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// The version of the guest's protocol. The annotator knows it: no file says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
    /// Which requests are judged.
    pub rules: Vec<Rule>,
    /// Names, texts and addresses, for people and catalogues.
    pub annotations: BTreeMap<String, String>,
    /// Whether requests are changed.
    pub mutating: bool,
    /// Whether the audit scanner may evaluate the policy.
    pub background_audit: bool,
    /// Which interface the module has.
    pub execution_mode: String,
    /// Whether it judges admission requests, or anything.
    pub policy_type: String,
    /// The kinds that are looked up.
    pub context_aware_resources: BTreeSet<Resource>,
    /// The host calls that are made.
    pub host_capabilities: BTreeSet<String>,
    /// The oldest Kubewarden that the policy works with.
    pub minimum_kubewarden_version: Version,
}

/// Requests that are judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// API groups; the core group is empty.
    pub api_groups: Vec<String>,
    /// Versions of them.
    pub api_versions: Vec<String>,
    /// Plural names in lower case.
    pub resources: Vec<String>,
    /// In upper case.
    pub operations: Vec<String>,
}

/// A kind that is looked up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resource {
    /// Such as `apps/v1`, or `v1` for the core group.
    pub api_version: String,
    /// Such as `Deployment`.
    pub kind: String,
}

/// Metadata that can't be used.
#[derive(Debug, Error)]
pub enum MetadataError {
    /// The text is no YAML; or a field is missing, unknown, or of another type.
    #[error("the metadata can't be read: {0}")]
    Read(#[from] serde_saphyr::Error),
    /// What the annotator itself knows stands in the file.
    #[error("{0} is set: take it out, the annotator writes it")]
    NotByHand(&'static str),
    /// An annotation that nothing can be published without.
    #[error("annotation {0} is missing")]
    Missing(&'static str),
}

impl Metadata {
    /// Reads a file such as `policy-metadata.yml`.
    ///
    /// # Errors
    /// [`MetadataError`] where it is none, or says what only the annotator knows.
    pub fn from_yaml(text: &str) -> Result<Self, MetadataError> {
        let metadata: Self = serde_saphyr::from_str(text)?;
        if metadata.protocol_version.is_some() {
            return Err(MetadataError::NotByHand("protocolVersion"));
        }
        if metadata.annotations.contains_key(USAGE) {
            return Err(MetadataError::NotByHand(USAGE));
        }
        Ok(metadata)
    }

    /// An annotation that must be there.
    ///
    /// # Errors
    /// [`MetadataError::Missing`] where it is not.
    pub fn annotation(&self, name: &'static str) -> Result<&str, MetadataError> {
        self.annotations.get(name).map(String::as_str).ok_or(MetadataError::Missing(name))
    }
}
