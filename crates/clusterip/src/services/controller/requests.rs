//! The moves that administrators request from a running server: `ControllerRevision` objects in its namespace.
//!
//! Each user who may edit a Service can write its annotations, so an annotation can't lift a brake that protects
//! others. A request can, because it is written where the server keeps its records, and where tenants can't write.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::api_error::{error_chain, error_message};
use clusterip_cluster::snapshot::addresses;
use clusterip_cluster::watch::stores::watch_config;
use clusterip_core::annotations::MOVE_OBJECT_LABEL;
use clusterip_core::service_key::ServiceKey;
use futures::{Stream, StreamExt, future};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Error as KubeError, Resource as _};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::leader::event_recorder::CONTROLLER;
pub use crate::services::misplaced::MoveRequest;
use crate::services::own_revisions::{self, api};

const REQUEST: &str = "request";

const MAX_WAIT: Duration = Duration::from_secs(60);
/// The same for a seamless move, which takes some 10 s and waits for those before it.
const MAX_WAIT_SEAMLESS: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

fn name(uid: &str) -> String {
    format!("clusterip-move-request-{uid}")
}

/// Requests a move from the server in `namespace`, instead of an earlier request. Returns the UID of the request.
pub async fn ask(client: &Client, namespace: &str, request: &MoveRequest) -> Result<String, KubeError> {
    let object = own_revisions::object(&name(&request.uid), REQUEST, request);
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

pub async fn is_open(client: &Client, namespace: &str, uid: &str) -> Result<bool, KubeError> {
    api(client, namespace).get_metadata_opt(&name(uid)).await.map(|found| found.is_some())
}

/// Deletes a request that was dealt with, or that no command waits for any more. Does nothing if it is gone.
pub(crate) async fn withdraw(client: &Client, namespace: &str, uid: &str) -> Result<(), KubeError> {
    own_revisions::delete(&api(client, namespace), &name(uid)).await
}

/// Asks the server in `server_namespace` to move a Service away from the addresses `from`, and waits until it has
/// done so. Returns the addresses that the Service has then, or why the server has not moved it. The server also
/// finishes a move that has begun already.
pub(crate) async fn hand_over(
    client: &Client,
    server_namespace: &str,
    request: &MoveRequest,
    from: &[IpAddr],
) -> Result<Vec<IpAddr>, String> {
    let (namespace, name) = (request.namespace.as_str(), request.name.as_str());
    let request_uid = ask(client, server_namespace, request).await.map_err(|error| {
        format!(
            "the server in namespace {server_namespace} can't be asked: {}; it takes requests as ControllerRevisions of \
             that namespace (verbs create, get, delete)",
            error_message(&error)
        )
    })?;
    let failed = |error: kube::Error| error_message(&error);
    let max_wait = if request.seamless.is_some() { MAX_WAIT_SEAMLESS } else { MAX_WAIT };
    let deadline = Instant::now() + max_wait;
    while is_open(client, server_namespace, &request.uid).await.map_err(failed)? {
        if Instant::now() > deadline {
            // The server must not carry out the request later, when no command waits for it any more.
            let _ = withdraw(client, server_namespace, &request.uid).await;
            return Err(format!(
                "the server did not deal with the request within {} s: read its log, and run the command again",
                max_wait.as_secs()
            ));
        }
        sleep(POLL_INTERVAL).await;
    }
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let Some(service) = services.get_opt(name).await.map_err(failed)? else {
        return Err("it is gone".to_owned());
    };
    if service.metadata.uid.as_ref() != Some(&request.uid) {
        return Err("another Service has its name".to_owned());
    }
    let now = addresses(&json!({"spec": service.spec}));
    // A Service whose move was interrupted, or that became an ExternalName, has no address.
    if now.is_empty() || now == from {
        let told = answer(client, namespace, name, &request_uid).await;
        return Err(told.unwrap_or_else(|| "the server gave no reason; see its log".to_owned()));
    }
    Ok(now)
}

/// The note of the latest Event about a Service that answers this request.
async fn answer(client: &Client, namespace: &str, name: &str, request_uid: &str) -> Option<String> {
    let about = format!("regarding.kind=Service,regarding.name={name},reportingController={CONTROLLER}");
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let found = events.list(&ListParams::default().fields(&about)).await.ok()?.items;
    latest_answer(found, request_uid)
}

fn latest_answer(events: Vec<Event>, request_uid: &str) -> Option<String> {
    let answers = |event: &Event| {
        let related = event.related.as_ref().and_then(|related| related.uid.as_deref());
        related == Some(request_uid)
    };
    events.into_iter().filter(answers).max_by_key(|event| event.event_time.as_ref().map(|time| time.0))?.note
}

/// The open requests, as a server follows them. Cheap to clone: all clones share the requests.
#[derive(Clone, Default)]
pub(crate) struct Requests(Arc<Mutex<BTreeMap<ServiceKey, Open>>>);

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
        let requests = watch_config().labels(&format!("{MOVE_OBJECT_LABEL}={REQUEST}"));
        let watched = watcher(api(client, namespace), requests).default_backoff();
        let this = self.clone();
        watched.filter_map(move |event| {
            let mut noted = None;
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => noted = this.note(object),
                Ok(watcher::Event::Delete(object)) => {
                    this.0.lock().retain(|_, open| object.metadata.name.as_ref() != Some(&name(&open.request.uid)));
                }
                Ok(watcher::Event::Init) => this.0.lock().clear(),
                Ok(watcher::Event::InitDone) => {}
                Err(error) => tracing::debug!(error = error_chain(&error), "requests for moves can't be watched"),
            }
            future::ready(noted)
        })
    }

    fn note(&self, object: ControllerRevision) -> Option<ServiceKey> {
        let about = object.object_ref(&());
        let request: MoveRequest = serde_json::from_value(object.data.0)
            .inspect_err(|error| tracing::warn!(%error, "a request for a move can't be read"))
            .ok()?;
        // The request is withdrawn by its name, so one with another name would never end.
        if object.metadata.name.as_ref() != Some(&name(&request.uid)) {
            tracing::warn!(name = object.metadata.name, "a request for a move has a name that is not of its Service");
            return None;
        }
        let id = ServiceKey::new(&request.namespace, &request.name);
        self.0.lock().insert(id.clone(), Open { request, object: about, considered: false });
        Some(id)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    #[test]
    fn request_that_arrives_during_a_look_is_left_for_the_next_look() {
        let requests = Requests::default();
        let arrives = |control_plane: bool| {
            let (namespace, name, uid) = ("shop".to_owned(), "web".to_owned(), "uid-1".to_owned());
            let request = MoveRequest { namespace, name, uid, control_plane, seamless: None };
            requests.note(own_revisions::object(&super::name("uid-1"), REQUEST, &request)).unwrap()
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

    #[test]
    fn request_with_the_name_of_another_one_is_ignored() {
        let requests = Requests::default();
        let (namespace, service, uid) = ("shop".to_owned(), "web".to_owned(), "uid-1".to_owned());
        let request = MoveRequest { namespace, name: service, uid, control_plane: false, seamless: None };
        assert_eq!(requests.note(own_revisions::object(&name("uid-2"), REQUEST, &request)), None);
        assert_eq!(requests.services(), []);
    }

    #[test]
    fn only_events_that_refer_to_the_request_answer_it() {
        let event = |note: &str, second: i64, related: Option<&str>| Event {
            note: Some(note.to_owned()),
            event_time: Timestamp::from_second(second).ok().map(MicroTime),
            related: related.map(|uid| ObjectReference { uid: Some(uid.to_owned()), ..ObjectReference::default() }),
            ..Event::default()
        };
        let old = || event("of an earlier move", 9, None);
        let other = || event("of an earlier request", 8, Some("uid-1"));
        let (first, second) = (event("first", 3, Some("uid-2")), event("second", 4, Some("uid-2")));
        assert_eq!(latest_answer(vec![old(), other()], "uid-2"), None);
        assert_eq!(latest_answer(vec![second, old(), first, other()], "uid-2").as_deref(), Some("second"));
    }
}
