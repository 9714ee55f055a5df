//! Writes Events about moves, Nodes and external addresses for people to read.

use std::collections::BTreeMap;
use std::sync::Arc;

use clusterip_cluster::api_error::error_message;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// The `reportingController` of all Events.
pub(crate) const CONTROLLER: &str = "clusterip";
/// The longest note of an Event that the API server accepts, in bytes.
const MAX_NOTE_BYTES: usize = 1024;
const MAX_WAITING: usize = 4000;
/// How many Events about the objects of one namespace may wait. A tenant whose Services cause many does not fill the queue.
const MAX_WAITING_OF_NAMESPACE: usize = 250;
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
pub(crate) struct EventQueue {
    sender: mpsc::Sender<Waiting>,
    /// How many Events wait about the objects of each namespace.
    of_namespaces: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// An Event that waits, or that is being written. It counts for its namespace until it is dropped.
struct Waiting {
    event: (ObjectReference, Event),
    of_namespaces: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl EventQueue {
    pub(crate) fn start(client: Client) -> Self {
        let (queue, mut receiver) = Self::new();
        let waiting = stream::poll_fn(move |context| receiver.poll_recv(context));
        tokio::spawn(async move {
            let client = &client;
            waiting.for_each_concurrent(AT_ONCE, |one| async move { write(client, &one.event).await }).await;
        });
        queue
    }

    fn new() -> (Self, mpsc::Receiver<Waiting>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self { sender, of_namespaces: Arc::default() }, receiver)
    }

    /// Queues an Event about an object. If too many Events wait, or too many of its namespace, this one is dropped.
    pub(crate) fn tell(
        &self,
        kind: (&str, &str),
        (namespace, name): (Option<&str>, &str),
        action: &str,
        content: EventContent<'_>,
    ) {
        if let Some(namespace) = namespace {
            let mut of_namespaces = self.of_namespaces.lock();
            let of_namespace = of_namespaces.entry(namespace.to_owned()).or_default();
            if *of_namespace >= MAX_WAITING_OF_NAMESPACE {
                drop(of_namespaces);
                tracing::warn!(
                    namespace,
                    name,
                    "too many events of the namespace wait to be written: this one is dropped"
                );
                return;
            }
            *of_namespace += 1;
        }
        let event = event_about(kind, (namespace, name), action, content, None);
        let waiting = Waiting { event, of_namespaces: Arc::clone(&self.of_namespaces) };
        if self.sender.try_send(waiting).is_err() {
            tracing::warn!(namespace, name, "too many events wait to be written: this one is dropped");
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(namespace) = &self.event.0.namespace else { return };
        let mut of_namespaces = self.of_namespaces.lock();
        if let Some(count) = of_namespaces.get_mut(namespace) {
            *count -= 1;
            if *count == 0 {
                of_namespaces.remove(namespace);
            }
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
pub(crate) async fn write(client: &Client, (about, event): &(ObjectReference, Event)) {
    // A recorder that is kept counts a second move as a repetition of the first, and shows the old note.
    let recorder = Recorder::new(client.clone(), Reporter { controller: CONTROLLER.to_owned(), instance: None });
    if let Err(error) = recorder.publish(event, about).await {
        let ObjectReference { namespace, name, .. } = about;
        tracing::warn!(namespace, name, error = error_message(&error), "an event was not written");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_namespace_do_not_fill_the_queue() {
        let (queue, mut receiver) = EventQueue::new();
        let tell = |namespace: Option<&str>, name: &str| {
            let content = EventContent { uid: "u", warning: true, reason: "Tested", note: "a note".to_owned() };
            queue.tell(("v1", "Service"), (namespace, name), "Test", content);
        };
        for number in 0..2 * MAX_WAITING {
            tell(Some("mallory"), &format!("web-{number}"));
        }
        tell(Some("shop"), "web");
        tell(None, "a-node");
        let mut last = Vec::new();
        for _ in 0..MAX_WAITING_OF_NAMESPACE {
            assert_eq!(receiver.try_recv().unwrap().event.0.namespace.as_deref(), Some("mallory"));
        }
        while let Ok(waiting) = receiver.try_recv() {
            last.push(waiting.event.0.name.clone().unwrap());
        }
        assert_eq!(last, ["web", "a-node"]);
        assert_eq!(*queue.of_namespaces.lock(), BTreeMap::new(), "what was written no longer counts");
        tell(Some("mallory"), "web");
        assert!(receiver.try_recv().is_ok());
    }
}
