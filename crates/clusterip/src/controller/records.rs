//! Where the journals of moves are kept: `ControllerRevision` objects in the server's namespace.
//!
//! A journal on the Service itself could be forged, or replayed later, by anybody who may edit the Service; an
//! authenticated one could still be replayed. In the server's namespace a tenant can neither read nor write it. A
//! `ControllerRevision` is the API's own kind for the state of a controller: its `data` can't be changed once it
//! is written, and a role that grants it grants nothing else of that namespace.
//!
//! # Guarantees
//! - The record is written before the first change of the Service, and deleted after the last one. So whatever a
//!   move has left on a Service, a record tells how to finish it.
//! - A record is found by the UID of its Service. It is of no use for another Service, or after its move.

use http::{Method, Request};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, Error as KubeError};
use serde_json::{Value, json};
use thiserror::Error;

use super::journal::Journal;
use crate::cluster::failure::words;

/// The label of every object that is written about a move; its value says what the object is.
pub const LABEL: &str = "clusterip-policy/move";
/// The value of [`LABEL`] of a record.
pub const RECORD: &str = "record";

/// A record that can't be read.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The API server refuses, or can't be reached.
    #[error("the records of moves in namespace {namespace} can't be read: {reason}")]
    Request {
        /// The server's namespace.
        namespace: String,
        /// What the API server says.
        reason: String,
    },
    /// Its data is not a journal.
    #[error("controllerrevision {namespace}/{name} is not the record of a move: {reason}")]
    Malformed {
        /// The server's namespace.
        namespace: String,
        /// The name of the object.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// The records in one namespace. Cheap to clone.
#[derive(Clone)]
pub struct Records {
    api: Api<ControllerRevision>,
    namespace: String,
}

impl Records {
    /// The records in the server's namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), namespace: namespace.to_owned() }
    }

    /// The journal of the Service with this UID; nothing where no move of it is recorded.
    ///
    /// # Errors
    /// [`RecordError`]
    pub async fn get(&self, uid: &str) -> Result<Option<Journal>, RecordError> {
        let found = self.api.get_opt(&name(uid)).await.map_err(|error| self.request(&error))?;
        found.map(|found| self.journal(found)).transpose()
    }

    /// All journals, in the order of the names of their records. A record that can't be read is logged and left
    /// out.
    ///
    /// # Errors
    /// [`RecordError::Request`]
    pub async fn list(&self) -> Result<Vec<Journal>, RecordError> {
        let records = ListParams::default().labels(&format!("{LABEL}={RECORD}"));
        let found = self.api.list(&records).await.map_err(|error| self.request(&error))?;
        let journal =
            |found| self.journal(found).inspect_err(|error| tracing::error!(%error, "a move is not finished"));
        Ok(found.items.into_iter().filter_map(|found| journal(found).ok()).collect())
    }

    /// Deletes the record of the Service with this UID, if there is one.
    ///
    /// # Errors
    /// [`RecordError::Request`]
    pub async fn delete(&self, uid: &str) -> Result<(), RecordError> {
        match self.api.delete(&name(uid), &DeleteParams::default()).await {
            Err(KubeError::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(self.request(&error)),
            Ok(_) => Ok(()),
        }
    }

    /// The request that creates a record.
    ///
    /// # Errors
    /// Where the journal can't be written as JSON, or makes no HTTP request.
    pub fn creation(&self, journal: &Journal) -> Result<Request<Vec<u8>>, String> {
        let record = json!({
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": name(&journal.uid),
                "labels": {LABEL: RECORD, "app.kubernetes.io/name": "clusterip"},
            },
            "revision": 0,
            "data": journal,
        });
        let body = serde_json::to_vec(&record).map_err(|error| error.to_string())?;
        let path = format!("/apis/apps/v1/namespaces/{}/controllerrevisions", self.namespace);
        let request = Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
        request.body(body).map_err(|error| error.to_string())
    }

    /// The server's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    fn journal(&self, found: ControllerRevision) -> Result<Journal, RecordError> {
        let object = found.metadata.name.unwrap_or_default();
        let malformed =
            |reason: String| RecordError::Malformed { namespace: self.namespace.clone(), name: object.clone(), reason };
        let data = found.data.map_or(Value::Null, |data| data.0);
        let journal: Journal = serde_json::from_value(data).map_err(|error| malformed(error.to_string()))?;
        match object == name(&journal.uid) {
            true => Ok(journal),
            false => Err(malformed(format!("it is about the UID {}", journal.uid))),
        }
    }

    fn request(&self, error: &KubeError) -> RecordError {
        RecordError::Request { namespace: self.namespace.clone(), reason: words(error) }
    }
}

/// The name of the record of the Service with this UID.
pub fn name(uid: &str) -> String {
    format!("clusterip-move-{uid}")
}
