//! Subscribers see every complete event of the watch of a kind. The [`stores`](super::stores) keep only the part of
//! each object that decisions are made from, and a second watch would make the API server send everything twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::partial_object::PartialObject;
use crate::kinds::Kind;

/// Is called with each event. It returns false to get no further events.
pub type Listener = Box<dyn FnMut(&Event<PartialObject>) -> bool + Send>;

#[derive(Default)]
pub struct Subscriptions(Mutex<BTreeMap<Kind, Entry>>);

#[derive(Default)]
struct Entry {
    listener: Option<Listener>,
    begun: bool,
    asks: Arc<Notify>,
}

impl Subscriptions {
    /// Requests a new list, and passes `listener` every event from its beginning.
    pub fn add(&self, kind: &Kind, listener: Listener) {
        self.with(kind, |entry| {
            (entry.listener, entry.begun) = (Some(listener), false);
            entry.asks.notify_one();
        });
    }

    pub fn show(&self, kind: &Kind, event: &Event<PartialObject>) {
        self.with(kind, |entry| {
            entry.begun |= matches!(event, Event::Init);
            let begun = entry.begun;
            if entry.listener.as_mut().is_some_and(|listener| begun && !listener(event)) {
                entry.listener = None;
            }
        });
    }

    pub fn asks(&self, kind: &Kind) -> Arc<Notify> {
        self.with(kind, |entry| Arc::clone(&entry.asks))
    }

    fn with<T>(&self, kind: &Kind, act: impl FnOnce(&mut Entry) -> T) -> T {
        act(self.0.lock().entry(kind.clone()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn listener_gets_every_event_from_the_beginning_of_a_list() {
        let (pod, node) = (("v1".to_owned(), "Pod".to_owned()), ("v1".to_owned(), "Node".to_owned()));
        let subscriptions = Subscriptions::default();
        let (sender, shown) = mpsc::channel();
        let listener = move |event: &Event<PartialObject>| {
            let text = match event {
                Event::Init => "init",
                Event::InitApply(_) => "listed",
                Event::InitDone => "done",
                Event::Apply(_) => "changed",
                Event::Delete(_) => "gone",
            };
            sender.send(text).is_ok()
        };
        subscriptions.show(&node, &Event::Apply(PartialObject::default()));
        subscriptions.add(&node, Box::new(listener));
        subscriptions.asks(&node).notified().await;
        // The rest of an earlier list.
        subscriptions.show(&node, &Event::InitApply(PartialObject::default()));
        subscriptions.show(&node, &Event::InitDone);
        for kind in [&node, &pod] {
            subscriptions.show(kind, &Event::Init);
            subscriptions.show(kind, &Event::InitApply(PartialObject::default()));
            subscriptions.show(kind, &Event::InitDone);
            subscriptions.show(kind, &Event::Apply(PartialObject::default()));
            subscriptions.show(kind, &Event::Delete(PartialObject::default()));
        }
        assert_eq!(shown.try_iter().collect::<Vec<_>>(), ["init", "listed", "done", "changed", "gone"]);
        drop(shown);
        subscriptions.show(&node, &Event::Init);
        assert!(subscriptions.with(&node, |entry| entry.listener.is_none()));
    }
}
