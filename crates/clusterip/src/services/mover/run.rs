//! One run of a move: its order, what it knows, its record, and its requests to the API server, which are repeated
//! after errors that pass.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::connect::request_at_most;
use clusterip_cluster::object::service_path;
use clusterip_core::annotations::looks_half_moved;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::MANAGER;
use clusterip_moves::journal::{Journal, SeamlessOptions};
use clusterip_moves::outcome::{Outcome, Refusal, Size, Unmoved};
use clusterip_moves::seamless::Progress;
use http::{Method, Request};
use kube::Client;
use serde_json::Value;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

use super::records::{RecordError, Records, UnfinishedMoves, refusal_of};
use super::targets::Attempt;

pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// A move to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOrder {
    /// The Service.
    pub id: ServiceKey,
    /// The UID of the Service. Another Service of the same name is not moved.
    pub uid: String,
    /// All addresses that the Service is to have, primary first, in its order of families. A family that stays has
    /// its old address here.
    pub addresses: Vec<IpAddr>,
    /// Why the Service moves, for the Event and the log.
    pub why: String,
    /// The new value of the annotation [`REASON_ANNOTATION`](clusterip_core::annotations::REASON_ANNOTATION), if the
    /// Service has the annotation; `None` removes it.
    pub reason: Option<String>,
    /// Whether to move a Service of type `LoadBalancer`, whose cloud controller may tear its load balancer down.
    pub load_balancers: bool,
    /// The options of a seamless move; `None` for a plain move.
    pub seamless: Option<SeamlessOptions>,
    /// Whether to move the Service plainly although its endpoints can be reached at its present addresses.
    pub interrupts: bool,
}

/// The time limits of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit of one request.
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

/// A move that is not finished. If it is recorded by now, [`Mover::resume`](super::Mover::resume) finishes it.
#[derive(Debug, Error)]
pub enum MoveError {
    /// The ordered addresses do not have the address families of the Service.
    #[error("{0}")]
    Families(String),
    /// The API server, or a policy, refused a step.
    #[error("{service} can't be moved: the step {step:?} was refused: {reason}{}", if *.untouched { "; nothing was changed" } else { "; it is tried again" })]
    Refused {
        /// The Service.
        service: String,
        /// The name of the step.
        step: &'static str,
        /// The message of the API server.
        reason: String,
        /// Whether the Service is unchanged.
        untouched: bool,
    },
    /// The API server did not answer, or answered with errors, for too long.
    #[error("{0}")]
    Unfinished(String),
    /// The Service, or another object of its move, is larger than those that this mover reads.
    #[error("{0}")]
    TooLarge(String),
    /// The record of the move of a Service can't be read.
    #[error("{0}: {1}")]
    Record(String, RecordError),
}

impl MoveError {
    /// Whether the API server did not answer, or answered with errors that pass. The Service is not the cause then.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unfinished(_) => true,
            Self::Record(_, reason) => reason.passing,
            Self::Families(_) | Self::Refused { .. } | Self::TooLarge(_) => false,
        }
    }
}

/// Why a run ends before the Service has other addresses.
pub(super) enum Stop {
    Unmoved(Unmoved),
    Error(MoveError),
}

impl From<MoveError> for Stop {
    fn from(error: MoveError) -> Self {
        Self::Error(error)
    }
}

impl Stop {
    pub(super) fn ended(self) -> Result<Outcome, MoveError> {
        match self {
            Self::Unmoved(unmoved) => Ok(Outcome::Unmoved(unmoved)),
            Self::Error(error) => Err(error),
        }
    }
}

/// What all moves of a process share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) records: Records,
    pub(super) limits: Limits,
    /// The largest Services that are moved.
    pub(super) size: Size,
    pub(super) unfinished: UnfinishedMoves,
}

/// One run of a move, from reading the Service to its outcome.
pub(super) struct Run<'m> {
    pub(super) shared: &'m Shared,
    pub(super) id: &'m ServiceKey,
    pub(super) uid: &'m str,
    pub(super) since: Instant,
    pub(super) pause: Duration,
    /// The addresses that this run has ordered; `None` in a run that finishes what another one began.
    pub(super) ordered: Option<Vec<IpAddr>>,
    pub(super) refused: Vec<IpAddr>,
    pub(super) attempt: Option<Attempt>,
    /// The journal that this run recorded.
    pub(super) recorded: Option<Arc<Journal>>,
    /// The answer if the Service of a seamless move was last too large to read.
    pub(super) unreadable: Option<Refusal>,
    /// What this run knows of a seamless move.
    pub(super) progress: Progress,
}

impl<'m> Run<'m> {
    pub(super) fn new(shared: &'m Shared, id: &'m ServiceKey, uid: &'m str) -> Self {
        Self {
            shared,
            id,
            uid,
            since: Instant::now(),
            pause: FIRST_PAUSE,
            ordered: None,
            refused: Vec::new(),
            attempt: None,
            recorded: None,
            unreadable: None,
            progress: Progress::of_later_run(),
        }
    }

    pub(super) fn label(&self) -> String {
        format!("Service {}", self.id)
    }

    pub(super) fn path(&self) -> String {
        service_path(&self.id.namespace, &self.id.name)
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
                Err(Refusal::Gone) => return Err(Stop::Unmoved(Unmoved::Gone)),
                Err(refusal) => self.wait("read", &refusal).await?,
            }
        };
        let service = serde_json::from_slice(&text).map_err(|error| refusal_of(&kube::Error::SerdeError(error)));
        match service {
            Ok(service) => match self.same_service(service) {
                None => Err(Stop::Unmoved(Unmoved::Gone)),
                Some(service) if may_begin(&service, text.len(), self.shared.size) => Ok(service),
                Some(_) => Err(Stop::Unmoved(Unmoved::TooLarge)),
            },
            Err(refusal) => Err(MoveError::Unfinished(format!("{}: {refusal}", self.label())).into()),
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
    pub(super) async fn wait(&mut self, step: &'static str, refusal: &Refusal) -> Result<(), MoveError> {
        let limit = self.shared.limits.total;
        let (service, reason) = (self.label(), refusal.to_string());
        match refusal {
            Refusal::Refused(_) | Refusal::Address { .. } | Refusal::Port { .. } => {
                let untouched = matches!(step, "read" | "look up" | "release");
                return Err(MoveError::Refused { service, step, reason, untouched });
            }
            Refusal::TooLarge(_) => {
                return Err(MoveError::TooLarge(format!("{service}: the step {step:?} was not finished: {reason}")));
            }
            _ if self.since.elapsed() + self.pause > limit => {
                let limit = limit.as_secs_f32();
                let message = format!("{service}: the step {step:?} was not finished within {limit} s: {reason}");
                return Err(MoveError::Unfinished(message));
            }
            _ => {}
        }
        tracing::debug!(service, step, reason, "trying again");
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Ok(())
    }

    /// Reads an object; `None` if it does not exist.
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
        let answer = self.send(method, path, body).await?;
        serde_json::from_slice(&answer).map_err(|error| refusal_of(&kube::Error::SerdeError(error)))
    }

    /// Sends a request, and returns its answer as text.
    pub(super) async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body);
        let request = request.map_err(|error| Refusal::Refused(error.to_string()))?;
        let most = self.shared.size.most_read();
        match timeout(self.shared.limits.request, request_at_most(&self.shared.client, request, most)).await {
            Ok(answer) => answer.map_err(|error| refusal_of(&error)),
            Err(_) => {
                let limit = self.shared.limits.request.as_secs_f32();
                Err(Refusal::Trouble(format!("no answer within {limit} s")))
            }
        }
    }

    /// Whether no request of this move may still be carried out.
    pub(super) fn requests_ended(&self) -> bool {
        self.shared.unfinished.until_requests_end(self.uid).is_zero()
    }

    /// Leaves the rest of the move to [`Mover::resume`](super::Mover::resume), after the last request has ended.
    pub(super) fn rest_until_requests_end(&self) {
        self.shared.unfinished.go_on_after(self.uid, self.shared.unfinished.until_requests_end(self.uid));
    }

    /// Notes that a request may still be carried out, if this was its answer.
    pub(super) fn note_unanswered(&self, refusal: &Refusal) {
        if refusal.is_uncertain() {
            self.shared.unfinished.unanswered(self.uid);
        }
    }

    /// Deletes the record of a move that has ended. If that fails, the next resumption deletes it.
    pub(super) async fn discard(&self) -> Result<(), MoveError> {
        self.shared.records.delete(self.uid).await.map_err(|error| {
            tracing::warn!(service = %self.label(), %error, "the record of a finished move was not deleted");
            MoveError::Record(self.label(), error)
        })?;
        self.shared.unfinished.has_no_record(self.uid);
        Ok(())
    }

    /// Reads the journal that is recorded for this Service.
    pub(super) async fn record(&self) -> Result<Option<Journal>, MoveError> {
        let found = self.shared.records.get(self.uid).await;
        found.map_err(|reason| MoveError::Record(self.label(), reason))
    }
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
    fn only_errors_without_an_answer_pass() {
        struct Case {
            name: &'static str,
            error: MoveError,
            passing: bool,
        }
        let text = || "shop/web".to_owned();
        let record = |passing| MoveError::Record(text(), RecordError { message: text(), passing, too_large: false });
        let cases = [
            Case {
                name: "no answer within the time limit of the move",
                error: MoveError::Unfinished(text()),
                passing: true,
            },
            Case { name: "no answer about the record", error: record(true), passing: true },
            Case { name: "the record may not be read", error: record(false), passing: false },
            Case {
                name: "a refused step",
                error: MoveError::Refused { service: text(), step: "read", reason: text(), untouched: true },
                passing: false,
            },
            Case { name: "other families", error: MoveError::Families(text()), passing: false },
        ];
        for Case { name, error, passing } in cases {
            assert_eq!(error.is_passing(), passing, "{name}");
        }
    }
}
