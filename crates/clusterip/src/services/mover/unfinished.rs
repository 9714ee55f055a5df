//! The seamless moves that this process knows and that have not ended. Their records stay until their last temporary
//! Service is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clusterip_cluster::object::{name, namespace};
use clusterip_core::service_key::ServiceKey;
use serde_json::Value;

use super::seamless::temporary::Role;

/// How long a request without an answer may still be carried out: longer than an API server works on one.
const REQUEST_LASTS: Duration = Duration::from_secs(90);

/// The moves by the UID of their Service. Cheap to clone: all clones share the moves.
#[derive(Clone, Default)]
pub struct UnfinishedMoves(Arc<Mutex<BTreeMap<String, Entry>>>);

struct Entry {
    id: ServiceKey,
    /// When a request of the move was last left without an answer; `None` if none was.
    last_unanswered: Option<Instant>,
    /// When to go on with the move.
    due: Instant,
}

impl UnfinishedMoves {
    /// Adds a move, if it is not known yet. If another process has recorded the move, requests of that process may
    /// still be carried out.
    pub fn add(&self, uid: &str, id: &ServiceKey, recorded_here: bool) {
        let now = Instant::now();
        let last_unanswered = (!recorded_here).then_some(now);
        let entry = || Entry { id: id.clone(), last_unanswered, due: now };
        self.lock().entry(uid.to_owned()).or_insert_with(entry);
    }

    /// Forgets all moves but those of these Services.
    pub fn retain(&self, ids: &BTreeSet<ServiceKey>) {
        self.lock().retain(|_, entry| ids.contains(&entry.id));
    }

    /// When to go on with the move of the Service with this UID; `None` if none is unfinished.
    pub fn due(&self, uid: &str) -> Option<Instant> {
        self.lock().get(uid).map(|entry| entry.due)
    }

    /// Whether a Service is a temporary Service of one of the moves.
    pub fn has_temporary(&self, service: &Value) -> bool {
        let (namespace, name) = (namespace(service), name(service));
        self.lock().iter().any(|(uid, entry)| {
            let is_beside = entry.id.namespace == namespace;
            // The trigger is in the server's namespace.
            is_beside && (Role::New.name(uid) == name || Role::Old.name(uid) == name) || Role::Trigger.name(uid) == name
        })
    }

    /// How long to wait until no request of the move may still be carried out.
    pub(super) fn until_requests_end(&self, uid: &str) -> Duration {
        let since = self.lock().get(uid).and_then(|entry| entry.last_unanswered);
        since.map_or(Duration::ZERO, |since| REQUEST_LASTS.saturating_sub(since.elapsed()))
    }

    /// Notes that a request of the move got no answer.
    pub(super) fn unanswered(&self, uid: &str) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.last_unanswered = Some(Instant::now());
        }
    }

    pub(super) fn go_on_after(&self, uid: &str, pause: Duration) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.due = Instant::now() + pause;
        }
    }

    /// Forgets a move that has ended.
    pub fn remove(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
