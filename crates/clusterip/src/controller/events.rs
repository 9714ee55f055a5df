//! Events: what people are told of moves, and of Nodes.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use super::affected::Id;

/// Who writes Events.
pub const CONTROLLER: &str = "clusterip";
/// The longest note of an Event that the API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// What is told of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told<'t> {
    /// Its UID.
    pub uid: &'t str,
    /// Whether somebody should look at it.
    pub warning: bool,
    /// In one word, such as `AddressMoved`.
    pub reason: &'t str,
    /// In full.
    pub note: String,
}

/// Writes an Event. It is told to people: a failure is logged, and nothing else depends on it.
pub async fn tell(client: &Client, id: &Id, told: Told<'_>) {
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(id.0.clone()),
        name: Some(id.1.clone()),
        uid: Some(told.uid.to_owned()),
        ..ObjectReference::default()
    };
    tell_about(client, about, "Move", told).await;
}

/// The same, about any object: what was done or tried is `action`.
pub async fn tell_about(client: &Client, about: ObjectReference, action: &str, told: Told<'_>) {
    let Told { warning, reason, mut note, .. } = told;
    while note.len() > LONGEST_NOTE {
        note.pop();
    }
    let event = Event {
        type_: if warning { EventType::Warning } else { EventType::Normal },
        reason: reason.to_owned(),
        note: Some(note),
        action: action.to_owned(),
        secondary: None,
    };
    // A recorder that lives on would count a second move as the first once more, with its old note.
    let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: None };
    let recorder = Recorder::new(client.clone(), reporter);
    if let Err(error) = recorder.publish(&event, &about).await {
        tracing::warn!(namespace = about.namespace, name = about.name, %error, "an event was not written");
    }
}
