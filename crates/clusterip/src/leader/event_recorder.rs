//! Writes Events about moves, Nodes and external addresses for people to read.

use clusterip_cluster::api_error::error_message;
use clusterip_core::service_key::ServiceKey;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

/// The `reportingController` of all Events.
pub const CONTROLLER: &str = "clusterip";
/// The longest note of an Event that the API server accepts, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

/// The content of an Event about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventContent<'e> {
    /// The UID of the object.
    pub uid: &'e str,
    /// Whether the Event is of type `Warning`, because the object needs attention.
    pub warning: bool,
    /// The reason, in one word such as `AddressMoved`.
    pub reason: &'e str,
    /// The full message. It is cut to 1024 bytes.
    pub note: String,
}

/// Writes an Event about a Service. `request` is the request that the Event answers, if there is one. Events are for
/// people, and no decision depends on them, so a failure is only logged.
pub async fn publish_service_event(
    client: &Client,
    id: &ServiceKey,
    content: EventContent<'_>,
    request: Option<ObjectReference>,
) {
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(id.namespace.clone()),
        name: Some(id.name.clone()),
        uid: Some(content.uid.to_owned()),
        ..ObjectReference::default()
    };
    publish(client, about, "Move", content, request).await;
}

/// Writes an Event about any object. `action` names what was done or tried.
pub async fn publish_event(client: &Client, about: ObjectReference, action: &str, content: EventContent<'_>) {
    publish(client, about, action, content, None).await;
}

async fn publish(
    client: &Client,
    about: ObjectReference,
    action: &str,
    content: EventContent<'_>,
    secondary: Option<ObjectReference>,
) {
    let EventContent { warning, reason, mut note, .. } = content;
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
        tracing::warn!(
            namespace = about.namespace,
            name = about.name,
            error = error_message(&error),
            "an event was not written"
        );
    }
}
