//! Stores the journals of moves as `ControllerRevision` objects in the server's namespace.
//!
//! A journal on the Service itself could be forged, or replayed later, by each user who may edit the Service; an
//! authenticated one could still be replayed. In the server's namespace, tenants can neither read nor write it. A
//! `ControllerRevision` is the API's own kind for the state of a controller: its `data` can't be changed once it is
//! written, and a role that grants access to it grants nothing else in that namespace.
//! The record of a seamless move stays until its last temporary Service is deleted.
//!
//! # Guarantees
//! - A record is written before the first change of its Service, and deleted after the last one. So there is a record
//!   of every move that has left something on its Service, and the record tells how to finish the move.
//! - A record is found by the UID of its Service. It is useless for another Service, and after its move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clusterip_cluster::api_error::{error_message, if_found};
use clusterip_cluster::connect::{is_answer_too_large, request_at_most};
use clusterip_core::annotations::{SERVICE_ANNOTATION, in_service_annotation, service_of};
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::journal::Journal;
use clusterip_moves::outcome::{Refusal, Size};
use clusterip_moves::temporary::Role;
use http::Request;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{Api, DeleteParams, PartialObjectMeta, Preconditions};
use kube::{Client, Error as KubeError, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::services::own_revisions;

const RECORD: &str = "record";
/// The beginning of the names of records. The UID of the Service follows.
const PREFIX: &str = "clusterip-move-";

/// The records in one namespace. Cheap to clone.
#[derive(Clone)]
pub struct Records {
    client: Client,
    pub(super) namespace: String,
}

impl Records {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    fn api(&self) -> Api<ControllerRevision> {
        own_revisions::api(&self.client, &self.namespace)
    }

    /// The journal for the Service with this UID, if it is not larger than `size`; `None` if no move is recorded.
    pub async fn get(&self, uid: &str, size: Size) -> Result<Option<Journal>, Refusal> {
        let path = format!("{}/{}", self.path(), name(uid));
        let request = Request::get(path).body(Vec::new()).map_err(KubeError::HttpError);
        let read = async { request_at_most(&self.client, request?, size.most_read()).await };
        let found = read.await.and_then(|text| serde_json::from_slice(&text).map(Some).map_err(KubeError::SerdeError));
        let found: Option<ControllerRevision> = if_found(found).map_err(|error| self.unread(&error))?;
        found.map(|found| self.journal(found)).transpose()
    }

    /// The Services of all records, each with its UID, ordered by the names of the records. The journals themselves
    /// are not read, because a Service may be large.
    pub async fn list(&self) -> Result<Vec<(ServiceKey, String)>, Refusal> {
        let service = |record: PartialObjectMeta<ControllerRevision>| {
            let (namespace, name) = service_of(record.annotations().get(SERVICE_ANNOTATION)?)?;
            let uid = record.metadata.name.as_deref()?.strip_prefix(PREFIX)?;
            Some((ServiceKey::new(namespace, name), uid.to_owned()))
        };
        own_revisions::list(&self.api(), RECORD, service).await.map_err(|error| self.unread(&error))
    }

    /// Deletes the record for the Service with this UID. `record` is the UID of the record itself, if it is known.
    pub async fn delete(&self, uid: &str, record: Option<String>) -> Result<(), Refusal> {
        let (api, name) = (self.api(), name(uid));
        let record = match record {
            Some(record) => Some(record),
            None => match api.get_metadata_opt(&name).await.map_err(|error| self.unread(&error))? {
                Some(found) => found.metadata.uid,
                None => return Ok(()),
            },
        };
        // A deletion that arrives late must not hit the record of a later move of the same Service.
        let this = Preconditions { uid: record, ..Preconditions::default() };
        match api.delete(&name, &DeleteParams::default().preconditions(this)).await {
            Err(KubeError::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            ended => ended.map(drop).map_err(|error| self.unread(&error)),
        }
    }

    pub(super) fn creation(&self, journal: &Journal) -> (String, Vec<u8>) {
        let mut record = own_revisions::object(&name(&journal.uid), RECORD, journal);
        let service = in_service_annotation(&journal.namespace, &journal.name);
        record.annotations_mut().insert(SERVICE_ANNOTATION.to_owned(), service);
        (self.path(), text_of(json!(record)))
    }

    /// The UID of a record, given the answer to its creation.
    pub(super) fn uid_of(created: &[u8]) -> Option<String> {
        serde_json::from_slice::<PartialObjectMeta<ControllerRevision>>(created).ok()?.metadata.uid
    }

    fn path(&self) -> String {
        format!("/apis/apps/v1/namespaces/{}/controllerrevisions", self.namespace)
    }

    fn journal(&self, found: ControllerRevision) -> Result<Journal, Refusal> {
        let object = found.metadata.name.unwrap_or_default();
        let reason = match serde_json::from_value::<Journal>(found.data.0) {
            Ok(journal) if object == name(&journal.uid) => return Ok(journal),
            Ok(journal) => format!("it is about the UID {}", journal.uid),
            Err(error) => error.to_string(),
        };
        let namespace = &self.namespace;
        Err(Refusal::Refused(format!("ControllerRevision {namespace}/{object} is not the record of a move: {reason}")))
    }

    /// Why a record can't be read or deleted, with the full message.
    fn unread(&self, error: &KubeError) -> Refusal {
        let (namespace, reason) = (&self.namespace, error_message(error));
        let message = format!("the records of moves in namespace {namespace} can't be read: {reason}");
        match refusal_of(error) {
            Refusal::Trouble(_) => Refusal::Trouble(message),
            Refusal::TooLarge(_) => Refusal::TooLarge(message),
            _ => Refusal::Refused(message),
        }
    }
}

pub(super) fn refusal_of(error: &kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) => Refusal::answer(status.code, &status.message),
        error if is_answer_too_large(error) => Refusal::TooLarge(error_message(error)),
        other => Refusal::Trouble(error_message(other)),
    }
}

/// The text of an object. The values themselves take many times the memory, and are dropped before the request is sent.
pub(super) fn text_of(object: Value) -> Vec<u8> {
    object.to_string().into_bytes()
}

fn name(uid: &str) -> String {
    format!("{PREFIX}{uid}")
}

/// How long a request without an answer may still be carried out: longer than an API server works on one.
const REQUEST_LASTS: Duration = Duration::from_secs(90);

/// The moves that other leaders left, and those of this process that have not ended, by the UID of their Service. All
/// clones share them.
#[derive(Clone, Default)]
pub struct UnfinishedMoves(Arc<Mutex<Moves>>);

#[derive(Default)]
struct Moves {
    by_uid: BTreeMap<String, Entry>,
    by_service: BTreeSet<(ServiceKey, String)>,
}

struct Entry {
    id: ServiceKey,
    recorded_here: bool,
    /// When a request of the move was last left without an answer; `None` if none was.
    last_unanswered: Option<Instant>,
    /// When to go on with the move.
    due: Instant,
    /// When the temporary Services of a seamless move are deleted, whatever has failed; `None` if it is known to have none.
    deadline: Option<Instant>,
}

impl Moves {
    fn of<'m>(&'m self, id: &ServiceKey) -> impl Iterator<Item = (&'m String, &'m Entry)> {
        let own = self.by_service.range((id.clone(), String::new())..).take_while(move |(other, _)| other == id);
        own.filter_map(|(_, uid)| self.by_uid.get_key_value(uid))
    }

    fn remove(&mut self, uid: &str) {
        if let Some((uid, entry)) = self.by_uid.remove_entry(uid) {
            self.by_service.remove(&(entry.id, uid));
        }
    }
}

impl UnfinishedMoves {
    /// Adds a move, if it is not known yet. If another process has recorded the move, requests of that process may
    /// still be carried out.
    pub fn add(&self, uid: &str, id: &ServiceKey, recorded_here: bool) {
        let now = Instant::now();
        let last_unanswered = (!recorded_here).then_some(now);
        let entry = || Entry { id: id.clone(), recorded_here, last_unanswered, due: now, deadline: None };
        let mut moves = self.0.lock();
        let id = moves.by_uid.entry(uid.to_owned()).or_insert_with(entry).id.clone();
        moves.by_service.insert((id, uid.to_owned()));
    }

    /// Forgets all moves but those of these Services.
    pub fn retain(&self, ids: &BTreeSet<ServiceKey>) {
        let mut moves = self.0.lock();
        moves.by_uid.retain(|_, entry| ids.contains(&entry.id));
        moves.by_service.retain(|(id, _)| ids.contains(id));
    }

    /// The UID of the Service with this name that has an unfinished move, and when to go on with the move.
    pub fn of(&self, id: &ServiceKey) -> Option<(String, Instant)> {
        let moves = self.0.lock();
        moves.of(id).min_by_key(|(_, entry)| entry.due).map(|(uid, entry)| (uid.clone(), entry.due))
    }

    /// The next time from `now` on at which a move of this Service must go on, or its temporary Services are deleted.
    pub fn next_end(&self, id: &ServiceKey, now: Instant) -> Option<Instant> {
        let moves = self.0.lock();
        let times = moves.of(id).flat_map(|(_, entry)| [Some(entry.due), entry.deadline]);
        times.flatten().filter(|time| *time > now).min()
    }

    pub fn has_deadline(&self, id: &ServiceKey) -> bool {
        self.0.lock().of(id).any(|(_, entry)| entry.deadline.is_some())
    }

    pub fn is_past_deadline(&self, id: &ServiceKey, now: Instant) -> bool {
        self.0.lock().of(id).any(|(_, entry)| entry.deadline.is_some_and(|deadline| deadline <= now))
    }

    /// The Services whose moves have temporary Services and must go on now.
    pub fn late(&self, now: Instant) -> Vec<ServiceKey> {
        let moves = self.0.lock();
        let is_late = |entry: &&Entry| entry.due <= now && entry.deadline.is_some();
        moves.by_uid.values().filter(is_late).map(|entry| entry.id.clone()).collect()
    }

    pub fn services(&self) -> Vec<ServiceKey> {
        self.0.lock().by_uid.values().map(|entry| entry.id.clone()).collect()
    }

    /// When to go on with the move of the Service with this UID; `None` if none is unfinished.
    pub fn due(&self, uid: &str) -> Option<Instant> {
        self.0.lock().by_uid.get(uid).map(|entry| entry.due)
    }

    pub fn has_temporary(&self, ServiceKey { namespace, name }: &ServiceKey) -> bool {
        self.0.lock().by_uid.iter().any(|(uid, entry)| {
            let is_beside = entry.id.namespace == *namespace;
            // The trigger is in the server's namespace.
            is_beside && (Role::New.name(uid) == *name || Role::Old.name(uid) == *name)
                || Role::Trigger.name(uid) == *name
        })
    }

    /// How long to wait until no request of the move may still be carried out.
    pub fn until_requests_end(&self, uid: &str) -> Duration {
        let since = self.0.lock().by_uid.get(uid).and_then(|entry| entry.last_unanswered);
        since.map_or(Duration::ZERO, |since| REQUEST_LASTS.saturating_sub(since.elapsed()))
    }

    pub(super) fn unanswered(&self, uid: &str) {
        self.change(uid, |entry| entry.last_unanswered = Some(Instant::now()));
    }

    pub fn go_on_after(&self, uid: &str, pause: Duration) {
        self.change(uid, |entry| entry.due = Instant::now() + pause);
    }

    pub fn set_deadline(&self, uid: &str, deadline: Option<Instant>) {
        self.change(uid, |entry| entry.deadline = deadline);
    }

    fn change(&self, uid: &str, change: impl FnOnce(&mut Entry)) {
        self.0.lock().by_uid.get_mut(uid).map(change);
    }

    /// Forgets a move that has no record. If a request of this process may still write the record, the move is looked at
    /// once more after that.
    pub fn has_no_record(&self, uid: &str) {
        let rest = self.until_requests_end(uid);
        let mut moves = self.0.lock();
        match moves.by_uid.get_mut(uid) {
            Some(entry) if entry.recorded_here && !rest.is_zero() => entry.due = Instant::now() + rest,
            _ => moves.remove(uid),
        }
    }
}
