//! A watched Node, and the requests that write its blocks.
//!
//! # Guarantees
//! - Each request ends, here and in the API server, before another process may lead.
//! - The blocks of a Node are written only if the Node has not changed since it was observed.
//! - If there is no answer, the Node is read again. The outcome is unclear as long as the API server may still carry
//!   out the request.

use std::time::Duration;

use clusterip_cluster::api_error::error_message;
use clusterip_cluster::connect::answer;
use clusterip_cluster::object::{blocks_of, map};
use clusterip_cluster::watch::partial_object::PartialObject;
use clusterip_core::nodes::Node;
use http::Request;
use ipnet::IpNet;
use kube::api::ApiResource;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::leader::event_recorder::CONTROLLER;
use crate::nodes::held_blocks::fields_of;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WatchedNode {
    pub name: String,
    /// The UID of the Node. A later Node may have the same name.
    pub uid: String,
    pub version: String,
    pub deleting: bool,
    pub blocks: Vec<IpNet>,
    pub unassigned: Node,
}

impl WatchedNode {
    pub fn of(object: &PartialObject) -> Option<Self> {
        let PartialObject { metadata, object } = object;
        let name = metadata.name.clone()?;
        let labels = map(object, &["metadata", "labels"]);
        Some(Self {
            unassigned: Node { name: name.clone(), labels, blocks: Vec::new() },
            name,
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
            deleting: object.pointer("/metadata/deletionTimestamp").is_some(),
            blocks: blocks_of(object),
        })
    }
}

/// The time of a request: less than the time between the end of a term and the moment at which another may begin.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(4);
/// If less than this is left of a term, no request is begun.
const MIN_REQUEST_TIME: Duration = Duration::from_millis(100);
/// The number of tries in a row if another program changes the Node each time.
const TRIES: usize = 5;

#[derive(Clone, Debug, PartialEq)]
pub struct BlockWrite {
    pub node: WatchedNode,
    pub blocks: Vec<IpNet>,
    /// The version at which an earlier request without an answer may still be carried out.
    pub doubt: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum WriteOutcome {
    Written,
    /// Another program gave the Node blocks, or changed what the policy gets. The Node will not get these.
    Changed(Box<WatchedNode>),
    Gone,
    /// The API server refuses the request. The Node does not have the blocks, and will not get them.
    Refused(String),
    /// The Node may have the blocks, or may still get them. They can be written again.
    Unclear {
        /// The version at which the request may still be carried out; `None` if it can't be carried out any more.
        doubt: Option<String>,
        reason: String,
    },
    /// The term of this process ends too soon. Nothing was sent.
    TooLate,
}

#[derive(Clone)]
pub struct Writer {
    client: Client,
    nodes: Api<PartialObject>,
    term: watch::Receiver<Option<Instant>>,
}

impl Writer {
    pub fn new(client: Client, term: watch::Receiver<Option<Instant>>) -> Self {
        let nodes = Api::all_with(client.clone(), &ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()));
        Self { client, nodes, term }
    }

    pub async fn write(&self, write: &BlockWrite) -> WriteOutcome {
        let BlockWrite { node, blocks, doubt } = write;
        let (mut version, mut doubt) = (node.version.clone(), doubt.clone());
        for _ in 0..TRIES {
            let left = self.term.borrow().map(|end| end.saturating_duration_since(Instant::now())).unwrap_or_default();
            let limit = left.min(MAX_REQUEST_TIME);
            if limit < MIN_REQUEST_TIME {
                let reason = "this process does not lead any more".to_owned();
                return if doubt.is_some() { WriteOutcome::Unclear { doubt, reason } } else { WriteOutcome::TooLate };
            }
            let failure = match answer(limit, self.send(node, &version, blocks, limit)).await {
                Ok(()) => return WriteOutcome::Written,
                Err(kube::Error::Api(status)) if status.code == 404 => return WriteOutcome::Gone,
                Err(kube::Error::Api(status)) if status.code == 409 => None,
                Err(error) => {
                    let is_refused =
                        matches!(&error, kube::Error::Api(status) if !matches!(status.code, 408 | 429 | 500..));
                    let reason = error_message(&error);
                    if !is_refused {
                        doubt = Some(version.clone());
                    } else if doubt.is_none() {
                        // Otherwise an earlier request may still be on its way.
                        return WriteOutcome::Refused(reason);
                    }
                    Some(reason)
                }
            };
            let found = match answer(MAX_REQUEST_TIME, self.nodes.get_opt(&node.name)).await {
                Ok(found) => found.as_ref().and_then(WatchedNode::of),
                Err(error) => {
                    return WriteOutcome::Unclear { doubt, reason: failure.unwrap_or_else(|| error_message(&error)) };
                }
            };
            let Some(seen) = found.filter(|seen| seen.uid == node.uid) else { return WriteOutcome::Gone };
            if seen.blocks == *blocks {
                return WriteOutcome::Written;
            }
            if !seen.blocks.is_empty() {
                return WriteOutcome::Changed(Box::new(seen));
            }
            // A request that was made for another version is refused.
            doubt = doubt.filter(|doubt| *doubt == seen.version);
            if doubt.is_none() && (seen.deleting || seen.unassigned != node.unassigned) {
                return WriteOutcome::Changed(Box::new(seen));
            }
            if let Some(reason) = failure {
                return WriteOutcome::Unclear { doubt, reason };
            }
            version = seen.version;
        }
        WriteOutcome::Unclear { doubt, reason: "another program changed the Node at every try".to_owned() }
    }

    async fn send(&self, node: &WatchedNode, version: &str, blocks: &[IpNet], limit: Duration) -> kube::Result<()> {
        let patch = json!({"metadata": {"uid": node.uid, "resourceVersion": version}, "spec": fields_of(blocks)});
        let milliseconds = limit.as_millis();
        let query = format!("fieldManager={CONTROLLER}&fieldValidation=Ignore&timeout={milliseconds}ms");
        // Cheaper than a merge patch. It adds `podCIDRs` to the present ones, of which this version has none.
        let request = Request::patch(format!("/api/v1/nodes/{}?{query}", node.name))
            .header("content-type", "application/strategic-merge-patch+json")
            .body(patch.to_string().into_bytes())
            .map_err(kube::Error::HttpError)?;
        self.client.request_text(request).await.map(drop)
    }
}
