//! The metadata of a policy for Kubewarden: reads `policy-metadata.yml`, and writes it into the module as a custom
//! section.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, anyhow, bail, ensure};
use semver::Version;
use serde::{Deserialize, Serialize};
use wasm_encoder::{CustomSection, Section};
use wasmparser::{Parser, Payload};

pub const VERSION: &str = "io.kubewarden.policy.version";
pub const SOURCE: &str = "io.kubewarden.policy.source";
/// The annotation with the usage text. The annotator takes it from a file; `policy-metadata.yml` must not have it.
pub const USAGE: &str = "io.kubewarden.policy.usage";

/// The metadata of a policy, as policy-server and kwctl read it. Fields that Kubewarden would guess are required here,
/// and unknown fields are refused, because they would be misspelt.
///
/// Sets are sorted and fields have a fixed order, so that the same metadata gives the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// The version of the waPC guest protocol. The annotator sets it; files must not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
    /// The requests that the policy evaluates.
    pub rules: Vec<Rule>,
    pub annotations: BTreeMap<String, String>,
    pub mutating: bool,
    pub background_audit: bool,
    pub execution_mode: String,
    pub policy_type: String,
    pub context_aware_resources: BTreeSet<Resource>,
    pub host_capabilities: BTreeSet<String>,
    pub minimum_kubewarden_version: Version,
}

/// The requests that the policy evaluates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    pub api_groups: Vec<String>,
    pub api_versions: Vec<String>,
    pub resources: Vec<String>,
    pub operations: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resource {
    pub api_version: String,
    pub kind: String,
}

impl Metadata {
    pub fn from_yaml(text: &str) -> anyhow::Result<Self> {
        let metadata: Self =
            serde_saphyr::from_str(text).map_err(|error| anyhow!("can't read the metadata: {error}"))?;
        let is_set = |field: &str| format!("{field} is set: remove it, because the annotator writes it");
        ensure!(metadata.protocol_version.is_none(), is_set("protocolVersion"));
        ensure!(!metadata.annotations.contains_key(USAGE), is_set(USAGE));
        Ok(metadata)
    }

    pub fn annotation(&self, name: &'static str) -> anyhow::Result<&str> {
        self.annotations.get(name).map(String::as_str).with_context(|| format!("annotation {name} is missing"))
    }
}

pub const SECTION: &str = "io.kubewarden.metadata";
/// The version of the waPC guest protocol that the policy speaks. The tests of `clusterip` compare it with the module.
pub const PROTOCOL: &str = "v1";

/// Adds metadata and a usage text to a module. All bytes of the module stay the same; the section is appended.
pub fn annotate(module: &[u8], mut metadata: Metadata, usage: &str) -> anyhow::Result<Vec<u8>> {
    if section(module)?.is_some() {
        // With two sections, the result would depend on the reader.
        bail!("the module already has a section {SECTION}: annotate the module as it was built");
    }
    metadata.protocol_version = Some(PROTOCOL.to_owned());
    metadata.annotations.insert(USAGE.to_owned(), usage.to_owned());
    let data = serde_json::to_vec(&metadata).map_err(unusable)?;
    let mut annotated = module.to_vec();
    CustomSection { name: SECTION.into(), data: data.into() }.append_to(&mut annotated);
    Ok(annotated)
}

pub fn of_module(module: &[u8]) -> anyhow::Result<Metadata> {
    let section =
        section(module)?.with_context(|| format!("the module has no section {SECTION}: annotate it first"))?;
    serde_json::from_slice(section).map_err(unusable)
}

fn section(module: &[u8]) -> anyhow::Result<Option<&[u8]>> {
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::CustomSection(section) =
            payload.map_err(|error| anyhow!("not a WebAssembly module: {error}"))?
            && section.name() == SECTION
        {
            return Ok(Some(section.data()));
        }
    }
    Ok(None)
}

fn unusable(error: serde_json::Error) -> anyhow::Error {
    anyhow!("can't read or write section {SECTION}: {error}")
}
