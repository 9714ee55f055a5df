//! A watched Node, reduced to the fields that the controller needs.

use clusterip_cluster::object::blocks_in;
use clusterip_cluster::watch::partial_object::PartialObject;
use clusterip_core::nodes::Node;
use ipnet::IpNet;

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
    /// The fields that a decision reads, without blocks.
    pub unassigned: Node,
}

impl WatchedNode {
    /// Reads a Node; `None` if it has no name.
    pub fn of(object: &PartialObject) -> Option<Self> {
        let PartialObject { metadata, data, .. } = object;
        let name = metadata.name.clone()?;
        let labels = metadata.labels.clone().unwrap_or_default();
        Some(Self {
            unassigned: Node { name: name.clone(), labels, blocks: Vec::new() },
            name,
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            blocks: blocks_in(data.get("spec")),
        })
    }
}
