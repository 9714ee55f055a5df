//! `clusterip evaluate`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, ValueEnum};
use clusterip_cluster::admission_review::{AdmissionResponse, request_of_file};
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::harmless_text::{harmless, harmless_json, harmless_lines};
use clusterip_cluster::live_settings::{WrittenSettings, compile_cluster, in_lines};
use clusterip_cluster::lookups::complete_objects::{ApiServerLookups, CompleteObjects};
use clusterip_cluster::manifests;
use clusterip_cluster::object::text as text_at;
use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_cluster::policy::recorded_session::{self, Exchange, Recorder, Replay};
use clusterip_cluster::policy::wasm_module::{Limits, WasmModule};
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_core::settings::Settings;
use clusterip_core::{InUse, Response, decide_value};
use clusterip_policy::kubewarden_cluster::KubewardenCluster;
use serde_json::Value;

use super::given_settings::{self, GivenSettings};
use super::terminal::{TerminalOptions, warn};
use crate::report;

const HELP: &str = "\
Examples:
  A recorded session:
    cd e2e-tests/sessions/evidence-from-a-deployment
    clusterip evaluate --request request.json --settings settings.json \\
      --session session.yml -o decoded
  The same request in the cluster of the current context, with a new record:
    clusterip evaluate --request request.json --settings settings.json \\
      --cluster --record /tmp/session.yml
  A build of the policy module, and what it looks up:
    clusterip evaluate --module policy.wasm --request examples/requests/cart.yaml \\
      --snapshot examples/shop -o text

With --module, the module decides, as in Kubewarden: it runs on an interpreter that limits its steps, its memory and \
its look-ups. Without --module, clusterip decides itself, and gives the same response.

Without --snapshot, --session or --cluster, the cluster is empty. A snapshot is empty on purpose if it is a List with \
`items: []`; any other file without objects is refused. The settings are used as they are written, as in \
Kubewarden: they are not completed from the cluster. Pool objects get the ranges of the ServiceCIDRs that they select.

A session (--record) contains the look-ups of the policy and their answers, in the format of `kwctl run \
--record-host-capabilities-interactions`. It contains objects of the cluster, each with its whole metadata (names, \
labels, annotations, owners) and the fields that the policy reads. Review it before you publish it.

Exit status: 0 if the request is allowed; 1 if it is denied (`kwctl run` exits with 0); 2 if the input or the \
settings can't be used, or the session does not match. Then only one message is printed.";

#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct EvaluateArguments {
    /// Evaluate with this build of the policy module, such as policy.wasm
    #[arg(long, value_name = "FILE")]
    module: Option<PathBuf>,
    /// An AdmissionRequest or AdmissionReview in JSON or YAML; - for standard input
    #[arg(long, value_name = "FILE")]
    request: PathBuf,
    /// The settings file, or - for standard input [default: the pool objects of the cluster or the snapshot, or else
    /// the pools of K2s]
    #[arg(short, long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Answer the look-ups from this file of `clusterip snapshot` or `kubectl get -A -o yaml`, or from a folder of
    /// manifests; - for standard input
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// In one line, as kwctl does
    Json,
    /// Indented, the patch decoded, as in the folders of e2e-tests/sessions
    Decoded,
    /// For people: each look-up with what was found, and then the response
    Text,
}

impl EvaluateArguments {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        super::check_standard_input(&[
            ("--request", std::slice::from_ref(&self.request)),
            ("--settings", self.settings.as_slice()),
            ("--snapshot", self.snapshot.as_slice()),
            ("--session", self.session.as_slice()),
        ])?;
        let given = GivenSettings::read(self.settings.as_deref())?;
        let request = manifests::read_file(&self.request).context("request")?;
        let request = request_of_file(&request.text).with_context(|| format!("request: {}", request.name))?;
        let load = |file: &Path| {
            let name = format!("module {}", file.display());
            anyhow::Ok((WasmModule::load(file, Limits::default()).with_context(|| name.clone())?, name))
        };
        let module = self.module.as_deref().map(load).transpose()?;
        // The warnings about settings with this name.
        let check = |written: &WrittenSettings, settings: &str| -> anyhow::Result<Vec<String>> {
            let Some((module, name)) = &module else {
                let live = given_settings::check(written.clone(), &ServiceRanges::default(), settings)?;
                return Ok(live.warnings.iter().map(ToString::to_string).collect());
            };
            let checked = module.validate_settings(&written.document).with_context(|| name.clone())?;
            if !checked.valid {
                bail!("{}", in_lines(settings, harmless_lines(&checked.message.unwrap_or_default())));
            }
            Ok(checked.warnings)
        };
        // Mistakes are reported before the cluster is read.
        check(&given.document_without_cluster()?, &given.name)?;
        let (mut replay, mut settings) = (None, None);
        // The ServiceCIDRs of a live cluster, or all objects of a snapshot.
        let mut cluster = Vec::new();
        let calls: Arc<dyn HostCalls> = if let Some(file) = &self.session {
            let text = manifests::read_at_most(file, u64::MAX).context("session")?.text;
            let name = format!("session: {}", file.display());
            let session = Arc::new(Replay::new(recorded_session::read(&text).with_context(|| name.clone())?));
            replay = Some((session.clone(), name));
            session
        } else if self.cluster || self.connection.name_a_cluster() {
            let lookups = ApiServerLookups::new(&self.connection)?;
            cluster = lookups.service_cidrs();
            if self.settings.is_none() {
                settings = given_settings::of_cluster(lookups.run(compile_cluster))?;
                if settings.is_none() {
                    given_settings::announce_default_pools(false);
                }
            }
            Arc::new(lookups)
        } else {
            if let Some(file) = &self.snapshot {
                cluster = super::read_snapshot(file)?;
            }
            if self.settings.is_none() {
                settings = given_settings::of_snapshot(&cluster);
            }
            Arc::new(cluster.iter().cloned().collect::<CompleteObjects>())
        };
        let (written, name) = match settings {
            Some(found) => found,
            None => (given.document(&ServiceRanges::of(&cluster).only_labels())?, given.name),
        };
        for warning in check(&written, &name)? {
            warn(&format!("{name}: {}", harmless(&warning)));
        }
        warn_about_unset_ranges(&written, &cluster, &name);

        let recorder = Arc::new(Recorder::new(calls));
        let answer = match &module {
            None => decide(&*recorder, &request, &written, &name),
            Some((module, name)) => {
                module.validate(&request, &written.document, recorder.clone()).with_context(|| name.clone())
            }
        };
        let exchanges = recorder.exchanges();
        if let Some(file) = &self.record {
            // The session is written even if the policy failed: it reproduces the bug in a test.
            fs::write(file, recorded_session::write(&exchanges))
                .with_context(|| format!("record: {}", file.display()))?;
        }
        if let Some((replay, name)) = replay {
            check_fit(&replay, &name)?;
        }
        let response = AdmissionResponse::new(&request, answer?)?;
        let text = match self.output {
            Output::Json => harmless_json(serde_json::to_string(&response)?) + "\n",
            Output::Decoded => report::json(&decoded(&response)?)?,
            Output::Text => text(&exchanges, &response)?,
        };
        super::output(text.as_bytes())?;
        Ok(if response.allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn check_fit(replay: &Replay, session: &str) -> anyhow::Result<()> {
    if let Some(mismatch) = replay.mismatch() {
        bail!(
            "{session}: {mismatch}\nit was recorded with another request, other settings or another policy: record it \
             again"
        );
    }
    if let left @ 1.. = replay.left() {
        warn(&format!("{session}: the policy did not ask for the last {left} of its exchanges"));
    }
    Ok(())
}

/// The other commands take the ranges from the cluster, and Kubewarden can't, so their answers may differ.
fn warn_about_unset_ranges(written: &WrittenSettings, cluster: &[Value], name: &str) {
    let ranges = ServiceRanges::of(cluster).all;
    // Kubewarden does not know objects of the API `clusterip-policy.io`.
    let is_unset = written.objects.is_none()
        && Settings::from_value(&written.document).is_ok_and(|settings| settings.service_cidrs.is_empty());
    if is_unset && !ranges.is_empty() {
        warn(&format!(
            "{name}: services.serviceCIDRs is not set: plan, serve and move take it from the cluster ({}), Kubewarden \
             can't",
            ranges.join(", ")
        ));
    }
}

/// Decides as Kubewarden shows the cluster to the module: with the same look-ups, in the same order.
fn decide(
    calls: &dyn HostCalls,
    request: &Value,
    written: &WrittenSettings,
    settings: &str,
) -> anyhow::Result<Response> {
    let cluster = KubewardenCluster::new(|operation: &str, request: &[u8]| {
        let call = HostCall::read("kubewarden", "kubernetes", operation, request);
        calls.answer(&call.map_err(|error| error.to_string())?)
    });
    // As they are written: a check completes them for look-ups that indexes answer.
    let as_written = Settings::from_value(&written.document)?;
    let decision = decide_value(request, &as_written, InUse::default(), &cluster);
    let live = given_settings::check(written.clone(), &ServiceRanges::default(), settings)?;
    Ok(Response::new(live.worded(decision), request.get("object").cloned().unwrap_or_default()))
}

fn decoded(response: &AdmissionResponse) -> anyhow::Result<Value> {
    let mut document = serde_json::to_value(response)?;
    if let Some(patch) = &response.patch {
        document["patch"] = serde_json::from_slice(&STANDARD.decode(patch)?)?;
    }
    Ok(document)
}

fn text(exchanges: &[Exchange], response: &AdmissionResponse) -> anyhow::Result<String> {
    let mut lines = vec![format!("{} look-ups", exchanges.len())];
    for (number, Exchange { call, answer }) in (1..).zip(exchanges) {
        let found = match (call, answer) {
            (HostCall::Get { name, .. }, Err(error)) if error.contains(&format!(" named '{name}'")) => {
                "not found".to_owned()
            }
            (_, Err(error)) => error.lines().next().unwrap_or_default().to_owned(),
            (HostCall::Get { .. }, Ok(_)) => "found".to_owned(),
            (_, Ok(list)) => {
                let list: Value = serde_json::from_str(list)?;
                format!("{} found", list["items"].as_array().map_or(0, Vec::len))
            }
        };
        let (api_version, kind) = call.resource();
        let asked = match call {
            HostCall::ListAll { .. } => format!("list {api_version}/{kind}"),
            HostCall::ListNamespace { namespace, .. } => format!("list {api_version}/{kind} in {namespace}"),
            HostCall::Get { name, .. } => format!("get {api_version}/{kind} {name}"),
        };
        lines.push(format!("  {number}. {asked}: {found}"));
    }
    lines.push(if response.allowed { "allowed".to_owned() } else { "denied".to_owned() });
    let document = decoded(response)?;
    let patch = document["patch"].as_array().into_iter().flatten();
    let operation = |of: &Value| format!("  {} {} {}", text_at(of, &["op"]), text_at(of, &["path"]), of["value"]);
    lines.extend(patch.map(operation));
    let message = response.status.iter().filter_map(|status| status.message.clone());
    lines.extend(message.map(|message| format!("  {message}")));
    let annotations = response.audit_annotations.iter().flatten();
    // The reason of a denial is its message.
    let annotations = annotations.filter(|(key, _)| response.allowed || *key != "reason");
    lines.extend(annotations.map(|(key, value)| format!("  {key}: {value}")));
    lines.extend(response.warnings.iter().flatten().map(|warning| format!("  warning: {warning}")));
    Ok(lines.iter().map(|line| format!("{}\n", harmless(line))).collect())
}
