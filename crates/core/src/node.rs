//! The fields of a Node that a decision reads.

use ipnet::IpNet;
use serde_json::Value;

use crate::distinct;
use crate::json::{Located, TypeMismatch};
use crate::label_selector::Labels;
use crate::service::MAX_FAMILIES;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub labels: Labels,
    /// `spec.podCIDR` and `spec.podCIDRs`, without duplicates and without host bits. Values that can't be parsed are
    /// left out: the API server refuses them.
    pub blocks: Vec<IpNet>,
}

impl Node {
    /// Reads the fields of a Node object that is at `path` of a document.
    pub fn read(object: &Value, path: &str) -> Result<Self, TypeMismatch> {
        let object = Located::new(object, path);
        let (metadata, spec) = (object.at("metadata")?, object.at("spec")?);
        Ok(Self {
            name: metadata.text_of("name")?.unwrap_or_default().to_owned(),
            labels: metadata.map_of("labels")?,
            blocks: blocks(spec.text_of("podCIDR")?.into_iter().chain(spec.texts_of("podCIDRs", MAX_FAMILIES + 1)?)),
        })
    }
}

/// The blocks of a Node from `podCIDR` and `podCIDRs`, without duplicates and without host bits. Texts that are not a
/// CIDR are left out.
pub fn blocks<'t>(texts: impl Iterator<Item = &'t str>) -> Vec<IpNet> {
    distinct(texts.filter_map(|text| Some(text.parse::<IpNet>().ok()?.trunc())))
}
