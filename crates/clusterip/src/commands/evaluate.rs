//! `clusterip evaluate`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, RwLock};

use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, ValueEnum};
use clusterip_core::answer::Answer;
use clusterip_core::lookups::Cluster;
use clusterip_core::settings::Settings;
use clusterip_core::{InUse, decide_value};
use clusterip_host::cluster::lookups::api_server_lookups::ApiServerLookups;
use clusterip_host::cluster::lookups::snapshot::{Snapshot, SnapshotCalls};
use clusterip_host::cluster::manifests;
use clusterip_host::cluster::watch::service_ranges::ServiceRanges;
use clusterip_host::live_settings::compile_cluster;
use clusterip_host::policy::host_calls::{HostCall, HostCalls};
use clusterip_host::policy::recorded_session::{self, Recorder, Replay};
use clusterip_host::policy::request_file;
use clusterip_host::policy::response::AdmissionResponse;
use clusterip_policy::kubewarden_cluster::KubewardenCluster;
use clusterip_runtime::connect::ClusterArguments;
use serde_json::Value;

use super::settings_file::{self, GivenSettings};
use super::terminal_options::{TerminalOptions, warn};

/// The text at the end of `clusterip evaluate --help`.
pub const HELP: &str = "\
Examples:
  A recorded session:
    cd e2e-tests/sessions/evidence-from-a-deployment
    clusterip evaluate --request request.json --settings settings.json \\
      --session session.yml -o decoded
  The same request in the cluster of the current context, with a new record:
    clusterip evaluate --request request.json --settings settings.json \\
      --cluster --record /tmp/session.yml

Without --snapshot, --session or --cluster, the cluster is empty. The settings are used as they are written, as in \
Kubewarden: they are not completed from the cluster. Pool objects get the ranges of the ServiceCIDRs that they select.

A session (--record) contains the look-ups of the policy and their answers, in the format of `kwctl run \
--record-host-capabilities-interactions`. It contains objects of the cluster, each with its whole metadata (names, \
labels, annotations, owners) and the fields that the policy reads. Review it before you publish it.

Exit status: 0 if the request is allowed; 1 if it is denied (`kwctl run` exits with 0); 2 if the input or the \
settings can't be used, or the session does not match. Then only one message is printed.";

/// Arguments of `evaluate`.
#[derive(Debug, Args)]
pub struct Evaluate {
    /// An AdmissionRequest or AdmissionReview in JSON or YAML; - for standard input
    #[arg(long, value_name = "FILE")]
    request: PathBuf,
    /// The settings file, or - for standard input [default: the pool objects of the cluster or the snapshot, or else
    /// the pools of K2s]
    #[arg(short, long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Answer the look-ups from this file of `clusterip snapshot` or `kubectl get -A -o yaml`; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["session", "cluster", "kubeconfig", "context"])]
    snapshot: Option<PathBuf>,
    /// Answer the look-ups from this recorded session, or - for standard input; they must come in the recorded order
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cluster", "kubeconfig", "context", "record"])]
    session: Option<PathBuf>,
    /// Answer the look-ups from the cluster of the current context; --kubeconfig and --context imply this
    #[arg(long)]
    cluster: bool,
    #[command(flatten)]
    connection: ClusterArguments,
    /// Record the look-ups of the policy and their answers, for --session or kwctl
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The output format
    #[arg(short, long, value_enum, default_value = "json")]
    output: Output,
    #[command(flatten)]
    terminal: TerminalOptions,
}

/// How to print a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// In one line, as kwctl does
    Json,
    /// Indented, the patch decoded, as in the folders of e2e-tests/sessions
    Decoded,
}

/// Where look-ups are answered from.
enum LookupSource {
    Snapshot(SnapshotCalls),
    Session(Arc<Replay>),
    Cluster(Arc<ApiServerLookups>),
}

/// The settings of an evaluation.
struct SettingsInUse {
    document: Value,
    /// Their name in messages.
    name: String,
    /// Whether they are objects of the API `clusterip-policy.io`, which Kubewarden does not know.
    are_objects: bool,
}

impl Evaluate {
    /// Evaluates the request, and prints the response.
    ///
    /// # Errors
    /// If input or settings can't be used, or the policy fails. Nothing is printed then.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        self.evaluate()
    }

    fn evaluate(&self) -> anyhow::Result<ExitCode> {
        let settings = self.settings.iter().map(|file| ("--settings", file));
        let snapshot = self.snapshot.iter().map(|file| ("--snapshot", file));
        let session = self.session.iter().map(|file| ("--session", file));
        let request = [("--request", &self.request)].into_iter();
        super::check_standard_input(request.chain(settings).chain(snapshot).chain(session))?;
        let given = GivenSettings::read(self.settings.as_deref())?;
        let request = self.request()?;
        let check = |document: Value, name: &str| settings_file::check(document, &ServiceRanges::default(), name);
        // Mistakes are reported before the cluster is read.
        check(given.document_without_cluster()?, &given.name)?;
        let (source, cluster) = self.source()?;
        let SettingsInUse { document, name, are_objects } = self.settings_in_use(&given, &source, &cluster)?;
        let live = check(document.clone(), &name)?;
        settings_file::print_warnings(&live, &name);
        if !are_objects {
            warn_about_unset_ranges(&live.settings, &cluster, &name);
        }

        let recorder = Recorder::new(source.calls());
        let decision = decide_value(&request, &live.settings, InUse::default(), &looking_up(&recorder));
        let answer = Answer::new(decision, request.get("object").cloned().unwrap_or_default());
        if let Some(file) = &self.record {
            let exchanges = recorder.exchanges();
            fs::write(file, recorded_session::write(&exchanges))
                .with_context(|| format!("record: {}", file.display()))?;
        }
        if let LookupSource::Session(replay) = &source {
            self.fits(replay)?;
        }
        let response = AdmissionResponse::new(&request, answer)?;
        let text = match self.output {
            Output::Json => format!("{}\n", serde_json::to_string(&response)?),
            Output::Decoded => format!("{:#}\n", decoded(&response)?),
        };
        super::output(text.as_bytes())?;
        Ok(if response.allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn request(&self) -> anyhow::Result<Value> {
        let source = manifests::read_file(&self.request).context("request")?;
        request_file::read(&source.text).with_context(|| format!("request: {}", source.name))
    }

    /// The settings of the evaluation: the given ones, or the pool objects of the cluster or of the snapshot, or those
    /// of K2s. `cluster` are the objects of [`Self::source`].
    fn settings_in_use(
        &self,
        given: &GivenSettings,
        source: &LookupSource,
        cluster: &[Value],
    ) -> anyhow::Result<SettingsInUse> {
        let found = match source {
            _ if self.settings.is_some() => None,
            LookupSource::Cluster(lookups) => {
                let document = settings_file::of_cluster(lookups.run(compile_cluster))?;
                document.map(|document| (document, settings_file::OF_CLUSTER))
            }
            LookupSource::Snapshot(_) => {
                settings_file::of_snapshot(cluster).map(|document| (document, settings_file::OF_SNAPSHOT))
            }
            LookupSource::Session(_) => None,
        };
        Ok(match found {
            Some((document, name)) => SettingsInUse { document, name: name.to_owned(), are_objects: true },
            None => SettingsInUse {
                document: given.document(&ServiceRanges::of(cluster).only_labels())?,
                name: given.name.clone(),
                are_objects: given.are_objects(),
            },
        })
    }

    /// Where look-ups are answered from, and the objects of the cluster as far as the settings depend on them: the
    /// ServiceCIDRs of a live cluster, or all objects of a snapshot.
    fn source(&self) -> anyhow::Result<(LookupSource, Vec<Value>)> {
        if let Some(file) = &self.session {
            let text = manifests::read_large_file(file).context("session")?.text;
            let exchanges = recorded_session::read(&text).with_context(|| format!("session: {}", file.display()))?;
            return Ok((LookupSource::Session(Arc::new(Replay::new(exchanges))), Vec::new()));
        }
        if self.cluster || self.connection.name_a_cluster() {
            let lookups = ApiServerLookups::new(&self.connection)?;
            let service_cidrs = lookups.service_cidrs();
            return Ok((LookupSource::Cluster(Arc::new(lookups)), service_cidrs));
        }
        let objects = self.snapshot.as_deref().map(super::read_snapshot).transpose()?.unwrap_or_default();
        let mut snapshot = Snapshot::default();
        objects.iter().cloned().for_each(|object| snapshot.insert(object));
        Ok((LookupSource::Snapshot(SnapshotCalls::new(Arc::new(RwLock::new(snapshot)))), objects))
    }

    /// Checks that the policy asked for what was recorded.
    fn fits(&self, replay: &Replay) -> anyhow::Result<()> {
        let file = self.session.as_deref().unwrap_or(Path::new("-")).display();
        if let Some(mismatch) = replay.mismatch() {
            anyhow::bail!(
                "session: {file}: {mismatch}\nit was recorded with another request, other settings or another policy: \
                 record it again"
            );
        }
        let left = replay.left();
        if left > 0 {
            warn(&format!("session: {file}: the policy did not ask for the last {left} of its exchanges"));
        }
        Ok(())
    }
}

/// Warns if settings for Kubewarden don't name the Service ranges. The other commands then take the ranges from the
/// cluster, and Kubewarden can't, so their answers may differ. `name` is the name of the settings.
fn warn_about_unset_ranges(settings: &Settings, cluster: &[Value], name: &str) {
    let ranges = ServiceRanges::of(cluster).all;
    if ranges.is_empty() || !settings.service_cidrs.is_empty() {
        return;
    }
    warn(&format!(
        "{name}: services.serviceCIDRs is not set: plan, serve and move take it from the cluster ({}), Kubewarden \
         can't",
        ranges.join(", ")
    ));
}

impl LookupSource {
    fn calls(&self) -> Arc<dyn HostCalls> {
        match self {
            Self::Snapshot(calls) => Arc::new(calls.clone()),
            Self::Session(replay) => Arc::clone(replay) as Arc<dyn HostCalls>,
            Self::Cluster(lookups) => Arc::clone(lookups) as Arc<dyn HostCalls>,
        }
    }
}

/// The cluster as the policy sees it in Kubewarden, with these answers to its host calls.
fn looking_up(calls: &dyn HostCalls) -> impl Cluster + '_ {
    KubewardenCluster::new(move |operation: &str, request: &[u8]| {
        let call = HostCall::read("kubewarden", "kubernetes", operation, request);
        calls.answer(&call.map_err(|error| error.to_string())?)
    })
}

/// The response with its patch decoded to JSON.
fn decoded(response: &AdmissionResponse) -> anyhow::Result<Value> {
    let mut document = serde_json::to_value(response)?;
    if let Some(patch) = &response.patch {
        document["patch"] = serde_json::from_slice(&STANDARD.decode(patch)?)?;
    }
    Ok(document)
}
