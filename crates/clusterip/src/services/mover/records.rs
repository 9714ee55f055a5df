//! Stores the journals of moves as `ControllerRevision` objects in the server's namespace.
//!
//! A journal on the Service itself could be forged, or replayed later, by each user who may edit the Service; an
//! authenticated one could still be replayed. In the server's namespace, tenants can neither read nor write it. A
//! `ControllerRevision` is the API's own kind for the state of a controller: its `data` can't be changed once it is
//! written, and a role that grants access to it grants nothing else in that namespace.
//!
//! # Guarantees
//! - A record is written before the first change of its Service, and deleted after the last one. So there is a record
//!   of every move that has left something on its Service, and the record tells how to finish the move.
//! - A record is found by the UID of its Service. It is useless for another Service, and after its move.

use clusterip_cluster::api_error::error_message;
use clusterip_core::annotations::{SERVICE_ANNOTATION, in_service_annotation, service_of};
use clusterip_core::service_key::ServiceKey;
use http::{Method, Request};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{Api, DeleteParams, PartialObjectMeta, Preconditions};
use kube::{Client, Error as KubeError, ResourceExt as _};
use serde_json::{Value, json};
use thiserror::Error;

use super::api_requests::refusal_of;
use super::journal::Journal;
use super::refusal::Refusal;
use crate::services::own_revisions;

/// The label of records, see [`own_revisions::object`].
pub const RECORD: &str = "record";
/// The beginning of the names of records. The UID of the Service follows.
const PREFIX: &str = "clusterip-move-";

/// A record can't be read or deleted.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The API server refuses the request, or can't be reached.
    #[error("the records of moves in namespace {namespace} can't be read: {reason}")]
    Request {
        /// The server's namespace.
        namespace: String,
        /// The message of the API server.
        reason: String,
        /// Whether the API server did not answer, or answered that the request may be tried again.
        passing: bool,
    },
    /// The data of the object is not a journal.
    #[error("ControllerRevision {namespace}/{name} is not the record of a move: {reason}")]
    Malformed {
        /// The server's namespace.
        namespace: String,
        /// The name of the object.
        name: String,
        /// What is wrong with the data.
        reason: String,
    },
}

/// The request that creates a record can't be built.
#[derive(Debug, Error)]
pub enum CreationError {
    /// The journal can't be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The parts of the HTTP request are invalid.
    #[error(transparent)]
    Http(#[from] http::Error),
}

/// The records in one namespace. Cheap to clone.
#[derive(Clone)]
pub struct Records {
    api: Api<ControllerRevision>,
    namespace: String,
}

impl Records {
    /// The records in `namespace`, the server's namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), namespace: namespace.to_owned() }
    }

    /// The journal for the Service with this UID; `None` if no move of it is recorded.
    ///
    /// # Errors
    /// [`RecordError`] if the record can't be read, or is not a journal for this UID.
    pub async fn get(&self, uid: &str) -> Result<Option<Journal>, RecordError> {
        let found = self.api.get_opt(&name(uid)).await.map_err(|error| self.request(&error))?;
        found.map(|found| self.journal(found)).transpose()
    }

    /// The Services of all records, each with its UID, ordered by the names of the records. The journals themselves
    /// are not read, because a Service may be large.
    ///
    /// # Errors
    /// [`RecordError::Request`] if the records can't be listed.
    pub async fn list(&self) -> Result<Vec<(ServiceKey, String)>, RecordError> {
        let records = own_revisions::list(&self.api, RECORD).await.map_err(|error| self.request(&error))?;
        let service = |record: &PartialObjectMeta<ControllerRevision>| {
            let (namespace, name) = service_of(record.annotations().get(SERVICE_ANNOTATION)?)?;
            let uid = record.metadata.name.as_deref()?.strip_prefix(PREFIX)?;
            Some((ServiceKey::new(namespace, name), uid.to_owned()))
        };
        Ok(records.iter().filter_map(service).collect())
    }

    /// Deletes the record of the Service with this UID, if there is one.
    ///
    /// # Errors
    /// [`RecordError::Request`] if the API server refuses the deletion, or can't be reached.
    pub async fn delete(&self, uid: &str) -> Result<(), RecordError> {
        let found = self.api.get_metadata_opt(&name(uid)).await.map_err(|error| self.request(&error))?;
        let Some(found) = found else { return Ok(()) };
        // A deletion that arrives late must not hit the record of a later move of the same Service.
        let this = Preconditions { uid: found.metadata.uid, ..Preconditions::default() };
        let parameters = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
        match self.api.delete(&name(uid), &parameters).await {
            Err(KubeError::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(self.request(&error)),
            Ok(_) => Ok(()),
        }
    }

    /// The request that creates a record.
    ///
    /// # Errors
    /// [`CreationError`] if the journal can't be written as JSON, or the HTTP request can't be built.
    pub fn creation(&self, journal: &Journal) -> Result<Request<Vec<u8>>, CreationError> {
        let mut record = own_revisions::object(&name(&journal.uid), RECORD, journal);
        let service = in_service_annotation(&journal.namespace, &journal.name);
        record["metadata"]["annotations"] = json!({SERVICE_ANNOTATION: service});
        let body = serde_json::to_vec(&record)?;
        let path = format!("/apis/apps/v1/namespaces/{}/controllerrevisions", self.namespace);
        let request = Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
        Ok(request.body(body)?)
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
        let passing = matches!(refusal_of(error), Refusal::Trouble(_));
        RecordError::Request { namespace: self.namespace.clone(), reason: error_message(error), passing }
    }
}

/// The name of the record of the Service with this UID.
pub fn name(uid: &str) -> String {
    format!("{PREFIX}{uid}")
}
