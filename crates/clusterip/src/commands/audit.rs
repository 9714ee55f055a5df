//! `clusterip audit`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_host::cluster::service_ranges::ServiceRanges;
use clusterip_host::live_settings::{self, LiveSettings, judge};
use clusterip_host::policy::module::{EMBEDDED, Module};
use clusterip_runtime::connect;
use clusterip_runtime::style;
use clusterip_runtime::terminal::{harmless, harmless_lines};
use serde_json::Value;

use super::deployed;
use super::settings_file;
use crate::audit::cache::AuditCache;
use crate::audit::explain;
use crate::audit::fail_on::FailOn;
use crate::audit::input::AuditInput;
use crate::audit::source::{self, Source};
use crate::report::columns::paint;
use crate::report::{audit_table, explanation_table, map};

/// The text at the end of `clusterip audit --help`.
pub const HELP: &str = "\
Examples:
  The cluster of the current context:
    clusterip audit
  In a pipeline:
    clusterip audit --fail-on misplaced,full
  Without access to the cluster:
    kubectl get -A -o json --show-managed-fields services,deployments,statefulsets,daemonsets,replicasets,\\
replicationcontrollers,jobs,cronjobs,pods,namespaces,nodes,runtimeclasses,ipaddresses,servicecidrs,leases,\\
mutatingwebhookconfigurations,validatingwebhookconfigurations,apiservices,customresourcedefinitions >snapshot.json
    clusterip audit --snapshot snapshot.json --settings settings.yaml
  Why does a Service have its address?
    clusterip audit --service shop/web

An audit changes nothing. Exit status: 0; 1 if --fail-on finds something; 2 if the input, the settings or the cluster \
can't be read.";

/// Arguments of `audit`.
#[derive(Debug, Args)]
pub struct Audit {
    /// The kubeconfig for the cluster [default: $KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE", conflicts_with = "snapshot")]
    kubeconfig: Option<PathBuf>,
    /// Read the objects from this output of `kubectl get -A -o json` or `-o yaml`, instead of from a cluster
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// The settings [default: those of the ConfigMap clusterip-settings beside a server, otherwise `{}`]
    #[arg(short, long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The namespace of `clusterip serve` [default: the namespace of its Lease]
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "snapshot")]
    server_namespace: Option<String>,
    /// The namespace of the agents, if Leases may not be listed in the whole cluster [default: that of the server]
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "snapshot")]
    agents_namespace: Option<String>,
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// Exit with 1 if there is a finding of one of these kinds
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',', conflicts_with = "service")]
    fail_on: Vec<FailOn>,
    /// Explain the address of this Service, instead of auditing the cluster
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service: Option<ServiceKey>,
}

/// How to print an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For programs
    Json,
    /// The map: one self-contained page for a browser
    Html,
}

impl Audit {
    /// Audits the cluster, and prints the result.
    ///
    /// # Errors
    /// If the cluster, the input or the settings can't be used. Nothing is printed then.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.audit().map_err(|error| anyhow::anyhow!(harmless_lines(&format!("{error:#}"))))
    }

    fn audit(&self) -> anyhow::Result<ExitCode> {
        let (module, settings, source) = match &self.snapshot {
            Some(file) => {
                let written = settings_file::read(self.settings.as_deref())?;
                let module = Module::new(EMBEDDED)?;
                let checked = self.judge(&module, &written, &ServiceRanges::default())?;
                let source = source::of_file(file, &checked.settings)?;
                (module, written, source)
            }
            None => {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
                runtime.block_on(self.read_cluster())?
            }
        };
        let live = self.settings_in_force(&module, &settings, &source)?;
        let ranges = source.ranges.nets();
        let input = AuditInput {
            module: &module,
            settings: &live,
            ranges,
            snapshot: &source.snapshot,
            in_flight: source.in_flight,
            holders: source.holders,
            called: source.called,
            ledger: false,
            notes: source.notes,
        };
        match &self.service {
            Some(ServiceKey { namespace, name }) => {
                let why = explain::of(&input, (namespace, name))?;
                let why = why.ok_or_else(|| anyhow::anyhow!("there is no service {namespace}/{name}"))?;
                let text = match self.output {
                    Output::Table => explanation_table::why(&why)?,
                    Output::Json => serde_json::to_string_pretty(&why)? + "\n",
                    Output::Html => anyhow::bail!("--service can't be printed as html: use -o table or -o json"),
                };
                super::output(text.as_bytes())?;
                Ok(ExitCode::SUCCESS)
            }
            None => {
                let audit = input.audit(&mut AuditCache::default())?;
                let text = match self.output {
                    Output::Table => audit_table::audit(&audit)?,
                    Output::Json => serde_json::to_string_pretty(&audit)? + "\n",
                    Output::Html => map::page(&audit)?,
                };
                super::output(text.as_bytes())?;
                let fails = self.fail_on.iter().any(|kind| kind.is_met(&audit));
                Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
            }
        }
    }

    async fn read_cluster(&self) -> anyhow::Result<(Module, Value, Source)> {
        let client = connect::client(self.kubeconfig.as_deref()).await?;
        let namespace = deployed::server_namespace(&client, self.server_namespace.as_deref()).await?;
        let from = deployed::settings(&client, &namespace, self.settings.as_deref()).await?;
        anstream::eprintln!("settings: {}", harmless(&from.to_string()));
        let written = live_settings::written(&from).await?;
        let module = Module::new(EMBEDDED)?;
        let checked = self.judge(&module, &written, &ServiceRanges::default())?;
        let agents_namespace = self.agents_namespace.as_deref().unwrap_or(&namespace);
        let source = source::of_cluster(&client, &checked.settings, &namespace, agents_namespace).await?;
        Ok((module, written, source))
    }

    /// The settings as a server would have them in force. If a server would refuse them because a pool lies outside
    /// of the cluster's ranges, the settings as written: the audit then reports that.
    fn settings_in_force(&self, module: &Module, written: &Value, source: &Source) -> anyhow::Result<LiveSettings> {
        let live = match judge(module, written.clone(), &source.ranges) {
            Ok(live) => live,
            Err(_) => {
                let live = self.judge(module, written, &ServiceRanges::default())?;
                let service_cidrs = source.ranges.nets();
                let unusable_service_cidrs = source.ranges.unusable.clone();
                let settings = Settings { service_cidrs, unusable_service_cidrs, ..live.settings };
                LiveSettings { settings, ..live }
            }
        };
        for warning in &live.warnings {
            anstream::eprintln!("{} {}", paint(style::WARNING, "warning:"), harmless(warning));
        }
        Ok(live)
    }

    fn judge(&self, module: &Module, written: &Value, ranges: &ServiceRanges) -> anyhow::Result<LiveSettings> {
        judge(module, written.clone(), ranges).map_err(|mistakes| {
            let file = self.settings.as_ref().map(|file| format!(" {}", file.display())).unwrap_or_default();
            anyhow::anyhow!("settings:{file}\n{mistakes}")
        })
    }
}
