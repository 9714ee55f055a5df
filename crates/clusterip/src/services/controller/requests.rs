//! The moves that administrators request from a running server: `ControllerRevision` objects in its namespace.
//!
//! Each user who may edit a Service can write its annotations, so an annotation can't lift a brake that protects
//! others. A request can, because it is written where the server keeps its records, and where tenants can't write.

use std::collections::BTreeMap;
use std::sync::Arc;

use clusterip_cluster::api_error::error_chain;
use clusterip_core::annotations::MOVE_OBJECT_LABEL;
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::journal::SeamlessOptions;
use futures::{Stream, StreamExt, future};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Error as KubeError, Resource as _};
use parking_lot::Mutex;

pub use crate::services::misplaced::MoveRequest;
use crate::services::own_revisions::{self, api};

/// The value of [`MOVE_OBJECT_LABEL`] on a request.
const REQUEST: &str = "request";

/// The options of a seamless move; `None` for a plain move. The administrator who requested the move has chosen the
/// method. Without a request, the options of the server decide.
pub(crate) fn seamless_options(
    request: Option<MoveRequest>,
    server: Option<&SeamlessOptions>,
) -> Option<SeamlessOptions> {
    match request {
        Some(request) => request.seamless,
        None => server.cloned(),
    }
}

fn name(uid: &str) -> String {
    format!("clusterip-move-request-{uid}")
}

/// Requests a move from the server in `namespace`. A request that exists already is replaced. Returns the UID of the
/// request.
pub async fn ask(client: &Client, namespace: &str, request: &MoveRequest) -> Result<String, KubeError> {
    let object = own_revisions::object(&name(&request.uid), REQUEST, request);
    let object: ControllerRevision = serde_json::from_value(object).map_err(KubeError::SerdeError)?;
    let api = api(client, namespace);
    let created = match api.create(&PostParams::default(), &object).await {
        Err(KubeError::Api(status)) if status.code == 409 => {
            withdraw(client, namespace, &request.uid).await?;
            api.create(&PostParams::default(), &object).await?
        }
        created => created?,
    };
    Ok(created.metadata.uid.unwrap_or_default())
}

/// Whether the server has not dealt with a request yet.
pub async fn is_open(client: &Client, namespace: &str, uid: &str) -> Result<bool, KubeError> {
    api(client, namespace).get_metadata_opt(&name(uid)).await.map(|found| found.is_some())
}

/// Deletes a request that was dealt with, or that no command waits for any more. Does nothing if it is gone.
pub async fn withdraw(client: &Client, namespace: &str, uid: &str) -> Result<(), KubeError> {
    own_revisions::delete(&api(client, namespace), &name(uid)).await
}

/// The open requests, as a server follows them. Cheap to clone: all clones share the requests.
#[derive(Clone, Default)]
pub(crate) struct Requests(Arc<Mutex<BTreeMap<ServiceKey, Open>>>);

/// A request that has no answer yet.
struct Open {
    request: MoveRequest,
    /// The object of the request. The Events that answer the request refer to it.
    object: ObjectReference,
    /// Whether it was considered: one that arrives while its Service is looked at is answered by the next look.
    considered: bool,
}

impl Requests {
    /// Considers the open request for the Service with this name. Returns it if it is for the Service with this UID.
    pub fn consider(&self, id: &ServiceKey, uid: &str) -> Option<MoveRequest> {
        let mut requests = self.0.lock();
        let open = requests.get_mut(id)?;
        open.considered = true;
        Some(open.request.clone()).filter(|request| request.uid == uid)
    }

    /// The object of the request for this Service, if there is one that was considered.
    pub fn considered(&self, id: &ServiceKey) -> Option<ObjectReference> {
        self.0.lock().get(id).filter(|open| open.considered).map(|open| open.object.clone())
    }

    /// Removes the request for this Service if it was considered, and returns it.
    pub fn forget(&self, id: &ServiceKey) -> Option<MoveRequest> {
        let mut requests = self.0.lock();
        requests.get(id).filter(|open| open.considered)?;
        requests.remove(id).map(|open| open.request)
    }

    pub fn services(&self) -> Vec<ServiceKey> {
        self.0.lock().keys().cloned().collect()
    }

    /// Follows the requests in `namespace`. The stream yields the Service of each new request, and never ends.
    pub fn follow(&self, client: &Client, namespace: &str) -> impl Stream<Item = ServiceKey> + use<> {
        let requests = watcher::Config::default().labels(&format!("{MOVE_OBJECT_LABEL}={REQUEST}"));
        let watched = watcher(api(client, namespace), requests).default_backoff();
        let this = self.clone();
        watched.filter_map(move |event| {
            let id = match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => this.note(object),
                Ok(watcher::Event::Delete(object)) => {
                    this.0.lock().retain(|_, open| object.metadata.name.as_ref() != Some(&name(&open.request.uid)));
                    None
                }
                Ok(watcher::Event::Init) => {
                    this.0.lock().clear();
                    None
                }
                Ok(watcher::Event::InitDone) => None,
                Err(error) => {
                    tracing::debug!(error = error_chain(&error), "requests for moves can't be watched");
                    None
                }
            };
            future::ready(id)
        })
    }

    fn note(&self, object: ControllerRevision) -> Option<ServiceKey> {
        let about = object.object_ref(&());
        let request: MoveRequest = serde_json::from_value(object.data?.0)
            .inspect_err(|error| tracing::warn!(%error, "a request for a move can't be read"))
            .ok()?;
        let id = request.id();
        self.0.lock().insert(id.clone(), Open { request, object: about, considered: false });
        Some(id)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::apimachinery::pkg::runtime::RawExtension;

    use super::*;

    #[test]
    fn method_of_a_requested_move_is_that_of_the_request() {
        let options = |grace_period| SeamlessOptions { grace_period, cluster_domain: "cluster.local".to_owned() };
        let request = |seamless: Option<SeamlessOptions>| MoveRequest {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: "uid-1".to_owned(),
            control_plane: false,
            seamless,
        };
        struct Case {
            name: &'static str,
            request: Option<MoveRequest>,
            server: Option<SeamlessOptions>,
            expected: Option<SeamlessOptions>,
        }
        let case = |name, request, server, expected| Case { name, request, server, expected };
        let cases = [
            case("no request, a plain server", None, None, None),
            case("no request, a seamless server", None, Some(options(1)), Some(options(1))),
            case("a plain move, a seamless server", Some(request(None)), Some(options(1)), None),
            case("a seamless move, a plain server", Some(request(Some(options(2)))), None, Some(options(2))),
            case("both seamless", Some(request(Some(options(2)))), Some(options(1)), Some(options(2))),
        ];
        for Case { name, request, server, expected } in cases {
            // The request as the server reads it.
            let stored = serde_json::to_value(&request).unwrap();
            let read: Option<MoveRequest> = serde_json::from_value(stored).unwrap();
            assert_eq!(seamless_options(read, server.as_ref()), expected, "{name}");
        }
    }

    #[test]
    fn request_that_arrives_during_a_look_is_left_for_the_next_look() {
        let requests = Requests::default();
        let arrives = |control_plane: bool| {
            let (namespace, name, uid) = ("shop".to_owned(), "web".to_owned(), "uid-1".to_owned());
            let request = MoveRequest { namespace, name, uid, control_plane, seamless: None };
            let data = Some(RawExtension(serde_json::to_value(request).unwrap()));
            requests.note(ControllerRevision { data, ..ControllerRevision::default() }).unwrap()
        };
        let id = arrives(false);
        assert_eq!(id.to_string(), "shop/web");
        assert!(requests.forget(&id).is_none(), "not considered yet");
        assert_eq!(requests.considered(&id), None);
        assert!(!requests.consider(&id, "uid-1").unwrap().control_plane);
        assert_eq!(requests.considered(&id).unwrap().kind.as_deref(), Some("ControllerRevision"));
        assert!(requests.consider(&id, "uid-2").is_none(), "for another Service of this name");
        assert!(!requests.forget(&id).unwrap().control_plane);
        arrives(false);
        requests.consider(&id, "uid-1");
        arrives(true);
        assert!(requests.forget(&id).is_none(), "the second one was not considered");
        assert!(requests.consider(&id, "uid-1").unwrap().control_plane);
    }
}
