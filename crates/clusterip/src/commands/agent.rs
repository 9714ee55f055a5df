//! `clusterip agent`: holds external addresses on one node.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use tokio::sync::watch;

use super::connect;
use super::stop::{told_to_stop, until};
use crate::agent::linux::LinuxNetwork;
use crate::agent::run::Agent as Holder;
use crate::cluster::kinds;
use crate::cluster::stores::Stores;
use crate::external::follow::Follower as Assigned;
use crate::live_settings::{Follower, Source};
use crate::logging::Logging;
use crate::metrics::Metrics;
use crate::policy::module::{EMBEDDED, Module};

/// What `clusterip help agent` says at its end.
pub const HELP: &str = "\
Examples:
  On each node, as deploy/external runs it:
    clusterip agent --node \"$NODE_NAME\" --settings-configmap clusterip-settings
  Where the addresses belong to another interface than that of the default route:
    clusterip agent --node \"$NODE_NAME\" --settings-configmap clusterip-settings --interface eth1

It needs CAP_NET_ADMIN, CAP_NET_RAW, the network of the node, and the program nft.

Exit status: 0 after SIGTERM or SIGINT, when everything was given back; 2 where it can't begin.";

/// Arguments of `agent`.
#[derive(Debug, Args)]
pub struct Agent {
    /// How to reach the cluster; without it: the service account of the Pod, or $KUBECONFIG
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The name of the Node that this runs on
    #[arg(long, value_name = "NAME")]
    node: String,
    /// Where addresses are put [default: the interface of the default route]
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The settings; read again when the file changes [default: `{}`, no external addresses]
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The ConfigMap with the settings in its key `settings.yaml`, in the own namespace; followed
    #[arg(long, value_name = "NAME", conflicts_with = "settings")]
    settings_configmap: Option<String>,
    /// The own namespace, with the Leases [default: that of the service account or kubeconfig]
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    logging: Logging,
}

impl Agent {
    /// Holds what falls to this node until it is told to stop.
    ///
    /// # Errors
    /// Where it can't begin.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.logging.start()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let done = runtime.block_on(self.work());
        // A watch may be in the middle of something that nobody waits for.
        runtime.shutdown_background();
        done.map(|()| ExitCode::SUCCESS)
    }

    async fn work(self) -> anyhow::Result<()> {
        // First what needs no cluster: nothing may be left on the interface of whoever was here before.
        let network = LinuxNetwork::begin(self.interface.as_deref()).await?;
        let client = connect::client(self.kubeconfig.as_deref()).await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let metrics = Arc::new(Metrics::new());
        let module = Arc::new(tokio::task::spawn_blocking(|| Module::new(EMBEDDED)).await??);
        let (stores, changes) = Stores::new(client.clone(), Arc::clone(&metrics), |_| ());
        stores.watch_kinds(kinds::of_agent());
        // Whether Service ranges overlap with pools, the server says.
        let (_unknown, ranges) = watch::channel(Vec::new());
        let (file, name) = (self.settings.as_deref(), self.settings_configmap.as_deref());
        let source = Source::chosen(file, name, &client, &namespace);
        let follower = Follower::start(source, Arc::clone(&module), ranges, metrics).await?;
        let settings = follower.subscribe();
        let (stop, stopped) = watch::channel(false);
        let followed = tokio::spawn(follower.run(until(stopped.clone())));
        stores.completed().await;
        let mut assigned = Assigned { module, settings, stores, changes, refused: BTreeSet::new() };
        let (tell, assignments) = watch::channel(Arc::new(assigned.look().await));
        let assigned = tokio::spawn(assigned.run(tell, until(stopped.clone())));
        let heartbeat = connect::client(self.kubeconfig.as_deref()).await?;
        let holder = Holder { client, heartbeat, namespace, node: self.node.clone(), assignments, network };
        let (holding, _) = watch::channel(BTreeSet::new());
        let held = tokio::spawn(holder.run(holding, until(stopped)));
        told_to_stop().await;
        tracing::info!("stopping: everything is given back");
        stop.send_replace(true);
        for task in [held, assigned, followed] {
            task.await?;
        }
        tracing::info!("stopped");
        Ok(())
    }
}
