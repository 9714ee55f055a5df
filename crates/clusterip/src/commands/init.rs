//! `clusterip init`

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use clusterip_cluster::connect::{ClusterArguments, ConnectError};
use clusterip_cluster::permissions::Need;
use clusterip_cluster::watch::service_ranges::ServiceRanges;
use clusterip_cluster::yaml;
use clusterip_core::settings::{Settings, parse_cidr};
use ipnet::IpNet;
use kube::Client;

use super::missing_permissions::Reads;
use super::terminal::TerminalOptions;
use crate::starter::facts::{self, Os, Ranges, RangesOrigin};
use crate::starter::{document, pools};

const HELP: &str = "\
Examples:
  For the cluster of the current context:
    clusterip init >settings.yaml
    clusterip validate --cluster settings.yaml
  Without a cluster:
    clusterip init --service-cidr 10.96.0.0/12 --os linux,windows

A cluster whose Nodes have one operating system gets one pool. A cluster with Linux and Windows Nodes gets two. A \
dual-stack cluster gets pools with both families. The command changes nothing in the cluster: it reads \
ServiceCIDRs, Nodes, and before Kubernetes 1.33 the ConfigMap kube-system/kubeadm-config.

Exit status: 0; 2 if the cluster can't be read, its Service ranges are unknown or too small, or the settings \
can't be written.";

#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct InitArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The Service ranges, the primary one first [default: the ServiceCIDRs of the cluster]
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = parse_cidr)]
    service_cidr: Vec<IpNet>,
    /// The operating systems of the Nodes [default: those of the cluster]
    #[arg(long, value_enum, value_name = "OS", value_delimiter = ',')]
    os: Vec<Os>,
    /// Write the settings to this file, instead of to standard output
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    #[command(flatten)]
    terminal: TerminalOptions,
}

impl InitArguments {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        super::output_to(self.output_file.as_deref(), &self.settings()?)?;
        Ok(ExitCode::SUCCESS)
    }

    fn settings(&self) -> anyhow::Result<String> {
        let (ranges, systems) = match self.given() {
            Some(given) => given?,
            None => super::runtime()?.block_on(self.read_cluster())?,
        };
        let text = document(&ranges, &systems, &pools(&ranges.chosen, &systems)?)?;
        Settings::from_value(&yaml::single(&text)?).context("the settings for this cluster have mistakes")?;
        Ok(text)
    }

    /// The facts of the command line, if no cluster is needed.
    fn given(&self) -> Option<anyhow::Result<(Ranges, BTreeSet<Os>)>> {
        let is_complete = !self.service_cidr.is_empty() && !self.os.is_empty();
        is_complete.then(|| Ok((self.given_ranges()?, self.os.iter().copied().collect())))
    }

    fn given_ranges(&self) -> anyhow::Result<Ranges> {
        let ranges: Vec<String> = self.service_cidr.iter().map(ToString::to_string).collect();
        Ranges::of(&ServiceRanges::from(ranges), RangesOrigin::User, None)
    }

    async fn read_cluster(&self) -> anyhow::Result<(Ranges, BTreeSet<Os>)> {
        let client = self.cluster.client().await.map_err(|error| match error {
            ConnectError::NoCluster(_) => anyhow!("{error}; or give both --service-cidr and --os"),
            other => other.into(),
        })?;
        let facts = self.facts(&client).await;
        self.reads().explain(&client, facts).await
    }

    async fn facts(&self, client: &Client) -> anyhow::Result<(Ranges, BTreeSet<Os>)> {
        Ok((self.ranges(client).await?, self.systems(client).await?))
    }

    /// The permissions to read the facts that the command line does not give.
    fn reads(&self) -> Reads {
        let ranges =
            self.service_cidr.is_empty().then(|| Need::read("list", "networking.k8s.io", "servicecidrs", None));
        let systems = self.os.is_empty().then(|| Need::read("list", "", "nodes", None));
        Reads { more: ranges.into_iter().chain(systems).collect(), ..Reads::default() }
    }

    async fn ranges(&self, client: &Client) -> anyhow::Result<Ranges> {
        if self.service_cidr.is_empty() { facts::ranges(client).await } else { self.given_ranges() }
    }

    async fn systems(&self, client: &Client) -> anyhow::Result<BTreeSet<Os>> {
        if self.os.is_empty() { facts::systems(client).await } else { Ok(self.os.iter().copied().collect()) }
    }
}
