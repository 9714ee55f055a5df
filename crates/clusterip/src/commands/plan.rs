//! `clusterip plan`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::manifests::Manifest;

mod existing_services;
mod input;
mod input_warnings;

use self::input::PlanInput;
use super::arguments::NO_SUCH_LABELS;
use super::given_settings;
use super::terminal::{Heartbeat, Progress, TerminalOptions, notice};
use crate::audit::services::MisplacedServices;
use crate::planner::Planner;
use crate::report::columns::Layout;
use crate::report::{self, filled_manifests};
use crate::service_selector::ServiceSelector;

const HELP: &str = "\
Examples:
  Without a cluster:
    clusterip plan examples/shop --settings examples/settings/k2s.yaml
  The manifests, with the addresses filled in:
    clusterip plan examples/shop -s examples/settings/k2s.yaml -o yaml
  With the objects of the cluster of the current context:
    clusterip init >settings.yaml
    clusterip plan examples/shop --cluster --settings settings.yaml
  With changed pools, to see which existing Services would move:
    clusterip plan examples/changed-pools --snapshot examples/audit/snapshot.yaml

All workloads, Pods, Nodes and Namespaces of the manifests are evidence, in any order, and all addresses set by hand \
count as used. Addresses are a forecast, unless they are filled in (-o yaml). If the settings have pools of Nodes, \
Nodes get pod CIDRs. If they have pools of external addresses, Services get external addresses, as `clusterip serve` \
would assign them.

With --settings, or pool objects among the manifests, a plan also lists the existing Services that are misplaced with \
these settings, and what moves them, as `clusterip audit` does. -o yaml has no such list.

A Service is also denied if the API server would refuse it: because of an address that is invalid, outside of the \
known Service ranges, or in use by another Service, or because an update would change the address.

Exit status: 0; 1 if a Service or Node is denied; 2 if the input or the settings can't be used.";

const PROGRESS_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct PlanArguments {
    /// Files, folders (all .yaml, .yml and .json below them) or - for standard input
    #[arg(required_unless_present_any = ["filenames", "kustomize"])]
    paths: Vec<PathBuf>,
    /// A file, a folder or - for standard input, as with kubectl; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "PATH")]
    filenames: Vec<PathBuf>,
    /// The folder of a kustomization, which is built with `kubectl kustomize` or `kustomize build`
    #[arg(short = 'k', long, value_name = "DIR", conflicts_with_all = ["paths", "filenames"])]
    kustomize: Option<PathBuf>,
    /// The namespace of objects without one. An object with another namespace is an error [default: with --cluster the
    /// namespace of the context, otherwise `default`; objects may then have any namespace]
    #[arg(short, long, value_parser = NonEmptyStringValueParser::new())]
    namespace: Option<String>,
    /// Only Services with these labels, such as app=web,tier!=back or 'env in (test,prod)'. The addresses in the
    /// manifests of other Services count as used
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<ServiceSelector>,
    /// The settings file, or - for standard input [default: the pool objects among the manifests, or else those of the
    /// cluster or the snapshot, or else the pools of K2s]
    #[arg(short, long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// Read the objects of the cluster from this file of `clusterip snapshot` or `kubectl get -A -o yaml`; - for
    /// standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cluster", "kubeconfig", "context"])]
    snapshot: Option<PathBuf>,
    /// Read the objects of the cluster from the API server of the current context; --kubeconfig and --context imply
    /// this
    #[arg(long)]
    cluster: bool,
    #[command(flatten)]
    connection: ClusterArguments,
    /// List the files in folders that are skipped because they contain no Kubernetes objects
    #[arg(short, long)]
    verbose: bool,
    /// Print tables without headers
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    terminal: TerminalOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For programs
    Json,
    /// The manifests, with addresses filled in
    Yaml,
}

impl PlanArguments {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        let _heartbeat = Heartbeat::start("planning");
        let PlanInput { sources, manifests, there, live, are_settings_given, are_defaults } = self.read()?;
        let is_table = self.output == Output::Table && !self.no_headers;
        let announced = if are_defaults { given_settings::announce_default_pools(is_table) } else { String::new() };
        input_warnings::print(&live, &there, &manifests);
        let has_pools = !live.settings.nodes.pools.is_empty();
        let is_selected = |manifest: &Manifest| {
            self.selector.as_ref().is_none_or(|selector| selector.matches(&manifest.object.value()))
        };
        if !manifests.iter().any(|manifest| manifest.is_service() && is_selected(manifest)) && self.selector.is_some() {
            notice(NO_SUCH_LABELS);
        }
        // The manifests of -o yaml have no place for Services that are not among them.
        let misplaced = if are_settings_given && self.output != Output::Yaml {
            existing_services::misplaced(&live, &there, &manifests, self.selector.as_ref())?
        } else {
            MisplacedServices::default()
        };
        for note in &misplaced.notes {
            notice(&format!("note: {note}"));
        }
        let is_planned = |manifest: &&Manifest| {
            (manifest.is_service() && is_selected(manifest)) || (has_pools && manifest.is_node())
        };
        let planned = manifests.iter().filter(is_planned).count() as u64;
        let mut planner = Planner::new(live.settings.clone(), there);
        planner.selector = self.selector.clone();
        let mut progress = Progress::new(planned, PROGRESS_DELAY, "{wide_bar} {pos} of {len}, {eta} to go");
        let mut plan = planner.plan(&manifests, |done| {
            progress.show();
            progress.bar.set_position(done);
        });
        progress.bar.finish_and_clear();
        plan.misplaced = misplaced.services;
        for row in &mut plan.rows {
            row.message = row.message.take().map(|message| live.words(message));
        }

        let text = match self.output {
            Output::Table => announced + &report::plan::table(&plan, Layout::of_stdout(self.no_headers)),
            Output::Json => report::plan::json(&plan)?,
            Output::Yaml => filled_manifests::manifests(&sources, &manifests, &plan)?,
        };
        super::output(text.as_bytes())?;
        Ok(if plan.has_denied() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
