//! `clusterip agent`: holds external addresses on one node.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::external::assignments::{AssignmentWatcher, LocalServices, matters};
use clusterip_cluster::host_metrics::ClusterMetrics;
use clusterip_cluster::http::probes::{self, Scrapes, Status};
use clusterip_cluster::live_settings::{LiveSettings, SettingsSource, start_following};
use clusterip_cluster::logging::Logging;
use clusterip_cluster::metrics::Exposition;
use clusterip_cluster::permissions::Duties;
use clusterip_cluster::shutdown::{shutdown_signal, until};
use clusterip_cluster::watch::stores::{Change, Stores};
use clusterip_failover::timing::Failover;
use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::agent_metrics::AgentMetrics;
use crate::event_loop::AddressAgent;
use crate::heartbeat::{Health, unknown_node};
use crate::node_network::LinuxNetwork;

pub const HELP: &str = "\
Examples:
  On each node, as in deploy/external:
    clusterip agent --node \"$NODE_NAME\"
  With another interface than that of the default route:
    clusterip agent --node \"$NODE_NAME\" --interface eth1
  Beside Kubewarden, with the settings of its policy:
    clusterip agent --node \"$NODE_NAME\" --policy clusterip-policy

The agent needs CAP_NET_ADMIN, CAP_NET_RAW, the network of the node, and the program nft.
The agent serves /healthz, /readyz and /metrics over plain HTTP.

Exit status: 0 after SIGTERM or SIGINT, when all addresses are released; 2 if the agent can't start or continue.";

#[derive(Debug, Args)]
pub struct Agent {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The name of the Node that the agent runs on. The agent is not ready until this Node exists
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    node: String,
    /// The interface that addresses are added to [default: that of the default route]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    interface: Option<String>,
    /// The settings file, which is read again when it changes, or - for standard input [default: the pools of the
    /// cluster]
    #[arg(short, long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The ClusterAdmissionPolicy of Kubewarden with the settings in `spec.settings`, which is watched for changes
    #[arg(long, value_name = "NAME", conflicts_with = "settings", value_parser = NonEmptyStringValueParser::new())]
    policy: Option<String>,
    /// The namespace of the agent, with its Leases [default: that of the service account or kubeconfig]
    #[arg(long, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    namespace: Option<String>,
    /// How soon other nodes hold the addresses of this node after it has died. With 5s, the agent writes its heartbeat
    /// 7 times as often, and releases its addresses if the API server does not answer for 2 s
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = failover())]
    failover: Failover,
    /// The address for probes and metrics, over plain HTTP
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9634", value_parser = listen_address)]
    listen: SocketAddr,
    #[command(flatten)]
    logging: Logging,
}

fn failover() -> impl TypedValueParser<Value = Failover> {
    PossibleValuesParser::new(["25s", "5s"]).map(|text| match text.as_str() {
        "5s" => Failover::Within5s,
        _ => Failover::Within25s,
    })
}

fn listen_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "expected ADDR:PORT such as 127.0.0.1:9634")
}

impl Agent {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.logging.start()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let done = runtime.block_on(self.work());
        // A watch may still be in the middle of a request that no task waits for.
        runtime.shutdown_background();
        done.map(|()| ExitCode::SUCCESS)
    }

    /// Works until SIGTERM or SIGINT arrives, or until a task ends early. Then the addresses are released.
    async fn work(self) -> anyhow::Result<()> {
        let mut shutdown = pin!(shutdown_signal());
        let running = tokio::select! {
            biased;
            // No address is held yet.
            () = &mut shutdown => return Ok(()),
            running = self.start() => running?,
        };
        let Running { stop, health, mut held, mut tasks } = running;
        let failed = tokio::select! {
            () = shutdown => {
                match health.borrow().holding.is_empty() {
                    true => tracing::info!("stopping: no address is held"),
                    false => tracing::info!("stopping: releasing all addresses"),
                }
                None
            }
            // Without one of these tasks, the agent would hold what is not assigned any more.
            Some(ended) = tasks.join_next() => Some(ended.context("a task of the agent stopped early").flatten()),
            ended = &mut held => Some(ended.context("the task that holds addresses")),
        };
        stop.send_replace(true);
        if !held.is_finished() {
            held.await?;
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        tracing::info!("stopped");
        failed.unwrap_or(Ok(()))
    }

    /// Starts all tasks. The last one holds addresses, so none is held if this is dropped before its end.
    async fn start(&self) -> anyhow::Result<Running> {
        // The network needs no cluster, and no address of an earlier process may remain on the interface.
        let network = LinuxNetwork::begin(self.interface.as_deref()).await?;
        let client = self.cluster.client().await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let mut exposition = Exposition::default();
        let (cluster_metrics, metrics): (ClusterMetrics, AgentMetrics) = (exposition.exposed(), exposition.exposed());
        let server = probes::bind(self.listen).await?;
        let source = SettingsSource::chosen(self.settings.as_deref(), self.policy.as_deref(), &client);
        let duties = Duties {
            namespace: namespace.clone(),
            agent: true,
            pools: self.settings.is_none() && self.policy.is_none(),
            kubewarden_policy: self.policy.clone(),
            ..Duties::default()
        };
        let (changed, changes) = watch::channel(());
        let local = LocalServices::default();
        let known_local = local.clone();
        let changed = move |change: &Change<'_>| {
            if matters(change, &known_local) {
                changed.send_replace(());
            }
        };
        let stores = Stores::new(client.clone(), cluster_metrics.clone(), |_| (), changed);
        stores.on_each_node();
        let follower = start_following(source, &stores, &duties).await?;
        let settings = follower.subscribe();
        let (stop, stopped) = watch::channel(false);
        let (health, seen) = watch::channel(Health::default());
        tracing::info!(listen = %server.local_addr(), namespace, node = self.node, "serving probes and metrics");
        let (liveness, readiness) = (seen.clone(), seen.clone());
        let (node, nodes, measured) = (self.node.clone(), stores.clone(), stores.clone());
        let report = Status {
            liveness_errors: Arc::new(move || liveness.borrow().liveness_error(Instant::now()).into_iter().collect()),
            readiness_errors: Arc::new(move || {
                let reasons = nodes.lagging().into_iter().chain(unknown_node(&node, &nodes));
                reasons.chain(readiness.borrow().readiness_error()).collect()
            }),
            scrapes: Scrapes::new(move || {
                measured.update_metrics();
                exposition.encode()
            }),
        };
        let mut tasks = JoinSet::new();
        let (end, of_follower) = (until(stopped.clone()), until(stopped.clone()));
        tasks.spawn(async move { probes::run(server, report, end).await.context("the server of probes and metrics") });
        tasks.spawn(follower.run(of_follower).map(Ok));
        tasks.spawn(report_pools(settings.clone()).map(Ok));
        stores.completed().await;
        health.send_modify(|health| health.beat = Some(Instant::now()));
        if let Some(reason) = unknown_node(&self.node, &stores) {
            tracing::error!("{reason}");
        }
        let mut watcher = AssignmentWatcher { settings, stores, changes, refused: BTreeSet::new(), local };
        let (tell, assignments) =
            watch::channel(Arc::new(watcher.look().await.context("can't determine the addresses to hold")?));
        tasks.spawn(watcher.run(tell, until(stopped.clone())).map(Ok));
        let heartbeat = self.cluster.client().await?;
        let (node, failover) = (self.node.clone(), self.failover);
        let agent = AddressAgent { client, heartbeat, namespace, node, failover, assignments, network, metrics };
        let held = tokio::spawn(agent.run(health, until(stopped)));
        Ok(Running { stop, health: seen, held, tasks })
    }
}

struct Running {
    stop: watch::Sender<bool>,
    health: watch::Receiver<Health>,
    held: JoinHandle<()>,
    tasks: JoinSet<anyhow::Result<()>>,
}

/// Logs whether the settings have pools of external addresses, now and when that changes.
async fn report_pools(mut settings: watch::Receiver<Arc<LiveSettings>>) {
    let mut has_pools = !settings.borrow().settings.external.pools.is_empty();
    loop {
        match has_pools {
            true => tracing::info!("holding the external addresses that are assigned to this node"),
            false => tracing::info!("the settings have no pools of external addresses: there is nothing to hold"),
        }
        let is_other = |now: &Arc<LiveSettings>| now.settings.external.pools.is_empty() == has_pools;
        if settings.wait_for(is_other).await.is_err() {
            return;
        }
        has_pools = !has_pools;
    }
}
