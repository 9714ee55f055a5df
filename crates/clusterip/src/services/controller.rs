//! The control loop for misplaced Services, which handles Services while this process leads. It takes changes, finds
//! the Services that they affect, and reconciles each Service at most once at a time.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use clusterip_cluster::api_error::error_message;
use clusterip_cluster::panics;
use clusterip_cluster::snapshot::StoredService;
use clusterip_core::annotations::MOVING_NAME;
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::outcome::{Refusal, Size};
use futures::StreamExt;
use futures::channel::mpsc as queue;
use kube::runtime::scheduler::{ScheduleRequest, scheduler};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, MissedTickBehavior};

pub(crate) mod affected;
mod brakes;
pub(crate) mod reconcile;
pub(crate) mod replicas;
pub mod requests;
mod service_queue;
pub(crate) mod stored_settings;
mod survey;

use self::affected::{Changes, Found, Search};
use self::brakes::WouldMove;
use self::reconcile::{Next, Reconciler};
use self::service_queue::ServiceQueue;
use self::stored_settings::SettingsInUse;
use self::survey::Survey;
use crate::leader::Gate;

const PAUSE_AFTER_PANIC: Duration = Duration::from_secs(60);
const RECORD_INTERVAL: Duration = Duration::from_secs(10);
/// How often the controller looks for Services that the control plane no longer keeps from moving, and after addresses
/// have become free at those that wait for one. With each Service that is deleted, a tenant makes all of them be
/// evaluated. Also how often it tries to list the moves that other leaders left unfinished.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Controller {
    pub reconciler: Arc<Reconciler>,
    pub changes: Changes,
    pub(crate) gate: Gate,
    /// The settings of this process. The version is filled in when they are stored.
    pub in_use: SettingsInUse,
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
        self.reconciler.wait_for_events().await;
        if self.temporary
            && let Err(error) =
                stored_settings::remove(&self.reconciler.client, &self.reconciler.namespace, &self.in_use.leader).await
        {
            tracing::warn!(error = error_message(&error), "the settings in use can't be deleted");
        }
    }

    /// Follows the cluster until the gate stays closed, and spawns the reconciliations as `jobs`.
    async fn work(&mut self, jobs: &mut JoinSet<(ServiceKey, Next)>) {
        let (queue, due) = queue::unbounded();
        let mut due = scheduler(due);
        let mut turns = ServiceQueue::default();
        let mut requests = pin!(self.reconciler.requests.follow(&self.reconciler.client, &self.reconciler.namespace));
        // The hash of the settings that were carried out last, as far as it is known.
        let (mut leads, mut carried_out) = (false, None::<String>);
        // Whether the moves that other leaders left unfinished were listed in this term.
        let mut unfinished_listed = false;
        // At most one, which runs beside this loop.
        let mut surveys = JoinSet::new();
        // Whether one is to begin as soon as the kinds that it reads are listed.
        let mut is_survey_due = false;
        // At most one for each namespace.
        let mut searches = JoinSet::<Found>::new();
        let mut record_interval = tokio::time::interval(RECORD_INTERVAL);
        let mut look_interval = tokio::time::interval(LOOK_INTERVAL);
        look_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stores = self.reconciler.evaluator.stores().clone();
        stores.completed().await;
        // Until each kind of object that makes the control plane call Services was listed, or found to be unreadable.
        stores.control_plane_services().wait_until_listed().await;
        loop {
            self.take_turns(&mut turns, jobs);
            tokio::select! {
                biased;
                settings = async { if leads { self.gate.changed().await } else { self.gate.opened().await } } => {
                    let before = std::mem::replace(&mut leads, settings.is_some());
                    match (before, leads) {
                        (true, true) => {
                            self.reconciler.brakes.lock().examine();
                            // It has examined the Services under other settings.
                            (surveys, is_survey_due) = (JoinSet::new(), true);
                            self.show_settings().await;
                        }
                        (true, false) => {
                            turns.clear();
                            (surveys, searches, is_survey_due) = (JoinSet::new(), JoinSet::new(), false);
                            self.changes.clear();
                        }
                        (false, true) => {
                            self.reconciler.brakes.lock().examine();
                            self.show_settings().await;
                            unfinished_listed = self.begin_term(&mut turns).await;
                            self.take_turns(&mut turns, jobs);
                            carried_out = None;
                            is_survey_due = true;
                        }
                        (false, false) => return,
                    }
                }
                () = stores.completed(), if is_survey_due => {
                    is_survey_due = false;
                    self.begin_survey(&mut carried_out, &mut surveys).await;
                }
                Some(Ok(mut survey)) = surveys.join_next() => {
                    let open = self.end_round(&mut survey, &mut carried_out).await;
                    // What was noted before or meanwhile may be outdated.
                    let running: Vec<ServiceKey> = turns.running().cloned().collect();
                    open.into_iter().chain(self.reconciler.noted()).chain(running).for_each(|id| self.push(&mut turns, id, Size::Usual));
                    if !survey.rest.is_empty() {
                        self.begin_round(survey, carried_out.as_ref(), &mut surveys);
                    }
                }
                Some(Ok((id, next))) = jobs.join_next() => {
                    let again = turns.done(&id);
                    match next {
                        Next::AsLarge if leads => self.push(&mut turns, id, Size::Large),
                        _ if again && leads => self.push(&mut turns, id, Size::Usual),
                        Next::After(pause) => {
                            // The receiver lives as long as this loop.
                            let _ = queue.unbounded_send(ScheduleRequest { message: id, run_at: Instant::now() + pause });
                        }
                        Next::Change | Next::AsLarge => {}
                    }
                }
                Some(id) = requests.next(), if leads => self.push(&mut turns, id, Size::Usual),
                Some(id) = due.next() => {
                    if leads {
                        self.push(&mut turns, id, Size::Usual);
                    }
                }
                Some(Ok((namespace, found, rest))) = searches.join_next() => {
                    found.into_iter().for_each(|id| self.push(&mut turns, id, Size::Usual));
                    match rest {
                        Some(rest) => {
                            let snapshot = self.reconciler.evaluator.stores().snapshot();
                            searches.spawn(rest.next(Arc::clone(snapshot)));
                        }
                        None => self.changes.done(&namespace),
                    }
                }
                () = self.changes.added() => match leads {
                    true => self.begin_searches(&mut turns, &mut searches),
                    false => self.changes.clear(),
                },
                _ = record_interval.tick(), if leads => {
                    self.show_settings().await;
                    self.record_applied_settings(&mut carried_out).await;
                    // Those that wait for a place for large Services come first now, before others of their namespace.
                    let mut late = self.reconciler.mover.unfinished.late(Instant::now().into_std());
                    late.retain(|id| turns.running().all(|running| running != id));
                    late.into_iter().for_each(|id| self.push(&mut turns, id, Size::Usual));
                }
                _ = look_interval.tick(), if leads => {
                    unfinished_listed = unfinished_listed || self.queue_unfinished_moves(&mut turns).await.is_ok();
                    self.reconciler.free_of_callers().into_iter().for_each(|id| self.push(&mut turns, id, Size::Usual));
                    if self.changes.take_freed() {
                        self.reconciler.waiting_for_addresses().into_iter().for_each(|id| self.push(&mut turns, id, Size::Usual));
                    }
                }
            }
        }
    }

    /// Queues the Services whose moves other leaders left. Returns whether they could be listed.
    async fn begin_term(&self, turns: &mut ServiceQueue) -> bool {
        // The findings of another term may be outdated.
        self.reconciler.forget();
        let what = match self.reconciler.allowed.any {
            true => "moved",
            false => "reported, and moved only by `clusterip move`",
        };
        tracing::info!("leading: misplaced Services are {what}");
        // Another leader may have finished the moves that this process knows, except those that it carries out.
        self.reconciler.mover.unfinished.retain(&turns.running().cloned().collect());
        let listed = self.queue_unfinished_moves(turns).await;
        listed.inspect_err(|error| tracing::warn!(%error, "unfinished moves can't be listed, trying again")).is_ok()
    }

    /// Queues a Service that may be of this size. The moves that go on come first: they end grace periods.
    fn push(&self, turns: &mut ServiceQueue, id: ServiceKey, size: Size) {
        let first = self.reconciler.goes_on_now(&id);
        turns.push(id, size, first);
    }

    fn take_turns(&self, turns: &mut ServiceQueue, jobs: &mut JoinSet<(ServiceKey, Next)>) {
        while let Some((id, size)) = turns.take() {
            let reconciler = Arc::clone(&self.reconciler);
            jobs.spawn(async move {
                // A panic must not stop the other Services. This one is looked at again later.
                let look = panics::catch_polls(reconciler.reconcile(&id, size)).await;
                (id, look.unwrap_or(Next::After(PAUSE_AFTER_PANIC)))
            });
        }
    }

    /// Queues the Services whose moves other leaders left unfinished. They may have no address.
    async fn queue_unfinished_moves(&self, turns: &mut ServiceQueue) -> Result<(), Refusal> {
        let found = self.reconciler.find_unfinished_moves().await?;
        found.into_iter().for_each(|(id, _)| self.push(turns, id, Size::Usual));
        Ok(())
    }

    fn begin_searches(&self, turns: &mut ServiceQueue, searches: &mut JoinSet<Found>) {
        let stores = self.reconciler.evaluator.stores();
        let begun = self.changes.take(stores.snapshot());
        let whole: BTreeSet<&str> = begun.iter().filter_map(Search::whole_namespace).collect();
        if !whole.is_empty() {
            // The search does not find Services that are gone.
            let gone = |id: &ServiceKey| whole.contains(&*id.namespace) && stores.stored_service(id).is_none();
            self.reconciler.remembered().into_iter().filter(gone).for_each(|id| self.push(turns, id, Size::Usual));
        }
        for search in begun {
            searches.spawn(search.next(Arc::clone(stores.snapshot())));
        }
    }

    /// All Services. Those that are being moved come first, because they have no address.
    fn all_services(&self) -> Vec<Arc<ServiceKey>> {
        let snapshot = self.reconciler.evaluator.stores().read_snapshot();
        let is_moving = |service: &&Arc<StoredService>| service.external_name() == MOVING_NAME;
        let (moving, others): (Vec<_>, Vec<_>) = snapshot.each_service(None).partition(is_moving);
        moving.into_iter().chain(others).map(|service| Arc::clone(service.shared_key())).collect()
    }

    /// Begins to examine all Services, instead of a survey that has not ended. Until new settings have been examined,
    /// they move no Service, except at the request of an administrator.
    async fn begin_survey(&self, carried_out: &mut Option<String>, surveys: &mut JoinSet<Survey>) {
        if carried_out.is_none() {
            match stored_settings::applied(&self.reconciler.client, &self.reconciler.namespace).await {
                Ok(hash) => *carried_out = hash,
                Err(error) => tracing::warn!(
                    error = error_message(&error),
                    "the hash of the settings that were carried out last can't be read"
                ),
            }
        }
        if self.is_carried_out(carried_out.as_ref()) {
            self.reconciler.brakes.lock().settings_changed(WouldMove::new(), 0, BTreeSet::new());
        }
        *surveys = JoinSet::new();
        self.begin_round(Survey { rest: self.all_services(), ..Survey::default() }, carried_out.as_ref(), surveys);
    }

    fn begin_round(&self, survey: Survey, carried_out: Option<&String>, surveys: &mut JoinSet<Survey>) {
        let hash = self.reconciler.evaluator.settings().hash.clone();
        let is_first = carried_out.is_none_or(|carried_out| *carried_out == first(&hash));
        surveys.spawn(survey.next_round(Arc::clone(&self.reconciler), is_first));
    }

    /// Sets the brake for settings that were not carried out yet, as far as the survey has come. A namespace whose
    /// Services take long keeps only its own Services waiting. Returns the Services to reconcile.
    async fn end_round(&self, survey: &mut Survey, carried_out: &mut Option<String>) -> Vec<ServiceKey> {
        // If only the examined ones counted, a namespace that takes long could make the share of the others that move look
        // large.
        let (open, managed) = (std::mem::take(&mut survey.open), survey.managed + survey.managed_rest);
        let unfinished = survey.unfinished();
        if unfinished.is_empty() {
            tracing::info!(managed, "all Services were examined");
        } else {
            tracing::info!(managed, left = survey.rest.len(), ?unfinished, "some Services take long to examine");
        }
        if self.is_carried_out(carried_out.as_ref()) {
            return open;
        }
        let would_move = survey.would_move.clone();
        let (count, ready) = (would_move.len(), would_move.values().filter(|waits| **waits).count());
        let waiting = self.reconciler.brakes.lock().settings_changed(would_move, managed, unfinished);
        if ready > 0 {
            tracing::warn!(
                services = ready,
                "the settings would move Services with ready endpoints: the moves wait for `clusterip move --seamless`"
            );
        }
        if waiting > ready {
            tracing::warn!(
                misplaced = count - ready,
                managed,
                waiting = waiting - ready,
                "the settings would move a large part of the Services: the moves wait for `clusterip move`"
            );
        }
        self.record_applied_settings(carried_out).await;
        open
    }

    fn is_carried_out(&self, carried_out: Option<&String>) -> bool {
        carried_out == Some(&self.reconciler.evaluator.settings().hash)
    }

    async fn show_settings(&self) {
        let version = self.reconciler.evaluator.settings().version.clone();
        let in_use = SettingsInUse { version, ..self.in_use.clone() };
        if let Err(error) = in_use.show(&self.reconciler.client, &self.reconciler.namespace).await {
            tracing::warn!(error = error_message(&error), "the settings in use can't be stored");
        }
    }

    /// Records the settings in force as carried out, unless Services wait for consent. If they are the first settings,
    /// it records that they are in force, so that the next ones are not the first.
    async fn record_applied_settings(&self, carried_out: &mut Option<String>) {
        let hash = self.reconciler.evaluator.settings().hash.clone();
        // If nothing is moved here, the settings were not carried out. A process that moves later has to survey all
        // Services.
        let (is_undecided, waiting) = {
            let brakes = self.reconciler.brakes.lock();
            (brakes.is_undecided(), brakes.waiting.len())
        };
        if carried_out.as_ref() == Some(&hash) || !self.reconciler.allowed.any || is_undecided {
            return;
        }
        let Some(hash) = to_record(&hash, waiting, carried_out.as_deref()) else { return };
        match stored_settings::set_applied(&self.reconciler.client, &self.reconciler.namespace, &hash).await {
            Ok(()) => *carried_out = Some(hash),
            Err(error) => tracing::warn!(
                error = error_message(&error),
                "the hash of the settings that are carried out can't be recorded"
            ),
        }
    }
}

/// What to record as carried out, if `waiting` Services wait for consent under the settings with this hash. A process that
/// starts later must let these Services wait, too. `None` if the record stays as it is.
fn to_record(hash: &str, waiting: usize, carried_out: Option<&str>) -> Option<String> {
    match (waiting, carried_out) {
        (0, _) => Some(hash.to_owned()),
        (_, None) => Some(first(hash)),
        (_, Some(_)) => None,
    }
}

/// What is recorded while Services wait for consent under the first settings of a cluster.
fn first(hash: &str) -> String {
    format!("first:{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_whose_moves_wait_are_not_recorded_as_carried_out() {
        struct Case {
            name: &'static str,
            waiting: usize,
            carried_out: Option<&'static str>,
            expected: Option<&'static str>,
        }
        let case = |name, waiting, carried_out, expected| Case { name, waiting, carried_out, expected };
        let cases = [
            case("the first settings", 0, None, Some("new")),
            case("other settings", 0, Some("old"), Some("new")),
            case("the first settings, after consent", 0, Some("first:new"), Some("new")),
            case("the first settings, whose moves wait", 24, None, Some("first:new")),
            case("other settings, whose moves wait", 1, Some("old"), None),
            case("a restart while the moves of the first settings wait", 24, Some("first:new"), None),
        ];
        for Case { name, waiting, carried_out, expected } in cases {
            assert_eq!(to_record("new", waiting, carried_out).as_deref(), expected, "{name}");
        }
    }
}
