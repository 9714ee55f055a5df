//! A Node, as the API server shows it: what the assigner has to know of it.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::Serialize;

use super::held::blocks_in;
use crate::cluster::object::Packed;
use crate::cluster::watched::Watched;

/// A Node as the policy is shown it. Written at once: thousands of Nodes may come together.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'n> {
    api_version: &'static str,
    kind: &'static str,
    metadata: ShownMetadata<'n>,
}

#[derive(Serialize)]
struct ShownMetadata<'n> {
    labels: &'n BTreeMap<String, String>,
    name: &'n str,
}

/// A Node.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// Its UID: another Node may come to have the same name.
    pub uid: String,
    /// Its `resourceVersion`: another one with every change of the Node.
    pub version: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its blocks; none where it has none yet.
    pub blocks: Vec<IpNet>,
    /// What the policy is shown of it, without blocks.
    pub shown: Packed,
}

impl Seen {
    /// Reads a Node; nothing where it has no name.
    pub fn of(object: &Watched) -> Option<Self> {
        let Watched { metadata, data, .. } = object;
        let name = metadata.name.clone()?;
        let none = BTreeMap::new();
        let shown = Shown {
            api_version: "v1",
            kind: "Node",
            metadata: ShownMetadata { labels: metadata.labels.as_ref().unwrap_or(&none), name: &name },
        };
        Some(Self {
            shown: Packed::new(&shown),
            name,
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            blocks: blocks_in(data.get("spec")),
        })
    }
}
