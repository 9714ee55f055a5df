//! Time and memory of `clusterip plan` and `clusterip audit` for a large cluster, measured on the whole process:
//! `make bench-scale`.

use std::fs::{self, File};
use std::io::{BufWriter, Result, Write};
use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::{Value, json};

use crate::process::{Run, program};
use crate::table::Table;

const SERVICES: u32 = 100_000;
const NAMESPACES: u32 = 1_000;
/// One Service in so many has a Deployment. The others have no workload.
const SERVICES_PER_DEPLOYMENT: u32 = 5;
const PODS: u32 = 50_000;
const SECONDS: f64 = 10.0;
const MEGABYTES: f64 = 700.0;

const SETTINGS: &str = "services:
  pools:
  - {name: windows, cidrs: [10.100.0.0/16], match: {os: windows}}
  - {name: linux, cidrs: [10.96.0.0/14], match: {os: linux}}
";

pub fn figures(table: &mut Table) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let [settings, manifests, snapshot] =
        ["settings.yaml", "manifests.yaml", "snapshot.json"].map(|file| folder.path().join(file));
    fs::write(&settings, SETTINGS)?;
    write_manifests(&manifests)?;
    write_snapshot(&snapshot)?;
    let plan = |output: &str| Run::of(program().args(["plan", "-o", output, "-s"]).args([&settings, &manifests]));
    let audit = |output: &str| {
        Run::of(program().args(["audit", "-o", output, "-s"]).arg(&settings).arg("--snapshot").arg(&snapshot))
    };
    let rows = [
        ("clusterip plan", plan("table")?, None),
        ("clusterip plan -o json", plan("json")?, None),
        ("clusterip audit -o json", audit("json")?, Some(MEGABYTES)),
        ("clusterip audit -o html", audit("html")?, Some(MEGABYTES)),
    ];
    for (what, run, megabytes_bound) in rows {
        table.row(what, run.seconds, "s", Some(SECONDS));
        table.row("  processor time", run.processor_seconds, "s", None);
        table.row("  memory", run.megabytes, "MB", megabytes_bound);
        table.row("  output", run.printed_megabytes, "MB", None);
    }
    Ok(())
}

/// The manifests that are planned: YAML documents of one line each.
fn write_manifests(file: &Path) -> Result<()> {
    let mut file = BufWriter::new(File::create(file)?);
    for object in objects(None) {
        writeln!(file, "---\n{object}")?;
    }
    file.flush()
}

/// The snapshot that is audited.
fn write_snapshot(file: &Path) -> Result<()> {
    let mut file = BufWriter::new(File::create(file)?);
    let mut before = r#"{"apiVersion": "v1", "kind": "List", "items": ["#;
    for object in objects(Some(Ipv4Addr::new(10, 96, 0, 64))) {
        write!(file, "{before}\n{object}")?;
        before = ",";
    }
    writeln!(file, "]}}")?;
    file.flush()
}

/// The objects of the cluster. With `first`, the Services have the addresses from this one on.
fn objects(first: Option<Ipv4Addr>) -> impl Iterator<Item = Value> {
    let services = (0..SERVICES).map(move |number| {
        let address = first.map(|first| Ipv4Addr::from_bits(first.to_bits() + number));
        service(number, address)
    });
    let with_workload = (0..SERVICES).step_by(SERVICES_PER_DEPLOYMENT as usize);
    let pods = (0..PODS).map(|number| pod(number, number * SERVICES_PER_DEPLOYMENT % SERVICES));
    services.chain(with_workload.map(deployment)).chain(pods)
}

fn service(number: u32, address: Option<Ipv4Addr>) -> Value {
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(number),
        "spec": {"selector": labels(number), "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    });
    if let Some(address) = address {
        service["metadata"]["managedFields"] = json!([{
            "manager": "helm", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:selector": {}, "f:type": {}},
            },
        }]);
        service["spec"]["clusterIP"] = json!(address);
        service["spec"]["clusterIPs"] = json!([address]);
        service["spec"]["ipFamilies"] = json!(["IPv4"]);
    }
    service
}

fn deployment(number: u32) -> Value {
    let labels = labels(number);
    let template = json!({"metadata": {"labels": labels}, "spec": pod_spec(number)});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(number),
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    })
}

fn pod(number: u32, of_service: u32) -> Value {
    let mut metadata = metadata(of_service);
    metadata["name"] = json!(format!("web-{of_service:06}-{number}"));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(of_service)})
}

fn metadata(number: u32) -> Value {
    let namespace = format!("team-{:04}", number % NAMESPACES);
    json!({"name": format!("web-{number:06}"), "namespace": namespace, "labels": labels(number)})
}

fn labels(number: u32) -> Value {
    json!({"app": format!("web-{number:06}")})
}

fn pod_spec(number: u32) -> Value {
    let os = if (number / SERVICES_PER_DEPLOYMENT).is_multiple_of(2) { "linux" } else { "windows" };
    json!({
        "nodeSelector": {"kubernetes.io/os": os},
        "containers": [{"name": "web", "image": "registry.example.com/web:1.0", "ports": [{"containerPort": 8080}]}],
    })
}
