//! The size of the program, and plans whose cost is not that of their Services.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::layout::median;
use crate::process::{Run, program};
use crate::table::Table;

const ROUNDS: usize = 5;
const NODES: usize = 5_000;

const ONE_SERVICE: &str = "apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
";
/// Each Node has a block of 256 addresses.
const SETTINGS_OF_NODES: &str = "services: {pools: [{name: services, cidrs: [10.128.0.0/16]}]}
nodes:
  pools:
  - {name: nodes, cidrs: [10.0.0.0/9], blockSize: {ipv4: 24}, match: {os: linux}}
";

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str, text: &str| -> std::io::Result<PathBuf> {
        let file = folder.path().join(name);
        fs::write(&file, text).map(|()| file)
    };
    table.row("size", fs::metadata(program().get_program())?.len() as f64 / 1e6, "MB", Some(25.0));

    let service = file("service.yaml", ONE_SERVICE)?;
    let (mut more, mut processor) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let version = Run::of(program().arg("--version"))?;
        let plan = Run::of(program().arg("plan").arg(&service))?;
        more.push((plan.seconds - version.seconds) * 1e3);
        processor.push((plan.processor_seconds - version.processor_seconds) * 1e3);
    }
    table.row("plan of one Service, more than --version", median(more), "ms", Some(20.0));
    table.row("  processor time", median(processor), "ms", None);

    let settings = file("nodes-settings.yaml", SETTINGS_OF_NODES)?;
    let nodes = file("nodes.yaml", &nodes()?)?;
    let plan = |settings: &Path, manifests: &Path| {
        let runs: Result<Vec<Run>, _> =
            (0..ROUNDS).map(|_| Run::of(program().args(["plan", "-s"]).args([settings, manifests]))).collect();
        runs.map(|runs| median(runs.into_iter().map(|run| run.seconds).collect()))
    };
    table.row("plan of 5,000 Nodes that have blocks", plan(&settings, &nodes)?, "s", Some(2.0));
    Ok(())
}

fn nodes() -> Result<String, std::fmt::Error> {
    let mut yaml = String::new();
    for number in 0..NODES {
        writeln!(
            yaml,
            "---\n{{apiVersion: v1, kind: Node, metadata: {{name: node-{number:04}, labels: {{kubernetes.io/os: linux}}}}, spec: \
             {{podCIDR: 10.{}.{}.0/24}}}}",
            number / 256,
            number % 256
        )?;
    }
    Ok(yaml)
}
