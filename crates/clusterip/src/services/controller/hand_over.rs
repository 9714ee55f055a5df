//! Hands a move of `clusterip move` over to a running server: asks the server that leads, and waits for the result.

use std::net::IpAddr;
use std::time::Duration;

use clusterip_cluster::api_error::error_message;
use clusterip_cluster::lookups::snapshot::addresses;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::requests::{self, MoveRequest};
use crate::leader::event_recorder::CONTROLLER;

/// How long the server may take to deal with a request.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The same for a seamless move, which takes some 10 s and waits for those before it.
const MAX_WAIT_SEAMLESS: Duration = Duration::from_secs(300);
/// How often the request is looked up until the server has dealt with it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Asks the server in `server_namespace` to move a Service away from the addresses `from`, and waits until it has
/// done so. Returns the addresses that the Service has then, or why the server has not moved it. The server also
/// finishes a move that has begun already.
pub async fn hand_over(
    client: &Client,
    server_namespace: &str,
    request: &MoveRequest,
    from: &[IpAddr],
) -> Result<Vec<IpAddr>, String> {
    let (namespace, name) = (request.namespace.as_str(), request.name.as_str());
    let request_uid = requests::ask(client, server_namespace, request).await.map_err(|error| {
        format!(
            "the server in namespace {server_namespace} can't be asked: {}; it takes requests as ControllerRevisions of \
             that namespace (verbs create, get, delete)",
            error_message(&error)
        )
    })?;
    let failed = |error: kube::Error| error_message(&error);
    let max_wait = if request.seamless.is_some() { MAX_WAIT_SEAMLESS } else { MAX_WAIT };
    let deadline = Instant::now() + max_wait;
    while requests::is_open(client, server_namespace, &request.uid).await.map_err(failed)? {
        if Instant::now() > deadline {
            // The server must not carry out the request later, when no command waits for it any more.
            let _ = requests::withdraw(client, server_namespace, &request.uid).await;
            return Err(format!(
                "the server did not deal with the request within {} s: read its log, and run the command again",
                max_wait.as_secs()
            ));
        }
        sleep(POLL_INTERVAL).await;
    }
    let resource = ApiResource::erase::<Service>(&());
    let services: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let Some(service) = services.get_opt(name).await.map_err(failed)? else {
        return Err("it is gone".to_owned());
    };
    let now = addresses(&json!({"spec": service.data.get("spec")}));
    if now == from {
        let told = answer(client, namespace, name, &request_uid).await;
        return Err(told.unwrap_or_else(|| "the server gave no reason; see its log".to_owned()));
    }
    Ok(now)
}

/// The note of the latest Event about a Service that answers this request. Events about earlier moves of the Service do
/// not refer to the request.
async fn answer(client: &Client, namespace: &str, name: &str, request_uid: &str) -> Option<String> {
    let about = format!("regarding.kind=Service,regarding.name={name},reportingController={CONTROLLER}");
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let found = events.list(&ListParams::default().fields(&about)).await.ok()?.items;
    latest_answer(found, request_uid)
}

/// The note of the latest of these Events that refers to this request.
fn latest_answer(events: Vec<Event>, request_uid: &str) -> Option<String> {
    let answers = |event: &Event| {
        let related = event.related.as_ref().and_then(|related| related.uid.as_deref());
        related == Some(request_uid)
    };
    events.into_iter().filter(answers).max_by_key(|event| event.event_time.as_ref().map(|time| time.0))?.note
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

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
