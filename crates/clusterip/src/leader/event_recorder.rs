//! Writes Events about moves, Nodes and external addresses for people to read.

use clusterip_cluster::api_error::error_message;
use clusterip_core::service_key::ServiceKey;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

/// The `reportingController` of all Events.
pub(crate) const CONTROLLER: &str = "clusterip";
/// The longest note of an Event that the API server accepts, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventContent<'e> {
    pub(crate) uid: &'e str,
    /// Whether the Event is of type `Warning`, because the object needs attention.
    pub(crate) warning: bool,
    pub(crate) reason: &'e str,
    /// The full message. It is cut to 1024 bytes.
    pub(crate) note: String,
}

/// Writes an Event about a Service. `action` names what was done or tried. `request` is the request that the Event
/// answers, if there is one.
pub(crate) async fn publish_service_event(
    client: &Client,
    id: &ServiceKey,
    action: &str,
    content: EventContent<'_>,
    request: Option<ObjectReference>,
) {
    publish_event(client, ("v1", "Service"), (Some(&id.namespace), &id.name), action, content, request).await;
}

/// Writes an Event about the object of this API version and kind, with this namespace and name. Events are for people,
/// and no decision depends on them, so a failure is only logged.
pub(crate) async fn publish_event(
    client: &Client,
    (api_version, kind): (&str, &str),
    (namespace, name): (Option<&str>, &str),
    action: &str,
    content: EventContent<'_>,
    secondary: Option<ObjectReference>,
) {
    let EventContent { uid, warning, reason, mut note } = content;
    let about = ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    };
    while note.len() > MAX_NOTE_BYTES {
        note.pop();
    }
    let event = Event {
        type_: if warning { EventType::Warning } else { EventType::Normal },
        reason: reason.to_owned(),
        note: Some(note),
        action: action.to_owned(),
        secondary,
    };
    // A recorder that is kept counts a second move as a repetition of the first, and shows the old note.
    let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: None };
    let recorder = Recorder::new(client.clone(), reporter);
    if let Err(error) = recorder.publish(&event, &about).await {
        tracing::warn!(namespace, name, error = error_message(&error), "an event was not written");
    }
}
