//! Reads the manifests of `clusterip plan`, builds kustomizations, and reads the settings and the cluster.

use std::borrow::Cow;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{anyhow, bail, ensure};
use clusterip_cluster::kinds::{self, Kind};
use clusterip_cluster::live_settings::{
    LiveSettings, WrittenSettings, compile_cluster, complete, is_service_cidr, is_settings_api, is_settings_object,
};
use clusterip_cluster::manifests::manifest_files::{self, Input};
use clusterip_cluster::manifests::{MAX_FILE, Manifest, ManifestText, NamespaceRule};
use clusterip_cluster::object;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_cluster::snapshot::{ReadObject, addresses};
use clusterip_cluster::watch::api_server_lists;
use clusterip_core::service_key::ServiceKey;
use serde_json::Value;

use super::PlanArguments;
use crate::commands::arguments::missing_namespace;
use crate::commands::given_settings::{self, GivenSettings};
use crate::commands::missing_permissions::Reads;
use crate::commands::read_snapshot;
use crate::commands::terminal::{notice, warn};
use crate::planner::PlannedObject;
use crate::planner::api_server_rules::is_namespace;

/// The objects of the cluster, and the settings of its pool objects with their name, unless the user gave others.
pub(super) type Cluster = (Vec<Value>, Option<(WrittenSettings, String)>);

impl PlanArguments {
    /// The settings objects among the manifests, and the ServiceCIDRs that pools may select.
    pub(super) fn settings_objects(&self, manifests: &[Manifest<PlannedObject>]) -> anyhow::Result<Vec<Value>> {
        let may_be_part = |(api_version, kind): &Kind| is_settings_api(api_version) || kind == "ServiceCIDR";
        let parts = manifests.iter().filter(|manifest| may_be_part(&manifest.object.read.kind));
        let parts = parts.map(|manifest| (&manifest.origin, manifest.object.value()));
        let parts: Vec<_> = parts.filter(|(_, object)| is_settings_object(object) || is_service_cidr(object)).collect();
        let Some((origin, object)) = parts.iter().find(|(_, object)| is_settings_object(object)) else {
            return Ok(Vec::new());
        };
        if let Some(file) = &self.settings {
            bail!(
                "{origin}: {} {} is settings, but --settings names other ones ({}): omit --settings, or leave the \
                 object out",
                object::kind(object),
                object::name(object),
                file.display()
            );
        }
        Ok(parts.into_iter().map(|(_, object)| object).collect())
    }

    pub(super) fn input(&self, of_context: Option<&str>) -> anyhow::Result<Input<PlannedObject>> {
        if let Some(namespace) = of_context {
            notice(&format!("namespace: {namespace} (of the context)"));
        }
        let namespace = match &self.namespace {
            Some(namespace) => NamespaceRule::Only(namespace),
            None => NamespaceRule::Default(of_context.unwrap_or("default")),
        };
        if let Some(folder) = &self.kustomize {
            let (source, messages) = build_kustomization(folder)?;
            messages.iter().for_each(|message| notice(message));
            return manifest_files::load_text(source, namespace, PlannedObject::new);
        }
        let paths: Vec<PathBuf> = self.paths.iter().chain(&self.filenames).cloned().collect();
        manifest_files::load(&paths, namespace, PlannedObject::new)
    }

    pub(super) fn uses_cluster(&self) -> bool {
        self.cluster || self.connection.name_a_cluster()
    }

    /// Reads the cluster. `given` are the settings of the user if `are_settings_given`, and otherwise those of K2s.
    pub(super) fn cluster(&self, given: &GivenSettings, are_settings_given: bool) -> anyhow::Result<Cluster> {
        if let Some(file) = &self.snapshot {
            let objects = read_snapshot(file)?;
            let settings = if are_settings_given { None } else { given_settings::of_snapshot(&objects) };
            return Ok((objects, settings));
        }
        if !self.uses_cluster() {
            return Ok((Vec::new(), None));
        }
        let check = |document: WrittenSettings, name: &str| {
            given_settings::check(document, &ServiceRanges::default(), name).map(|live| live.settings)
        };
        // Mistakes are reported before the cluster is read.
        let mut kinds_of = check(given.document_without_cluster()?, &given.name)?;
        let (runtime, client) = api_server_lists::connect(&self.connection)?;
        let (mut settings, mut more) = (None, Vec::new());
        if !are_settings_given {
            settings = given_settings::of_cluster(runtime.block_on(compile_cluster(&client)))?;
            more = given_settings::pool_needs();
        }
        if let Some((document, name)) = &settings {
            kinds_of = check(document.clone(), name)?;
        }
        let reads = Reads { kinds: kinds::asked(&kinds_of).collect(), more, ..Reads::default() };
        let objects = runtime.block_on(async {
            let objects = api_server_lists::objects(&client, &kinds_of).await;
            reads.explain(&client, objects).await
        })?;
        Ok((objects, settings))
    }
}

/// Checks that the pools of K2s fit the address of `default/kubernetes`, if that is known.
pub(super) fn check_against_kubernetes(there: &[Value], manifests: &[Manifest<PlannedObject>]) -> anyhow::Result<()> {
    let kubernetes = ServiceKey::new("default", "kubernetes");
    let there = there.iter().filter(|object| object::is_service(object) && ServiceKey::of(object) == kubernetes);
    let services = manifests.iter().filter_map(|manifest| manifest.object.read.service());
    let of_manifests = services.filter(|service| *service.key() == kubernetes).flat_map(|service| service.addresses());
    let primary = there.flat_map(addresses).chain(of_manifests.copied()).next();
    primary.map_or(Ok(()), given_settings::check_default_pools)
}

/// Checks that a namespace exists. A snapshot without Namespaces does not show which ones exist.
pub(super) fn check_namespace(
    namespace: &str,
    named_by: &str,
    there: &[Value],
    manifests: &[Manifest<PlannedObject>],
) -> anyhow::Result<()> {
    let of_cluster = |object: &Value| is_namespace(object::api_version(object), object::kind(object));
    let is_it = |object: &Value| of_cluster(object) && object::name(object) == namespace;
    let of_manifests = |read: &ReadObject| is_namespace(&read.kind.0, &read.kind.1) && read.name == namespace;
    let exists = there.iter().any(|object| is_it(object) || object::namespace(object) == namespace)
        || manifests.iter().any(|manifest| of_manifests(&manifest.object.read));
    if exists || !there.iter().any(of_cluster) {
        return Ok(());
    }
    Err(missing_namespace(namespace, named_by))
}

/// Checks the settings, those of the cluster if there are any, and prints the warnings.
pub(super) fn check(
    given: &GivenSettings,
    of_cluster: Option<(WrittenSettings, String)>,
    there: &[Value],
    manifests: &[Manifest<PlannedObject>],
) -> anyhow::Result<LiveSettings> {
    let of_manifests = manifests.iter().filter(|manifest| manifest.object.read.kind.1 == "ServiceCIDR");
    let of_manifests = of_manifests.map(|manifest| Cow::Owned(manifest.object.value()));
    let ranges = ServiceRanges::of(there.iter().map(Cow::Borrowed).chain(of_manifests));
    let is_cluster_known = !ServiceRanges::of(there).all.is_empty();
    let of_objects = if is_cluster_known { ranges.clone() } else { ranges.only_labels() };
    let (written, name) = match of_cluster {
        Some(of_cluster) => of_cluster,
        None => (given.document(&of_objects)?, given.name.clone()),
    };
    let own_ranges = written.document.pointer("/services/serviceCIDRs").and_then(Value::as_array);
    let live = if is_cluster_known || own_ranges.is_none_or(Vec::is_empty) {
        given_settings::check(written, &ranges, &name)?
    } else {
        // The manifests may contain only some of the cluster's ServiceCIDRs, so they can't contradict the settings.
        let written = WrittenSettings { document: complete(written.document, &ranges), ..written };
        given_settings::check(written, &ServiceRanges::default(), &name)?
    };
    live.warnings.iter().for_each(|warning| warn(&format!("{name}: {warning}")));
    Ok(live)
}

/// The programs that build kustomizations, each with its subcommand. The first one that is installed is used.
const BUILDERS: [(&str, &str); 2] = [("kubectl", "kustomize"), ("kustomize", "build")];

const MAX_MESSAGES: u64 = 64 << 10;

/// The manifests, and the lines that the program printed to standard error, such as warnings about old fields.
type Built = (ManifestText, Vec<String>);

/// Builds the kustomization in `folder` with `kubectl kustomize`, or with `kustomize build` without kubectl.
fn build_kustomization(folder: &Path) -> anyhow::Result<Built> {
    let built = BUILDERS.into_iter().find_map(|(program, subcommand)| run(program, subcommand, folder).transpose());
    let built = built.unwrap_or_else(|| {
        bail!(
            "neither kubectl nor kustomize is installed: install one of them, or build the kustomization elsewhere and \
             read the result with --filename"
        )
    });
    built.map_err(|problem| anyhow!("kustomization {}: {problem}", folder.display()))
}

/// Runs a program; `None` if it is not installed.
fn run(program: &str, subcommand: &str, folder: &Path) -> anyhow::Result<Option<Built>> {
    let failed = |error| anyhow!("{program} can't be run: {error}");
    let mut command = Command::new(program);
    command.args([subcommand, "--"]).arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let stderr = child.stderr.take();
    let messages = thread::spawn(move || stderr.map(read_messages).unwrap_or_default());
    let mut text = Vec::new();
    let read = child.stdout.take().map_or(Ok(0), |stdout| stdout.take(MAX_FILE + 1).read_to_end(&mut text));
    let is_too_large = text.len() as u64 > MAX_FILE;
    if is_too_large || read.is_err() {
        // It may have ended already.
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    ensure!(!is_too_large, "{program} {subcommand} printed more than {} MiB", MAX_FILE >> 20);
    read.map_err(failed)?;
    let messages = messages.join().unwrap_or_default();
    if !status.success() {
        let messages = if messages.is_empty() { String::new() } else { format!(":\n{messages}") };
        bail!("{program} {subcommand} failed ({status}){messages}");
    }
    let text = String::from_utf8(text).map_err(|_| anyhow!("the output of {program} {subcommand} is not UTF-8"))?;
    let messages = messages.lines().map(|line| format!("{program} {subcommand}: {line}")).collect();
    let name = format!("kustomization {}", folder.display());
    Ok(Some((ManifestText { name, text }, messages)))
}

/// The beginning of the messages. The rest is read as well, because a program whose pipe is full waits.
fn read_messages(mut stderr: impl Read) -> String {
    let mut kept = Vec::new();
    // Unreadable output is left out: the exit status tells whether the program failed.
    let _ = stderr.by_ref().take(MAX_MESSAGES).read_to_end(&mut kept);
    let _ = io::copy(&mut stderr, &mut io::sink());
    String::from_utf8_lossy(&kept).trim().to_owned()
}
