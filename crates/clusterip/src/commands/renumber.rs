//! `clusterip renumber`

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueEnum};
use clusterip_cluster::api_error::{error_chain, failed};
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::live_settings;
use clusterip_cluster::shutdown::shutdown_signal;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::parse_cidr;
use clusterip_moves::renumbering::record::{Phase, Record};
use clusterip_moves::renumbering::step::{Direction, Goal};
use futures::poll;
use ipnet::IpNet;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::arguments::DnsArguments;
use super::leading_server::LeadingServer;
use super::missing_permissions::Reads;
use super::move_::{MoveArguments, SeamlessMoves, confirm};
use super::terminal::{TerminalOptions, heartbeat, notice, print_error, warn};
use crate::renumber::check::{self, Check, Given};
use crate::renumber::findings::Before;
use crate::renumber::observe::Observer;
use crate::renumber::run::{End, Mover, Run, changed_pools, keep_equal};
use crate::renumber::store::Store;
use crate::report::columns::Layout;
use crate::report::renumber;
use crate::services::cluster_dns::MAX_GRACE_PERIOD;
use crate::services::controller::stored_settings::{self, SettingsOrigin};
use crate::starter;
use crate::text::joined;

/// How often `clusterip renumber keep` looks at the endpoints.
const KEEP_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct RenumberArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows what a change of the Service ranges meets in the cluster. Changes nothing
    Check(CheckArguments),
    /// Adds the new ranges, and moves the Services to them
    Begin(BeginArguments),
    /// After the API servers were restarted: gives default/kubernetes and DNS new addresses, and keeps the old ones
    Switch(SwitchArguments),
    /// Keeps the endpoints of the old address of default/kubernetes equal to those of the API servers, until finish
    Keep(KeepArguments),
    /// Shows how far the renumbering is. Changes nothing
    Status(StatusArguments),
    /// Removes the old addresses and ranges, when nothing uses them any more
    Finish(FinishArguments),
    /// Before the switch: moves all Services back, and removes the new ranges
    Rollback(RollbackArguments),
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
struct CheckArguments {
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
  Show the pools as they will be, and what the change meets:
    clusterip renumber begin --to 10.100.0.0/16 --dry-run
  Begin, or continue:
    clusterip renumber begin --to 10.100.0.0/16

The command adds the ServiceCIDRs clusterip-old and clusterip-new, changes the ranges of the ServicePools, and moves \
all Services as clusterip move --seamless does. It records its progress, so that it can be killed and run again. \
clusterip renumber rollback undoes it.

A Service that can't move keeps its address, and the command names it.

Exit status: 0; 1 if something must be changed first; 2 if the command can't start.";

#[derive(Debug, Args)]
#[command(after_long_help = BEGIN_HELP)]
struct BeginArguments {
    #[command(flatten)]
    common: CommonArguments,
    /// The new Service ranges, at most one of each IP family. A family that is not named keeps its range
    #[arg(long, value_name = "CIDR", required = true, value_delimiter = ',', value_parser = parse_cidr)]
    to: Vec<IpNet>,
    #[command(flatten)]
    moves: MoveOptions,
    /// Only show what the change meets, and the pools as they will be. Needs only read permissions
    #[arg(long)]
    dry_run: bool,
    /// Begin without asking for confirmation
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Args)]
struct SwitchArguments {
    #[command(flatten)]
    common: CommonArguments,
    #[command(flatten)]
    moves: MoveOptions,
}

#[derive(Debug, Args)]
struct KeepArguments {
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
struct StatusArguments {
    #[command(flatten)]
    common: CommonArguments,
    /// The output format
    #[arg(long, short, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Debug, Args)]
struct FinishArguments {
    #[command(flatten)]
    common: CommonArguments,
    #[command(flatten)]
    moves: MoveOptions,
    /// Do not ask the kubelets which DNS address they give to Pods: all of them give the new one
    #[arg(long)]
    kubelets_changed: bool,
    /// Remove the old addresses although Pods, kubelets or Services use them, and cut these off
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct RollbackArguments {
    #[command(flatten)]
    common: CommonArguments,
    #[command(flatten)]
    moves: MoveOptions,
}

/// How Services move.
#[derive(Clone, Debug, Args)]
struct MoveOptions {
    /// Also move Services of type LoadBalancer: their cloud may remove the load balancer during the move
    #[arg(long)]
    load_balancers: bool,
    /// Also move this Service, although the control plane calls it: a webhook, an aggregated API or a CRD conversion
    /// may fail during the move. May be given several times
    #[arg(long, value_name = "NAMESPACE/NAME")]
    called_by_control_plane: Vec<ServiceKey>,
    /// The maximum number of Services that move at once
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    at_once: u8,
    /// For how many seconds the old address of a Service answers after its move [default: as long as DNS may answer
    /// with it, as the ConfigMap kube-system/coredns says, and 5 s more; 60 if it can't be read]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_GRACE_PERIOD)))]
    grace_period: Option<u32>,
    /// The domain of the cluster in DNS [default: as the ConfigMap kube-system/coredns says; cluster.local if it can't
    /// be read]
    #[arg(long, value_name = "DOMAIN", value_parser = NonEmptyStringValueParser::new())]
    cluster_domain: Option<String>,
}

#[derive(Debug, Args)]
struct CommonArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The namespace of the server [default: the namespace in which a server leads]
    #[arg(long, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    server_namespace: Option<String>,
    #[command(flatten)]
    terminal: TerminalOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// For programs
    Json,
}

impl RenumberArguments {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let common = match &self.command {
            Command::Check(CheckArguments { common, .. })
            | Command::Begin(BeginArguments { common, .. })
            | Command::Switch(SwitchArguments { common, .. })
            | Command::Keep(KeepArguments { common })
            | Command::Status(StatusArguments { common, .. })
            | Command::Finish(FinishArguments { common, .. })
            | Command::Rollback(RollbackArguments { common, .. }) => common,
        };
        common.terminal.apply();
        super::block_on(async {
            match &self.command {
                Command::Check(arguments) => arguments.work().await,
                Command::Begin(arguments) => arguments.work().await,
                Command::Switch(SwitchArguments { moves, .. }) => common.continue_to(Goal::Switch, moves, true).await,
                Command::Keep(_) => common.keep().await,
                Command::Status(arguments) => arguments.work().await,
                Command::Finish(FinishArguments { moves, force, kubelets_changed, .. }) => {
                    common.continue_to(Goal::Finish { force: *force }, moves, !kubelets_changed).await
                }
                Command::Rollback(RollbackArguments { moves, .. }) => {
                    common.continue_to(Goal::Rollback, moves, true).await
                }
            }
        })
    }
}

impl CheckArguments {
    async fn work(&self) -> anyhow::Result<ExitCode> {
        let client = self.common.cluster.client().await?;
        let _alive = heartbeat("reading the cluster");
        let check = self.common.check(&client, &self.to, self.load_balancers).await?;
        let text = match self.output {
            Output::Table => renumber::table(&check, Layout::of_stdout(self.no_headers)),
            Output::Json => renumber::document(&check)?,
        };
        super::output(text.as_bytes())?;
        let is_ready = check.blocks(Before::Begin).next().is_none();
        Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl BeginArguments {
    async fn work(&self) -> anyhow::Result<ExitCode> {
        let client = self.common.cluster.client().await?;
        let namespace = self.common.namespace(&client).await?;
        let mut store = Store::new(&client, &namespace);
        if let Some(record) = store.read().await? {
            let to = joined(record.change.0.iter().map(|pair| pair.to), ",");
            if record.change.0.iter().any(|pair| !self.to.contains(&pair.to)) || record.change.0.len() != self.to.len()
            {
                bail!("a renumbering to {to} has begun: finish it, or use clusterip renumber rollback");
            }
            let observer = Observer::new(client, &namespace);
            return self.common.run_to(Goal::Begin, &self.moves, observer, store, record).await;
        }
        let check = self.common.check(&client, &self.to, self.moves.load_balancers).await?;
        let pools = changed_pools(&client, &check.change).await.unwrap_or_default();
        let is_blocked = check.blocks(Before::Begin).next().is_some();
        super::output(renumber::table(&check, Layout::of_stdout(false)).as_bytes())?;
        if !pools.is_empty() {
            super::output(format!("\nThe pools become:\n{}", renumber::pools(&pools)?).as_bytes())?;
        }
        if is_blocked || self.dry_run {
            return Ok(if is_blocked { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        if !self.yes {
            if !io::stdin().is_terminal() {
                bail!("standard input is not a terminal: use --yes to begin without asking, or --dry-run");
            }
            if !confirm("Begin?").await? {
                notice("nothing was changed");
                return Ok(ExitCode::SUCCESS);
            }
        }
        let ranges = check::default_ranges(&client).await?;
        let record = Record { new_addresses: check.new_addresses, ..Record::new(check.change, ranges) };
        store.write(&record).await?;
        self.common.run_to(Goal::Begin, &self.moves, Observer::new(client, &namespace), store, record).await
    }
}

impl StatusArguments {
    async fn work(&self) -> anyhow::Result<ExitCode> {
        let client = self.common.cluster.client().await?;
        let namespace = self.common.namespace(&client).await?;
        let mut store = Store::new(&client, &namespace);
        let record = store.read().await?;
        let status = match &record {
            None => None,
            Some(record) => Some(Observer::new(client, &namespace).status(record).await?),
        };
        let text = match self.output {
            Output::Table => renumber::status_table(status.as_ref()),
            Output::Json => renumber::status_document(status.as_ref())?,
        };
        super::output(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

impl CommonArguments {
    /// The namespace of the record: that of the server. Without a server, one in which only administrators write.
    async fn namespace(&self, client: &Client) -> anyhow::Result<String> {
        if let Some(given) = &self.server_namespace {
            return Ok(given.clone());
        }
        let server = LeadingServer::find(client, None, true).await?;
        let is_context = server.leader.is_none() && server.namespace == client.default_namespace();
        Ok(if is_context { "kube-system".to_owned() } else { server.namespace })
    }

    async fn continue_to(&self, goal: Goal, moves: &MoveOptions, asks_kubelets: bool) -> anyhow::Result<ExitCode> {
        let client = self.cluster.client().await?;
        let namespace = self.namespace(&client).await?;
        let mut store = Store::new(&client, &namespace);
        let Some(record) = store.read().await? else {
            bail!("no renumbering is recorded in namespace {namespace}: clusterip renumber begin begins one");
        };
        let mut observer = Observer::new(client, &namespace);
        observer.asks_kubelets = asks_kubelets;
        self.run_to(goal, moves, observer, store, record).await
    }

    async fn run_to(
        &self,
        goal: Goal,
        options: &MoveOptions,
        observer: Observer,
        store: Store,
        record: Record,
    ) -> anyhow::Result<ExitCode> {
        let mover = Moves { common: self, options, client: observer.client.clone() };
        let mut run = Run { store, observer, mover, report: &notice };
        Ok(match run.work(goal, record).await? {
            End::Done(text) => {
                super::output(format!("{text}\n").as_bytes())?;
                ExitCode::SUCCESS
            }
            End::Stopped(text) => {
                print_error(&text);
                ExitCode::FAILURE
            }
        })
    }

    /// Keeps the copied endpoints equal until the record is gone. As a Deployment, it waits for the record first.
    async fn keep(&self) -> anyhow::Result<ExitCode> {
        let client = self.cluster.client().await?;
        let namespace = self.namespace(&client).await?;
        let interrupt = shutdown_signal();
        tokio::pin!(interrupt);
        let mut was_recorded = false;
        loop {
            let kept = async {
                let Some(record) = Store::new(&client, &namespace).read().await? else { return Ok(false) };
                keep_equal(&client, &record).await?;
                anyhow::Ok(true)
            };
            match kept.await {
                Ok(false) if was_recorded => return Ok(ExitCode::SUCCESS),
                Ok(is_recorded) => was_recorded = is_recorded,
                // The API server may be restarted.
                Err(error) => warn(&error_chain(&*error)),
            }
            tokio::select! {
                () = &mut interrupt => return Ok(ExitCode::SUCCESS),
                () = sleep(KEEP_INTERVAL) => {}
            }
        }
    }

    async fn check(&self, client: &Client, to: &[IpNet], load_balancers: bool) -> anyhow::Result<Check> {
        let server = self.server_namespace.as_deref();
        let more = [check::needs(), LeadingServer::needs(server)].concat();
        let work = async {
            let deployed = LeadingServer::find(client, server, true).await?;
            let given = Given {
                to: to.to_vec(),
                load_balancers,
                unmapped_settings: unmapped_settings(client, &deployed).await?,
                api_server: self.api_servers().await,
            };
            check::check(client, &given).await
        };
        let checked = work.await;
        Reads { more, ..Reads::default() }.explain(client, checked).await
    }

    /// The addresses of the API server in the kubeconfig.
    async fn api_servers(&self) -> Vec<SocketAddr> {
        let Some(host) = self.cluster.host().await else { return Vec::new() };
        tokio::net::lookup_host(host).await.map(Iterator::collect).unwrap_or_default()
    }
}

/// Moves Services as `clusterip move --seamless` does.
struct Moves<'a> {
    common: &'a CommonArguments,
    options: &'a MoveOptions,
    client: Client,
}

impl Mover for Moves<'_> {
    async fn move_services(&self, record: &Record, direction: Direction) -> anyhow::Result<bool> {
        let Self { common, options, client } = self;
        let server = common.server_namespace.as_deref();
        let leads = LeadingServer::find(client, server, true).await?.leader.is_some();
        let pools = live_settings::list_if_defined(client).await;
        let has_pools = !pools.map_err(|error| failed("the pools of the cluster can't be listed", &error))?.is_empty();
        let document = match leads || has_pools {
            true => None,
            false => Some(own_settings(record, direction)?),
        };
        let moves = SeamlessMoves {
            cluster: common.cluster.clone(),
            server_namespace: common.server_namespace.clone(),
            document,
            load_balancers: options.load_balancers,
            called_by_control_plane: options.called_by_control_plane.clone(),
            dns: DnsArguments::new(options.grace_period, options.cluster_domain.clone()),
            at_once: options.at_once,
        };
        let mut interrupt = pin!(shutdown_signal());
        // It begins to listen.
        let _ = poll!(&mut interrupt);
        let ended = MoveArguments::from(moves).work().await?;
        if poll!(&mut interrupt).is_ready() {
            bail!("interrupted: the same command continues");
        }
        Ok(ended == ExitCode::SUCCESS)
    }
}

/// The settings with which Services move in a cluster without pools: one pool with the whole ranges.
fn own_settings(record: &Record, direction: Direction) -> anyhow::Result<Value> {
    let ranges = match direction {
        Direction::Forward => record.new_ranges(),
        Direction::Back => record.ranges.clone(),
    };
    let pools: Vec<Value> = starter::pools(&ranges, &BTreeSet::new())?
        .into_iter()
        .map(|pool| json!({"name": pool.name, "cidrs": pool.cidrs, "reserved": pool.reserved, "bands": pool.bands}))
        .collect();
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
