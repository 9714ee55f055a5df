//! What administrators ask a running server to move: `ControllerRevision` objects in the server's namespace.
//!
//! The annotation of a Service can be written by everybody who may edit the Service. So it can't lift a brake that
//! protects others. A request can: it is written where the server keeps its records, and where tenants can't write.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, StreamExt, future};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Error as KubeError};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::affected::Id;
use super::records::LABEL;
use crate::cluster::failure::words;

/// The value of [`LABEL`] of a request.
const REQUEST: &str = "request";

/// A move that an administrator asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub name: String,
    /// The UID of the Service: no other Service of that name is meant.
    pub uid: String,
    /// Whether it is moved even if the control plane calls it.
    #[serde(default)]
    pub control_plane: bool,
}

impl Request {
    /// Namespace and name of the Service.
    pub fn id(&self) -> Id {
        (self.namespace.clone(), self.name.clone())
    }
}

fn api(client: &Client, namespace: &str) -> Api<ControllerRevision> {
    Api::namespaced(client.clone(), namespace)
}

fn name(uid: &str) -> String {
    format!("clusterip-move-request-{uid}")
}

/// Asks the server of this namespace for a move. One that was asked for before is asked for anew.
///
/// # Errors
/// What the API server says.
pub async fn ask(client: &Client, namespace: &str, request: &Request) -> Result<(), KubeError> {
    let object = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name(&request.uid),
            "labels": {LABEL: REQUEST, "app.kubernetes.io/name": "clusterip"},
        },
        "revision": 0,
        "data": request,
    });
    let object: ControllerRevision = serde_json::from_value(object).map_err(KubeError::SerdeError)?;
    let api = api(client, namespace);
    match api.create(&PostParams::default(), &object).await {
        Err(KubeError::Api(status)) if status.code == 409 => {
            withdraw(client, namespace, &request.uid).await?;
            api.create(&PostParams::default(), &object).await.map(drop)
        }
        created => created.map(drop),
    }
}

/// Whether a request has not been dealt with yet.
///
/// # Errors
/// What the API server says.
pub async fn is_open(client: &Client, namespace: &str, uid: &str) -> Result<bool, KubeError> {
    api(client, namespace).get_metadata_opt(&name(uid)).await.map(|found| found.is_some())
}

/// Deletes a request: it was dealt with, or nobody waits for it any more.
///
/// # Errors
/// What the API server says.
pub async fn withdraw(client: &Client, namespace: &str, uid: &str) -> Result<(), KubeError> {
    match api(client, namespace).delete(&name(uid), &DeleteParams::default()).await {
        Err(KubeError::Api(status)) if status.code == 404 => Ok(()),
        ended => ended.map(drop),
    }
}

/// The open requests, as a server follows them. Cheap to clone: all clones share them.
#[derive(Clone, Default)]
pub struct Requests(Arc<Mutex<BTreeMap<Id, Request>>>);

impl Requests {
    /// The request for this Service.
    pub fn of(&self, id: &Id, uid: &str) -> Option<Request> {
        self.lock().get(id).filter(|request| request.uid == uid).cloned()
    }

    /// Forgets the request for this Service.
    pub fn forget(&self, id: &Id) -> Option<Request> {
        self.lock().remove(id)
    }

    /// Follows the requests in this namespace, and tells the Service of each new one. It never ends by itself.
    pub fn follow(&self, client: &Client, namespace: &str) -> impl Stream<Item = Id> + use<> {
        let requests = watcher::Config::default().labels(&format!("{LABEL}={REQUEST}"));
        let watched = watcher(api(client, namespace), requests).default_backoff();
        let this = self.clone();
        watched.filter_map(move |event| {
            let id = match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => this.note(object),
                Ok(watcher::Event::Delete(object)) => {
                    this.lock().retain(|_, request| object.metadata.name.as_ref() != Some(&name(&request.uid)));
                    None
                }
                Ok(watcher::Event::Init) => {
                    this.lock().clear();
                    None
                }
                Ok(watcher::Event::InitDone) => None,
                Err(error) => {
                    tracing::debug!(%error, "requests for moves can't be watched");
                    None
                }
            };
            future::ready(id)
        })
    }

    fn note(&self, object: ControllerRevision) -> Option<Id> {
        let request: Request = serde_json::from_value(object.data?.0)
            .inspect_err(|error| tracing::warn!(%error, "a request for a move can't be read"))
            .ok()?;
        let id = request.id();
        self.lock().insert(id.clone(), request);
        Some(id)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Id, Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a failed request for a request means, in words.
pub fn refused(error: &KubeError, namespace: &str) -> String {
    format!(
        "the server in namespace {namespace} can't be asked: {}; it takes requests as controllerrevisions of that \
         namespace (verbs create, get, delete)",
        words(error)
    )
}
