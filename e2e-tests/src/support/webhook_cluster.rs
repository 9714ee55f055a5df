//! A control plane whose API server calls the webhook of a `clusterip serve` for every Service.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::http::Method;
use clusterip_core::decision::Report;
use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, Options};
use super::eventually::eventually;
pub use super::move_helpers::{addresses, message};
use super::move_helpers::{path, send, services, stored, tries};
use super::serve_process::{Server, ServerBuilder};
use super::shared::Shared;

/// The name of the webhook, which is the prefix of its audit annotations.
pub const WEBHOOK: &str = "services.clusterip-policy.io";

/// The pools of the shared cluster: those of the K2s distribution, and some for single namespaces.
const SETTINGS: &str = "
services:
  pools:
  - {name: small, cidrs: [172.21.40.0/28], reserved: 2, match: {namespaces: [exhaustion]}}
  - {name: once, cidrs: [172.21.40.16/30], reserved: 2, match: {namespaces: [dry-run]}}
  - {name: invalid, cidrs: [172.21.40.24/29], reserved: 4, match: {namespaces: [invalid]}}
  - {name: refused, cidrs: [172.21.40.48/29], reserved: 4, match: {namespaces: [refusals]}}
  - {name: pair, cidrs: [172.21.40.32/29], reserved: 5, match: {namespaces: [in-flight]}}
  - {name: other, cidrs: [172.21.40.44/30], reserved: 2, match: {namespaces: [reinvocation], os: windows}}
  - {name: one, cidrs: [172.21.40.40/30], reserved: 2, match: {namespaces: [reinvocation]}}
  - {name: windows, cidrs: [172.21.1.0/24], reserved: 50, exclude: [172.21.1.200/29], match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24, 172.21.4.0/23], reserved: 50, match: {os: linux}}
  exemptNamespaces: [kube-system, triage-exempt]
";

/// A control plane and a `clusterip serve`. A shared cluster runs until the process ends.
pub struct WebhookCluster {
    pub plane: ControlPlane,
    pub server: Server,
    settings: PathBuf,
}

impl WebhookCluster {
    /// The shared cluster of this process: single stack, without a controller manager. Tests have namespaces of their
    /// own, and change neither its settings nor its processes.
    pub async fn shared() -> Arc<Self> {
        static SHARED: Shared<WebhookCluster> = Shared::new();
        SHARED.get(|| Self::start(Options::default(), SETTINGS)).await
    }

    /// Starts a control plane and a server, and waits until the API server calls the webhook.
    pub async fn start(options: Options, settings: &str) -> Self {
        Self::start_with(options, settings, &[]).await
    }

    /// As [`Self::start`], with additional arguments of `clusterip serve`.
    pub async fn start_with(options: Options, settings: &str, args: &[&str]) -> Self {
        let plane = ControlPlane::start(options);
        let settings = with_ranges(&plane, settings);
        let server = ServerBuilder::new(&plane).settings(&settings).args(args).registered().start().await;
        let settings = server.folder().join("settings.yaml");
        let cluster = Self { plane, server, settings };
        cluster.is_asked().await;
        cluster
    }

    /// Waits until the API server calls the webhook.
    pub async fn is_asked(&self) {
        eventually("the API server to call the webhook", async || {
            let _ = self.dry_run("default", &service("probe", json!({}))).await;
            self.decided("default", "probe")
        })
        .await;
    }

    /// Changes the settings, and waits until they are in use.
    pub async fn use_settings(&self, yaml: &str) {
        let yaml = &with_ranges(&self.plane, yaml);
        if std::fs::read_to_string(&self.settings).unwrap() == *yaml {
            return;
        }
        let versions = async || {
            let (_, metrics) = self.server.get("/metrics").await?;
            let line = metrics.lines().find(|line| line.contains("settings_versions_total{result=\"accepted\"}"))?;
            line.split_whitespace().last().map(str::to_owned)
        };
        let before = versions().await;
        std::fs::write(&self.settings, yaml).unwrap();
        eventually("the settings to be taken", async || versions().await.filter(|now| Some(now) != before.as_ref()))
            .await;
    }

    /// The Services of a namespace.
    pub fn services(&self, namespace: &str) -> Api<DynamicObject> {
        super::service_webhook_rules::services(self.plane.client(), namespace)
    }

    /// Creates a Service: returns it, or the message of the API server.
    pub async fn create(&self, namespace: &str, service: &Value) -> Result<Value, String> {
        tries(&self.plane.client(), Method::POST, &services(namespace), service).await
    }

    /// As [`Self::create`], in a dry run.
    pub async fn dry_run(&self, namespace: &str, service: &Value) -> Result<Value, String> {
        tries(&self.plane.client(), Method::POST, &format!("{}?dryRun=All", services(namespace)), service).await
    }

    /// Changes a Service with a merge patch: returns it, or the message of the API server.
    pub async fn patch(&self, namespace: &str, name: &str, patch: Value) -> Result<Value, String> {
        tries(&self.plane.client(), Method::PATCH, &path(namespace, name), &patch).await
    }

    /// The stored Service.
    pub async fn get(&self, namespace: &str, name: &str) -> Value {
        stored(&self.plane.client(), namespace, name).await.unwrap()
    }

    /// Every Service of a namespace, by name.
    pub async fn list(&self, namespace: &str) -> BTreeMap<String, Value> {
        let list = send(&self.plane.client(), Method::GET, &services(namespace), None).await.unwrap();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| (item["metadata"]["name"].as_str().unwrap().to_owned(), item.clone())).collect()
    }

    /// Deletes a Service.
    pub async fn delete(&self, namespace: &str, name: &str) {
        send(&self.plane.client(), Method::DELETE, &path(namespace, name), None).await.unwrap();
    }

    /// Merges annotations and labels into a namespace.
    pub async fn mark_namespace(&self, name: &str, metadata: &Value) {
        let (path, patch) = (format!("/api/v1/namespaces/{name}"), json!({ "metadata": metadata }));
        send(&self.plane.client(), Method::PATCH, &path, Some(&patch)).await.unwrap();
    }

    /// The decisions of the webhook in the audit log about writes to a Service, the oldest first; `None` for a write
    /// for which the webhook was not called.
    pub fn audited(&self, namespace: &str, name: &str) -> Vec<Option<AuditedDecision>> {
        let events = self.audit_log(namespace).into_iter();
        events
            .filter(|event| event["objectRef"]["name"] == name)
            .map(|event| {
                let prefix = format!("{WEBHOOK}/");
                let annotations: BTreeMap<String, String> = event["annotations"]
                    .as_object()?
                    .iter()
                    .filter_map(|(key, value)| {
                        Some((key.strip_prefix(&prefix)?.to_owned(), value.as_str()?.to_owned()))
                    })
                    .collect();
                Some(AuditedDecision {
                    decision: annotations.get("decision")?.clone(),
                    pool: annotations.get("pool").cloned(),
                    evidence: annotations.get("evidence").map(|text| serde_json::from_str(text).unwrap()),
                    reason: annotations.get("reason").cloned(),
                })
            })
            .collect()
    }

    /// The messages of writes to Services of a namespace that the API server refused because another Service has the
    /// address. It never accepts an address twice, so these messages show that an address was handed out twice.
    pub fn duplicates(&self, namespace: &str) -> Vec<String> {
        let own = self.audit_log(namespace).into_iter();
        let messages = own.filter_map(|event| event["responseStatus"]["message"].as_str().map(str::to_owned));
        messages.filter(|message| message.contains("provided IP is already allocated")).collect()
    }

    /// The events of the audit log about objects in a namespace.
    fn audit_log(&self, namespace: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.plane.folder().join("audit.log")).unwrap();
        // The last line may be incomplete.
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        let events = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["objectRef"]["namespace"] == namespace).collect()
    }

    /// The decision of the webhook about the last write to a Service.
    pub fn decided(&self, namespace: &str, name: &str) -> Option<AuditedDecision> {
        self.audited(namespace, name).pop().flatten()
    }
}

/// The decision of the webhook in the audit annotations of one request.
#[derive(Clone, Debug)]
pub struct AuditedDecision {
    pub decision: String,
    pub pool: Option<String>,
    pub evidence: Option<Report>,
    pub reason: Option<String>,
}

/// A Service with a port and a selector, and with this spec merged in.
pub fn service(name: &str, spec: Value) -> Value {
    let mut whole = json!({"ports": [{"port": 80}], "selector": {"app": name}});
    for (field, value) in spec.as_object().unwrap() {
        whole[field] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": whole})
}

/// A Service with annotations.
pub fn annotated(name: &str, annotations: Value, spec: Value) -> Value {
    let mut service = service(name, spec);
    service["metadata"]["annotations"] = annotations;
    service
}

/// A Deployment with the Pod labels `app: NAME`, and this Pod spec merged in.
pub fn deployment(name: &str, pod_spec: Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template(name, pod_spec)},
    })
}

/// A Pod template.
pub fn template(app: &str, pod_spec: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "main", "image": "registry.example.com/main"}]});
    for (field, value) in pod_spec.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"metadata": {"labels": {"app": app}}, "spec": spec})
}

/// A Pod spec for nodes of this operating system.
pub fn on(os: &str) -> Value {
    json!({"nodeSelector": {"kubernetes.io/os": os}})
}

/// A List of objects in this namespace.
pub fn all(namespace: &str, objects: impl IntoIterator<Item = Value>) -> String {
    let items: Vec<Value> = objects
        .into_iter()
        .map(|mut object| {
            object["metadata"]["namespace"] = namespace.into();
            object
        })
        .collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// The only address of a Service.
#[track_caller]
pub fn address(service: &Value) -> IpAddr {
    let addresses = addresses(service);
    assert_eq!(addresses.len(), 1, "{service}");
    addresses[0]
}

/// Whether an address lies in a range.
pub fn within(address: IpAddr, range: &str) -> bool {
    range.parse::<ipnet::IpNet>().unwrap().contains(&address)
}

/// The name of the range that contains an address.
pub fn place(address: IpAddr) -> &'static str {
    const PLACES: [(&str, &str); 8] = [
        ("172.21.0.0/24", "linux"),
        ("172.21.4.0/23", "linux"),
        ("172.21.1.0/24", "windows"),
        ("172.21.40.0/28", "small"),
        ("172.21.40.40/30", "one"),
        ("172.21.40.44/30", "other"),
        ("fd00:21::100/120", "windows"),
        ("fd00:21::0/120", "linux"),
    ];
    PLACES.iter().find(|(range, _)| within(address, range)).map_or("elsewhere", |(_, place)| place)
}

/// The settings, with the Service ranges if this version of Kubernetes does not publish them.
pub fn with_ranges(plane: &ControlPlane, settings: &str) -> String {
    if plane.tells_addresses() || settings.contains("serviceCIDRs") {
        return settings.to_owned();
    }
    let ranges = plane.service_ranges().join("', '");
    settings.replacen("services:\n", &format!("services:\n  serviceCIDRs: ['{ranges}']\n"), 1)
}
