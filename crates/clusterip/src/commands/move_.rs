//! `clusterip move`

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::harmless_text::harmless;
use clusterip_cluster::live_settings::{Follower, SettingsSource};
use clusterip_cluster::permissions::{self, Duties};
use clusterip_cluster::reservations::ledger::Ledger;
use clusterip_cluster::shutdown::{Interrupt, shutdown_signal};
use clusterip_cluster::watch::stores::Stores;
use clusterip_core::service_key::ServiceKey;
use futures::FutureExt;
use kube::Client;
use serde_json::Value;
use tokio::sync::Mutex;

mod jobs;

use self::jobs::{Job, Run};
use super::arguments::{self, DnsArguments, MoveOptions, Scope, ServiceName};
use super::leading_server::LeadingServer;
use super::missing_permissions::Reads;
use super::terminal::{TerminalOptions, notice, print_error};
use crate::report::columns::Layout;
use crate::report::moves::{self, Ended, NotMoved, Row};
use crate::server_metrics::ServerMetrics;
use crate::services::controller::reconcile::Reconciler;
use crate::services::misplaced::Allowed;
use crate::text::several;

const HELP: &str = "\
Examples:
  List the moves and their reasons:
    clusterip move --dry-run
  One Service, without confirmation:
    clusterip move --namespace shop --service web --yes
  The Services with these labels:
    clusterip move --all-namespaces --selector app=web,tier!=back --dry-run
  Without failed requests, two Services at once, until the old addresses are free:
    clusterip move --seamless --at-once 2 --wait --yes
  With a settings file, if no server runs:
    clusterip init >settings.yaml
    clusterip move --settings settings.yaml --dry-run

The command deletes no Service that it moves: the Service has type ExternalName for some milliseconds, \
and then the new address. All other fields stay unchanged. Addresses set by hand are never changed. If a \
server (`clusterip serve`) leads in the cluster, the command uses its settings, and the server carries \
out the moves.

With --seamless, both addresses answer during the move: temporary Services have the new address before \
the Service gets it, and the old address until DNS has forgotten it.

After Ctrl-C or SIGTERM, the command begins no further move, and ends when the moves that have begun are \
finished: within about a minute, with --seamless after the grace period. The other Services keep their \
addresses. Before the first move, the command ends at once. A command that was killed can be run again: \
it finishes the moves that have begun.

Exit status: 0; 1 if a Service could not be moved, or the command was interrupted; 2 if the command \
can't start.";

#[derive(Debug, Default, Args)]
#[command(after_long_help = HELP, group(DnsArguments::requiring("seamless")))]
pub struct MoveArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The settings file, or - for standard input [default: the settings of the server that leads, or else the pools of
    /// the cluster]. If the server uses other settings, only --dry-run is possible
    #[arg(short, long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The namespace of the server [default: the namespace in which a server leads]
    #[arg(long, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    server_namespace: Option<String>,
    #[command(flatten)]
    scope: Scope,
    /// Only this Service. With --namespace, or a context that has a namespace, its name is enough
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with_all = ["all_namespaces", "selector"])]
    service: Option<ServiceName>,
    #[command(flatten)]
    options: MoveOptions,
    /// Move Services with ready endpoints seamlessly: both addresses answer during the move. Needs the permissions of
    /// deploy/seamless
    #[arg(long)]
    seamless: bool,
    /// If a server carries out the moves: wait until the old addresses have stopped answering, and the temporary
    /// Services are deleted. Without a server, the command always waits
    #[arg(long, requires = "seamless")]
    wait: bool,
    #[command(flatten)]
    dns: DnsArguments,
    /// Begin no further move after one has failed
    #[arg(long)]
    stop_on_failure: bool,
    /// Only list the moves. Needs only read permissions
    #[arg(long)]
    dry_run: bool,
    /// Move without asking for confirmation
    #[arg(long, short)]
    yes: bool,
    /// The output format. JSON needs --yes or --dry-run
    #[arg(long, short, value_enum, default_value = "table")]
    output: Output,
    /// Print tables without headers
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    terminal: TerminalOptions,
    /// The settings of another command that moves Services, in place of `settings`.
    #[arg(skip)]
    document: Option<Value>,
    /// The Services that another command does not move, and does not list.
    #[arg(skip)]
    left_out: Vec<ServiceKey>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

impl MoveArguments {
    /// As `clusterip move --all-namespaces --seamless --wait --yes`, except for the Services that are left out. Without a
    /// document, the settings are those of the server or the pools of the cluster.
    pub fn seamlessly(
        cluster: &ClusterArguments,
        server_namespace: Option<String>,
        document: Option<Value>,
        left_out: Vec<ServiceKey>,
        options: &MoveOptions,
        dns: &DnsArguments,
    ) -> Self {
        let scope = Scope { all_namespaces: true, ..Scope::default() };
        let (cluster, options, dns) = (cluster.clone(), options.clone(), dns.clone());
        let own = Self { cluster, server_namespace, document, left_out, options, dns, ..Self::default() };
        Self { scope, seamless: true, wait: true, yes: true, ..own }
    }

    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        super::block_on(self.work())
    }

    pub async fn work(&self) -> anyhow::Result<ExitCode> {
        if self.output == Output::Json && !self.yes && !self.dry_run {
            bail!(
                "-o json does not ask for confirmation: use --yes to move without asking, or --dry-run to only list \
                 the moves"
            );
        }
        let interrupt: Interrupt = shutdown_signal().boxed_local().shared();
        // The command holds no Lease before the moves, so a signal may stop the preparation at any point.
        let (run, rows, jobs) = tokio::select! {
            biased;
            () = interrupt.clone() => return Ok(interrupted_before_the_moves()),
            prepared = self.prepare() => prepared?,
        };
        let (count, stay) = (jobs.len(), rows.iter().filter(|row| row.stays.is_some()).count());
        // A Service that stays for a good reason is not a failure; one that finds no address is.
        let stuck = rows.iter().any(|row| row.stuck);
        self.print(&match rows.as_slice() {
            [] => "nothing is misplaced\n".to_owned(),
            rows => moves::table(rows, self.dry_run || self.seamless, Layout::of_stdout(self.no_headers)),
        })?;
        if self.dry_run || jobs.is_empty() {
            if !rows.is_empty() {
                self.print(&format!("\n{count} to move, {stay} stay\n"))?;
            }
            self.print_json(&rows, &Ended::new())?;
            return Ok(if stuck && !self.dry_run { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        if !self.yes {
            let question = format!("Move {}?", several(count, "Service"));
            let otherwise = "use --yes to move without asking, or --dry-run to only list the moves";
            let is_confirmed = tokio::select! {
                biased;
                () = interrupt.clone() => {
                    // The question has no line end.
                    anstream::eprintln!();
                    return Ok(interrupted_before_the_moves());
                }
                is_confirmed = confirm(&question, otherwise) => is_confirmed?,
            };
            if !is_confirmed {
                self.print("nothing was moved\n")?;
                return Ok(ExitCode::SUCCESS);
            }
        }
        let ended = run.carry_out(jobs, interrupt).await?;
        let failed: Vec<_> = ended.iter().filter_map(|(id, ended)| Some((id, ended.as_ref().err()?))).collect();
        let moved = count - failed.len();
        self.print(&format!("moved {moved} of {count}, {stay} stay\n"))?;
        self.print_json(&rows, &ended)?;
        // The last line counts the Services whose moves have not begun.
        let (not_begun, tried): (Vec<_>, Vec<_>) =
            failed.iter().partition(|(_, reason)| matches!(reason, NotMoved::Interrupted | NotMoved::Stopped));
        for (ServiceKey { namespace, name }, reason) in tried {
            print_error(&harmless(&format!("{namespace}/{name} was not moved: {reason}")));
        }
        if let Some((_, reason)) = not_begun.first() {
            let why = if matches!(reason, NotMoved::Stopped) { "stopped after a failure" } else { "interrupted" };
            print_error(&format!("{why}: {moved} of {count} Services were moved"));
        }
        Ok(if failed.is_empty() && !stuck { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Everything that the moves need, and the list of the misplaced Services.
    async fn prepare(&self) -> anyhow::Result<(Run<'_>, Vec<Row>, Vec<Job>)> {
        let of_scope = || self.scope.namespace(&self.cluster);
        self.scope.announce_namespace(&self.cluster, self.service.as_ref());
        let named = self.service.as_ref().map(|service| service.key(&self.scope, of_scope)).transpose()?;
        let namespace = named.as_ref().map_or_else(of_scope, |named| Some(named.namespace.clone()));
        let client = self.cluster.client().await?;
        let mut reads = Reads::default();
        let run = self.run_in(client.clone(), &mut reads).await;
        let run = reads.explain(&client, run).await?;
        let (rows, jobs) = run.list(namespace.as_deref(), named.as_ref()).await?;
        Ok((run, rows, jobs))
    }

    async fn run_in(&self, client: Client, reads: &mut Reads) -> anyhow::Result<Run<'_>> {
        let given = self.server_namespace.as_deref();
        arguments::check_namespace_in_cluster(&client, given, "--server-namespace").await?;
        reads.duties = Some(self.duties(given.unwrap_or(client.default_namespace()), false));
        reads.more = LeadingServer::needs(given);
        let deployed = LeadingServer::find(&client, given, self.settings.is_none() || !self.dry_run).await?;
        let duties = self.duties(&deployed.namespace, deployed.leader.is_some());
        reads.duties = Some(duties.clone());
        if !self.dry_run && deployed.leader.is_none() {
            deployed.no_leader_elsewhere(&client).await?;
        }
        let source = match &self.document {
            Some(document) => SettingsSource::Document(document.clone()),
            None => deployed.settings(&client, self.settings.as_deref(), &mut reads.more).await?,
        };
        let metrics = ServerMetrics::new();
        let ledger = Ledger::default();
        let watched = ledger.clone();
        let of_cluster = metrics.cluster.clone();
        let stores = Stores::new(client.clone(), of_cluster, move |service| watched.mark_seen(service), |_| ());
        stores.ask_for_service_cidrs().await?;
        let follower = Follower::start(source.clone(), stores.service_cidrs(), metrics.cluster.clone()).await?;
        let settings = follower.subscribe();
        permissions::check(&client, &settings.borrow().settings.clone(), &duties).await?;
        let follower = follower.watching(&stores);
        stores.completed().await;
        stores.control_plane_services().wait_until_listed().await;
        let evaluator = Evaluator::new(settings, stores, ledger, metrics.evaluation.clone());
        // The user has seen the list, so a Service with ready endpoints may move, too.
        let allowed = Allowed { any: true, ready: true, seamless: None, load_balancers: self.options.load_balancers };
        let reconciler = Reconciler::new(evaluator, client.clone(), &deployed.namespace, metrics.services, allowed);
        notice(&deployed.settings_notice(&source));
        let seamless = self.dns.options(&client, self.seamless).await;
        if let Some(options) = &seamless {
            notice(&format!("after a seamless move, the old address answers for {} s", options.grace_period));
        }
        let (reconciler, large) = (Arc::new(reconciler), Mutex::default());
        let run = Run { command: self, client, deployed, source, reconciler, _followed: follower, seamless, large };
        if !self.dry_run && run.deployed.leader.is_some() {
            run.check(true).await?;
        }
        Ok(run)
    }

    /// The duties of the command. With `by_server`, a server leads and carries the moves out.
    fn duties(&self, namespace: &str, by_server: bool) -> Duties {
        Duties {
            namespace: namespace.to_owned(),
            moves: !self.dry_run && !by_server,
            previews_moves: self.dry_run,
            requests_moves: !self.dry_run && by_server,
            load_balancers: self.options.load_balancers,
            seamless: self.seamless && !self.dry_run,
            ..Duties::default()
        }
    }

    fn print(&self, text: &str) -> anyhow::Result<()> {
        if self.output == Output::Table { super::output(text.as_bytes()).map(|_| ()) } else { Ok(()) }
    }

    fn print_json(&self, rows: &[Row], ended: &Ended) -> anyhow::Result<()> {
        if self.output == Output::Json {
            super::output(moves::document(rows, ended, self.dry_run)?.as_bytes())?;
        }
        Ok(())
    }
}

fn interrupted_before_the_moves() -> ExitCode {
    print_error("interrupted: no Service was moved");
    ExitCode::FAILURE
}

/// Asks for confirmation. `otherwise` says what to do without a terminal. If the future is dropped, a thread still waits
/// for the answer until the process ends.
pub async fn confirm(question: &str, otherwise: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("standard input is not a terminal: {otherwise}");
    }
    anstream::eprint!("\n{question} [y/N] ");
    io::stderr().flush()?;
    let read = || {
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).map(|_| answer)
    };
    let answer = tokio::task::spawn_blocking(read).await??;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
