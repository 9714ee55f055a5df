//! `clusterip move`

use std::io::{self, BufRead, IsTerminal, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use clusterip_core::service_key::ServiceKey;
use clusterip_host::cluster::ledger::Ledger;
use clusterip_host::cluster::snapshot::addresses;
use clusterip_host::cluster::stores::Stores;
use clusterip_host::evaluator::{Evaluation, Evaluator};
use clusterip_host::live_settings::Follower;
use clusterip_host::object::text;
use clusterip_host::permissions::{self, Duties};
use clusterip_host::policy::module::{EMBEDDED, Module};
use clusterip_leases::election::Timing;
use clusterip_leases::identity::{Identity, Role};
use clusterip_leases::leader::{Acquisition, Leader};
use clusterip_runtime::api_error::error_message;
use clusterip_runtime::connect;
use clusterip_runtime::style;
use clusterip_runtime::terminal::harmless;
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kube::Client;
use serde_json::Value;
use tokio::sync::watch;

use super::deployed;
use crate::joined::joined;
use crate::report::columns::paint;
use crate::report::move_table::{Row, table};
use crate::server_metrics::ServerMetrics;
use crate::services::hand_over;
use crate::services::journal::Journal;
use crate::services::misplaced::{self, Allowed, Inspection, Misplaced, Verdict};
use crate::services::outcome::{Outcome, Unmoved};
use crate::services::reconcile::{BY_HAND, Movable, Reconciler};
use crate::services::requests::Request;
use crate::services::service_metrics::Misplaced as Reason;

/// The text at the end of `clusterip help move`.
pub const HELP: &str = "\
Examples:
  What would move, and why:
    clusterip move --dry-run
  One Service, without confirmation:
    clusterip move --namespace shop --service web --yes

A Service is never deleted: for some milliseconds it is of type ExternalName, and then it has the new
address. All other fields stay. Addresses set by hand are never changed. If `clusterip serve`
runs in the cluster, it carries out the moves.

Exit status: 0; 1 if a Service could not be moved; 2 if the command can't start.";

/// The number of Services that move at once.
const MAX_PARALLEL_MOVES: usize = 4;

/// Arguments of `move`.
#[derive(Debug, Args)]
pub struct Move {
    /// The kubeconfig for the cluster [default: $KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The settings [default: those of the ConfigMap clusterip-settings beside a server, otherwise `{}`]
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The namespace of `clusterip serve` [default: the namespace of its Lease]
    #[arg(long, value_name = "NAMESPACE")]
    server_namespace: Option<String>,
    /// Only Services in this namespace
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Only this Service
    #[arg(long, value_name = "NAME", requires = "namespace")]
    service: Option<String>,
    /// Also move Services of type LoadBalancer: their cloud may remove the load balancer during the move
    #[arg(long)]
    load_balancers: bool,
    /// Also move this Service, although the control plane calls it: a webhook, an aggregated API or a CRD conversion
    /// may fail during the move. May be given several times
    #[arg(long, value_name = "NAMESPACE/NAME")]
    called_by_control_plane: Vec<ServiceKey>,
    /// Only show what would move
    #[arg(long)]
    dry_run: bool,
    /// Move without asking for confirmation
    #[arg(long, short)]
    yes: bool,
}

/// A Service that is going to move.
enum Job {
    /// Moves the Service to addresses that are reserved for it.
    Move { live: Box<Value>, misplaced: Box<Misplaced>, to: Vec<IpAddr>, evaluation: Box<Evaluation> },
    /// Finishes a recorded move.
    Finish { journal: Box<Journal>, from: Vec<IpAddr> },
}

impl Job {
    fn id(&self) -> ServiceKey {
        match self {
            Self::Move { misplaced, .. } => ServiceKey::new(misplaced.namespace.clone(), misplaced.name.clone()),
            Self::Finish { journal, .. } => ServiceKey::new(journal.namespace.clone(), journal.name.clone()),
        }
    }
}

impl Move {
    /// Lists the misplaced Services, asks for confirmation, and moves them.
    ///
    /// # Errors
    /// If the command can't start.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let done = runtime.block_on(self.work());
        runtime.shutdown_background();
        done
    }

    async fn work(&self) -> anyhow::Result<ExitCode> {
        let client = connect::client(self.kubeconfig.as_deref()).await?;
        let namespace = deployed::server_namespace(&client, self.server_namespace.as_deref()).await?;
        let source = deployed::settings(&client, &namespace, self.settings.as_deref()).await?;
        let module = Arc::new(Module::new(EMBEDDED)?);
        let metrics = ServerMetrics::new();
        let ledger = Ledger::default();
        let seen = ledger.clone();
        let (stores, _changes) =
            Stores::new(client.clone(), metrics.cluster.clone(), move |address| seen.seen(address));
        stores.ask_for_service_cidrs().await;
        let follower =
            Follower::start(source.clone(), Arc::clone(&module), stores.service_cidrs(), metrics.cluster.clone())
                .await?;
        let settings = follower.subscribe();
        let load_balancers = self.load_balancers;
        let duties = Duties { namespace: namespace.clone(), moves: true, load_balancers, ..Duties::default() };
        permissions::check(&client, &settings.borrow().settings.clone(), &duties).await?;
        stores.watch(&settings.borrow().settings);
        stores.completed().await;
        stores.control_plane_services().settled().await;
        let evaluator = Evaluator::new(module, settings, stores, ledger, metrics.evaluation.clone());
        // The user has seen the list, so a Service with ready endpoints may move, too.
        let allowed = Allowed { any: true, ready: true, load_balancers: self.load_balancers };
        let reconciler = Arc::new(Reconciler::new(evaluator, client.clone(), &namespace, metrics.services, allowed));

        anstream::eprintln!("settings: {}", harmless(&source.to_string()));
        let (rows, jobs) = self.list(&reconciler).await?;
        if rows.is_empty() {
            super::output(b"nothing is misplaced\n")?;
            return Ok(ExitCode::SUCCESS);
        }
        super::output(table(&rows)?.as_bytes())?;
        let stay = rows.iter().filter(|row| row.stays.is_some()).count();
        // A Service that stays for a good reason is not a failure; one that finds no address is.
        let stuck = rows.iter().any(|row| row.stuck);
        if self.dry_run || jobs.is_empty() {
            super::output(format!("\n{} to move, {stay} stay\n", jobs.len()).as_bytes())?;
            return Ok(if stuck && !self.dry_run { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        if !self.yes && !ask(jobs.len())? {
            super::output(b"nothing was moved\n")?;
            return Ok(ExitCode::SUCCESS);
        }
        let count = jobs.len();
        let failed = self.carry_out(&client, &namespace, &reconciler, jobs).await?;
        super::output(format!("moved {} of {count}, {stay} stay\n", count - failed.len()).as_bytes())?;
        for (ServiceKey { namespace, name }, reason) in &failed {
            let text = harmless(&format!("{namespace}/{name} was not moved: {reason}"));
            anstream::eprintln!("{} {text}", paint(style::ERROR, "error:"));
        }
        Ok(if failed.is_empty() && !stuck { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The misplaced Services in order, and the moves that are possible.
    async fn list(&self, reconciler: &Arc<Reconciler>) -> anyhow::Result<(Vec<Row>, Vec<Job>)> {
        let stores = reconciler.evaluator().stores();
        let ids = stores.read_snapshot().services(self.namespace.as_deref());
        let wanted = ids.into_iter().filter(|id| self.service.as_ref().is_none_or(|service| *service == id.name));
        let wanted: Vec<ServiceKey> = wanted.collect();
        if let (true, Some(namespace), Some(name)) = (wanted.is_empty(), &self.namespace, &self.service) {
            bail!("there is no service {namespace}/{name}");
        }
        let (mut rows, mut jobs) = (Vec::new(), Vec::new());
        for id in wanted {
            let Some(service) = stores.service(&id) else { continue };
            let this = Arc::clone(reconciler);
            let (evaluator, at) = (this.evaluator().clone(), service.clone());
            let request = self.request(&id, text(&service, &["metadata", "uid"]));
            let inspect = move || misplaced::inspect(&evaluator, &at, this.allowed(), Some(&request));
            let inspection = tokio::task::spawn_blocking(inspect).await?;
            let inspection = inspection.with_context(|| format!("service {}/{}", id.namespace, id.name))?;
            let mut row = Row {
                namespace: id.namespace.clone(),
                name: id.name.clone(),
                from: addresses(&service),
                to: None,
                why: String::new(),
                stays: None,
                stuck: false,
            };
            match inspection {
                Inspection::InPlace | Inspection::Squats { .. } => continue,
                Inspection::HalfMoved => {
                    row.why = "it looks as if a move has begun".to_owned();
                    match reconciler.recorded(text(&service, &["metadata", "uid"])).await? {
                        Some(journal) => {
                            row.to = Some(Vec::new());
                            jobs.push(Job::Finish { journal: Box::new(journal), from: addresses(&service) });
                        }
                        None => row.stays = Some(Unmoved::NotRecorded.to_string()),
                    }
                }
                Inspection::Misplaced(misplaced) => {
                    row.why = misplaced.why();
                    match (reconciler.movable(&id, &misplaced).await, &misplaced.verdict) {
                        // The Service was changed a moment ago: its author is working on it.
                        (Ok(Movable::Changed), _) => continue,
                        (Ok(Movable::SetByHand), _) => row.stays = Some(BY_HAND.to_owned()),
                        (Err(error), _) => {
                            row.stuck = true;
                            row.stays = Some(format!("it can't be read: {}", error_message(&error)));
                        }
                        (Ok(Movable::Yes(_)), Verdict::Report { reason, detail }) => {
                            row.stuck = *reason == Reason::PoolFull;
                            row.stays = Some(detail.clone());
                        }
                        // The addresses are reserved in this process alone, so that no two rows of the table name
                        // the same address.
                        (Ok(Movable::Yes(live)), Verdict::Move) => match reconciler.hold_targets(service).await {
                            Ok((to, evaluation)) => {
                                row.to = Some(to.clone());
                                jobs.push(Job::Move { live, misplaced, to, evaluation });
                            }
                            Err(reason) => {
                                row.stuck = true;
                                row.stays = Some(reason);
                            }
                        },
                    }
                }
            }
            rows.push(row);
        }
        Ok((rows, jobs))
    }

    /// Moves the Services, and returns those that could not be moved, in order, each with the reason.
    async fn carry_out(
        &self,
        client: &Client,
        namespace: &str,
        reconciler: &Arc<Reconciler>,
        jobs: Vec<Job>,
    ) -> anyhow::Result<Vec<(ServiceKey, String)>> {
        let mut leader = Leader::new(client.clone(), namespace, Identity::new(Role::Move), Timing::default());
        let held = match leader.try_acquire().await? {
            Acquisition::Acquired => None,
            Acquisition::HeldBy(holder) if holder.role() == Some(Role::Move) => {
                bail!("another `clusterip move` is running: {}", holder.as_str())
            }
            Acquisition::HeldBy(holder) => Some(holder),
        };
        if let Some(holder) = &held {
            anstream::eprintln!("handed over to {}", harmless(holder.as_str()));
        }
        let (done, ended) = watch::channel(false);
        let led = held.is_none().then(|| {
            let mut ended = ended.clone();
            tokio::spawn(leader.run(async move {
                let _ = ended.wait_for(|done| *done).await;
            }))
        });
        let bar = bar(jobs.len() as u64);
        let handed_over = held.is_some();
        let moves = jobs.into_iter().map(|job| {
            let bar = bar.clone();
            async move {
                let id = job.id();
                let ended = if handed_over {
                    self.hand_it_over(client, namespace, job).await
                } else {
                    move_it(reconciler, job).await
                };
                bar.suspend(|| print_result(&id, &ended));
                bar.inc(1);
                (id, ended)
            }
        });
        let mut ended: Vec<(ServiceKey, Result<String, String>)> =
            futures::stream::iter(moves).buffer_unordered(MAX_PARALLEL_MOVES).collect().await;
        bar.finish_and_clear();
        done.send_replace(true);
        if let Some(led) = led {
            let _ = led.await;
        }
        ended.sort();
        Ok(ended.into_iter().filter_map(|(id, ended)| Some((id, ended.err()?))).collect())
    }

    /// The request of this command to move a Service.
    fn request(&self, id: &ServiceKey, uid: &str) -> Request {
        Request {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            uid: uid.to_owned(),
            control_plane: self.called_by_control_plane.contains(id),
        }
    }

    /// Asks a running server to move a Service: returns what happened, or why the Service was not moved.
    async fn hand_it_over(&self, client: &Client, server_namespace: &str, job: Job) -> Result<String, String> {
        let id = job.id();
        let (from, uid) = match &job {
            Job::Move { misplaced, .. } => (misplaced.from.clone(), misplaced.uid.clone()),
            Job::Finish { journal, from } => (from.clone(), journal.uid.clone()),
        };
        // Addresses that this process has reserved for the Service would get in the server's way.
        drop(job);
        let request = self.request(&id, &uid);
        let now = hand_over::hand_over(client, server_namespace, &request, &from).await?;
        Ok(format!("moved from {} to {}", joined(&from, ","), joined(&now, ",")))
    }
}

/// Moves a Service: returns what happened, or why the Service was not moved.
async fn move_it(reconciler: &Reconciler, job: Job) -> Result<String, String> {
    let ended = match job {
        Job::Move { live, misplaced, to, evaluation } => reconciler.carry_out(*live, &misplaced, to, evaluation).await,
        Job::Finish { journal, .. } => reconciler.finish(&journal).await,
    };
    match ended {
        Ok(outcome @ Outcome::Moved { .. }) => Ok(outcome.to_string()),
        Ok(outcome) => Err(outcome.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Asks for confirmation.
fn ask(count: usize) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("standard input is not a terminal: --yes moves without asking, --dry-run only shows");
    }
    anstream::eprint!("\nMove {count} Services? [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn print_result(ServiceKey { namespace, name }: &ServiceKey, ended: &Result<String, String>) {
    let (mark, text) = match ended {
        Ok(text) => (paint(style::GOOD, "moved"), text),
        Err(text) => (paint(style::ERROR, "failed"), text),
    };
    anstream::eprintln!("{mark} {}", harmless(&format!("{namespace}/{name}: {text}")));
}

/// A progress bar, shown only on a terminal.
fn bar(count: u64) -> ProgressBar {
    let target = if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(count), target);
    match ProgressStyle::with_template("{wide_bar} {pos} of {len} Services") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
