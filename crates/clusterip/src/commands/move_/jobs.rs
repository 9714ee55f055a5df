//! The moves of `clusterip move`: it finds them, and carries them out itself or asks the server that leads.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::connect::counted_bytes;
use clusterip_cluster::evaluator::Evaluation;
use clusterip_cluster::harmless_text::harmless;
use clusterip_cluster::live_settings::{Follower, SettingsSource};
use clusterip_cluster::shutdown::until;
use clusterip_cluster::snapshot::StoredService;
use clusterip_cluster::style;
use clusterip_core::service_key::ServiceKey;
use clusterip_failover::leases::{Identity, Role, Timing};
use futures::StreamExt;
use futures::future::{self, Either};
use kube::Client;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};

use super::{Interrupt, MoveArguments};
use crate::commands::leading_server::LeadingServer;
use crate::commands::terminal::{is_quiet, notice, progress_bar};
use crate::leader::{Acquisition, Candidate};
use crate::report::columns::paint;
use crate::report::moves::{Ended, NotMoved, Row};
use crate::services::controller::reconcile::moves::Movable;
use crate::services::controller::reconcile::{BY_HAND, Reconciler};
use crate::services::controller::requests::{self, MoveRequest};
use crate::services::misplaced::{self, Inspection, Misplaced};
use crate::services::service_metrics::StayReason;
use crate::text::joined;
use clusterip_moves::journal::{Journal, SeamlessOptions};
use clusterip_moves::method::{Method, NOT_ASKED, method};
use clusterip_moves::outcome::{Outcome, Size, Unmoved};

/// How often the records of the moves are looked up until the server has deleted them.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long after the grace period the server may take to finish a move. A leader that took over waits 90 s.
const MAX_AFTER_GRACE: Duration = Duration::from_secs(150);
const MAX_ENDS_AT_ONCE: usize = 16;

pub(super) struct Run<'c> {
    pub(super) command: &'c MoveArguments,
    pub(super) client: Client,
    pub(super) deployed: LeadingServer,
    pub(super) source: SettingsSource,
    pub(super) reconciler: Arc<Reconciler>,
    /// The reconciler works as long as the settings that it follows exist.
    pub(super) _followed: Follower,
    pub(super) seamless: Option<SeamlessOptions>,
    /// Whose turn it is among the large Services.
    pub(super) large: Mutex<()>,
}

pub(super) struct Job {
    id: ServiceKey,
    uid: String,
    from: Vec<IpAddr>,
    /// `None` if a move that has begun is finished.
    order: Option<Order>,
}

struct Order {
    misplaced: Box<Misplaced>,
    size: Size,
    to: Vec<IpAddr>,
    evaluation: Box<Evaluation>,
}

impl Run<'_> {
    /// Checks that the server uses the settings of this command; without one, that none leads in another namespace.
    pub(super) async fn check(&self, by_server: bool) -> anyhow::Result<()> {
        if by_server {
            let version = self.reconciler.evaluator.settings().version.clone();
            self.deployed.check_version(&self.client, &version, &self.source).await
        } else {
            self.deployed.no_leader_elsewhere(&self.client).await
        }
    }

    /// Finds the misplaced Services, and the moves that are possible.
    pub(super) async fn list(
        &self,
        namespace: Option<&str>,
        named: Option<&ServiceKey>,
    ) -> anyhow::Result<(Vec<Row>, Vec<Job>)> {
        let (command, reconciler) = (self.command, &self.reconciler);
        // Without the permission to list them, no unfinished move is known.
        let unfinished = reconciler.find_unfinished_moves().await.unwrap_or_default();
        let stores = reconciler.evaluator.stores();
        let ids = {
            let snapshot = stores.read_snapshot();
            command.scope.check(&snapshot, namespace, command.service.as_ref())?;
            snapshot.services(namespace)
        };
        let wanted = ids.into_iter().filter(|id| named.is_none_or(|named| named == id));
        let wanted: Vec<ServiceKey> = wanted.collect();
        if let (true, Some(named)) = (wanted.is_empty(), named) {
            bail!("there is no Service {named}");
        }
        if let Some(unknown) =
            command.options.called_by_control_plane.iter().find(|id| stores.stored_service(id).is_none())
        {
            bail!("there is no Service {unknown}: check --called-by-control-plane");
        }
        let (mut rows, mut jobs) = (Vec::new(), Vec::new());
        for id in wanted {
            let Some(service) = stores.stored_service(&id) else { continue };
            if command.scope.selector.as_ref().is_some_and(|selector| !service.is_selected_by(selector))
                || reconciler.is_temporary(&service)
                || command.left_out.contains(&id)
            {
                continue;
            }
            let this = Arc::clone(reconciler);
            let (evaluator, at) = (this.evaluator.clone(), Arc::clone(&service));
            let request = self.request(&id, &service.uid());
            let server = self.deployed.namespace.clone();
            let inspect = move || misplaced::inspect(&evaluator, &at, &this.allowed, &server, Some(&request));
            let inspection = tokio::task::spawn_blocking(inspect).await?;
            let inspection = inspection.with_context(|| format!("Service {}/{}", id.namespace, id.name))?;
            let Some((mut row, job)) = row(reconciler, &id, &service, inspection).await? else { continue };
            if let Some(Order { to, .. }) = job.as_ref().and_then(|job| job.order.as_ref()) {
                row.method = Some(method_of(reconciler, &service, to, command.seamless));
            }
            jobs.extend(job);
            rows.push(row);
        }
        for (id, uid) in unfinished {
            let is_in_scope =
                named.is_none_or(|named| *named == id) && namespace.is_none_or(|only| only == id.namespace);
            if is_in_scope && !rows.iter().any(|row| row.namespace == id.namespace && row.name == id.name) {
                // Its temporary Services are not deleted yet, or it is gone, or its author has ended its move.
                let why = "a move of it has not ended".to_owned();
                match reconciler.mover.records.get(&uid, Size::Large).await {
                    Ok(Some(Journal { from, .. })) => {
                        rows.push(Row { to: Some(Vec::new()), why, ..new_row(&id, from.clone()) });
                        jobs.push(Job { id, uid, from, order: None });
                    }
                    Ok(None) => {}
                    Err(error) => {
                        let stays = Some(error.to_string());
                        rows.push(Row { why, stuck: true, stays, ..new_row(&id, Vec::new()) });
                    }
                }
            }
        }
        Ok((rows, jobs))
    }

    /// Moves the Services, and returns the result of each move. Gives the Lease back at the end, also after a signal.
    pub(super) async fn carry_out(&self, jobs: Vec<Job>, interrupt: Interrupt) -> anyhow::Result<Ended> {
        let namespace = &self.deployed.namespace;
        let me = Identity::new(Role::Move);
        let mut candidate = Candidate::new(self.client.clone(), namespace, me, Timing::default());
        candidate.temporary = true;
        let acquisition = tokio::select! {
            biased;
            () = interrupt.clone() => {
                // The Lease may have been taken a moment ago.
                candidate.run(future::ready(())).await;
                // After a signal, no move begins.
                return Ok(self.carry_out_all(jobs, false, interrupt).await);
            }
            acquisition = candidate.try_acquire() => acquisition?,
        };
        let held = match acquisition {
            Acquisition::Acquired => None,
            Acquisition::HeldBy(holder) if holder.role() == Some(Role::Move) => {
                bail!("another `clusterip move` is running: {}", harmless(holder.as_str()))
            }
            Acquisition::HeldBy(holder) => Some(holder),
        };
        let (done, ended) = watch::channel(false);
        let led = held.is_none().then(|| tokio::spawn(candidate.run(until(ended))));
        let result = self.carry_out_beside(held.as_ref(), jobs, interrupt).await;
        done.send_replace(true);
        if let Some(led) = led {
            let _ = led.await;
        }
        result
    }

    /// Moves the Services. The server `held` holds the Lease; `None` if this process does.
    async fn carry_out_beside(
        &self,
        held: Option<&Identity>,
        jobs: Vec<Job>,
        interrupt: Interrupt,
    ) -> anyhow::Result<Ended> {
        let LeadingServer { namespace, leader, .. } = &self.deployed;
        if let (None, Some(leader)) = (held, leader) {
            let leader = harmless(leader.as_str());
            bail!("server {leader} does not lead in namespace {namespace} any more: run the command again");
        }
        tokio::select! {
            biased;
            // After a signal, no move begins.
            () = interrupt.clone() => {}
            // The server may be another one than at the beginning.
            checked = self.check(held.is_some()) => {
                checked?;
                if let Some(holder) = held {
                    notice(&format!("handed over to {} in namespace {namespace}", holder.as_str()));
                }
            }
        }
        Ok(self.carry_out_all(jobs, held.is_some(), interrupt).await)
    }

    /// Moves the Services. After SIGINT or SIGTERM no further move begins, but the moves that have begun are finished:
    /// without the rest of its move, a Service would have no address.
    async fn carry_out_all(&self, jobs: Vec<Job>, by_server: bool, interrupt: Interrupt) -> Ended {
        let ids: Vec<(ServiceKey, String)> = jobs.iter().map(|job| (job.id.clone(), job.uid.clone())).collect();
        let bar = progress_bar(jobs.len() as u64, "{wide_bar} {pos} of {len} Services, {eta} left");
        bar.tick();
        let mut results: Ended = ids.iter().map(|(id, _)| (id.clone(), Err(NotMoved::Interrupted))).collect();
        let has_failed = AtomicBool::new(false);
        let has_failed = &has_failed;
        let moves = jobs.into_iter().map(|job| {
            let bar = bar.clone();
            async move {
                let id = job.id.clone();
                if self.command.stop_on_failure && has_failed.load(Ordering::Relaxed) {
                    return (id, Err(NotMoved::Stopped));
                }
                let ended = if by_server { self.hand_over(job).await } else { self.move_it(job).await };
                let ended = ended.map_err(NotMoved::Tried);
                has_failed.fetch_or(ended.is_err(), Ordering::Relaxed);
                if !is_quiet() {
                    bar.suspend(|| print_result(&id, &ended));
                }
                bar.inc(1);
                (id, ended)
            }
        });
        let moves = futures::stream::iter(moves).take_until(interrupt.clone());
        let all = pin!(moves.buffer_unordered(usize::from(self.command.options.at_once)).collect::<Vec<_>>());
        let ended = match future::select(all, interrupt).await {
            Either::Left((ended, _)) => ended,
            Either::Right(((), rest)) => {
                bar.suspend(|| notice("interrupted: finishing the moves that have begun"));
                rest.await
            }
        };
        bar.finish_and_clear();
        results.extend(ended);
        self.end_seamless_moves(&ids, &mut results, by_server).await;
        self.reconciler.wait_for_events().await;
        results
    }

    /// Waits for the end of the moves. Without a server, the command always waits, because it ends them
    /// itself.
    async fn end_seamless_moves(&self, ids: &[(ServiceKey, String)], ended: &mut Ended, by_server: bool) {
        let begun =
            |id: &ServiceKey| !matches!(ended.get(id), None | Some(Err(NotMoved::Interrupted | NotMoved::Stopped)));
        let begun: Vec<&(ServiceKey, String)> = ids.iter().filter(|(id, _)| begun(id)).collect();
        let waits = if by_server {
            self.command.wait
        } else {
            begun.iter().any(|(_, uid)| self.reconciler.mover.unfinished.due(uid).is_some())
        };
        if !waits {
            return;
        }
        notice("waiting until the old addresses may stop answering");
        // A move that does not end, whose author may cause that, must not delay the end of the others.
        let ends = begun.into_iter().map(|(id, uid)| async move {
            let end = match by_server {
                true => self.wait_for_server(uid).await,
                false => self.reconciler.wait_for_end(uid).await.map_err(|error| error.to_string()),
            };
            Some((id.clone(), Err(NotMoved::Tried(end.err()?))))
        });
        let ends: Vec<_> = futures::stream::iter(ends).buffer_unordered(MAX_ENDS_AT_ONCE).collect().await;
        ended.extend(ends.into_iter().flatten());
    }

    /// Waits until the server has finished the seamless move of a Service, and so deleted its record.
    async fn wait_for_server(&self, uid: &str) -> Result<(), String> {
        let unread = |reason| format!("the Service with UID {uid}: {reason}");
        let grace = self.seamless.as_ref().map_or(0, |options| options.grace_period);
        let deadline = Instant::now() + Duration::from_secs(u64::from(grace)) + MAX_AFTER_GRACE;
        while self.reconciler.mover.records.get(uid, Size::Large).await.map_err(unread)?.is_some() {
            if Instant::now() > deadline {
                let problem = "it has moved, but the server has not deleted its temporary Services yet: read the log of \
                               the server";
                return Err(problem.to_owned());
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Asks the server to move a Service: returns what happened, or why the Service was not moved.
    async fn hand_over(&self, job: Job) -> Result<String, String> {
        let Job { id, uid, from, order } = job;
        // Addresses that this process has reserved for the Service would get in the server's way.
        drop(order);
        let request = self.request(&id, &uid);
        let now = requests::hand_over(&self.client, &self.deployed.namespace, &request, &from).await?;
        Ok(format!("moved from {} to {}", joined(&from, ","), joined(&now, ",")))
    }

    /// Moves a Service: returns what happened, or why the Service was not moved. Large Services move one at a time.
    async fn move_it(&self, job: Job) -> Result<String, String> {
        let finishes = job.order.is_none();
        let _turn = match &job.order {
            Some(Order { size: Size::Usual, .. }) => None,
            _ => Some(self.large.lock().await),
        };
        let ended = match job.order {
            Some(Order { misplaced, size, to, evaluation }) => {
                let live = match self.reconciler.movable(&job.id, &misplaced, Size::Large).await {
                    Ok(Movable::Yes(live)) => *live,
                    Ok(_) => return Err("it was changed after it was listed".to_owned()),
                    Err(error) => return Err(error_message(&error)),
                };
                let order = (to, evaluation, self.seamless.clone());
                self.reconciler.carry_out(&job.id, live, &misplaced, order, size).await
            }
            None => {
                let record = self.reconciler.mover.records.get(&job.uid, Size::Large).await;
                match record.map_err(|error| error.to_string())? {
                    Some(journal) => self.reconciler.finish(&journal, Size::Large).await,
                    None => Ok(Outcome::Unmoved(Unmoved::NotMoving)),
                }
            }
        };
        match ended {
            Ok(outcome @ Outcome::Moved { .. }) => Ok(outcome.to_string()),
            // Only temporary Services or a record were left of the move.
            Ok(Outcome::Unmoved(Unmoved::NotMoving | Unmoved::NotBegun | Unmoved::Gone)) if finishes => {
                Ok("its move has ended".to_owned())
            }
            Ok(outcome) => Err(outcome.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn request(&self, id: &ServiceKey, uid: &str) -> MoveRequest {
        MoveRequest {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            uid: uid.to_owned(),
            control_plane: self.command.options.called_by_control_plane.contains(id),
            seamless: self.seamless.clone(),
        }
    }
}

fn print_result(ServiceKey { namespace, name }: &ServiceKey, ended: &Result<String, NotMoved>) {
    let (mark, text) = match ended {
        Ok(text) => (paint(style::GOOD, "moved"), text.clone()),
        Err(reason) => (paint(style::ERROR, "failed"), reason.to_string()),
    };
    anstream::eprintln!("{mark} {}", harmless(&format!("{namespace}/{name}: {text}")));
}

fn new_row(id: &ServiceKey, from: Vec<IpAddr>) -> Row {
    Row { namespace: id.namespace.clone(), name: id.name.clone(), from, ..Row::default() }
}

fn method_of(reconciler: &Reconciler, service: &StoredService, to: &[IpAddr], is_seamless: bool) -> Method {
    let evaluator = &reconciler.evaluator;
    let endpoints = misplaced::stored_endpoints(evaluator.stores(), &evaluator.settings().settings, service);
    match method(&service.value(), to, endpoints.ready > 0) {
        Method::Seamless if !is_seamless => Method::Plain(NOT_ASKED),
        method => method,
    }
}

/// The row of a Service, and its move if that is possible; `None` if the Service stays out of the list.
async fn row(
    reconciler: &Arc<Reconciler>,
    id: &ServiceKey,
    service: &Arc<StoredService>,
    inspection: Inspection,
) -> anyhow::Result<Option<(Row, Option<Job>)>> {
    let mut row = new_row(id, service.addresses().to_vec());
    let misplaced = match inspection {
        Inspection::InPlace => return Ok(None),
        Inspection::HalfMoved => {
            row.why = "it looks as if a move has begun".to_owned();
            let uid = service.uid().into_owned();
            let stays = match reconciler.mover.records.get(&uid, Size::Large).await {
                Ok(Some(_)) => None,
                Ok(None) => Some(Unmoved::NotRecorded.to_string()),
                Err(error) => Some(error.to_string()),
            };
            if stays.is_some() {
                return Ok(Some((Row { stays, ..row }, None)));
            }
            row.to = Some(Vec::new());
            let job = Job { id: id.clone(), uid, from: row.from.clone(), order: None };
            return Ok(Some((row, Some(job))));
        }
        Inspection::Misplaced(misplaced) => misplaced,
    };
    row.why.clone_from(&misplaced.why);
    let (stuck, stays) = match (reconciler.movable(id, &misplaced, Size::Large).await, &misplaced.stays) {
        // The Service was changed a moment ago: its author is working on it.
        (Ok(Movable::Changed), _) => return Ok(None),
        (Ok(Movable::SetByHand), _) => (false, BY_HAND.to_owned()),
        (Err(error), _) => (true, format!("it can't be read: {}", error_message(&error))),
        (Ok(Movable::Yes(_) | Movable::Larger(_)), Some((reason, detail))) => {
            (*reason == StayReason::PoolFull, detail.clone())
        }
        (Ok(Movable::Larger(_)), None) => (true, Unmoved::TooLarge.to_string()),
        // The addresses are reserved in this process alone, so that no two rows of the table name the same address.
        (Ok(Movable::Yes(live)), None) => match reconciler.reserve_targets(Arc::clone(service)).await {
            Ok((to, evaluation)) => {
                let size = Size::of(counted_bytes(live.to_string().as_bytes())).unwrap_or(Size::Large);
                row.to = Some(to.clone());
                let (id, uid, from) = (id.clone(), misplaced.uid.clone(), misplaced.from.clone());
                let order = Some(Order { misplaced, size, to, evaluation });
                return Ok(Some((row, Some(Job { id, uid, from, order }))));
            }
            Err(reason) => (true, reason.to_string()),
        },
    };
    Ok(Some((Row { stuck, stays: Some(stays), ..row }, None)))
}
