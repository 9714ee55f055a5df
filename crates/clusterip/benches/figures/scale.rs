//! Time and memory of `clusterip plan` and `clusterip audit` for a large cluster, measured on the whole process:
//! `make bench-scale`.

use std::fs::{self, File};
use std::io::{BufWriter, Result, Write};
use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::{Value, json};

use crate::process::{Run, program};
use crate::table::{Table, time};

const SERVICES: u32 = 100_000;
const NAMESPACES: u32 = 1_000;
/// One Service in so many has a Deployment. The others have no workload.
const SERVICES_PER_DEPLOYMENT: u32 = 5;
const PODS: u32 = 50_000;
/// The goals: the processor time compared with that of reading the same file into JSON values, and the memory.
const READINGS: f64 = 1.5;
const PLAN_MEGABYTES: f64 = 300.0;
const AUDIT_MEGABYTES: f64 = 250.0;
/// The goal: what a denied Service costs compared with one that gets an address.
const DENIED: f64 = 2.0;

const SETTINGS: &str = "services:
  pools:
  - {name: windows, cidrs: [10.100.0.0/16], match: {os: windows}}
  - {name: linux, cidrs: [10.96.0.0/14], match: {os: linux}}
";

pub fn figures(table: &mut Table) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let [settings, documents, list, snapshot] =
        ["settings.yaml", "documents.yaml", "list.json", "snapshot.json"].map(|file| folder.path().join(file));
    fs::write(&settings, SETTINGS)?;
    write_documents(&documents)?;
    write_list(&list, |number| number.is_multiple_of(2))?;
    write_list(&snapshot, |_| true)?;
    let plan = |file: &Path| Run::of(program().args(["plan", "-o", "json", "-s"]).arg(&settings).arg(file));
    let audit = || {
        let mut audit = program();
        audit.args(["audit", "-o", "json", "-s"]).arg(&settings).arg("--snapshot").arg(&snapshot);
        Run::of(&mut audit)
    };
    let rows = [
        ("clusterip plan, documents", plan(&documents)?, &documents, PLAN_MEGABYTES),
        ("clusterip plan, one JSON list", plan(&list)?, &list, PLAN_MEGABYTES),
        ("clusterip audit", audit()?, &snapshot, AUDIT_MEGABYTES),
    ];
    for (what, run, file, megabytes) in rows {
        let reading = processor_seconds_of_reading(file)?;
        table.row(what, run.seconds, "s", None);
        table.row("  processor time", run.processor_seconds, "s", None);
        table.row("  compared with reading the file", run.processor_seconds / reading, "", Some(READINGS));
        table.row("  memory", run.megabytes, "MB", Some(megabytes));
        table.row("  output", run.printed_megabytes, "MB", None);
    }
    full_pool(table, folder.path())?;
    Ok(())
}

/// How long it takes to read the objects of a file into JSON values, on one processor.
fn processor_seconds_of_reading(file: &Path) -> std::result::Result<f64, Box<dyn std::error::Error>> {
    let text = fs::read_to_string(file)?;
    let (time, values) = time(|| match text.strip_prefix("---\n") {
        Some(documents) => documents.split("\n---\n").map(serde_json::from_str).collect(),
        None => serde_json::from_str(&text).map(|list: Value| vec![list]),
    });
    values?;
    Ok(time.as_secs_f64())
}

/// Services into a pool that has an address for each, and more of them into the same pool.
fn full_pool(table: &mut Table, folder: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
    const FITTING: u32 = 16_000;
    const ADDRESSES: u32 = 16_382;
    const TOO_MANY: u32 = 32_000;
    let settings = folder.join("full.yaml");
    fs::write(&settings, "services: {pools: [{name: full, cidrs: [10.100.0.0/18]}]}\n")?;
    let plan = |services: u32| {
        let file = folder.join(format!("{services}.yaml"));
        let documents: String = (0..services).map(|number| format!("---\n{}\n", service(number, None))).collect();
        fs::write(&file, documents)?;
        Run::of(program().args(["plan", "-s"]).arg(&settings).arg(file))
    };
    let (fitting, too_many) = (plan(FITTING)?.processor_seconds, plan(TOO_MANY)?.processor_seconds);
    let allocated = fitting / f64::from(FITTING);
    let denied = (too_many - allocated * f64::from(ADDRESSES)) / f64::from(TOO_MANY - ADDRESSES);
    table.row("32,000 Services into a /18, processor time", too_many, "s", None);
    table.row("  a denied Service compared with one that gets an address", denied / allocated, "", Some(DENIED));
    Ok(())
}

/// The manifests that are planned: documents of one line each. Every other Service has an address.
fn write_documents(file: &Path) -> Result<()> {
    let mut file = BufWriter::new(File::create(file)?);
    for object in objects(|number| number.is_multiple_of(2)) {
        writeln!(file, "---\n{object}")?;
    }
    file.flush()
}

/// The same objects as one list in JSON.
fn write_list(file: &Path, has_address: impl Fn(u32) -> bool) -> Result<()> {
    let mut file = BufWriter::new(File::create(file)?);
    let mut before = r#"{"apiVersion": "v1", "kind": "List", "items": ["#;
    for object in objects(has_address) {
        write!(file, "{before}\n{object}")?;
        before = ",";
    }
    writeln!(file, "]}}")?;
    file.flush()
}

/// The objects of the cluster.
fn objects(has_address: impl Fn(u32) -> bool) -> impl Iterator<Item = Value> {
    let first = Ipv4Addr::new(10, 96, 0, 64).to_bits();
    let services = (0..SERVICES).map(move |number| {
        let address = has_address(number).then(|| Ipv4Addr::from_bits(first + number));
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
