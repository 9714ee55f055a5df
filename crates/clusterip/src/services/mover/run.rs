//! One run of a move: its order, what it knows, its record, and its requests to the API server, which are repeated
//! after errors that pass.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::connect::request_at_most;
use clusterip_cluster::object::service_path;
use clusterip_core::annotations::looks_half_moved;
use clusterip_core::service::MANAGER;
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::journal::{Journal, SeamlessOptions};
use clusterip_moves::outcome::{Outcome, Refusal, Size, Unmoved};
use clusterip_moves::seamless::Progress;
use http::{Method, Request};
use serde_json::Value;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

use super::Mover;
use super::records::refusal_of;
use super::targets::{Attempt, Targets};

pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOrder {
    pub id: ServiceKey,
    /// The UID of the Service. Another Service of the same name is not moved.
    pub uid: String,
    /// All addresses that the Service is to have, primary first, in its order of families. A family that stays has
    /// its old address here.
    pub addresses: Vec<IpAddr>,
    pub why: String,
    /// The new value of the annotation [`REASON_ANNOTATION`](clusterip_core::annotations::REASON_ANNOTATION), if the
    /// Service has the annotation; `None` removes it.
    pub reason: Option<String>,
    /// Whether to move a Service of type `LoadBalancer`, whose cloud controller may tear its load balancer down.
    pub load_balancers: bool,
    /// `None` for a plain move.
    pub seamless: Option<SeamlessOptions>,
    /// Whether to move the Service plainly although its endpoints can be reached at its present addresses.
    pub interrupts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub request: Duration,
    /// The limit of the whole move. After that, the move is left to the next resumption.
    pub total: Duration,
    /// How long a node port that is taken is waited for, while the Service has no address.
    pub ports: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request: Duration::from_secs(10), total: Duration::from_secs(60), ports: Duration::from_secs(5) }
    }
}

/// A move that is not finished. If it is recorded by now, [`Mover::resume`] finishes it. Contains the full message.
#[derive(Debug, Error)]
pub enum MoveError {
    /// The order can't be carried out, or its first step was refused. The Service is unchanged.
    #[error("{0}")]
    Untouched(String),
    /// The API server, or a policy, refused a step, or there is no usable record.
    #[error("{0}")]
    Refused(String),
    /// The API server did not answer, or answered with errors that pass. The Service is not the cause then.
    #[error("{0}")]
    Unfinished(String),
    /// The Service, its record, or another object of its move, is larger than those that this mover reads.
    #[error("{0}")]
    TooLarge(String),
}

impl MoveError {
    /// The record of the move of this Service can't be read or deleted.
    pub fn of_record(service: &str, refusal: &Refusal) -> Self {
        let message = format!("{service}: {refusal}");
        match refusal {
            Refusal::Trouble(_) => Self::Unfinished(message),
            Refusal::TooLarge(_) => Self::TooLarge(message),
            _ => Self::Refused(message),
        }
    }
}

/// How a run ends before the Service has other addresses.
pub(super) struct Stop(pub(super) Result<Outcome, MoveError>);

impl From<MoveError> for Stop {
    fn from(error: MoveError) -> Self {
        Self(Err(error))
    }
}

impl From<Unmoved> for Stop {
    fn from(unmoved: Unmoved) -> Self {
        Self(Ok(Outcome::Unmoved(unmoved)))
    }
}

/// One run of a move, from reading the Service to its outcome.
pub(super) struct Run<'m, T> {
    pub(super) mover: &'m Mover,
    pub(super) id: &'m ServiceKey,
    pub(super) uid: &'m str,
    pub(super) targets: &'m T,
    pub(super) since: Instant,
    /// How long the run may take. After that, it ends with an error at the next trouble.
    pub(super) limit: Duration,
    pub(super) pause: Duration,
    /// The addresses that this run has ordered; `None` in a run that finishes what another one began.
    pub(super) ordered: Option<Vec<IpAddr>>,
    pub(super) refused: Vec<IpAddr>,
    pub(super) attempt: Option<Attempt>,
    pub(super) recorded: Option<Arc<Journal>>,
    /// The answer if the Service of a seamless move was last too large to read.
    pub(super) unreadable: Option<Refusal>,
    pub(super) progress: Progress,
    pub(super) status_is_restored: bool,
    /// Whether the field owners stay as they are.
    pub(super) keeps_owners: bool,
    /// How the move ends if no step follows.
    pub(super) reached: Option<Outcome>,
}

impl<'m, T: Targets> Run<'m, T> {
    pub(super) fn new(mover: &'m Mover, id: &'m ServiceKey, uid: &'m str, targets: &'m T) -> Self {
        Self {
            mover,
            id,
            uid,
            targets,
            since: Instant::now(),
            limit: mover.limits.total,
            pause: FIRST_PAUSE,
            ordered: None,
            refused: Vec::new(),
            attempt: None,
            recorded: None,
            unreadable: None,
            progress: Progress::default(),
            status_is_restored: false,
            keeps_owners: false,
            reached: None,
        }
    }

    pub(super) fn label(&self) -> String {
        format!("Service {}", self.id)
    }

    pub(super) fn path(&self) -> String {
        service_path(&self.id.namespace, &self.id.name)
    }

    /// The attempt to give the Service an address that is under way, or otherwise the first one.
    pub(super) async fn attempt(&mut self, journal: &Journal) -> &mut Attempt {
        match &mut self.attempt {
            Some(attempt) => attempt,
            none => {
                let first = Attempt::first(journal, self.ordered.as_deref(), &self.refused, self.targets);
                none.insert(first.await)
            }
        }
    }

    /// The first of the new addresses that is allocated already.
    pub(super) async fn first_taken(&mut self, from: &[IpAddr], to: &[IpAddr]) -> Result<Option<IpAddr>, MoveError> {
        for address in to.iter().filter(|address| !from.contains(address)) {
            // The API server also answers 404 if there is no such API. Then it decides when the address is written.
            let path = format!("/apis/networking.k8s.io/v1/ipaddresses/{address}");
            if self.look_up("look up", &path).await?.is_some() {
                return Ok(Some(*address));
            }
        }
        Ok(None)
    }

    /// Reads the stored Service; `None` if it is gone, or if another Service has its name.
    pub(super) async fn read(&mut self, step: &'static str) -> Result<Option<Value>, MoveError> {
        let found = self.look_up(step, &self.path()).await?;
        Ok(found.and_then(|service| self.same_service(service)))
    }

    /// Reads a Service whose move has not begun. It must not be larger than those that move, as the API server sends it.
    pub(super) async fn read_to_begin(&mut self) -> Result<Value, Stop> {
        let text = loop {
            match self.send(Method::GET, &self.path(), Vec::new()).await {
                Ok(text) => break text,
                Err(Refusal::Gone) => return Err(Unmoved::Gone.into()),
                Err(refusal) => self.wait("read", &refusal).await?,
            }
        };
        let service = parsed(&text).map_err(|refusal| MoveError::Unfinished(format!("{}: {refusal}", self.label())))?;
        match self.same_service(service) {
            None => Err(Unmoved::Gone.into()),
            Some(service) if may_begin(&service, text.len(), self.mover.size) => Ok(service),
            Some(_) => Err(Unmoved::TooLarge.into()),
        }
    }

    /// Reads an object, and tries again after errors that pass; `None` if it does not exist.
    pub(super) async fn look_up(&mut self, step: &'static str, path: &str) -> Result<Option<Value>, MoveError> {
        loop {
            match self.get(path).await {
                Ok(found) => return Ok(found),
                Err(refusal) => self.wait(step, &refusal).await?,
            }
        }
    }

    /// The Service, unless it is another one of the same name.
    pub(super) fn same_service(&self, service: Value) -> Option<Value> {
        let uid = service.pointer("/metadata/uid").and_then(Value::as_str);
        (uid == Some(self.uid)).then_some(service)
    }

    /// Waits before the next try. Gives up if the request was refused, or if the time is over.
    pub(super) async fn wait(&mut self, step: &str, refusal: &Refusal) -> Result<(), MoveError> {
        let (service, limit) = (self.label(), self.limit);
        let not_finished = format!("{service}: the step {step:?} was not finished");
        match refusal {
            Refusal::Refused(_) | Refusal::Address { .. } | Refusal::Port { .. } => {
                let refused = format!("{service} can't be moved: the step {step:?} was refused: {refusal}");
                return Err(match step {
                    "read" | "look up" | "release" => MoveError::Untouched(format!("{refused}; nothing was changed")),
                    _ => MoveError::Refused(format!("{refused}; it is tried again")),
                });
            }
            Refusal::TooLarge(_) => return Err(MoveError::TooLarge(format!("{not_finished}: {refusal}"))),
            _ if self.since.elapsed() + self.pause > limit => {
                let limit = limit.as_secs_f32();
                return Err(MoveError::Unfinished(format!("{not_finished} within {limit} s: {refusal}")));
            }
            _ => {}
        }
        tracing::debug!(service, step, reason = %refusal, "trying again");
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Ok(())
    }

    pub(super) async fn get(&self, path: &str) -> Result<Option<Value>, Refusal> {
        match self.request(Method::GET, path, Vec::new()).await {
            Ok(object) => Ok(Some(object)),
            Err(Refusal::Gone) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    pub(super) async fn put(&self, suffix: &str, service: Vec<u8>) -> Result<Value, Refusal> {
        let separator = if suffix.contains('?') { '&' } else { '?' };
        let path = format!("{}{suffix}{separator}fieldManager={MANAGER}", self.path());
        self.request(Method::PUT, &path, service).await
    }

    pub(super) async fn request(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Value, Refusal> {
        parsed(&self.send(method, path, body).await?)
    }

    pub(super) async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body);
        let request = request.map_err(|error| Refusal::Refused(error.to_string()))?;
        let (limit, most) = (self.mover.limits.request, self.mover.size.most_read());
        match timeout(limit, request_at_most(&self.mover.client, request, most)).await {
            Ok(answer) => answer.map_err(|error| refusal_of(&error)),
            Err(_) => Err(Refusal::Trouble(format!("no answer within {} s", limit.as_secs_f32()))),
        }
    }

    /// Whether no request of this move may still be carried out.
    pub(super) fn requests_ended(&self) -> bool {
        self.mover.unfinished.until_requests_end(self.uid).is_zero()
    }

    /// Leaves the rest of the move to [`Mover::resume`](super::Mover::resume), after the last request has ended.
    pub(super) fn rest_until_requests_end(&self) {
        self.mover.unfinished.go_on_after(self.uid, self.mover.unfinished.until_requests_end(self.uid));
    }

    /// Notes that a request may still be carried out, if this was its answer.
    pub(super) fn note_unanswered(&self, refusal: &Refusal) {
        if refusal.is_uncertain() {
            self.mover.unfinished.unanswered(self.uid);
        }
    }

    /// Deletes the record of a move that has ended. If that fails, the next resumption deletes it.
    pub(super) async fn discard(&self) -> Result<(), MoveError> {
        self.mover.records.delete(self.uid).await.map_err(|error| {
            tracing::warn!(service = %self.label(), %error, "the record of a finished move was not deleted");
            MoveError::of_record(&self.label(), &error)
        })?;
        self.mover.unfinished.has_no_record(self.uid);
        Ok(())
    }

    pub(super) async fn record(&self) -> Result<Option<Journal>, MoveError> {
        let found = self.mover.records.get(self.uid, self.mover.size).await;
        found.map_err(|reason| MoveError::of_record(&self.label(), &reason))
    }
}

fn parsed(answer: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(answer).map_err(|error| refusal_of(&kube::Error::SerdeError(error)))
}

/// Whether a Service of so many bytes, as the API server sends it, is small enough to begin its move, or looks as if its
/// move had begun: the move itself makes the Service larger.
fn may_begin(service: &Value, bytes: usize, size: Size) -> bool {
    bytes <= size.most() || looks_half_moved(service)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_of_the_api_server_decides_whether_a_service_is_too_large() {
        struct Case {
            name: &'static str,
            annotations: Value,
            more: usize,
            expected: bool,
        }
        let moving = json!({"clusterip-policy/moving": "10.0.0.1"});
        let cases = [
            Case { name: "the largest", annotations: json!({}), more: 0, expected: true },
            Case { name: "larger, because of escapes", annotations: json!({}), more: 1, expected: false },
            Case { name: "larger because of its move", annotations: moving, more: 1, expected: true },
        ];
        for Case { name, annotations, more, expected } in cases {
            let service = json!({"metadata": {"annotations": annotations}, "spec": {"type": "ClusterIP"}});
            for size in [Size::Usual, Size::Large] {
                assert_eq!(may_begin(&service, size.most() + more, size), expected, "{name}");
            }
        }
    }

    #[test]
    fn only_errors_without_an_answer_about_the_record_pass() {
        struct Case {
            name: &'static str,
            refusal: Refusal,
            expected: fn(&MoveError) -> bool,
        }
        let text = || "no".to_owned();
        let cases = [
            Case {
                name: "no answer",
                refusal: Refusal::Trouble(text()),
                expected: |error| matches!(error, MoveError::Unfinished(_)),
            },
            Case {
                name: "it may not be read",
                refusal: Refusal::Refused(text()),
                expected: |error| matches!(error, MoveError::Refused(_)),
            },
            Case {
                name: "it is too large",
                refusal: Refusal::TooLarge(text()),
                expected: |error| matches!(error, MoveError::TooLarge(_)),
            },
        ];
        for Case { name, refusal, expected } in cases {
            let error = MoveError::of_record("Service shop/web", &refusal);
            assert!(expected(&error), "{name}: {error:?}");
            assert_eq!(error.to_string(), "Service shop/web: no", "{name}");
        }
    }
}
