//! Writes the status of pool objects while this process leads.
//!
//! # Guarantees
//! - Only the leader writes, at most once in two seconds to each object, and only what has changed. An object that does
//!   not change is written every five minutes, so that its status shows that a server runs.
//! - What is wrong with an object is also an Event, once.
//! - No request waits for a status.
//! - If another client writes a status, the leader writes the right one within a minute.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clusterip_api::{Compilation, Kind, ObjectKey};
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::list_pages::visit_pages;
use clusterip_cluster::{background, repeated_failures};
use futures::{StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, Error as KubeError};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{counts, desired_status};
use crate::leader::Gate;
use crate::leader::event_recorder::{CONTROLLER, EventContent, EventQueue};
use crate::services::controller::reconcile::Reconciler;

const INTERVAL: Duration = Duration::from_secs(2);
/// The time after which the leader reads all statuses again, to find those that another client has written.
const READ_AGAIN: Duration = Duration::from_secs(60);
const AT_ONCE: usize = 4;

pub struct StatusWriter {
    pub client: Client,
    pub reconciler: Arc<Reconciler>,
    pub compilation: watch::Receiver<Option<Arc<Compilation>>>,
}

impl StatusWriter {
    pub(crate) async fn run(self, mut gate: Gate) {
        while gate.opened().await.is_some() {
            tokio::select! {
                () = gate.closed() => {}
                () = self.lead() => {}
            }
        }
    }

    async fn lead(&self) {
        let events = EventQueue::start(self.client.clone());
        let mut known = Known::new();
        let mut read_at = None;
        loop {
            let compilation = self.compilation.borrow().clone();
            if let Some(compilation) = compilation {
                if read_at.is_none_or(|at: Instant| at.elapsed() > READ_AGAIN)
                    && let Some(found) = self.read().await
                {
                    (known, read_at) = (found, Some(Instant::now()));
                }
                if read_at.is_some() {
                    self.write(&compilation, &mut known, &events).await;
                }
            }
            sleep(INTERVAL).await;
        }
    }

    async fn write(&self, compilation: &Compilation, known: &mut Known, events: &EventQueue) {
        let reconciler = Arc::clone(&self.reconciler);
        let counted = background::run_long(move || {
            let (evaluator, misplaced) = (&reconciler.evaluator, reconciler.misplaced_services());
            (counts::count(evaluator, &misplaced), evaluator.settings())
        });
        // The next round tries again.
        let Ok((counts, settings)) = counted.await else { return };
        // An object that was deleted and created again has no status.
        known.retain(|key, (uid, _)| compilation.states.get(key).is_some_and(|state| state.uid == *uid));
        let before = |key: &ObjectKey| known.get(key).and_then(|(_, status)| status.as_ref());
        let desired = desired_status::of(compilation, &counts, &settings, before, &Time(Timestamp::now()));
        let changed: Vec<_> = desired.into_iter().filter(|(key, status)| before(key) != Some(status)).collect();
        let writes = stream::iter(changed).map(|(key, status)| async move {
            let result = self.apply(&key, &status).await;
            (key, status, result)
        });
        let mut writes = pin!(writes.buffer_unordered(AT_ONCE));
        while let Some((key, status, result)) = writes.next().await {
            match result {
                Ok(uid) => {
                    let before = known.get(&key).and_then(|(_, status)| status.as_ref());
                    for Condition { reason, message, .. } in desired_status::new_problems(before, &status) {
                        let (resource, uid) = (key.kind.api_resource(), uid.as_deref().unwrap_or_default());
                        let content = EventContent { uid, warning: true, reason: &reason, note: message };
                        events.tell((&resource.api_version, &resource.kind), (None, &key.name), "Check", content);
                    }
                    known.insert(key, (uid, Some(status)));
                }
                Err(KubeError::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    let error = error_message(&error);
                    if repeated_failures::line(&error).is_some() {
                        tracing::warn!(object = %key, error, "the status was not written, trying again");
                    }
                }
            }
        }
    }

    async fn apply(&self, key: &ObjectKey, status: &Value) -> Result<Option<String>, KubeError> {
        let resource = key.kind.api_resource();
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let object = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": key.name},
            "status": status,
        });
        let params = PatchParams::apply(CONTROLLER).force();
        let object = api.patch_status(&key.name, &params, &Patch::Apply(object)).await?;
        Ok(object.metadata.uid)
    }

    /// The status of all objects as the API server has it; `None` if they can't be listed, which is logged.
    async fn read(&self) -> Option<Known> {
        let mut known = Known::new();
        for kind in Kind::ALL {
            let api: &Api<DynamicObject> = &Api::all_with(self.client.clone(), &kind.api_resource());
            let list = |page| async move { api.list(&page).await };
            let visit = |mut object: DynamicObject| {
                let Some(name) = object.metadata.name else { return };
                let status = object.data.get_mut("status").map(Value::take);
                known.insert(ObjectKey { kind, name }, (object.metadata.uid, status));
            };
            if let Err(error) = visit_pages(ListParams::default(), list, visit).await {
                let (kind, error) = (kind.as_str(), error_message(&error));
                tracing::warn!(kind, error, "the status was not read, trying again");
                return None;
            }
        }
        Some(known)
    }
}

/// The UID and the status of each object, as last read or written.
type Known = BTreeMap<ObjectKey, (Option<String>, Option<Value>)>;
