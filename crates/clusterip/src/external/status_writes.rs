//! Writes the statuses of Services beside the work of the controller.
//!
//! A tenant can make a write take as long as a request may: fences evaluate all labels of a Service. So the namespaces
//! take turns, few statuses of one are written at once, and one that could not be written waits for ever longer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::api_error::error_message;
use clusterip_cluster::backoff::pause_after;
use clusterip_cluster::object::service_path;
use clusterip_cluster::snapshot::StoredService;
use clusterip_core::annotations::{RECORD_ANNOTATION, is_too_long_for_addresses};
use clusterip_core::external::claim;
use clusterip_core::service_key::ServiceKey;
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::assigner::patch;
use crate::text::joined;

/// The first pause before a status is written again.
pub(super) const REWRITE_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause before a status is written again that the API server refuses.
const MAX_REWRITE_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause after a write without an answer: the API server may have been away.
const MAX_UNANSWERED_PAUSE: Duration = Duration::from_secs(10);
const WRITES: usize = 16;
const WRITES_OF_NAMESPACE: usize = 2;

/// What the status of a Service is to contain.
pub(super) struct Status {
    pub(super) service: Arc<StoredService>,
    pub(super) ingress: Value,
}

impl PartialEq for Status {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.service, &other.service) && self.ingress == other.ingress
    }
}

impl Status {
    /// Writes the status only if what it was decided from is still the same. A tenant can delay the write, and change
    /// the Service meanwhile, so that the address belongs to another Service.
    pub(super) fn patch(&self) -> Value {
        let object = self.service.value();
        let record = format!("/metadata/annotations/{}", RECORD_ANNOTATION.replace('/', "~1"));
        // Of a record that is too long for addresses, the server keeps only the beginning.
        let is_cut = |path: &str| path == record && is_too_long_for_addresses(self.service.record());
        let value = |path: &str| object.pointer(path).filter(|_| !is_cut(path));
        let test = |path: &str| Some(json!({"op": "test", "path": path, "value": value(path)?}));
        let decided_from =
            ["/metadata/uid", "/spec/type", "/spec/loadBalancerClass", &record, "/status/loadBalancer/ingress"];
        let write = json!({"op": "add", "path": "/status/loadBalancer", "value": {"ingress": self.ingress}});
        decided_from.into_iter().filter_map(test).chain([write]).collect()
    }

    async fn write(self, client: Client) -> (Self, kube::Result<()>) {
        let ServiceKey { namespace, name } = self.service.key();
        let path = format!("{}/status", service_path(namespace, name));
        let addresses = joined(claim::shown(Some(&self.ingress)), ",");
        let written = patch(&client, &path, &self.patch()).await.map(drop);
        match &written {
            Ok(()) => tracing::info!(namespace, name, addresses, "external addresses are held"),
            Err(error) => {
                let error = error_message(error);
                tracing::warn!(namespace, name, addresses, error, "the status can't be written");
            }
        }
        (self, written)
    }
}

struct Tried {
    status: Status,
    /// 0 if the status was written.
    failures: u32,
    /// When the status is written again, unless the Service or its addresses change before.
    until: Instant,
}

#[derive(Default)]
pub(super) struct StatusWrites {
    waiting: VecDeque<Status>,
    writing: BTreeSet<ServiceKey>,
    tasks: JoinSet<(Status, kube::Result<()>)>,
    tried: BTreeMap<ServiceKey, Tried>,
}

impl StatusWrites {
    /// Sets all statuses that are to be written. They have to be set again after each answer, and at the time that is
    /// returned.
    pub(super) fn set(&mut self, statuses: Vec<Status>, client: &Client) -> Option<Instant> {
        let now = Instant::now();
        let wanted: BTreeSet<&ServiceKey> = statuses.iter().map(|status| status.service.key()).collect();
        self.tried.retain(|id, _| wanted.contains(id));
        let is_due = |status: &Status| {
            let id = status.service.key();
            let tried = self.tried.get(id);
            !self.writing.contains(id) && tried.is_none_or(|tried| tried.until <= now || tried.status != *status)
        };
        let mut waiting: Vec<Status> = statuses.into_iter().filter(is_due).collect();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        waiting.sort_by_cached_key(|status| {
            let count = counts.entry(status.service.key().namespace.clone()).or_default();
            *count += 1;
            *count
        });
        self.waiting = waiting.into();
        self.start(client);
        self.tried.values().map(|tried| tried.until).filter(|until| *until > now).min()
    }

    /// Begins as many writes as there are places.
    fn start(&mut self, client: &Client) {
        while self.tasks.len() < WRITES {
            let of = |namespace: &str| self.writing.iter().filter(|id| id.namespace == namespace).count();
            let has_place = |status: &Status| of(&status.service.key().namespace) < WRITES_OF_NAMESPACE;
            let next = self.waiting.iter().position(has_place);
            let Some(status) = next.and_then(|next| self.waiting.remove(next)) else { return };
            self.writing.insert(status.service.key().clone());
            self.tasks.spawn(status.write(client.clone()));
        }
    }

    /// Waits for an answer. Returns the Service, and whether its status was written; `None` if nothing is being written.
    pub(super) async fn answered(&mut self, client: &Client) -> Option<(Arc<StoredService>, bool)> {
        let (status, written) = self.tasks.join_next().await?.ok()?;
        let (service, id) = (Arc::clone(&status.service), status.service.key().clone());
        self.writing.remove(&id);
        let before = self.tried.get(&id).filter(|tried| tried.status == status);
        let failures = if written.is_ok() { 0 } else { before.map_or(1, |tried| tried.failures.saturating_add(1)) };
        let is_answered = matches!(written, Ok(()) | Err(kube::Error::Api(_)));
        let longest = if is_answered { MAX_REWRITE_PAUSE } else { MAX_UNANSWERED_PAUSE };
        // The watch may show a status that was written a moment later.
        let until = Instant::now() + pause_after(failures, REWRITE_PAUSE, longest);
        self.tried.insert(id, Tried { status, failures, until });
        self.start(client);
        Some((service, written.is_ok()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::pending;

    use http::{Request, Response};
    use kube::client::Body;
    use tokio::time::timeout;
    use tower::service_fn;

    use super::*;

    fn statuses(namespace: &str, count: usize) -> Vec<Status> {
        let status = |number: usize| {
            let metadata = json!({"namespace": namespace, "name": format!("web-{number}"), "uid": number.to_string()});
            let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
            Status { service: Arc::new(StoredService::read(&service)), ingress: json!([]) }
        };
        (0..count).map(status).collect()
    }

    /// A client of an API server that never answers for the namespace `mallory`, and refuses connections if it is away.
    fn client(is_away: bool) -> Client {
        let service = service_fn(move |request: Request<Body>| async move {
            match request.uri().path().contains("/mallory/") {
                true => pending().await,
                false if is_away => Err("connection refused"),
                false => Ok(Response::new(Body::from(b"{}".to_vec()))),
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn writes_without_an_answer_delay_no_other_namespace() {
        let (client, mut writes) = (client(false), StatusWrites::default());
        let all = statuses("mallory", 100).into_iter().chain(statuses("shop", 50)).collect();
        writes.set(all, &client);
        let written = async {
            for _ in 0..50 {
                let (service, is_written) = writes.answered(&client).await.unwrap();
                assert!(is_written && service.key().namespace == "shop");
            }
        };
        timeout(Duration::from_secs(1), written).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn status_that_can_not_be_written_waits_ever_longer() {
        let (client, mut writes) = (client(true), StatusWrites::default());
        let service = statuses("shop", 1).remove(0).service;
        let wanted = || vec![Status { service: Arc::clone(&service), ingress: json!([]) }];
        for pause in [1, 2, 4, 8, 10, 10] {
            writes.set(wanted(), &client);
            assert!(matches!(writes.answered(&client).await, Some((_, false))));
            assert_eq!(writes.set(wanted(), &client), Some(Instant::now() + Duration::from_secs(pause)));
            assert!(writes.tasks.is_empty());
            tokio::time::advance(Duration::from_secs(pause)).await;
        }
    }

    /// Without a pool, nothing refuses such a record.
    #[test]
    fn record_that_is_kept_cut_is_not_compared() {
        for (length, compared) in [(100, true), (5000, false)] {
            let service = json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": "shop", "name": "web", "annotations": {RECORD_ANNOTATION: "x".repeat(length)}},
            });
            let status = Status { service: Arc::new(StoredService::read(&service)), ingress: json!([]) };
            assert_eq!(status.patch().to_string().contains("external-addresses"), compared, "{length}");
        }
    }
}
