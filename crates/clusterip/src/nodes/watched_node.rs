//! A watched Node, reduced to the fields that the controller needs.

use std::collections::BTreeMap;

use clusterip_host::cluster::watch::partial_object::PartialObject;
use clusterip_host::object::{Packed, blocks_in};
use ipnet::IpNet;
use serde::Serialize;

/// The part of a Node that the policy gets. It is serialised at once, because thousands of Nodes may arrive together.
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

/// A watched Node.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchedNode {
    /// The name of the Node.
    pub name: String,
    /// The UID of the Node. A later Node may have the same name.
    pub uid: String,
    /// The `resourceVersion`, which changes with every change of the Node.
    pub version: String,
    /// Whether the Node is being deleted.
    pub deleting: bool,
    /// The blocks of the Node; empty if it has none yet.
    pub blocks: Vec<IpNet>,
    /// The part of the Node that the policy gets, without blocks.
    pub shown: Packed,
}

impl WatchedNode {
    /// Reads a Node; `None` if it has no name.
    pub fn of(object: &PartialObject) -> Option<Self> {
        let PartialObject { metadata, data, .. } = object;
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
