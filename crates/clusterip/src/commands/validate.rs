//! `clusterip validate`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use clusterip_core::pod_spec::OS_LABEL;
use clusterip_core::settings::{DnsAddress, Settings, unknown_name_message};
use clusterip_host::cluster::manifests::{self, ManifestText};
use clusterip_host::cluster::watch::service_ranges::ServiceRanges;
use clusterip_host::live_settings::{CheckError, LiveSettings, SettingsFile, check_settings};
use clusterip_host::permissions::Need;
use clusterip_runtime::api_error::RequestFailure;
use clusterip_runtime::connect::ClusterArguments;
use clusterip_runtime::style;
use clusterip_runtime::terminal::{harmless, harmless_lines};
use k8s_openapi::api::networking::v1::IPAddress;
use kube::{Api, Client};
use tokio::runtime::Runtime;

use super::missing_permissions::Reads;
use super::terminal_options::{TerminalOptions, warn};
use crate::report::columns::paint;
use crate::starter::facts;

/// The text at the end of `clusterip validate --help`.
pub const HELP: &str = "\
Examples:
  Without a cluster:
    clusterip validate examples/settings/k2s.yaml
  Against the cluster of the current context:
    clusterip init >settings.yaml
    clusterip validate --cluster settings.yaml
  The pools of a cluster:
    kubectl get servicepools,externalpools,nodeblockpools,clusterippolicies \\
      -o yaml | clusterip validate -
  The settings of a policy of Kubewarden:
    kubectl get clusteradmissionpolicy clusterip-policy -o yaml \\
      | clusterip validate -

All mistakes of all files are printed, as `clusterip serve` reports them. Against a cluster, pools must lie inside of \
its Service ranges. A file may also have objects of clusterip-policy.io, a ClusterAdmissionPolicy or AdmissionPolicy of \
Kubewarden (its spec.settings), or a ConfigMap (its key settings.yaml).

Exit status: 0 if all settings are valid, with or without warnings; 1 if some have mistakes; 2 if a file or the \
cluster can't be read.";

/// The exit status if a file can't be read.
const UNREADABLE: u8 = 2;

/// The operating systems of Nodes that Kubernetes knows, as the label `kubernetes.io/os` names them.
const SYSTEMS: [&str; 2] = ["linux", "windows"];

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub struct Validate {
    /// Settings files in YAML or JSON, or - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also check against the Service ranges of the cluster; --kubeconfig and --context imply this
    #[arg(long)]
    cluster: bool,
    #[command(flatten)]
    connection: ClusterArguments,
    #[command(flatten)]
    terminal: TerminalOptions,
}

/// The cluster to check against.
struct Cluster {
    runtime: Runtime,
    client: Client,
    ranges: ServiceRanges,
}

impl Validate {
    /// Checks all files, and prints their mistakes and warnings.
    ///
    /// # Errors
    /// If the cluster can't be read.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        self.validate()
    }

    fn validate(&self) -> anyhow::Result<ExitCode> {
        super::check_standard_input(self.files.iter().map(|file| ("FILE", file)))?;
        let has_cluster = self.cluster || self.connection.name_a_cluster();
        let cluster = has_cluster.then(|| self.read_cluster()).transpose()?;
        let (mut has_mistakes, mut is_unread) = (false, false);
        for file in &self.files {
            match manifests::read_file(file) {
                Ok(source) => has_mistakes |= !is_valid(&source, cluster.as_ref())?,
                Err(error) => {
                    is_unread = true;
                    let error = harmless_lines(&error.to_string());
                    anstream::eprintln!("{} {error}", paint(style::ERROR, "error:"));
                }
            }
        }
        Ok(match (is_unread, has_mistakes) {
            (true, _) => ExitCode::from(UNREADABLE),
            (false, true) => ExitCode::FAILURE,
            (false, false) => ExitCode::SUCCESS,
        })
    }

    fn read_cluster(&self) -> anyhow::Result<Cluster> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(self.connection.client())?;
        let ranges = runtime.block_on(async {
            let ranges = facts::service_cidrs(&client).await;
            reads().explain(&client, ranges.map_err(Into::into)).await
        })?;
        if ranges.all.is_empty() {
            warn(
                "the cluster does not show its Service ranges, which Kubernetes does since 1.33, so the pools are \
                 compared only with services.serviceCIDRs of the settings",
            );
        }
        Ok(Cluster { runtime, client, ranges })
    }
}

/// What the command reads from the cluster.
fn reads() -> Reads {
    let need = |verb, resource| Need::read(verb, "networking.k8s.io", resource, None);
    Reads { more: vec![need("list", "servicecidrs"), need("get", "ipaddresses")], ..Reads::default() }
}

/// Checks one text, and prints the result on lines that begin with its name.
fn is_valid(source: &ManifestText, cluster: Option<&Cluster>) -> anyhow::Result<bool> {
    let ranges = cluster.map(|cluster| cluster.ranges.clone()).unwrap_or_default();
    let name = harmless(&source.name);
    let checked = SettingsFile::read(&source.text)
        .and_then(|file| file.document(&ranges))
        .map_err(CheckError::from)
        .and_then(|written| check_settings(written, &ranges));
    let mut lines = String::new();
    let mut line = |what: &str, text: &str| lines.push_str(&format!("{name}: {what}{}\n", harmless(text)));
    let is_valid = checked.is_ok();
    match checked {
        Err(mistakes) => {
            let error = paint(style::ERROR, "error:") + " ";
            mistakes.to_string().lines().for_each(|mistake| line(&error, mistake));
        }
        Ok(live) => {
            let dns = cluster.map(|cluster| cluster.unused_dns_address(&live)).transpose()?.flatten();
            let warning = paint(style::WARNING, "warning:") + " ";
            live.warnings.iter().for_each(|text| line(&warning, text));
            unknown_systems(&live.settings).iter().for_each(|text| line(&warning, text));
            dns.iter().for_each(|dns| line(&warning, &dns.to_string()));
            line("", "valid");
        }
    }
    super::output(lines.as_bytes())?;
    Ok(is_valid)
}

/// A warning for each operating system in the settings that Kubernetes does not know. The policy accepts it, because
/// any Node may have such a label.
fn unknown_systems(settings: &Settings) -> Vec<String> {
    let pools = settings.pools.iter().map(|pool| &pool.matches.node_labels).enumerate();
    let of_services = pools.map(|(number, labels)| (format!("services.pools[{number}].match"), labels.get(OS_LABEL)));
    let pools = settings.nodes.pools.iter().map(|pool| &pool.matches.node_labels).enumerate();
    let of_nodes = pools.map(|(number, labels)| (format!("nodes.pools[{number}].match"), labels.get(OS_LABEL)));
    let assumed = ("services.assumeOS".to_owned(), Some(&settings.assume_os));
    of_services
        .chain(of_nodes)
        .chain([assumed])
        .filter_map(|(path, os)| {
            let os = os.filter(|os| !SYSTEMS.contains(&os.as_str()))?;
            Some(format!("{path}: {}", unknown_name_message("operating system", os, &SYSTEMS)))
        })
        .collect()
}

impl Cluster {
    /// The pool that may hand out the usual address of the cluster's DNS, unless the address is in use.
    fn unused_dns_address(&self, live: &LiveSettings) -> anyhow::Result<Option<DnsAddress>> {
        let Some(dns) = live.settings.pool_with_dns_address() else { return Ok(None) };
        let addresses: Api<IPAddress> = Api::all(self.client.clone());
        let found = self.runtime.block_on(async {
            let found = addresses.get_opt(&dns.address.to_string()).await;
            let found = found.map_err(|error| RequestFailure::from(&error));
            let found = found.with_context(|| format!("IPAddress {} can't be read", dns.address));
            reads().explain(&self.client, found).await
        })?;
        Ok(found.is_none().then_some(dns))
    }
}
