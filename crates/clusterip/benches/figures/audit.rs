//! Time and peak memory of `clusterip audit` of a snapshot, measured on the whole process.

use std::fs;
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::fixtures::service;
use crate::layout::median;
use crate::process::{Run, program};
use crate::table::Table;

const ROUNDS: usize = 3;

/// Half of the Services are in another pool than the one that their Deployments name.
const SETTINGS: &str = "services:
  pools:
  - {name: windows, cidrs: [10.96.128.0/17], match: {os: windows}}
  - {name: linux, cidrs: [10.96.0.0/17], match: {os: linux}}
";

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let folder = temporary.path();
    fs::write(folder.join("settings.yaml"), SETTINGS)?;
    for (services, seconds_bound, megabytes_bound) in [(10_000, None, None), (20_000, Some(8.0), Some(300.0))] {
        let (json, yaml) = (folder.join("snapshot.json"), folder.join("snapshot.yaml"));
        let items = cluster(services);
        fs::write(&json, format!("{:#}", json!({"apiVersion": "v1", "kind": "List", "items": items})))?;
        let lines: String = items.iter().map(|item| format!("- {item}\n")).collect();
        fs::write(&yaml, format!("apiVersion: v1\nitems:\n{lines}kind: List\n"))?;
        drop(items);
        for (form, snapshot) in [("JSON", &json), ("YAML", &yaml)] {
            let (mut seconds, mut megabytes) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let settings = folder.join("settings.yaml");
                let mut audit = program();
                audit.args(["audit", "--output", "json", "--settings"]).arg(settings).arg("--snapshot").arg(snapshot);
                let run = Run::of(&mut audit)?;
                megabytes.push(run.megabytes);
                seconds.push(run.seconds);
            }
            let what = format!("{services} Services and as many Deployments, {form}");
            table.row(&what, median(seconds), "s", seconds_bound);
            table.row("", median(megabytes), "MB", megabytes_bound);
        }
    }
    Ok(())
}

fn cluster(services: usize) -> Vec<Value> {
    let mut items = Vec::new();
    for number in 0..services {
        let [high, low] = u16::try_from(number + 64).unwrap_or(u16::MAX).to_be_bytes();
        let mut service = service(number, Ipv4Addr::new(10, 96, high, low));
        service["metadata"]["managedFields"] = json!([{"manager": "helm", "operation": "Update", "apiVersion": "v1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:team": {}}},
            "f:spec": {"f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:name": {},
            "f:protocol": {}, "f:targetPort": {}}}, "f:selector": {}, "f:sessionAffinity": {}, "f:type": {}}}}]);
        let metadata = &service["metadata"];
        let (namespace, name, labels) =
            (metadata["namespace"].clone(), metadata["name"].clone(), service["spec"]["selector"].clone());
        let os = if number % 2 == 0 { "linux" } else { "windows" };
        items.push(service);
        items.push(
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": namespace, "name": name},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "nodeSelector": {"kubernetes.io/os": os}, "containers": [{"name": "web", "image": "example.com/web"}]}}}}),
        );
    }
    items
}
