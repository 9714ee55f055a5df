//! `clusterip plan`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::live_settings::{LiveSettings, is_service_cidr, is_settings_api, is_settings_object};
use clusterip_cluster::lookups::snapshot::addresses;
use clusterip_cluster::manifests::manifest_files::{self, Input, Namespace};
use clusterip_cluster::manifests::{Manifest, ManifestText};
use clusterip_cluster::object;
use clusterip_core::service_key::ServiceKey;
use serde_json::Value;

mod existing_services;
mod progress;
mod settings;
mod warnings;

use self::progress::Bar;
use self::settings::Cluster;
use super::heartbeat::Heartbeat;
use super::scope;
use super::settings_file::{self, GivenSettings};
use super::terminal_options::{TerminalOptions, notice};
use crate::api_server_rules::is_namespace;
use crate::audit::services::misplaced::MisplacedServices;
use crate::kustomization::{self, Built};
use crate::manifest_planner::Planner;
use crate::report;
use crate::report::columns::Layout;
use crate::service_selector::ServiceSelector;
use crate::snapshot_kinds::SnapshotKinds;

/// The text at the end of `clusterip plan --help`.
pub const HELP: &str = "\
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

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct Plan {
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

/// How to print a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For programs
    Json,
    /// The manifests, with addresses filled in
    Yaml,
}

/// What a plan reads.
struct PlanInput {
    sources: Vec<ManifestText>,
    manifests: Vec<Manifest>,
    /// The objects of the cluster; none if it is not known.
    there: Vec<Value>,
    live: LiveSettings,
    /// Whether the user chose the settings, which then need not be those of the cluster.
    are_settings_given: bool,
    /// Whether the command got no settings, and uses the default pools, those of K2s.
    are_defaults: bool,
}

impl Plan {
    /// Plans, and prints the plan.
    ///
    /// # Errors
    /// If input or settings can't be used. Nothing is printed then.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        let _heartbeat = Heartbeat::start("planning");
        self.plan()
    }

    fn plan(&self) -> anyhow::Result<ExitCode> {
        let PlanInput { sources, manifests, there, live, are_settings_given, are_defaults } = self.read()?;
        let is_table = self.output == Output::Table && !self.no_headers;
        let announced = if are_defaults { settings_file::announce_default_pools(is_table) } else { String::new() };
        warnings::print(&live, &there, &manifests);
        let has_pools = !live.settings.nodes.pools.is_empty();
        let is_selected = |manifest: &Manifest| {
            self.selector.as_ref().is_none_or(|selector| selector.matches(&manifest.object.value()))
        };
        if !manifests.iter().any(|manifest| manifest.is_service() && is_selected(manifest)) && self.selector.is_some() {
            notice(scope::NO_SUCH_LABELS);
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
        let planner = Planner::new(live.settings.clone(), there).only(self.selector.clone());
        let mut bar = Bar::new(planned);
        let mut plan = planner.plan(&manifests, |done| bar.show(done));
        bar.end();
        for row in &mut plan.rows {
            row.message = row.message.take().map(|message| live.words(message));
        }

        let text = match self.output {
            Output::Table => {
                announced + &report::plan_table::plan(&plan, &misplaced.services, Layout::of_stdout(self.no_headers))
            }
            Output::Json => report::plan_json::plan(&plan, &misplaced.services)?,
            Output::Yaml => report::filled_manifests::manifests(&sources, &manifests, &plan)?,
        };
        super::output(text.as_bytes())?;
        Ok(if plan.has_denied() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Reads the manifests, the settings and the cluster, and checks them.
    fn read(&self) -> anyhow::Result<PlanInput> {
        self.check_standard_input()?;
        let mut given = GivenSettings::read(self.settings.as_deref())?;
        let of_context = self.namespace_of_context();
        let Input { sources, manifests, skipped, outside } = self.input(of_context.as_deref())?;
        let of_manifests = self.settings_objects(&manifests)?;
        let are_settings_given = self.settings.is_some() || !of_manifests.is_empty();
        if !of_manifests.is_empty() {
            given = GivenSettings::of_objects("the objects of the manifests", of_manifests);
        }
        self.tell_skipped(&skipped);
        for link in outside {
            notice(&format!("skipped: {link}: a link to a file outside of the folder"));
        }
        let Cluster { objects: there, settings } = self.cluster(&given, are_settings_given)?;
        if let Some(namespace) = &of_context {
            check_namespace(namespace, "the context", &there, &manifests)?;
        }
        if let Some(namespace) = &self.namespace {
            check_namespace(namespace, "--namespace", &there, &manifests)?;
        }
        let are_defaults = !are_settings_given && settings.is_none();
        let live = settings::check(&given, settings, &there, &manifests)?;
        if are_defaults && live.settings.service_cidrs.is_empty() {
            check_against_kubernetes(&there, &manifests)?;
        }
        if let Some(file) = &self.snapshot {
            let kinds = SnapshotKinds::of(&there);
            kinds.check(&live.settings).with_context(|| format!("snapshot: {}", file.display()))?;
        }
        Ok(PlanInput { sources, manifests, there, live, are_settings_given, are_defaults })
    }

    /// Checks that only one argument is `-` for standard input.
    fn check_standard_input(&self) -> anyhow::Result<()> {
        let paths = self.paths.iter().map(|path| ("PATHS", path));
        let filenames = self.filenames.iter().map(|path| ("--filename", path));
        let settings = self.settings.iter().map(|file| ("--settings", file));
        let snapshot = self.snapshot.iter().map(|file| ("--snapshot", file));
        super::check_standard_input(paths.chain(filenames).chain(settings).chain(snapshot))
    }

    /// The pool objects and the ClusterIPPolicy among the manifests, and the ServiceCIDRs that pools may select; empty
    /// if none of the manifests are settings.
    fn settings_objects(&self, manifests: &[Manifest]) -> anyhow::Result<Vec<Value>> {
        let may_be_part =
            |manifest: &&Manifest| is_settings_api(&manifest.api_version) || manifest.kind == "ServiceCIDR";
        let parts = manifests.iter().filter(may_be_part);
        let objects = || parts.clone().map(|manifest| (&manifest.origin, manifest.object.value()));
        let Some((origin, object)) = objects().find(|(_, object)| is_settings_object(object)) else {
            return Ok(Vec::new());
        };
        if let Some(file) = &self.settings {
            bail!(
                "{origin}: {} {} is settings, but --settings names other ones ({}): omit --settings, or leave the \
                 object out",
                object::kind(&object),
                object::name(&object),
                file.display()
            );
        }
        let is_part = |object: &Value| is_settings_object(object) || is_service_cidr(object);
        Ok(objects().map(|(_, object)| object).filter(is_part).collect())
    }

    /// Reads the manifests. `of_context` is that of [`Self::namespace_of_context`].
    fn input(&self, of_context: Option<&str>) -> anyhow::Result<Input> {
        if let Some(namespace) = of_context {
            notice(&format!("namespace: {namespace} (of the context)"));
        }
        let namespace = match &self.namespace {
            Some(namespace) => Namespace::Only(namespace),
            None => Namespace::Default(of_context.unwrap_or("default")),
        };
        if let Some(folder) = &self.kustomize {
            let Built { source, messages } = kustomization::build(folder)?;
            messages.iter().for_each(|message| notice(message));
            return Ok(manifest_files::load_text(source, namespace)?);
        }
        let paths: Vec<PathBuf> = self.paths.iter().chain(&self.filenames).cloned().collect();
        Ok(manifest_files::load(&paths, namespace)?)
    }

    /// Whether to read the objects of the cluster from its API server.
    fn uses_cluster(&self) -> bool {
        self.cluster || self.connection.name_a_cluster()
    }

    /// The namespace of the context for objects without a namespace, if a cluster is used.
    fn namespace_of_context(&self) -> Option<String> {
        if self.namespace.is_some() || !self.uses_cluster() {
            return None;
        }
        self.connection.namespace()
    }

    /// Tells which files of folders are not planned.
    fn tell_skipped(&self, skipped: &[String]) {
        if self.verbose {
            for file in skipped {
                notice(&format!("skipped: {file}: no Kubernetes objects"));
            }
        } else if !skipped.is_empty() {
            let files = if skipped.len() == 1 { "1 file".to_owned() } else { format!("{} files", skipped.len()) };
            notice(&format!("skipped: {files} without Kubernetes objects (-v lists them)"));
        }
    }
}

/// Checks that the pools of K2s fit the address of `default/kubernetes`, if that is known.
fn check_against_kubernetes(there: &[Value], manifests: &[Manifest]) -> anyhow::Result<()> {
    let addresses_of = |object: &Value| {
        let is_it =
            object::kind(object) == "Service" && ServiceKey::of(object) == ServiceKey::new("default", "kubernetes");
        if is_it { addresses(object) } else { Vec::new() }
    };
    let of_manifests = manifests.iter().filter(|manifest| manifest.is_service());
    let of_manifests = of_manifests.flat_map(|manifest| addresses_of(&manifest.object.value()));
    let primary = there.iter().flat_map(addresses_of).chain(of_manifests).next();
    primary.map_or(Ok(()), settings_file::check_default_pools)
}

/// Checks that the namespace of `--namespace` or of the context exists in the cluster or in the manifests. A snapshot
/// without Namespaces does not show which ones exist. `named_by` is what names the namespace.
fn check_namespace(namespace: &str, named_by: &str, there: &[Value], manifests: &[Manifest]) -> anyhow::Result<()> {
    let is_it = |object: &Value| is_namespace(object) && object::name(object) == namespace;
    let exists = there.iter().any(|object| is_it(object) || object::namespace(object) == namespace)
        || manifests.iter().any(|manifest| manifest.kind == "Namespace" && is_it(&manifest.object.value()));
    if exists || !there.iter().any(is_namespace) {
        return Ok(());
    }
    Err(scope::missing_namespace(namespace, named_by))
}
