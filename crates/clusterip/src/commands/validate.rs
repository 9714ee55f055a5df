//! `clusterip validate`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, RwLock};

use clap::Args;
use clusterip_api::ReservationHolder;
use clusterip_cluster::api_error::failed;
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::harmless_text::harmless;
use clusterip_cluster::live_settings::{
    LiveSettings, SettingsFile, check_settings, document_of_objects, list_if_defined,
};
use clusterip_cluster::manifests::{self, ManifestText};
use clusterip_cluster::permissions::Need;
use clusterip_cluster::snapshot::Snapshot;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_cluster::style;
use clusterip_cluster::watch::api_server_lists;
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_core::settings::Mistake;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::{Api, Client};

use super::given_settings;
use super::missing_permissions::Reads;
use super::terminal::{TerminalOptions, print_error, warn};
use crate::audit::services::{MisplacedService, MisplacedServices};
use crate::audit::source;
use crate::report::columns::paint;
use crate::text::{first_three, joined, several};
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
    client: Client,
    ranges: ServiceRanges,
}

impl ValidateArguments {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        super::check_standard_input(&[("FILE", &self.files)])?;
        super::block_on(self.check_files())
    }

    async fn check_files(&self) -> anyhow::Result<ExitCode> {
        let has_cluster = self.cluster || self.connection.name_a_cluster();
        let cluster = if has_cluster { Some(self.read_cluster().await?) } else { None };
        // The worst of all files.
        let mut status = 0;
        for file in &self.files {
            let of_file = match manifests::read_file(file) {
                Ok(source) => u8::from(!is_valid(&source, cluster.as_ref()).await?),
                Err(error) => {
                    print_error(&error.to_string());
                    UNREADABLE
                }
            };
            status = status.max(of_file);
        }
        Ok(ExitCode::from(status))
    }

    async fn read_cluster(&self) -> anyhow::Result<Cluster> {
        let client = self.connection.client().await?;
        let ranges = reads().explain(&client, api_server_lists::service_ranges(&client).await).await?;
        if ranges.all.is_empty() {
            warn(
                "the cluster does not show its Service ranges, which Kubernetes does since 1.33, so the pools are \
                 compared only with services.serviceCIDRs of the settings",
            );
        }
        Ok(Cluster { client, ranges })
    }
}

fn reads() -> Reads {
    let need = |verb, resource| Need::read(verb, "networking.k8s.io", resource, None);
    let mut more = vec![need("list", "servicecidrs"), need("get", "ipaddresses")];
    more.extend(given_settings::pool_needs());
    Reads { more, ..Reads::default() }
}

/// Checks one text, and prints the result on lines that begin with its name.
async fn is_valid(source: &ManifestText, cluster: Option<&Cluster>) -> anyhow::Result<bool> {
    let ranges = cluster.map(|cluster| cluster.ranges.clone()).unwrap_or_default();
    let name = harmless(&source.name);
    let mut unenforced = Vec::new();
    let written = match (SettingsFile::read(&source.text), cluster) {
        (Ok(SettingsFile::Objects(objects)), Some(cluster)) => {
            unenforced = source::unenforced_fences(&cluster.client, &objects).await;
            let there = cluster.read(given_settings::OF_CLUSTER, list_if_defined(&cluster.client)).await?;
            document_of_objects(&objects, &there, &ranges)
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
            let mut warnings: Vec<String> = live.warnings.iter().map(ToString::to_string).collect();
            if let Some(cluster) = cluster {
                if let Some(dns) = live.settings.pool_with_dns_address() {
                    let (addresses, name) = (Api::<IPAddress>::all(cluster.client.clone()), dns.address.to_string());
                    let found = cluster.read(&format!("IPAddress {name}"), addresses.get_opt(&name)).await?;
                    warnings.extend(found.is_none().then(|| live.warning((&dns).into()).to_string()));
                }
                warnings.extend(cluster.warnings_of_services(&live).await);
            }
            let warning = paint(style::WARNING, "warning:") + " ";
            warnings.iter().chain(&unenforced).for_each(|text| line(&warning, text));
            line("", "valid");
        }
    }
    super::output(lines.as_bytes())?;
    Ok(is_valid)
}

impl Cluster {
    /// The result of a request for `what`, or an error that lists the missing permissions.
    async fn read<T>(&self, what: &str, request: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
        let found = request.await.map_err(|error| failed(format!("{what} can't be read"), &error));
        reads().explain(&self.client, found).await
    }

    async fn warnings_of_services(&self, live: &LiveSettings) -> Vec<String> {
        let objects = match api_server_lists::objects(&self.client, &live.settings).await {
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
    let names = first_three(services.iter().map(name));
    let are = several(services.len(), "Service");
    let remedy = "`clusterip move --settings FILE --dry-run` lists them";
    (!services.is_empty()).then(|| format!("{are} of the cluster would be misplaced: {names}; {remedy}"))
}
