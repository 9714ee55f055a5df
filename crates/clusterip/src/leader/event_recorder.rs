//! Writes Events about moves, Nodes and external addresses for people to read.

use clusterip_cluster::api_error::error_message;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

/// The `reportingController` of all Events.
pub(crate) const CONTROLLER: &str = "clusterip";
/// The longest note of an Event that the API server accepts, in bytes.
const MAX_NOTE_BYTES: usize = 1024;
const MAX_WAITING: usize = 4000;
const AT_ONCE: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventContent<'e> {
    pub(crate) uid: &'e str,
    /// Whether the Event is of type `Warning`, because the object needs attention.
    pub(crate) warning: bool,
    pub(crate) reason: &'e str,
    /// The full message. It is cut to 1024 bytes.
    pub(crate) note: String,
}

/// Writes the Events of a controller without delaying it, some at once.
#[derive(Clone)]
pub(crate) struct EventQueue(mpsc::Sender<(ObjectReference, Event)>);

impl EventQueue {
    pub(crate) fn start(client: Client) -> Self {
        let (sender, mut queue) = mpsc::channel(MAX_WAITING);
        let queue = stream::poll_fn(move |context| queue.poll_recv(context));
        tokio::spawn(async move { queue.for_each_concurrent(AT_ONCE, |event| write(&client, event)).await });
        Self(sender)
    }

    /// Queues an Event about an object. If too many Events wait, this one is dropped.
    pub(crate) fn tell(
        &self,
        kind: (&str, &str),
        (namespace, name): (Option<&str>, &str),
        action: &str,
        content: EventContent<'_>,
    ) {
        if self.0.try_send(event_about(kind, (namespace, name), action, content, None)).is_err() {
            tracing::warn!(namespace, name, "too many events wait to be written: this one is dropped");
        }
    }
}

/// An Event about an object, after an `action` that concerns the object `secondary`, too, if there is one.
pub(crate) fn event_about(
    (api_version, kind): (&str, &str),
    (namespace, name): (Option<&str>, &str),
    action: &str,
    EventContent { uid, warning, reason, mut note }: EventContent<'_>,
    secondary: Option<ObjectReference>,
) -> (ObjectReference, Event) {
    let about = ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    };
    note.truncate(note.floor_char_boundary(MAX_NOTE_BYTES));
    let type_ = if warning { EventType::Warning } else { EventType::Normal };
    (about, Event { type_, reason: reason.to_owned(), note: Some(note), action: action.to_owned(), secondary })
}

/// Events are for people, and no decision depends on them, so a failure is only logged.
pub(crate) async fn write(client: &Client, (about, event): (ObjectReference, Event)) {
    // A recorder that is kept counts a second move as a repetition of the first, and shows the old note.
    let recorder = Recorder::new(client.clone(), Reporter { controller: CONTROLLER.to_owned(), instance: None });
    if let Err(error) = recorder.publish(&event, &about).await {
        let ObjectReference { namespace, name, .. } = about;
        tracing::warn!(namespace, name, error = error_message(&error), "an event was not written");
    }
}
