//! `clusterip validate`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, RwLock};

use anyhow::Context;
use clap::Args;
use clusterip_api::ReservationHolder;
use clusterip_cluster::api_error::RequestFailure;
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::live_settings::{LiveSettings, SettingsFile, check_settings, document_beside, list_if_defined};
use clusterip_cluster::lookups::api_server_lists;
use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_cluster::manifests::{self, ManifestText};
use clusterip_cluster::permissions::Need;
use clusterip_cluster::style;
use clusterip_cluster::terminal::harmless;
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_cluster::watch::service_ranges::ServiceRanges;
use clusterip_core::settings::{DnsAddress, Mistake};
use k8s_openapi::api::networking::v1::IPAddress;
use kube::{Api, Client};
use tokio::runtime::Runtime;

use super::given_settings;
use super::missing_permissions::Reads;
use super::terminal::{TerminalOptions, print_error, warn};
use crate::audit::services::{MisplacedService, MisplacedServices};
use crate::audit::source;
use crate::report::columns::paint;
use crate::starter::facts;
use crate::text::{joined, several};
use crate::usage::reservation_holder;

const HELP: &str = "\
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
its Service ranges, and pool objects must fit those that the cluster has already. A warning tells which Services \
would be misplaced. A file may also have objects of clusterip-policy.io, a ClusterAdmissionPolicy or AdmissionPolicy \
of Kubewarden (its spec.settings), or a ConfigMap (its key settings.yaml).

Exit status: 0 if all settings are valid, with or without warnings; 1 if some have mistakes; 2 if a file or the \
cluster can't be read.";

const UNREADABLE: u8 = 2;

const SHOWN: usize = 3;

#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct ValidateArguments {
    /// Settings files in YAML or JSON, or - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also check against the Service ranges, the pools and the Services of the cluster; --kubeconfig and --context
    /// imply this
    #[arg(long)]
    cluster: bool,
    #[command(flatten)]
    connection: ClusterArguments,
    #[command(flatten)]
    terminal: TerminalOptions,
}

struct Cluster {
    runtime: Runtime,
    client: Client,
    ranges: ServiceRanges,
}

impl ValidateArguments {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        super::check_standard_input(&[("FILE", &self.files)])?;
        let has_cluster = self.cluster || self.connection.name_a_cluster();
        let cluster = has_cluster.then(|| self.read_cluster()).transpose()?;
        // The worst of all files.
        let mut status = 0;
        for file in &self.files {
            let of_file = match manifests::read_file(file) {
                Ok(source) => u8::from(!is_valid(&source, cluster.as_ref())?),
                Err(error) => {
                    print_error(&error.to_string());
                    UNREADABLE
                }
            };
            status = status.max(of_file);
        }
        Ok(ExitCode::from(status))
    }

    fn read_cluster(&self) -> anyhow::Result<Cluster> {
        let runtime = super::runtime()?;
        let client = runtime.block_on(self.connection.client())?;
        let ranges = runtime.block_on(async {
            let ranges = facts::service_cidrs(&client).await;
            reads().explain(&client, ranges).await
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

fn reads() -> Reads {
    let need = |verb, resource| Need::read(verb, "networking.k8s.io", resource, None);
    let mut more = vec![need("list", "servicecidrs"), need("get", "ipaddresses")];
    more.extend(given_settings::pool_needs());
    Reads { more, ..Reads::default() }
}

/// Checks one text, and prints the result on lines that begin with its name.
fn is_valid(source: &ManifestText, cluster: Option<&Cluster>) -> anyhow::Result<bool> {
    let ranges = cluster.map(|cluster| cluster.ranges.clone()).unwrap_or_default();
    let name = harmless(&source.name);
    let mut unenforced = Vec::new();
    let written = match (SettingsFile::read(&source.text), cluster) {
        (Ok(SettingsFile::Objects(objects)), Some(cluster)) => {
            unenforced = cluster.runtime.block_on(source::unenforced_fences(&cluster.client, &objects));
            let there = cluster.read(given_settings::OF_CLUSTER, list_if_defined(&cluster.client))?;
            document_beside(&objects, &there, &ranges)
        }
        (file, _) => file.and_then(|file| file.document(&ranges)),
    };
    let checked = written.and_then(|written| check_settings(written, &ranges));
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
            let dns = dns.map(|dns| live.warning((&dns).into()));
            let of_services = cluster.map(|cluster| cluster.warnings_of_services(&live)).unwrap_or_default();
            let warning = paint(style::WARNING, "warning:") + " ";
            live.warnings.iter().chain(&dns).for_each(|text| line(&warning, &text.to_string()));
            of_services.iter().chain(&unenforced).for_each(|text| line(&warning, text));
            line("", "valid");
        }
    }
    super::output(lines.as_bytes())?;
    Ok(is_valid)
}

impl Cluster {
    /// The pool that may hand out the usual address of the cluster's DNS, unless the address is in use.
    fn unused_dns_address(&self, live: &LiveSettings) -> anyhow::Result<Option<DnsAddress>> {
        let Some(dns) = live.settings.pool_with_dns_address() else { return Ok(None) };
        let (addresses, name) = (Api::<IPAddress>::all(self.client.clone()), dns.address.to_string());
        let found = self.read(&format!("IPAddress {name}"), addresses.get_opt(&name))?;
        Ok(found.is_none().then_some(dns))
    }

    /// The result of a request for `what`, or an error that lists the missing permissions.
    fn read<T>(&self, what: &str, request: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
        self.runtime.block_on(async {
            let found = request.await.map_err(|error| RequestFailure::from(&error));
            let found = found.with_context(|| format!("{what} can't be read"));
            reads().explain(&self.client, found).await
        })
    }

    fn warnings_of_services(&self, live: &LiveSettings) -> Vec<String> {
        let objects = match self.runtime.block_on(api_server_lists::objects(&self.client, &live.settings)) {
            Ok(objects) => objects,
            Err(error) => return vec![format!("the Services of the cluster are not checked: {error}")],
        };
        let mut snapshot = Snapshot::default();
        for object in &objects {
            snapshot.insert(object);
        }
        let mut warnings = Vec::new();
        for (index, pool) in live.settings.pools.iter().enumerate() {
            for (place, reservation) in pool.reservations.iter().enumerate() {
                if let (ReservationHolder::Other, other) = reservation_holder(&snapshot, reservation) {
                    let path = format!("services.pools[{index}].reservations[{place}]");
                    let other = other.map_or("another object".to_owned(), |other| format!("Service {other}"));
                    let reason = format!("{} is in use by {other}", reservation.address);
                    warnings.push(live.warning(Mistake { path, reason }).to_string());
                }
            }
        }
        let snapshot = Arc::new(RwLock::new(snapshot));
        let misplaced = MisplacedServices::find(live, &snapshot, &ControlPlaneServices::default(), None);
        warnings.extend(misplaced_warning(&misplaced.services));
        warnings
    }
}

fn misplaced_warning(services: &[MisplacedService]) -> Option<String> {
    let name = |MisplacedService { finding, .. }: &MisplacedService| {
        joined(finding.namespace.iter().chain(&finding.name), "/")
    };
    let names = joined(services.iter().take(SHOWN).map(name), ", ");
    let more = if services.len() > SHOWN { format!(" and {} more", services.len() - SHOWN) } else { String::new() };
    let are = several(services.len(), "Service");
    (!services.is_empty()).then(|| {
        format!(
            "{are} of the cluster would be misplaced: {names}{more}; `clusterip move --settings FILE --dry-run` lists \
             them"
        )
    })
}
