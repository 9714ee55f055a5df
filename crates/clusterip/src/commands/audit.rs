//! `clusterip audit`

use std::iter;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueEnum};
use clusterip_cluster::api_error::error_chain;
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::harmless_text::harmless_json;
use clusterip_cluster::host_metrics::ClusterMetrics;
use clusterip_cluster::kinds;
use clusterip_cluster::live_settings::{self, LiveSettings, WrittenSettings, check_settings};
use clusterip_cluster::manifests::{self, ManifestText};
use clusterip_cluster::permissions::{self, Duties};
use clusterip_cluster::shutdown::shutdown_signal;
use clusterip_cluster::snapshot::Snapshot;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_cluster::watch::stores::{Change, Stores};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use jiff::Timestamp;
use kube::Client;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::arguments::{self, Scope, ServiceName};
use super::given_settings::{self, GivenSettings};
use super::leading_server::LeadingServer;
use super::missing_permissions::Reads;
use super::terminal::{TerminalOptions, heartbeat, notice, warn, warn_lines};
use crate::audit::model::{Audit, Kind};
use crate::audit::services::AuditCache;
use crate::audit::source::{self, AuditedCluster};
use crate::audit::{AuditInput, explain};
use crate::lease_namespaces::LeaseNamespaces;
use crate::report::audit_parts::{self, value_name};
use crate::report::columns::Layout;
use crate::report::map::About;
use crate::report::{self, audit_table, map, pipeline_reports};

const HELP: &str = "\
Examples:
  The cluster of the current context:
    clusterip audit
  Print the report again each time it changes:
    clusterip audit --watch
  In a pipeline:
    clusterip audit --fail-on misplaced,no-pool,full
  The Services of one namespace; the pools are those of the whole cluster:
    clusterip audit --namespace shop
  The same for Services with these labels:
    clusterip audit --all-namespaces --selector app=web,tier!=back
  Without access to the cluster (the first two commands need it):
    clusterip init >settings.yaml
    clusterip snapshot >snapshot.json
    clusterip audit --snapshot snapshot.json --settings settings.yaml
  Why does a Service have its address?
    clusterip audit --service shop/web

An audit changes nothing. Without --settings, an audit of a cluster uses the settings of the server that leads there, \
or the pools of the cluster if no server leads, and an audit of a snapshot the pool objects in it.

Exit status: 0; 1 if there is a finding of a kind in --fail-on; 2 if the input, the settings or \
the cluster can't be read. With --watch, the status is that of the last report.";

/// How long changes are collected before the next audit, so that a rollout is not reported in a hundred steps.
const COLLECT: Duration = Duration::from_secs(1);
/// How often the cluster is audited without a change: Leases and settings are not watched, and heartbeats age.
const REFRESH: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct AuditArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Read the objects of the cluster from this file of `clusterip snapshot` or `kubectl get -A -o yaml`; - for
    /// standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"])]
    snapshot: Option<PathBuf>,
    /// The settings file, or - for standard input [default: the settings of the server that leads, or else the pools of
    /// the cluster; with --snapshot the pool objects in it, or else the pools of K2s]
    #[arg(short, long, value_name = "FILE")]
    settings: Option<PathBuf>,
    #[command(flatten)]
    namespaces: LeaseNamespaces,
    #[command(flatten)]
    scope: Scope,
    /// Print the report again each time it changes, until SIGINT or SIGTERM. JSON is one document on each line
    #[arg(short, long, conflicts_with_all = ["snapshot", "service"])]
    watch: bool,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// Exit with 1 if there is a finding of one of these kinds
    #[arg(long, value_parser = fail_on(), value_name = "KIND", value_delimiter = ',', conflicts_with = "service")]
    fail_on: Vec<String>,
    /// Explain the address of this Service, instead of auditing the cluster. With --namespace, or a context that has a
    /// namespace, its name is enough
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with_all = ["all_namespaces", "selector"])]
    service: Option<ServiceName>,
    /// Print tables without headers
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    terminal: TerminalOptions,
}

fn fail_on() -> PossibleValuesParser {
    let any = PossibleValue::new("any").help("Any finding");
    let kinds = Kind::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    iter::once(any).chain(kinds).collect::<Vec<_>>().into()
}

struct Connection {
    client: Client,
    settings: live_settings::SettingsSource,
    namespaces: LeaseNamespaces,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For people with a wide terminal: each finding on one line, with more columns
    Wide,
    /// The objects of the findings, such as service/shop/web
    Name,
    /// For programs
    Json,
    /// The map: one self-contained page for a browser
    Html,
    /// For pipelines: a test case for each kind of finding
    Junit,
    /// For pipeline summaries and comments
    Markdown,
}

impl AuditArguments {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        let (settings, snapshot) = (self.settings.as_slice(), self.snapshot.as_slice());
        super::check_standard_input(&[("--settings", settings), ("--snapshot", snapshot)])?;
        if self.watch {
            if !matches!(self.output, Output::Table | Output::Wide | Output::Name | Output::Json) {
                bail!("--watch can't be printed as {}: use -o table, wide, name or json", value_name(&self.output));
            }
            return super::block_on(print_changes(self));
        }
        let is_table = matches!(self.output, Output::Table | Output::Wide) && !self.no_headers;
        let mut announced = String::new();
        let _heartbeat = heartbeat("auditing");
        let (settings, cluster, about) = match &self.snapshot {
            Some(file) => {
                let given = GivenSettings::read(self.settings.as_deref())?;
                let text = manifests::read_at_most(file, u64::MAX).context("snapshot")?;
                let of_objects = || given_settings::of_snapshot(&source::settings_objects(&text));
                let (written, name) = match self.settings.is_none().then(of_objects).flatten() {
                    Some(of_objects) => of_objects,
                    None => (document_in_snapshot(&given, &text)?, given.name),
                };
                let checked = self.check_settings(&written, &ServiceRanges::default())?;
                let source = source::of_text(&text, &checked.settings, &self.namespaces)?;
                if self.settings.is_none() && written.objects.is_none() {
                    check_default_pools(&source)?;
                    announced = given_settings::announce_default_pools(is_table && self.service.is_none());
                }
                let cluster = Some(format!("snapshot {}", file.display()));
                (written, source, About { cluster, settings: Some(name), made: None })
            }
            None => super::block_on(self.read_cluster())?,
        };
        let (live, refused) = self.in_force(&settings, &cluster.ranges)?;
        let objects = settings.objects.unwrap_or_default();
        let input = AuditInput { settings: &live, objects, cluster: &cluster, ledger: false, refused };
        let layout = Layout::of_stdout(self.no_headers);
        if self.snapshot.is_none() {
            self.scope.announce_namespace(&self.cluster, self.service.as_ref());
        }
        match &self.service {
            Some(service) => {
                let key = service.key(&self.scope, || self.namespace())?;
                let why = explain::of(&input, &key).with_context(|| format!("there is no Service {key}"))?;
                let text = match self.output {
                    Output::Table | Output::Wide => audit_table::why(&why, layout),
                    Output::Json => report::json(&why)?,
                    other => bail!("--service can't be printed as {}: use -o table or -o json", value_name(&other)),
                };
                super::output(text.as_bytes())?;
                Ok(ExitCode::SUCCESS)
            }
            None => {
                let namespace = self.namespace();
                self.scope.check(&Snapshot::read(&cluster.snapshot), namespace.as_deref(), None)?;
                let mut cache = AuditCache::default();
                let audit = input.audit(&mut cache);
                let audit = input.only_of(audit, namespace.as_deref(), self.scope.selector.as_ref());
                match self.text(&audit, about)? {
                    Some(text) => super::output((announced + &text).as_bytes())?,
                    None => super::output_json(&audit)?,
                };
                let status = self.status(&audit);
                // The process ends, and freeing each value of a large audit would take a tenth of its time.
                std::mem::forget((audit, cache, cluster));
                Ok(status)
            }
        }
    }

    /// The audit in the output format; `None` for JSON, which is written in parts, so that it is never in memory as a
    /// whole.
    fn text(&self, audit: &Audit, about: About) -> anyhow::Result<Option<String>> {
        let layout = Layout::of_stdout(self.no_headers);
        Ok(Some(match self.output {
            Output::Json => return Ok(None),
            Output::Table => audit_table::audit(audit, layout),
            Output::Wide => audit_table::wide(audit, layout),
            Output::Name => audit_parts::names(audit),
            Output::Html => map::page(audit, &About { made: Some(Timestamp::now()), ..about })?,
            Output::Junit => pipeline_reports::junit(audit)?,
            Output::Markdown => pipeline_reports::markdown(audit),
        }))
    }

    fn status(&self, audit: &Audit) -> ExitCode {
        let is_any = self.fail_on.iter().any(|name| name == "any");
        let fails = audit.findings.iter().any(|found| is_any || self.fail_on.contains(&value_name(&found.kind)));
        if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let client = self.cluster.client().await?;
        let given = self.namespaces.server.as_deref();
        arguments::check_namespace_in_cluster(&client, given, "--server-namespace").await?;
        let of_agents = self.namespaces.agents.as_deref();
        arguments::check_namespace_in_cluster(&client, of_agents, "--agents-namespace").await?;
        // The kinds in the settings are not known yet, so they are those of the default settings.
        let defaults = Settings::default();
        let own = LeaseNamespaces { server: Some(client.default_namespace().to_owned()), agents: None };
        let mut reads = self.reads(&defaults, &self.namespaces.or(&own));
        let found = async {
            let deployed = LeadingServer::find(&client, given, self.settings.is_none()).await?;
            let namespaces = self.namespaces.or(&deployed.lease_namespaces());
            reads = self.reads(&defaults, &namespaces);
            let settings = deployed.settings(&client, self.settings.as_deref(), &mut reads.more).await?;
            notice(&deployed.settings_notice(&settings));
            Ok((settings, namespaces))
        };
        let found = found.await;
        let (settings, namespaces) = reads.explain(&client, found).await?;
        Ok(Connection { client, settings, namespaces })
    }

    fn reads(&self, settings: &Settings, namespaces: &LeaseNamespaces) -> Reads {
        let mut more = namespaces.needs();
        if self.settings.is_none() {
            more.extend(LeadingServer::needs(self.namespaces.server.as_deref()));
            more.extend(given_settings::pool_needs());
        }
        Reads { kinds: kinds::asked(settings).chain(kinds::callers()).collect(), more, ..Reads::default() }
    }

    async fn read_cluster(&self) -> anyhow::Result<(WrittenSettings, AuditedCluster, About)> {
        let Connection { client, settings, namespaces } = self.connect().await?;
        let mut reads = self.reads(&Settings::default(), &namespaces);
        let read = async {
            let written = live_settings::written(&settings, &client).await?;
            let checked = self.check_settings(&written, &ServiceRanges::default())?.settings;
            reads = self.reads(&checked, &namespaces);
            Ok((written, source::of_cluster(&client, &checked, &namespaces).await?))
        };
        let read = read.await;
        let (written, source) = reads.explain(&client, read).await?;
        let cluster = self.cluster.name().await;
        Ok((written, source, About { cluster, settings: Some(settings.to_string()), made: None }))
    }

    /// The only namespace whose Services are audited; `None` for all. A snapshot has no context.
    fn namespace(&self) -> Option<String> {
        match &self.snapshot {
            Some(_) => self.scope.namespace.clone(),
            None => self.scope.namespace(&self.cluster),
        }
    }

    /// The settings as a server would have them, and whether it refuses them. Then the audit uses them as written.
    fn in_force(&self, written: &WrittenSettings, ranges: &ServiceRanges) -> anyhow::Result<(LiveSettings, bool)> {
        let (live, refused) = match check_settings(written.clone(), ranges) {
            Ok(live) => (live, false),
            Err(_) => {
                let live = self.check_settings(written, &ServiceRanges::default())?;
                let (service_cidrs, unusable_service_cidrs) = (ranges.nets(), ranges.unusable.clone());
                let settings = Settings { service_cidrs, unusable_service_cidrs, ..live.settings };
                (LiveSettings { settings, ..live }, true)
            }
        };
        for warning in &live.warnings {
            warn(&warning.to_string());
        }
        Ok((live, refused))
    }

    fn check_settings(&self, written: &WrittenSettings, ranges: &ServiceRanges) -> anyhow::Result<LiveSettings> {
        let name = match (&self.settings, &self.snapshot) {
            (Some(_), _) => given_settings::name_of(self.settings.as_deref()),
            (None, Some(_)) => given_settings::OF_SNAPSHOT.to_owned(),
            (None, None) => "the settings of the cluster".to_owned(),
        };
        given_settings::check(written.clone(), ranges, &name)
    }
}

/// Pools may select ServiceCIDRs of the snapshot. The audit itself compares the pools with its Service ranges.
fn document_in_snapshot(given: &GivenSettings, text: &ManifestText) -> anyhow::Result<WrittenSettings> {
    if !given.content.selects_service_cidrs() {
        return given.document(&ServiceRanges::default());
    }
    given.document(&ServiceRanges::of(source::objects_in(text, live_settings::is_service_cidr)).only_labels())
}

/// Checks that the pools of K2s fit the Service ranges, or else the address of `default/kubernetes`.
fn check_default_pools(source: &AuditedCluster) -> anyhow::Result<()> {
    if !source.ranges.all.is_empty() {
        return given_settings::check(json!({}), &source.ranges, &given_settings::name_of(None)).map(|_| ());
    }
    let kubernetes = Snapshot::read(&source.snapshot).service(&ServiceKey::new("default", "kubernetes")).cloned();
    let primary = kubernetes.and_then(|service| service.addresses().first().copied());
    primary.map_or(Ok(()), given_settings::check_default_pools)
}

/// Prints the report again each time it changes.
async fn print_changes(command: &AuditArguments) -> anyhow::Result<ExitCode> {
    let namespace = command.namespace();
    let (mut cluster, mut changes) = WatchedCluster::start(command).await?;
    command.scope.check(&cluster.stores.read_snapshot(), namespace.as_deref(), None)?;
    let mut shutdown = pin!(shutdown_signal());
    let (mut shown, mut status): (Option<String>, _) = (None, ExitCode::SUCCESS);
    loop {
        let audit = tokio::select! {
            biased;
            () = &mut shutdown => return Ok(status),
            audit = cluster.audit(namespace.as_deref()) => audit,
        };
        // In JSON each report is on a line of its own, for programs that read line by line.
        let text = match command.text(&audit, About::default())? {
            Some(text) => text,
            None => harmless_json(serde_json::to_string(&audit)?) + "\n",
        };
        status = command.status(&audit);
        if shown.as_ref() != Some(&text) {
            let separator = match command.output {
                _ if shown.is_none() => String::new(),
                Output::Json => String::new(),
                Output::Name => "\n".to_owned(),
                _ => format!("\n{}\n", Timestamp::now().strftime("%Y-%m-%d %H:%M:%S UTC")),
            };
            if !super::output((separator + &text).as_bytes())? {
                return Ok(status);
            }
            shown = Some(text);
        }
        tokio::select! {
            () = &mut shutdown => return Ok(status),
            () = next_change(&mut changes) => {}
        }
    }
}

/// Waits until the next audit is due. The audit sees all changes until then.
async fn next_change(changes: &mut watch::Receiver<()>) {
    tokio::select! {
        Ok(()) = changes.changed() => sleep(COLLECT).await,
        () = sleep(REFRESH) => {}
    }
    changes.mark_unchanged();
}

struct SettingsInForce {
    written: WrittenSettings,
    ranges: ServiceRanges,
    live: LiveSettings,
    refused: bool,
}

struct WatchedCluster<'c> {
    command: &'c AuditArguments,
    connection: Connection,
    stores: Stores,
    settings: SettingsInForce,
    /// Why the latest version of the settings is not used, as last printed.
    problem: Option<String>,
    cache: AuditCache,
}

impl<'c> WatchedCluster<'c> {
    async fn start(command: &'c AuditArguments) -> anyhow::Result<(Self, watch::Receiver<()>)> {
        let connection = command.connect().await?;
        let metrics = ClusterMetrics::default();
        let (changed, changes) = watch::channel(());
        let changed = move |_: &Change<'_>| changed.send_replace(());
        let stores = Stores::new(connection.client.clone(), metrics, |_| (), changed);
        stores.ask_for_service_cidrs().await?;
        let settings = read_settings(command, &connection, &stores, None).await?;
        let settings = settings.context("the settings are unknown")?;
        // If these objects can't be listed, the audit has a note about it. So this permission is not required.
        stores.watch_kinds(kinds::callers());
        stores.control_plane_services().wait_until_listed().await;
        let (problem, cache) = (None, AuditCache::default());
        Ok((Self { command, connection, stores, settings, problem, cache }, changes))
    }

    /// Reads the settings again, and audits. If the new version can't be used, the one before stays in use, as in a
    /// server.
    async fn audit(&mut self, namespace: Option<&str>) -> Audit {
        let read = read_settings(self.command, &self.connection, &self.stores, Some(&self.settings)).await;
        let problem = match read {
            Ok(changed) => {
                changed.into_iter().for_each(|changed| self.settings = changed);
                None
            }
            Err(error) => Some(error_chain(&*error)),
        };
        if let Some(problem) = problem.as_ref().filter(|_| self.problem != problem) {
            warn_lines(&format!("the audit keeps using the previous settings: {problem}"));
        }
        self.problem = problem;
        let SettingsInForce { written, live, refused, .. } = &self.settings;
        let Connection { client, namespaces, .. } = &self.connection;
        let cluster = source::of_stores(client, &self.stores, &live.settings, namespaces).await;
        let objects = written.objects.clone().unwrap_or_default();
        let input = AuditInput { settings: live, objects, cluster: &cluster, ledger: false, refused: *refused };
        let audit = input.audit(&mut self.cache);
        input.only_of(audit, namespace, self.command.scope.selector.as_ref())
    }
}

/// The settings in force, and a watch of their kinds; `None` if they are those `before`.
async fn read_settings(
    command: &AuditArguments,
    Connection { client, settings, namespaces }: &Connection,
    stores: &Stores,
    before: Option<&SettingsInForce>,
) -> anyhow::Result<Option<SettingsInForce>> {
    let written = live_settings::written(settings, client).await?;
    let ranges = stores.service_cidrs().borrow().clone();
    if before.is_some_and(|before| before.ranges == ranges && before.written == written) {
        return Ok(None);
    }
    let (live, refused) = command.in_force(&written, &ranges)?;
    // A watch that is not permitted would never be complete.
    let duties = Duties { namespace: namespaces.server.clone().unwrap_or_default(), ..Duties::default() };
    permissions::check(client, &live.settings, &duties).await?;
    stores.watch_kinds(kinds::asked(&live.settings));
    stores.completed().await;
    Ok(Some(SettingsInForce { written, ranges, live, refused }))
}
