//! `clusterip renumber`

use std::collections::BTreeSet;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use clusterip_cluster::api_error::{error_chain, failed};
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::live_settings;
use clusterip_cluster::shutdown::{Interrupt, shutdown_signal};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{Pool, parse_cidr};
use clusterip_moves::renumbering::change::Direction;
use clusterip_moves::renumbering::record::{Phase, Record, Side, Swap};
use clusterip_moves::renumbering::step::Goal;
use futures::{FutureExt as _, StreamExt as _, poll};
use ipnet::IpNet;
use kube::Client;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, watcher};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::arguments::{DnsArguments, MoveOptions};
use super::given_settings::pool_needs;
use super::leading_server::LeadingServer;
use super::missing_permissions::Reads;
use super::move_::{MoveArguments, Output, confirm};
use super::terminal::{TerminalOptions, heartbeat, notice, print_error, warn};
use crate::renumber::check::{self, Check};
use crate::renumber::objects::{self, ENDPOINT_SLICE};
use crate::renumber::observe::Observer;
use crate::renumber::run::{End, Run, changed_pools, keep_equal};
use crate::renumber::store::Store;
use crate::report::columns::Layout;
use crate::report::renumber::{self, Status};
use crate::services::controller::stored_settings::{self, SettingsOrigin};
use crate::starter;
use crate::text::joined;

/// How often `clusterip renumber keep` looks at the endpoints when they do not change.
const KEEP_INTERVAL: Duration = Duration::from_secs(2);
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// After this time, the API server ends a request to which this command sets no limit.
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows what happens to each Service if the Service ranges change, and what must be done first. Changes nothing
    Check(CheckArguments),
    /// Adds the new ranges, and moves the Services to them
    Begin(BeginArguments),
    /// After the API servers were restarted: gives default/kubernetes and DNS new addresses, and keeps the old ones
    Switch(MovingArguments),
    /// Keeps the endpoints of the old address of default/kubernetes equal to those of the API servers, until finish
    Keep(CommonArguments),
    /// Shows how far the renumbering is. Changes nothing
    Status {
        #[command(flatten)]
        common: CommonArguments,
        /// The output format
        #[arg(long, short, value_enum, default_value = "table")]
        output: Output,
    },
    /// Removes the old addresses and ranges, when nothing uses them any more
    Finish {
        #[command(flatten)]
        moving: MovingArguments,
        /// Do not ask the kubelets which DNS address they give to Pods: all of them give the new one
        #[arg(long)]
        kubelets_changed: bool,
        /// Remove the old addresses although Pods or kubelets use them, and cut these off
        #[arg(long)]
        force: bool,
    },
    /// Before the switch: moves all Services back, and removes the new ranges
    Rollback(MovingArguments),
}

const CHECK_HELP: &str = "\
Examples:
  clusterip renumber check --to 10.100.0.0/16
  Both families of a dual-stack cluster, for a program:
    clusterip renumber check --to 10.100.0.0/16,fd00:100::/112 -o json

The command reads Services, Pods, Nodes, EndpointSlices, policies and the configuration of the cluster, and asks \
each kubelet for its configuration if the user may get nodes/proxy. It reads the certificates of the API servers \
from where it runs.

Exit status: 0; 1 if something must be changed before the renumbering can begin; 2 if the cluster can't be read, \
or can't be renumbered.";

#[derive(Debug, Args)]
#[command(after_long_help = CHECK_HELP)]
pub struct CheckArguments {
    #[command(flatten)]
    common: CommonArguments,
    /// The new Service ranges, at most one of each IP family. A family that is not named keeps its range
    #[arg(long, value_name = "CIDR", required = true, value_delimiter = ',', value_parser = parse_cidr)]
    to: Vec<IpNet>,
    /// Services of type LoadBalancer will be moved, too
    #[arg(long)]
    load_balancers: bool,
    /// The output format
    #[arg(long, short, value_enum, default_value = "table")]
    output: Output,
    /// Print tables without headers
    #[arg(long)]
    no_headers: bool,
}

const BEGIN_HELP: &str = "\
Examples:
  Show the report of clusterip renumber check, and the pools as they will be:
    clusterip renumber begin --to 10.100.0.0/16 --dry-run
  Begin, or continue:
    clusterip renumber begin --to 10.100.0.0/16

The command adds the ServiceCIDRs clusterip-old and clusterip-new, changes the ranges of the ServicePools, and moves \
all Services as clusterip move --seamless does. It records its progress, so that it can be killed and run again. \
clusterip renumber rollback undoes it.

A Service that can't move keeps its address, and the command names it.

After Ctrl-C or SIGTERM, the command ends when the moves and the swap that have begun are finished.

Exit status: 0; 1 if something must be changed first, or the command was interrupted; 2 after any other error.";

#[derive(Debug, Args)]
#[command(after_long_help = BEGIN_HELP)]
pub struct BeginArguments {
    #[command(flatten)]
    moving: MovingArguments,
    /// The new Service ranges, at most one of each IP family. A family that is not named keeps its range
    #[arg(long, value_name = "CIDR", required = true, value_delimiter = ',', value_parser = parse_cidr)]
    to: Vec<IpNet>,
    /// Only show the report of clusterip renumber check, and the pools as they will be. Needs only read permissions
    #[arg(long)]
    dry_run: bool,
    /// Begin without asking for confirmation
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Args)]
pub struct MovingArguments {
    #[command(flatten)]
    common: CommonArguments,
    #[command(flatten)]
    options: MoveOptions,
    #[command(flatten)]
    dns: DnsArguments,
}

#[derive(Debug, Args)]
pub struct CommonArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The namespace of the server [default: the namespace in which a server leads]
    #[arg(long, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    server_namespace: Option<String>,
    #[command(flatten)]
    terminal: TerminalOptions,
}

impl Command {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        super::block_on(async {
            match self {
                Self::Check(arguments) => arguments.work().await,
                Self::Begin(arguments) => arguments.work().await,
                Self::Switch(moving) => moving.continue_to(Goal::Switch, true).await,
                Self::Keep(common) => common.keep().await,
                Self::Status { common, output } => common.status(*output).await,
                Self::Finish { moving, force, kubelets_changed } => {
                    moving.continue_to(Goal::Finish { force: *force }, !kubelets_changed).await
                }
                Self::Rollback(moving) => moving.continue_to(Goal::Rollback, true).await,
            }
        })
    }
}

impl CheckArguments {
    async fn work(&self) -> anyhow::Result<ExitCode> {
        let client = self.common.client().await?;
        let _alive = heartbeat("reading the cluster");
        let check = self.common.check(&client, &self.to, self.load_balancers).await?;
        print(self.output, &check, |check| renumber::table(check, Layout::of_stdout(self.no_headers)))?;
        Ok(if check.summary.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl BeginArguments {
    async fn work(&self) -> anyhow::Result<ExitCode> {
        let common = &self.moving.common;
        let (observer, mut store) = common.connect().await?;
        if let Some(record) = store.read().await? {
            let begun: BTreeSet<IpNet> = record.change.0.iter().map(|pair| pair.to).collect();
            if begun != self.to.iter().copied().collect() {
                let begun = joined(begun, ",");
                bail!("a renumbering to {begun} has begun: finish it, or use clusterip renumber rollback");
            }
            return self.moving.run_to(Goal::Begin, observer, store, record).await;
        }
        let check = common.check(&observer.client, &self.to, self.moving.options.load_balancers).await?;
        let pools = changed_pools(&observer.client, &check.change).await.unwrap_or_default();
        super::output(renumber::table(&check, Layout::of_stdout(false)).as_bytes())?;
        if !pools.is_empty() {
            super::output(format!("\nThe pools become:\n{}", renumber::pools(&pools)?).as_bytes())?;
        }
        if !check.summary.ready || self.dry_run {
            return Ok(if check.summary.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if !self.yes && !confirm("Begin?", "use --yes to begin without asking, or --dry-run").await? {
            notice("nothing was changed");
            return Ok(ExitCode::SUCCESS);
        }
        store.write(&check.record).await?;
        self.moving.run_to(Goal::Begin, observer, store, check.record).await
    }
}

impl CommonArguments {
    async fn client(&self) -> anyhow::Result<Client> {
        self.terminal.apply();
        Ok(self.cluster.client().await?)
    }

    /// The observer of the cluster, and the store that reads the record. The namespace of the record is that of the
    /// server; without a server, it is one in which only administrators write.
    async fn connect(&self) -> anyhow::Result<(Observer, Store)> {
        let client = self.client().await?;
        let namespace = match &self.server_namespace {
            Some(given) => given.clone(),
            None => {
                let server = LeadingServer::find(&client, None, true).await?;
                let is_context = server.leader.is_none() && server.namespace == client.default_namespace();
                if is_context { "kube-system".to_owned() } else { server.namespace }
            }
        };
        let store = Store::new(&client, &namespace);
        Ok((Observer::new(client, &namespace), store))
    }

    async fn status(&self, output: Output) -> anyhow::Result<ExitCode> {
        let (mut observer, mut store) = self.connect().await?;
        let mut status = None;
        if let Some(record) = store.read().await? {
            let observed = observer.observe(Goal::Finish { force: false }, &record).await?;
            status = Some(Status::of(record, observed));
        }
        print(output, &status, |status| renumber::status_table(status.as_ref()))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Keeps the copied endpoints equal until the record is gone. As a Deployment, it waits for the record first.
    async fn keep(&self) -> anyhow::Result<ExitCode> {
        let (Observer { client, .. }, mut store) = self.connect().await?;
        let mut interrupt = pin!(shutdown_signal());
        let of_kubernetes = Config::default().labels("kubernetes.io/service-name=kubernetes");
        let mut changes =
            pin!(watcher(objects::api(&client, ENDPOINT_SLICE, Some("default")), of_kubernetes).default_backoff());
        let (mut was_recorded, mut pause) = (false, KEEP_INTERVAL);
        loop {
            let kept = async {
                let Some(record) = store.read().await? else { return Ok(false) };
                keep_equal(&client, &record).await?;
                anyhow::Ok(true)
            };
            match kept.await {
                Ok(false) if was_recorded => return Ok(ExitCode::SUCCESS),
                Ok(is_recorded) => (was_recorded, pause) = (is_recorded, KEEP_INTERVAL),
                // While an API server restarts, the alias may still send connections to it. The next connection may
                // reach another API server.
                Err(error) => {
                    warn(&error_chain(&*error));
                    pause = if pause == KEEP_INTERVAL { FIRST_RETRY } else { KEEP_INTERVAL.min(2 * pause) };
                }
            }
            tokio::select! {
                () = &mut interrupt => return Ok(ExitCode::SUCCESS),
                // Without events, as without the permission to watch, the pause ends the wait.
                _ = changes.next() => while let Some(Some(_)) = changes.next().now_or_never() {},
                () = sleep(pause) => {}
            }
        }
    }

    async fn check(&self, client: &Client, to: &[IpNet], load_balancers: bool) -> anyhow::Result<Check> {
        let server = self.server_namespace.as_deref();
        let more = [check::needs(), pool_needs(), LeadingServer::needs(server)].concat();
        let checked = async {
            let unmapped = unmapped_settings(client, &LeadingServer::find(client, server, true).await?).await?;
            check::check(client, to, load_balancers, unmapped, &self.cluster.server_addresses().await).await
        };
        Reads { more, ..Reads::default() }.explain(client, checked.await).await
    }
}

impl MovingArguments {
    async fn continue_to(&self, goal: Goal, asks_kubelets: bool) -> anyhow::Result<ExitCode> {
        let (mut observer, mut store) = self.common.connect().await?;
        let Some(record) = store.read().await? else {
            let namespace = observer.server_namespace;
            bail!("no renumbering is recorded in namespace {namespace}: clusterip renumber begin begins one");
        };
        observer.asks_kubelets = asks_kubelets;
        self.run_to(goal, observer, store, record).await
    }

    async fn run_to(&self, goal: Goal, observer: Observer, store: Store, record: Record) -> anyhow::Result<ExitCode> {
        let client = observer.client.clone();
        let mover = async |record: &Record, direction| self.move_services(&client, record, direction).await;
        let limit = Some(self.common.cluster.request_timeout).filter(|limit| !limit.is_zero());
        let request_timeout = limit.unwrap_or(API_SERVER_TIMEOUT);
        let interrupt: Interrupt = shutdown_signal().boxed_local().shared();
        // The first poll begins to listen for the signal.
        let _ = poll!(interrupt.clone());
        let cluster_domain = self.dns.options(&client, true).await.map(|dns| dns.cluster_domain).unwrap_or_default();
        let mut run = Run { store, observer, mover, report: &notice, request_timeout, cluster_domain, interrupt };
        match run.work(goal, record).await? {
            End::Done(text) => {
                super::output(format!("{text}\n").as_bytes())?;
                return Ok(ExitCode::SUCCESS);
            }
            End::Stopped(text) => print_error(&text),
            End::Interrupted => print_error("interrupted: the same command continues"),
        }
        Ok(ExitCode::FAILURE)
    }

    /// Moves Services as `clusterip move --seamless` does.
    async fn move_services(&self, client: &Client, record: &Record, direction: Direction) -> anyhow::Result<bool> {
        let CommonArguments { cluster, server_namespace, .. } = &self.common;
        let leads = LeadingServer::find(client, server_namespace.as_deref(), true).await?.leader.is_some();
        let pools = live_settings::list_if_defined(client).await;
        let has_pools = !pools.map_err(|error| failed("the pools of the cluster can't be listed", &error))?.is_empty();
        let document = if leads || has_pools { None } else { Some(own_settings(record, direction)?) };
        let alias = |swap: &Swap| ServiceKey::new(&swap.namespace, swap.alias_name(Side::Old));
        let aliases = record.swaps.iter().map(alias).collect();
        let moves =
            MoveArguments::seamlessly(cluster, server_namespace.clone(), document, aliases, &self.options, &self.dns);
        Ok(moves.work().await? == ExitCode::SUCCESS)
    }
}

fn print<T: Serialize>(output: Output, value: &T, table: impl FnOnce(&T) -> String) -> anyhow::Result<bool> {
    match output {
        Output::Table => super::output(table(value).as_bytes()),
        Output::Json => super::output_json(value),
    }
}

/// The settings with which Services move in a cluster without pools: one pool with the whole ranges.
fn own_settings(record: &Record, direction: Direction) -> anyhow::Result<Value> {
    let ranges = match direction {
        Direction::Forward => record.new_ranges(),
        Direction::Back => record.ranges.clone(),
    };
    let pool =
        |pool: Pool| json!({"name": pool.name, "cidrs": pool.cidrs, "reserved": pool.reserved, "bands": pool.bands});
    let pools: Vec<Value> = starter::pools(&ranges, &BTreeSet::new())?.into_iter().map(pool).collect();
    // kubelets know the address of DNS, which only a swap may change.
    let is_switched = matches!(record.phase, Phase::Switching | Phase::Switched);
    let exempt: &[&str] = if is_switched { &[] } else { &["kube-system"] };
    Ok(json!({"services": {"pools": pools, "exemptNamespaces": exempt}}))
}

/// Why the settings of the server that leads can't be changed with its pools; `None` if they can, or without a server.
async fn unmapped_settings(client: &Client, server: &LeadingServer) -> anyhow::Result<Option<String>> {
    let Some(leader) = &server.leader else { return Ok(None) };
    let in_use = stored_settings::of_leader(client, &server.namespace, leader.as_str()).await;
    let in_use = in_use.context("the settings of the server can't be read")?;
    Ok(in_use.and_then(|in_use| match in_use.source {
        SettingsOrigin::Pools => None,
        SettingsOrigin::File(_) => Some("its pools are in a file, which this command can't change".to_owned()),
        SettingsOrigin::KubewardenPolicy(name) => {
            Some(format!("its pools are in ClusterAdmissionPolicy {name}, which this command does not change"))
        }
    }))
}
