//! Writes the status of pool objects while this process leads.
//!
//! # Guarantees
//! - Only the leader writes, at most once in two seconds to each object, and only what has changed. An object that does
//!   not change is written every five minutes, so that its status shows that a server runs.
//! - What is wrong with an object is also an Event, once.
//! - No request waits for a status.
//! - If another client writes a status, the leader writes the right one within a minute.

use std::collections::BTreeMap;
use std::future::Future;
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
use crate::leader::event_recorder::{CONTROLLER, EventContent, publish_event};
use crate::services::controller::reconcile::Reconciler;

const INTERVAL: Duration = Duration::from_secs(2);
/// The time after which the leader reads all statuses again, to find those that another client has written.
const READ_AGAIN: Duration = Duration::from_secs(60);
const AT_ONCE: usize = 4;

pub struct StatusWriter {
    pub client: Client,
    pub reconciler: Arc<Reconciler>,
    /// What the settings were compiled from; `None` if they do not come from objects.
    pub compilation: watch::Receiver<Option<Arc<Compilation>>>,
}

impl StatusWriter {
    pub(crate) async fn run(self, mut gate: Gate, shutdown: impl Future<Output = ()>) {
        let work = async {
            while gate.opened().await.is_some() {
                tokio::select! {
                    () = gate.closed() => {}
                    () = self.lead() => {}
                }
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = work => {}
        }
    }

    async fn lead(&self) {
        let mut written: Option<Written> = None;
        let mut read_at = Instant::now();
        loop {
            let compilation = self.compilation.borrow().clone();
            if let Some(compilation) = compilation {
                if written.is_none() || read_at.elapsed() > READ_AGAIN {
                    written = self.read().await.or(written);
                    read_at = Instant::now();
                }
                if let Some(written) = &mut written {
                    self.write(&compilation, written).await;
                }
            }
            sleep(INTERVAL).await;
        }
    }

    async fn write(&self, compilation: &Compilation, written: &mut Written) {
        let reconciler = Arc::clone(&self.reconciler);
        let counted = background::run_long(move || {
            let (evaluator, misplaced) = (&reconciler.evaluator, reconciler.misplaced_services());
            (counts::count(evaluator, &misplaced), evaluator.settings())
        });
        // The next round tries again.
        let Ok((counts, settings)) = counted.await else { return };
        // An object that was deleted and created again has no status.
        written.uids.retain(|key, uid| compilation.states.get(key).is_some_and(|state| state.uid == *uid));
        written.statuses.retain(|key, _| written.uids.contains_key(key));
        let desired = desired_status::of(compilation, &counts, &settings, &written.statuses, &Time(Timestamp::now()));
        let changed = desired.into_iter().filter(|(key, status)| written.statuses.get(key) != Some(status));
        let changed = changed.map(|(key, status)| {
            let problems = desired_status::new_problems(written.statuses.get(&key), &status);
            (key, status, problems)
        });
        let writes = stream::iter(changed.collect::<Vec<_>>()).map(|(key, status, problems)| async move {
            let result = self.apply(&key, &status).await;
            if let Ok(uid) = &result {
                self.publish(&key, uid.as_deref(), problems).await;
            }
            (key, status, result)
        });
        let mut writes = writes.buffer_unordered(AT_ONCE);
        while let Some((key, status, result)) = writes.next().await {
            match result {
                Ok(uid) => {
                    written.uids.insert(key.clone(), uid);
                    written.statuses.insert(key, status);
                }
                // The object was deleted.
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

    async fn publish(&self, key: &ObjectKey, uid: Option<&str>, problems: Vec<Condition>) {
        let resource = key.kind.api_resource();
        for Condition { reason, message, .. } in problems {
            let content = EventContent { uid: uid.unwrap_or_default(), warning: true, reason: &reason, note: message };
            let kind = (resource.api_version.as_str(), resource.kind.as_str());
            publish_event(&self.client, kind, (None, &key.name), "Check", content, None).await;
        }
    }

    /// The status of all objects as the API server has it; `None` if they can't be listed, which is logged.
    async fn read(&self) -> Option<Written> {
        let mut written = Written::default();
        for kind in Kind::ALL {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind.api_resource());
            let list = |page| {
                let api = api.clone();
                async move { api.list(&page).await }
            };
            let visit = |mut object: DynamicObject| {
                let Some(name) = object.metadata.name else { return };
                let key = ObjectKey { kind, name };
                written.uids.insert(key.clone(), object.metadata.uid);
                if let Some(status) = object.data.get_mut("status") {
                    written.statuses.insert(key, status.take());
                }
            };
            if let Err(error) = visit_pages(ListParams::default(), list, visit).await {
                let (kind, error) = (kind.as_str(), error_message(&error));
                tracing::warn!(kind, error, "the status was not read, trying again");
                return None;
            }
        }
        Some(written)
    }
}

#[derive(Default)]
struct Written {
    statuses: BTreeMap<ObjectKey, Value>,
    uids: BTreeMap<ObjectKey, Option<String>>,
}
