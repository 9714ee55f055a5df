//! `clusterip init`

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use clusterip_cluster::connect::{ClusterArguments, ConnectError};
use clusterip_cluster::permissions::Need;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_cluster::yaml;
use clusterip_core::settings::{Settings, parse_cidr};
use ipnet::IpNet;

use super::missing_permissions::Reads;
use super::terminal::TerminalOptions;
use crate::announcer_pools::{self, AnnouncerPool};
use crate::starter::facts::{self, Os, Ranges};
use crate::starter::{document, pools};

const HELP: &str = "\
Examples:
  For the cluster of the current context:
    clusterip init >settings.yaml
    clusterip validate --cluster settings.yaml
  Without a cluster:
    clusterip init --service-cidr 10.96.0.0/12 --os linux,windows

A cluster whose Nodes have one operating system gets one pool. A cluster with Linux and Windows Nodes gets two. A \
dual-stack cluster gets pools with both families. If MetalLB, Cilium or kube-vip-cloud-provider has pools, a comment \
shows pools of external addresses for them. The command changes nothing in the cluster: it reads ServiceCIDRs, Nodes, \
these pools, and before Kubernetes 1.33 the ConfigMap kube-system/kubeadm-config.

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
        let cidrs: Vec<String> = self.service_cidr.iter().map(ToString::to_string).collect();
        let given = || Ranges::of(&ServiceRanges::from(cidrs), " (as given with --service-cidr)", None);
        let ranges = (!self.service_cidr.is_empty()).then(given).transpose()?;
        let systems = (!self.os.is_empty()).then(|| self.os.iter().copied().collect());
        let (ranges, systems, announcers) = match (ranges, systems) {
            (Some(ranges), Some(systems)) => (ranges, systems, Vec::new()),
            (ranges, systems) => super::block_on(self.read_cluster(ranges, systems))?,
        };
        let text = document(&ranges, &systems, &pools(&ranges.chosen, &systems)?, &announcers)?;
        Settings::from_value(&yaml::single(&text)?).context("the settings for this cluster have mistakes")?;
        Ok(text)
    }

    async fn read_cluster(
        &self,
        ranges: Option<Ranges>,
        systems: Option<BTreeSet<Os>>,
    ) -> anyhow::Result<(Ranges, BTreeSet<Os>, Vec<AnnouncerPool>)> {
        let client = self.cluster.client().await.map_err(|error| match error {
            ConnectError::NoCluster(_) => anyhow!("{error}; or give both --service-cidr and --os"),
            other => other.into(),
        })?;
        let of_ranges = ranges.is_none().then(|| Need::read("list", "networking.k8s.io", "servicecidrs", None));
        let of_systems = systems.is_none().then(|| Need::read("list", "", "nodes", None));
        let reads = Reads { more: of_ranges.into_iter().chain(of_systems).collect(), ..Reads::default() };
        let facts = async {
            let ranges = match ranges {
                Some(given) => given,
                None => facts::ranges(&client).await?,
            };
            let systems = match systems {
                Some(given) => given,
                None => facts::systems(&client).await?,
            };
            // Without the permission, the settings only lack a hint.
            let (_, pools) = announcer_pools::objects(&client).await.unwrap_or_default();
            Ok((ranges, systems, pools.iter().filter_map(AnnouncerPool::read).collect()))
        };
        let facts = facts.await;
        reads.explain(&client, facts).await
    }
}
