//! `clusterip snapshot`

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use clusterip_api::{GROUP, VERSION};
use clusterip_cluster::api_error::failed;
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::kinds::{self, Kind};
use clusterip_cluster::live_settings::list_objects;
use clusterip_cluster::object;
use clusterip_cluster::watch::api_server_lists;
use clusterip_cluster::watch::control_plane_services::{BlockingWebhook, Calls, K2S};
use clusterip_cluster::watch::partial_object::fields_of_kind;
use clusterip_core::annotations::{ADDRESS_ANNOTATION, LEASE_LABEL, NODE_ANNOTATION, SERVICE_ANNOTATION};
use clusterip_core::distinct;
use clusterip_core::field_mask::Mask;
use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use serde_json::{Value, json};

use super::given_settings::{self, GivenSettings};
use super::leading_server::LeadingServer;
use super::missing_permissions::Reads;
use super::terminal::{TerminalOptions, heartbeat, warn};
use crate::announcer_pools;
use crate::lease_namespaces::LeaseNamespaces;
use crate::snapshot_kinds;

const HELP: &str = "\
Examples:
  Audit a cluster, and plan manifests for it, without access to it (the first
  two commands need it):
    clusterip init >settings.yaml
    clusterip snapshot >snapshot.json
    clusterip audit --snapshot snapshot.json -s settings.yaml
    clusterip plan examples/shop --snapshot snapshot.json -s settings.yaml

The snapshot contains the objects that `audit` and `plan` read, with only the fields that they read: Services, \
workloads, Pods, Namespaces, Nodes, RuntimeClasses, IPAddresses, ServiceCIDRs, pool objects, the Leases of clusterip, \
and which Services the control plane calls. It contains no Secrets and no ConfigMaps. If it has pool objects, it can \
be used without --settings.

Exit status: 0; 2 if the cluster can't be read, or the snapshot can't be written.";

#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct SnapshotArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The settings file, or - for standard input: the snapshot then also contains the custom resources that
    /// evidence.kinds names
    #[arg(short, long, value_name = "FILE")]
    settings: Option<PathBuf>,
    #[command(flatten)]
    namespaces: LeaseNamespaces,
    /// The output format. Large snapshots are read faster as JSON
    #[arg(short, long, value_enum, default_value = "json")]
    output: Output,
    /// Write the snapshot to this file, instead of to standard output
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    #[command(flatten)]
    terminal: TerminalOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A List in JSON
    Json,
    /// A List in YAML, with a line for each object
    Yaml,
}

/// Kinds, and all their objects.
type Found = (Vec<Kind>, Vec<Value>);

impl SnapshotArguments {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        self.terminal.apply();
        let _heartbeat = heartbeat("reading the cluster");
        let given = GivenSettings::read(self.settings.as_deref())?;
        let settings = Settings::from_value(&given.document_without_cluster()?.document)
            .map_err(|invalid| given_settings::unusable(&given.name, invalid))?;
        let (found, namespaces) = super::block_on(async {
            let client = self.cluster.client().await?;
            let deployed = LeadingServer::find(&client, self.namespaces.server.as_deref(), false).await?;
            let namespaces = self.namespaces.or(&deployed.lease_namespaces());
            let found = read(&client, &settings, &namespaces).await;
            let kinds = evidence_kinds(&settings).into_iter().chain(kinds::callers()).collect();
            let mut more = namespaces.needs();
            more.extend(LeadingServer::needs(self.namespaces.server.as_deref()));
            let found = Reads { kinds, more, ..Reads::default() }.explain(&client, found).await?;
            Ok((found, namespaces))
        })?;
        let text = render(&found, &namespaces, self.output);
        match &self.output_file {
            Some(file) => write_private(file, &text).with_context(|| file.display().to_string())?,
            None => super::output_to(None, &text)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes a file. A new file can be read only by its owner, because a snapshot describes the whole cluster.
fn write_private(file: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)?.write_all(text.as_bytes())
}

/// Reads all kinds, page by page. A kind that only improves an audit, and that may not be listed, causes a warning.
async fn read(client: &Client, settings: &Settings, namespaces: &LeaseNamespaces) -> anyhow::Result<Found> {
    let (mut kinds, mut objects) = Found::default();
    for kind in evidence_kinds(settings) {
        let fields = fields_of_kind(&kind);
        api_server_lists::each(client, &kind, &mut |object| objects.push(reduced(&fields, object))).await?;
        kinds.push(kind);
    }
    let pools = pool_objects(client).await.map_err(|error| failed("pools can't be listed", &error));
    let leases = leases(client, namespaces).await.map_err(|error| failed("Leases can't be listed", &error));
    // A snapshot contains no ConfigMaps.
    let is_pool = |object: &Value| object["kind"] != "ConfigMap";
    let of_announcers = announcer_pools::objects(client).await.map_err(anyhow::Error::msg);
    let of_announcers = of_announcers.map(|(kinds, objects)| (kinds, objects.into_iter().filter(is_pool).collect()));
    let others = [
        (pools, "needs --settings"),
        (of_announcers, "can't tell whether announcers have pools with the external addresses"),
        (callers(client).await, "can't tell which Services the control plane calls"),
        (leases, "can't tell which addresses are in flight or held"),
    ];
    for (found, without) in others {
        match found {
            Ok((more, found)) => {
                kinds.extend(more);
                objects.extend(found);
            }
            Err(error) => warn(&format!("{error}; an audit of this snapshot {without}")),
        }
    }
    Ok((kinds, objects))
}

/// The kinds that a decision may ask about, with these settings or with others that name no custom resource.
fn evidence_kinds(settings: &Settings) -> Vec<Kind> {
    let workloads = WorkloadKind::known();
    distinct(kinds::always().chain(workloads.iter().chain(&settings.kinds).map(kinds::of_workload)))
}

fn render((kinds, objects): &Found, namespaces: &LeaseNamespaces, output: Output) -> String {
    let mut lines = vec![snapshot_kinds::contents(kinds, namespaces).to_string()];
    lines.extend(objects.iter().map(ToString::to_string));
    match output {
        Output::Json => format!("{{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n{}\n]}}\n", lines.join(",\n")),
        Output::Yaml => format!("apiVersion: v1\nkind: List\nitems:\n- {}\n", lines.join("\n- ")),
    }
}

/// The pool objects and the ClusterIPPolicy. A cluster without their definitions has none.
async fn pool_objects(client: &Client) -> Result<Found, kube::Error> {
    let own = clusterip_api::Kind::ALL.map(|kind| (format!("{GROUP}/{VERSION}"), kind.as_str().to_owned()));
    for kind in &own {
        // Asked first, because a user who may not list objects is refused even if there is no such API.
        if kinds::discovered(client, kind).await?.is_none() {
            return Ok(Found::default());
        }
    }
    Ok((own.to_vec(), list_objects(client).await?))
}

/// The callers of Services: those of all kinds, or, if one can't be listed, of none.
async fn callers(client: &Client) -> anyhow::Result<Found> {
    let mut found = Vec::new();
    for kind in kinds::callers() {
        api_server_lists::each(client, &kind, &mut |object| found.extend(caller(&object))).await?;
    }
    Ok((kinds::callers().collect(), found))
}

async fn leases(client: &Client, namespaces: &LeaseNamespaces) -> Result<Found, kube::Error> {
    let leases = namespaces.leases(client).await?;
    let reduced: serde_json::Result<Vec<Value>> = leases.iter().map(reduced_lease).collect();
    let kind = ("coordination.k8s.io/v1".to_owned(), "Lease".to_owned());
    Ok((vec![kind], reduced.map_err(kube::Error::SerdeError)?))
}

fn reduced(fields: &Mask, mut object: Value) -> Value {
    fields.prune(&mut object);
    object
}

fn reduced_lease(lease: &Lease) -> serde_json::Result<Value> {
    let fixed = [
        "apiVersion",
        "kind",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.acquireTime",
        "spec.holderIdentity",
        "spec.leaseDurationSeconds",
        "spec.renewTime",
    ];
    let annotations = [ADDRESS_ANNOTATION, NODE_ANNOTATION, SERVICE_ANNOTATION];
    let annotations = annotations.map(|key| format!("metadata.annotations.{key}"));
    let fields = fixed.into_iter().map(str::to_owned).chain(annotations);
    let fields = fields.chain([format!("metadata.labels.{LEASE_LABEL}")]);
    let mut lease = serde_json::to_value(lease)?;
    Mask::new(fields).prune(&mut lease);
    Ok(lease)
}

/// A webhook configuration, an APIService or a CustomResourceDefinition with nothing but its references to Services,
/// the fields with which a webhook blocks the move of its own Service, and the name of a webhook of another program
/// that chooses addresses; `None` if it has none of these. APIServices are kept: every cluster has some, and they show
/// that this kind was listed.
fn caller(object: &Value) -> Option<Value> {
    let (kind, Calls { services, chooses_addresses }) = (object::kind(object), Calls::of(object));
    let services: Vec<(Value, &Vec<BlockingWebhook>)> = services
        .iter()
        .map(|(service, blocking)| (json!({"namespace": service.namespace, "name": service.name}), blocking))
        .collect();
    let metadata = json!({"name": object::name(object)});
    let mut reduced = json!({"apiVersion": object::api_version(object), "kind": kind, "metadata": metadata});
    match (kind, services.first()) {
        ("APIService", None) => {}
        (_, None) if !chooses_addresses => return None,
        ("APIService", Some((service, _))) => reduced["spec"] = json!({"service": service}),
        ("CustomResourceDefinition", Some((service, _))) => {
            reduced["spec"] = json!({"conversion": {"webhook": {"clientConfig": {"service": service}}}});
        }
        _ => {
            let named = chooses_addresses.then(|| json!({"name": K2S}));
            let webhooks = services.iter().flat_map(|(service, blocking)| match blocking.as_slice() {
                [] => vec![json!({"clientConfig": {"service": service}})],
                blocking => blocking.iter().map(|webhook| webhook.reduced(service)).collect(),
            });
            reduced["webhooks"] = webhooks.chain(named).collect();
        }
    }
    Some(reduced)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_cluster::manifests::{self, ManifestText};
    use clusterip_cluster::watch::partial_object::PartialObject;

    use super::*;

    fn kind(api_version: &str, kind: &str) -> Kind {
        (api_version.to_owned(), kind.to_owned())
    }

    fn read_back(text: String) -> Vec<Value> {
        let source = ManifestText { name: "snapshot".to_owned(), text };
        let mut objects = Vec::new();
        manifests::each(&[source], "default", &mut |manifest, _| objects.push(manifest.object)).unwrap();
        objects
    }

    #[test]
    fn lease_has_only_fields_that_are_read() {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": "ip-10-0-0-9", "namespace": "own", "uid": "u", "resourceVersion": "7",
                "labels": {"clusterip-policy/lease": "claim", "team": "secret"},
                "annotations": {"clusterip-policy/address": "10.0.0.9", "clusterip-policy/service": "shop/web", "x": "y"},
                "managedFields": [{"manager": "clusterip", "operation": "Update"}],
            },
            "spec": {"holderIdentity": "pod_serve_1", "leaseDurationSeconds": 70, "leaseTransitions": 3,
                "renewTime": "2026-01-02T03:04:05.000000Z"},
        });
        let reduced = reduced_lease(&serde_json::from_value(lease).unwrap()).unwrap();
        let expected = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": "ip-10-0-0-9", "namespace": "own", "uid": "u",
                "labels": {"clusterip-policy/lease": "claim"},
                "annotations": {"clusterip-policy/address": "10.0.0.9", "clusterip-policy/service": "shop/web"},
            },
            "spec": {"holderIdentity": "pod_serve_1", "leaseDurationSeconds": 70,
                "renewTime": "2026-01-02T03:04:05.000000Z"},
        });
        assert_eq!(reduced, expected);
    }

    #[test]
    fn snapshot_has_only_fields_that_are_read_and_can_be_read_again() {
        let service = kind("v1", "Service");
        let object = json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u", "deletionTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"app": "web"},
                "annotations": {"clusterip-policy/os": "windows", "kubectl.kubernetes.io/last-applied-configuration": "x"},
                "managedFields": [
                    {"manager": "helm", "operation": "Apply", "fieldsV1": {"f:spec": {"f:clusterIP": {}, "f:ports": {}}}},
                ],
            },
            "spec": {"clusterIP": "10.0.0.9", "selector": {"app": "web"}, "sessionAffinity": "ClientIP"},
        });
        let read: PartialObject = serde_json::from_str(&object.to_string()).unwrap();
        let fields = fields_of_kind(&service);
        let kept = reduced(&fields, read.value(&service).unwrap());
        let expected = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u", "deletionTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"app": "web"}, "annotations": {"clusterip-policy/os": "windows"},
                "managedFields": [{"manager": "helm", "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}],
            },
            "spec": {"clusterIP": "10.0.0.9", "selector": {"app": "web"}},
        });
        assert_eq!(kept, expected);
        let again: PartialObject = serde_json::from_value(kept.clone()).unwrap();
        assert_eq!(reduced(&fields, again.value(&service).unwrap()), kept, "nothing is lost by reading it again");
    }

    #[test]
    fn other_objects_have_only_fields_that_are_read_of_their_kind() {
        let object = json!({
            "metadata": {"name": "web", "uid": "u", "labels": {"app": "web"}, "managedFields": [{"manager": "helm"}]},
            "spec": {
                "podCIDR": "10.1.0.0/24", "nodeName": "n", "selector": {"app": "web"}, "replicas": 1,
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"os": {"name": "linux"}, "containers": []}},
            },
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "x"}]},
        });
        let (name, labelled) = (json!({"name": "web"}), json!({"name": "web", "labels": {"app": "web"}}));
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"os": {"name": "linux"}}});
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let rows = [
            ("v1", "Node", json!({"metadata": labelled, "spec": {"podCIDR": "10.1.0.0/24"}, "status": ready})),
            ("v1", "Pod", json!({"metadata": labelled, "spec": {"nodeName": "n"}})),
            ("v1", "Namespace", json!({"metadata": labelled})),
            ("apps/v1", "Deployment", json!({"metadata": name, "spec": {"template": template}})),
            ("networking.k8s.io/v1", "IPAddress", json!({"metadata": name})),
        ];
        for (api_version, name, mut expected) in rows {
            let kind = kind(api_version, name);
            let read: PartialObject = serde_json::from_str(&object.to_string()).unwrap();
            expected["apiVersion"] = json!(api_version);
            expected["kind"] = json!(name);
            assert_eq!(reduced(&fields_of_kind(&kind), read.value(&kind).unwrap()), expected, "{name}");
        }
        let nameless: PartialObject = serde_json::from_value(json!({"metadata": {"namespace": "shop"}})).unwrap();
        let service = kind("v1", "Service");
        assert_eq!(nameless.value(&service), None);
    }

    #[cfg(unix)]
    #[test]
    fn file_can_be_read_only_by_its_owner() {
        use std::os::unix::fs::PermissionsExt as _;

        let file = std::env::temp_dir().join(format!("clusterip-snapshot-mode-{}", std::process::id()));
        for text in ["a longer text", "text"] {
            write_private(&file, text).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn snapshot_is_the_same_in_json_and_yaml() {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"a": "ü: \"#\"\n"}}});
        let kinds = vec![kind("v1", "Namespace"), kind("v1", "Node")];
        let found = (kinds, vec![object]);
        let [json, yaml] =
            [Output::Json, Output::Yaml].map(|output| read_back(render(&found, &LeaseNamespaces::default(), output)));
        assert_eq!(json, yaml);
        assert_eq!(json[1..], found.1);
        assert_eq!(json[0]["kinds"][1], json!({"apiVersion": "v1", "kind": "Node"}));
    }

    #[test]
    fn callers_keep_only_their_references() {
        let of = |kind: &Kind, object: Value| {
            let object: PartialObject = serde_json::from_value(object).unwrap();
            caller(&object.value(kind).unwrap())
        };
        let service = json!({"namespace": "shop", "name": "web"});
        let with_port = json!({"namespace": "shop", "name": "web", "port": 443});
        let webhooks = kind("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration");
        let of_webhooks =
            |webhooks_of: Value| of(&webhooks, json!({"metadata": {"name": "m"}, "webhooks": webhooks_of}));
        let found = of_webhooks(json!([{"clientConfig": {"caBundle": "x", "service": with_port}}]));
        assert_eq!(found.unwrap()["webhooks"], json!([{"clientConfig": {"service": service}}]));
        assert_eq!(of_webhooks(json!([])), None);
        let found = of_webhooks(json!([{"name": "workload.clusterip.k2s.io"}]));
        assert_eq!(found.unwrap()["webhooks"], json!([{"name": "clusterip.k2s.io"}]));
        let blocking = json!({
            "clientConfig": {"service": with_port}, "name": "hook.example.org", "failurePolicy": "Fail",
            "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["services", "pods"]}],
            "namespaceSelector": {"matchLabels": {"a": "b"}}, "objectSelector": {}, "timeoutSeconds": 7,
        });
        let reduced = of_webhooks(json!([blocking])).unwrap();
        let expected = json!([{
            "clientConfig": {"service": service}, "name": "hook.example.org", "failurePolicy": "Fail",
            "rules": [{"apiGroups": [""], "operations": ["*"], "resources": ["services"]}],
            "namespaceSelector": {"matchLabels": {"a": "b"}}, "objectSelector": {},
        }]);
        assert_eq!(reduced["webhooks"], expected);
        assert_eq!(
            Calls::of(&reduced),
            Calls::of(&json!({"webhooks": [blocking]})),
            "an audit of the snapshot finds the same"
        );
        let api_services = kind("apiregistration.k8s.io/v1", "APIService");
        let found = of(&api_services, json!({"metadata": {"name": "a"}, "spec": {"service": with_port}})).unwrap();
        assert_eq!(found["spec"], json!({"service": service}));
        assert!(of(&api_services, json!({"metadata": {"name": "a"}, "spec": {"group": "apps"}})).is_some());
        let definitions = kind("apiextensions.k8s.io/v1", "CustomResourceDefinition");
        let conversion = json!({"webhook": {"clientConfig": {"service": with_port}}});
        let found = of(&definitions, json!({"metadata": {"name": "c"}, "spec": {"conversion": conversion}})).unwrap();
        assert_eq!(found["spec"]["conversion"]["webhook"]["clientConfig"], json!({"service": service}));
    }
}
