//! `clusterip plan`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::kinds;
use clusterip_cluster::live_settings::{LiveSettings, SettingsFile};
use clusterip_cluster::lookups::selectors;
use clusterip_cluster::manifests::Manifest;
use clusterip_cluster::manifests::manifest_files::Input;
use clusterip_cluster::snapshot::{ReadObject, Snapshot, StoredService};
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_core::field_mask::Mask;
use clusterip_core::label_selector::LabelSelector;
use serde_json::Value;

mod input;
mod input_warnings;

use super::arguments::NO_SUCH_LABELS;
use super::given_settings::{self, GivenSettings};
use super::terminal::{TerminalOptions, heartbeat, notice, progress_bar};
use crate::audit::services::MisplacedServices;
use crate::audit::source;
use crate::planner::{PlannedObject, Planner};
use crate::report::columns::Layout;
use crate::report::{self, filled_manifests};
use crate::snapshot_kinds::{SnapshotKinds, kind_of};
use crate::text::several;

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
/// The fields that decide where a Service belongs, and whether it moves.
const FIELDS: [&str; 4] = ["metadata.labels", "metadata.annotations", "spec.selector", "spec.type"];

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
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selectors::labels)]
    selector: Option<LabelSelector>,
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
        let _heartbeat = heartbeat("planning");
        super::check_standard_input(&[
            ("PATHS", &self.paths),
            ("--filename", &self.filenames),
            ("--settings", self.settings.as_slice()),
            ("--snapshot", self.snapshot.as_slice()),
        ])?;
        let mut given = GivenSettings::read(self.settings.as_deref())?;
        let has_context = self.namespace.is_none() && self.uses_cluster();
        let of_context = has_context.then(|| self.connection.namespace()).flatten();
        let Input { mut sources, mut manifests, skipped, outside } = self.input(of_context.as_deref())?;
        if self.output != Output::Yaml {
            sources.clear();
        }
        let of_manifests = self.settings_objects(&manifests)?;
        // The user chose the settings, which then need not be those of the cluster.
        let are_settings_given = self.settings.is_some() || !of_manifests.is_empty();
        if !of_manifests.is_empty() {
            let name = "the objects of the manifests".to_owned();
            given = GivenSettings { name, content: SettingsFile::Objects(of_manifests) };
        }
        if !self.verbose && !skipped.is_empty() {
            let files = several(skipped.len(), "file");
            notice(&format!("skipped: {files} without Kubernetes objects (-v lists them)"));
        }
        for file in skipped.iter().filter(|_| self.verbose) {
            notice(&format!("skipped: {file}: no Kubernetes objects"));
        }
        for link in outside {
            notice(&format!("skipped: {link}: a link to a file outside of the folder"));
        }
        let (there, settings) = self.cluster(&given, are_settings_given)?;
        for (namespace, named_by) in [(&of_context, "the context"), (&self.namespace, "--namespace")] {
            if let Some(namespace) = namespace {
                input::check_namespace(namespace, named_by, &there, &manifests)?;
            }
        }
        let are_defaults = !are_settings_given && settings.is_none();
        let live = input::check(&given, settings, &there, &manifests)?;
        if are_defaults && live.settings.service_cidrs.is_empty() {
            input::check_against_kubernetes(&there, &manifests)?;
        }
        if let Some(file) = &self.snapshot {
            let kinds = SnapshotKinds::of(&there);
            kinds.check(&live.settings).with_context(|| format!("snapshot: {}", file.display()))?;
        }
        let is_table = self.output == Output::Table && !self.no_headers;
        let announced = if are_defaults { given_settings::announce_default_pools(is_table) } else { String::new() };
        input_warnings::print(&live, &there, &manifests);
        let has_pools = !live.settings.nodes.pools.is_empty();
        let is_selected = |manifest: &Manifest<PlannedObject>| {
            let is_selected = |service: &Arc<StoredService>| {
                self.selector.as_ref().is_none_or(|selector| service.is_selected_by(selector))
            };
            manifest.object.read.service().is_some_and(is_selected)
        };
        if self.selector.is_some() && !manifests.iter().any(is_selected) {
            notice(NO_SUCH_LABELS);
        }
        // The manifests of -o yaml have no place for Services that are not among them.
        let misplaced = if are_settings_given && self.output != Output::Yaml {
            misplaced_services(&live, &there, &manifests, self.selector.as_ref())
        } else {
            MisplacedServices::default()
        };
        for note in &misplaced.notes {
            notice(&format!("note: {note}"));
        }
        let is_planned = |manifest: &&Manifest<_>| is_selected(manifest) || (has_pools && manifest.object.is_node());
        let planned = manifests.iter().filter(is_planned).count() as u64;
        let mut planner = Planner::new(live.settings.clone(), there);
        let bar = progress_bar(planned, "{wide_bar} {pos} of {len}, {eta} to go");
        let (begin, mut done) = (Instant::now(), 0);
        let mut plan = planner.plan(&mut manifests, is_selected, || {
            done += 1;
            if begin.elapsed() >= PROGRESS_DELAY {
                bar.set_position(done);
            }
        });
        bar.finish_and_clear();
        plan.misplaced = misplaced.services;
        for row in &mut plan.rows {
            row.message = row.message.take().map(|message| live.words(message));
        }

        match self.output {
            Output::Table => {
                let table = report::plan::table(&plan, Layout::of_stdout(self.no_headers));
                super::output((announced + &table).as_bytes())?
            }
            Output::Json => super::output_json(&report::plan::document(&plan))?,
            Output::Yaml => super::output(filled_manifests::manifests(&sources, &manifests, &plan)?.as_bytes())?,
        };
        let status = if plan.has_denied() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        // The process ends, and freeing each value of a large plan would take a tenth of its time.
        std::mem::forget((planner, plan, manifests));
        Ok(status)
    }
}

/// The misplaced Services of the cluster, and those of the manifests that come from a cluster.
fn misplaced_services(
    settings: &LiveSettings,
    cluster: &[Value],
    manifests: &[Manifest<PlannedObject>],
    selector: Option<&LabelSelector>,
) -> MisplacedServices {
    let is_existing = |manifest: &Manifest<PlannedObject>| manifest.object.read.service().is_some_and(is_of_cluster);
    if cluster.is_empty() && !manifests.iter().any(is_existing) {
        return MisplacedServices::default();
    }
    let called = callers(cluster);
    let mut snapshot = Snapshot::default();
    for object in cluster {
        snapshot.insert(object);
    }
    for Manifest { object, .. } in manifests {
        let service = object.read.service();
        if let Some(existing) = service.and_then(|service| snapshot.service(service.key()).cloned()) {
            let updated = updated(existing.value(), object.value());
            snapshot.add(ReadObject::updated(&updated, &existing));
        } else if service.is_none_or(is_of_cluster) {
            snapshot.add(object.read.clone());
        }
    }
    MisplacedServices::find(settings, &Arc::new(RwLock::new(snapshot)), &called, selector)
}

fn callers(cluster: &[Value]) -> ControlPlaneServices {
    let called = ControlPlaneServices::default();
    for object in cluster {
        let kind = kind_of(object);
        if kinds::callers().any(|caller| caller == kind) {
            source::add_caller(&called, &kind, object);
        }
    }
    called
}

/// Whether `kubectl get -o yaml` printed the Service: the API server sets its UID.
fn is_of_cluster(service: &Arc<StoredService>) -> bool {
    !service.uid().is_empty() && !service.addresses().is_empty()
}

/// A Service of the cluster after its manifest has been applied: it keeps its addresses.
fn updated(mut service: Value, mut manifest: Value) -> Value {
    Mask::new(FIELDS).prune(&mut manifest);
    if let (Some(selector), Some(_)) = (service.pointer_mut("/spec/selector"), manifest.pointer("/spec/selector")) {
        *selector = Value::Null;
    }
    json_patch::merge(&mut service, &manifest);
    service
}
