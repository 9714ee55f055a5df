//! A Node, as the API server shows it: what the assigner has to know of it.

use ipnet::IpNet;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::held::{blocks_of, fields_of};
use crate::cluster::object::Packed;

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
    pub fn of(object: DynamicObject) -> Option<Self> {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        let deleting = object.metadata.deletion_timestamp.is_some();
        let name = object.metadata.name?;
        let shown = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": object.metadata.labels.unwrap_or_default()},
        });
        Some(Self { name, uid, version, deleting, blocks: blocks_of(&object.data), shown: Packed::new(&shown) })
    }

    /// The Node as the policy is asked about it: as it was before it had blocks.
    pub fn without_blocks(&self) -> Value {
        self.shown.value()
    }

    /// The Node with its blocks.
    pub fn with_blocks(&self) -> Value {
        let mut node = self.shown.value();
        node["spec"] = fields_of(&self.blocks).into();
        node
    }
}
