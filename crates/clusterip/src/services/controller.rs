//! The control loop for misplaced Services, which handles Services while this process leads. It takes changes, finds
//! the Services that they affect, and reconciles each Service at most once at a time.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`affected`] | finds the Services that a change may affect |
//! | [`fair_queue`] | decides which Service comes next |
//! | [`reconcile`] | reconciles one Service |
//! | [`brakes`] | limits how many Services are moved at once, and how often |
//! | [`replicas`] | tells whether all replicas use the same settings |
//! | [`applied_settings`] | keeps the hash of the settings that were carried out last |
//! | [`settings_in_use`] | stores the settings that the leader uses |
//! | [`requests`] | the moves that administrators request |
//! | [`hand_over`] | requests a move from a running server, and waits for the result |

use std::collections::BTreeSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use clusterip_core::address_set_by_hand::may_be_set_by_hand;
use clusterip_core::annotations::MOVING_NAME;
use clusterip_core::service_key::ServiceKey;
use clusterip_host::cluster::watch::stores::Change;
use clusterip_host::live_settings::LiveSettings;
use clusterip_host::object::text;
use clusterip_runtime::api_error::error_message;
use clusterip_runtime::background;
use futures::channel::mpsc as queue;
use futures::{FutureExt, StreamExt};
use kube::Client;
use kube::runtime::scheduler::{ScheduleRequest, scheduler};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, MissedTickBehavior};

pub mod affected;
pub mod applied_settings;
pub mod brakes;
pub mod fair_queue;
pub mod hand_over;
pub mod reconcile;
pub mod replicas;
pub mod requests;
pub mod settings_in_use;

use self::fair_queue::FairQueue;
use self::reconcile::{Next, Reconciler};
use self::settings_in_use::{SettingsInUse, SettingsOrigin};
use super::misplaced::{self, Inspection, Verdict};
use crate::leader::Leadership;
use crate::service_placement::{Skip, skip_reason};

/// How soon a Service is looked at again after its reconciliation panicked.
const PAUSE_AFTER_PANIC: Duration = Duration::from_secs(60);
/// How many times the controller tries to list unfinished moves at the beginning of a term.
const LIST_TRIES: usize = 3;
/// The pause between these tries.
const LIST_PAUSE: Duration = Duration::from_secs(1);
/// How often the controller tries to record which settings are carried out.
const RECORD_INTERVAL: Duration = Duration::from_secs(10);
/// How often the controller looks for Services that the control plane no longer keeps from moving.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Follows the cluster, and moves misplaced Services.
pub struct Controller {
    /// Reconciles single Services.
    pub reconciler: Arc<Reconciler>,
    /// The changes that the stores report.
    pub changes: mpsc::UnboundedReceiver<Change>,
    /// The settings in force.
    pub settings: watch::Receiver<Arc<LiveSettings>>,
    /// Whether this process leads. Only the leader moves Services.
    pub leadership: watch::Receiver<Leadership>,
    /// The client of the API server.
    pub client: Client,
    /// The namespace of the Lease.
    pub namespace: String,
    /// The identity of this process in the Lease.
    pub identity: String,
    /// Where this process reads its settings.
    pub source: SettingsOrigin,
    /// The namespace of the agents.
    pub agents_namespace: String,
    /// Whether this process deletes at the end what it has stored about its settings.
    pub temporary: bool,
}

impl Controller {
    /// Runs until `shutdown`, then waits for the moves that have begun.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut jobs = JoinSet::new();
        // Every wait ends at the shutdown, also those for the API server.
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.work(&mut jobs) => {}
        }
        // Moves that have begun are finished.
        while jobs.join_next().await.is_some() {}
        if self.temporary
            && let Err(error) = settings_in_use::remove(&self.client, &self.namespace, &self.identity).await
        {
            tracing::warn!(error = error_message(&error), "the settings in use can't be deleted");
        }
    }

    /// Follows the cluster for ever, and spawns the reconciliations as `jobs`.
    async fn work(&mut self, jobs: &mut JoinSet<(ServiceKey, Next)>) {
        let (queue, due) = queue::unbounded();
        let mut due = scheduler(due);
        let schedule = |id: ServiceKey, after: Duration| {
            // The receiver lives as long as this loop.
            let _ = queue.unbounded_send(ScheduleRequest { message: id, run_at: Instant::now() + after });
        };
        let mut turns = FairQueue::default();
        let mut requests = pin!(self.reconciler.requests().follow(&self.client, &self.namespace));
        let (mut leads, mut applied_settings) = (false, None::<String>);
        let mut record_interval = tokio::time::interval(RECORD_INTERVAL);
        let mut look_interval = tokio::time::interval(LOOK_INTERVAL);
        look_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.wait_until_known().await;
        self.leadership.mark_changed();
        loop {
            self.take_turns(&mut turns, jobs);
            tokio::select! {
                biased;
                Ok(()) = self.leadership.changed() => {
                    let before = std::mem::replace(&mut leads, self.leadership.borrow_and_update().leads());
                    if !leads {
                        turns.clear();
                    } else if !before {
                        self.show_settings().await;
                        applied_settings = self.begin_term(&mut turns, jobs).await;
                        self.all_services().into_iter().for_each(|id| schedule(id, Duration::ZERO));
                    }
                }
                Ok(()) = self.settings.changed() => {
                    let settings = Arc::clone(&self.settings.borrow_and_update());
                    self.reconciler.evaluator().stores().watch(&settings.settings);
                    self.reconciler.evaluator().stores().completed().await;
                    if leads {
                        self.show_settings().await;
                        applied_settings = self.brake_for_settings(applied_settings.take()).await;
                        self.all_services().into_iter().for_each(|id| schedule(id, Duration::ZERO));
                    }
                }
                Some((id, next)) = joined(jobs) => {
                    let again = turns.done(&id);
                    match next {
                        _ if again => schedule(id, Duration::ZERO),
                        Next::After(pause) => schedule(id, pause),
                        Next::Change => {}
                    }
                }
                Some(change) = self.changes.recv() => {
                    if leads {
                        for id in self.affected_services(&change) {
                            schedule(id, Duration::ZERO);
                        }
                    }
                }
                Some(id) = requests.next(), if leads => schedule(id, Duration::ZERO),
                Some(id) = due.next() => {
                    if leads {
                        turns.push(id);
                    }
                }
                _ = record_interval.tick(), if leads => {
                    self.show_settings().await;
                    applied_settings = self.record_applied_settings(applied_settings.take()).await;
                }
                _ = look_interval.tick(), if leads => {
                    self.reconciler.free_of_callers().into_iter().for_each(|id| schedule(id, Duration::ZERO));
                }
            }
        }
    }

    /// Finishes the moves that other leaders left, and surveys the Services. Returns the hash of the settings that were
    /// carried out.
    async fn begin_term(&self, turns: &mut FairQueue, jobs: &mut JoinSet<(ServiceKey, Next)>) -> Option<String> {
        // The findings of another term may be outdated.
        self.reconciler.forget();
        let what = match self.reconciler.allowed().any {
            true => "moved",
            false => "reported, and moved only by `clusterip move`",
        };
        tracing::info!("leading: misplaced Services are {what}");
        // Services with an unfinished move come first: they may have no address.
        for id in self.left_moves().await {
            turns.push(id);
        }
        self.take_turns(turns, jobs);
        self.brake_for_settings(None).await
    }

    /// Starts to reconcile the Services whose turn it is.
    fn take_turns(&self, turns: &mut FairQueue, jobs: &mut JoinSet<(ServiceKey, Next)>) {
        while let Some(id) = turns.take() {
            let reconciler = Arc::clone(&self.reconciler);
            jobs.spawn(async move {
                // A panic must not stop the other Services. This one is looked at again later.
                let look = AssertUnwindSafe(reconciler.reconcile(&id)).catch_unwind().await;
                (id, look.unwrap_or(Next::After(PAUSE_AFTER_PANIC)))
            });
        }
    }

    /// Waits until the caches have synced, and until each kind of object that makes the control plane call Services was
    /// either listed or found to be unreadable.
    async fn wait_until_known(&self) {
        let stores = self.reconciler.evaluator().stores();
        stores.completed().await;
        stores.control_plane_services().wait_until_listed().await;
    }

    /// The Services whose moves other leaders left unfinished. They may have no address, so a failed list is tried
    /// again a few times.
    async fn left_moves(&self) -> Vec<ServiceKey> {
        for _ in 0..LIST_TRIES {
            match self.reconciler.find_left_moves().await {
                Ok(ids) => return ids,
                Err(error) => tracing::warn!(%error, "unfinished moves can't be listed"),
            }
            tokio::time::sleep(LIST_PAUSE).await;
        }
        // Services that look half moved are still found by their marker.
        Vec::new()
    }

    fn affected_services(&self, change: &Change) -> BTreeSet<ServiceKey> {
        let waiting = || self.reconciler.waiting_for_addresses();
        if change.kind.1 == "IPAddress" && change.after.is_none() {
            return waiting().into_iter().collect();
        }
        let stores = self.reconciler.evaluator().stores();
        let affected = affected::by(&stores.read_snapshot(), change);
        // Without IPAddress objects, only Services tell which addresses are free again.
        if !stores.have_ip_addresses() && affected::frees_an_address(change) {
            return affected.into_iter().chain(waiting()).collect();
        }
        affected
    }

    /// All Services. Those that are being moved come first, because they have no address.
    fn all_services(&self) -> Vec<ServiceKey> {
        let snapshot = self.reconciler.evaluator().stores().read_snapshot();
        let moving = |service: &Value| text(service, &["spec", "externalName"]) == MOVING_NAME;
        let moving = snapshot.all("v1", "Service").filter(moving);
        let moving: Vec<ServiceKey> = moving.map(|service| ServiceKey::of(&service)).collect();
        let mut others = snapshot.services(None);
        others.retain(|id| !moving.contains(id));
        moving.into_iter().chain(others).collect()
    }

    /// Sets the brake for settings that were not carried out yet. Returns the hash of the settings that were carried
    /// out.
    async fn brake_for_settings(&self, known: Option<String>) -> Option<String> {
        let carried_out = match known {
            Some(known) => Some(known),
            None => applied_settings::read(&self.client, &self.namespace).await.unwrap_or_else(|error| {
                tracing::warn!(
                    error = error_message(&error),
                    "the hash of the settings that were carried out last can't be read"
                );
                None
            }),
        };
        let hash = self.reconciler.evaluator().settings().hash.clone();
        if carried_out.as_ref() == Some(&hash) {
            self.reconciler.brakes().settings_changed(BTreeSet::new(), 0);
            return carried_out;
        }
        let reconciler = Arc::clone(&self.reconciler);
        let ids = self.all_services();
        let survey = background::run_long(move || survey(&reconciler, &ids));
        let Ok((misplaced, managed)) = survey.await else { return carried_out };
        let count = misplaced.len();
        if self.reconciler.brakes().settings_changed(misplaced, managed) {
            tracing::warn!(
                misplaced = count,
                managed,
                "the settings would move a large part of the Services: the moves wait for `clusterip move`"
            );
        }
        self.record_applied_settings(carried_out).await
    }

    /// Stores the settings in force in the namespace of the Lease, if they are not stored there already.
    async fn show_settings(&self) {
        let in_use = SettingsInUse {
            leader: self.identity.clone(),
            version: self.reconciler.evaluator().settings().version.clone(),
            source: self.source.clone(),
            agents_namespace: self.agents_namespace.clone(),
        };
        if let Err(error) = in_use.show(&self.client, &self.namespace).await {
            tracing::warn!(error = error_message(&error), "the settings in use can't be stored");
        }
    }

    /// Records the settings in force as carried out, unless Services wait for consent. Returns the hash of the
    /// settings that were carried out.
    async fn record_applied_settings(&self, carried_out: Option<String>) -> Option<String> {
        let hash = self.reconciler.evaluator().settings().hash.clone();
        // If nothing is moved here, the settings were not carried out. A process that moves later has to survey all
        // Services.
        let carries_out = self.reconciler.allowed().any && self.reconciler.brakes().waiting() == 0;
        if carried_out.as_ref() == Some(&hash) || !carries_out {
            return carried_out;
        }
        match applied_settings::write(&self.client, &self.namespace, &hash).await {
            Ok(()) => Some(hash),
            Err(error) => {
                tracing::warn!(
                    error = error_message(&error),
                    "the hash of the settings that are carried out can't be recorded"
                );
                carried_out
            }
        }
    }
}

/// The Services that would move, and how many Services are managed. No address is reserved, because Services are
/// created meanwhile. So if a pool has fewer free addresses than Services that would move to it, all of them count.
fn survey(reconciler: &Reconciler, ids: &[ServiceKey]) -> (BTreeSet<ServiceKey>, usize) {
    let evaluator = reconciler.evaluator();
    let settings = evaluator.settings();
    let (mut misplaced, mut managed) = (BTreeSet::new(), 0);
    for id in ids {
        let Some(service) = evaluator.stores().service(id) else { continue };
        if reconciler.is_temporary(&service) {
            continue;
        }
        // If exempt or headless Services counted, a tenant could make the share of those that move look small.
        if skip_reason(&settings.settings, &service) == Some(Skip::Unmanaged) {
            continue;
        }
        let Ok(inspection) = misplaced::inspect(evaluator, &service, reconciler.allowed(), None) else { continue };
        managed += 1;
        // A Service whose address was set by hand never moves. If it counted, a tenant could make all others wait
        // with some of them.
        if let Inspection::Misplaced(found) = inspection
            && found.verdict == Verdict::Move
            && !may_be_set_by_hand(&service)
        {
            misplaced.insert(id.clone());
        }
    }
    (misplaced, managed)
}

async fn joined(jobs: &mut JoinSet<(ServiceKey, Next)>) -> Option<(ServiceKey, Next)> {
    match jobs.join_next().await {
        Some(Ok(done)) => Some(done),
        Some(Err(error)) => {
            tracing::error!(%error, "the reconciliation of a Service failed");
            None
        }
        // No Service is being reconciled, so there is nothing to wait for.
        None => std::future::pending().await,
    }
}
