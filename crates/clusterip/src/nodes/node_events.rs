//! Writes Events about Nodes that have no blocks.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::mpsc;

use super::watched_node::WatchedNode;
use crate::leader::event_recorder::{EventContent, publish_event};

/// The number of Events that may wait to be written. Further Events are dropped; the log contains all of them.
const MAX_WAITING: usize = 1000;

/// Why a Node has no blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The pool of the Node is full.
    NotAvailable,
    /// The blocks could not be written.
    Failed,
}

impl Reason {
    /// The reason of the Event, as the controller manager of Kubernetes names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAvailable => "CIDRNotAvailable",
            Self::Failed => "CIDRAssignmentFailed",
        }
    }
}

/// Writes Events one after the other, without delaying its callers.
pub struct EventQueue(mpsc::Sender<(ObjectReference, Reason, String)>);

impl EventQueue {
    /// Starts a task that writes Events with `client`. It ends when the queue is dropped and all Events are written.
    pub fn start(client: Client) -> Self {
        let (sender, mut queue) = mpsc::channel::<(ObjectReference, Reason, String)>(MAX_WAITING);
        tokio::spawn(async move {
            while let Some((about, reason, note)) = queue.recv().await {
                let uid = about.uid.clone().unwrap_or_default();
                let content = EventContent { uid: &uid, warning: true, reason: reason.as_str(), note };
                publish_event(&client, about, "Assign", content).await;
            }
        });
        Self(sender)
    }

    /// Queues an Event about a Node. If too many wait, the Event is dropped and a warning is logged.
    pub fn tell(&self, node: &WatchedNode, reason: Reason, note: &str) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.name.clone()),
            uid: Some(node.uid.clone()),
            ..ObjectReference::default()
        };
        if self.0.try_send((about, reason, note.to_owned())).is_err() {
            tracing::warn!(node = node.name, "too many events wait to be written: this one is dropped");
        }
    }
}
