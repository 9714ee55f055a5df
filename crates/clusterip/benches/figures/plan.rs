//! Time and peak memory of `clusterip plan`, measured on the whole process.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::layout::median;
use crate::process::{Run, program};
use crate::table::Table;

const ROUNDS: usize = 3;
const SECONDS: f64 = 5.0;
const MEGABYTES: f64 = 200.0;
const LOWEST: &str = "the same, order: lowest";
const LOWEST_SECONDS: f64 = 3.0;

const SETTINGS: &str = "services:
  pools:
  - {name: windows, cidrs: [10.96.128.0/17], match: {os: windows}}
  - {name: linux, cidrs: [10.96.0.0/17], match: {os: linux}}
";

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    let folder = Folder::new()?;
    let spread = |services| Input { services, namespaces: 100, deployments: true };
    let thousands = folder.write(&spread(10_000))?;
    let rows = [
        ("10,000 Services, each with its Deployment, in 100 namespaces", thousands.clone(), "table"),
        ("the same, -o json", thousands.clone(), "json"),
        ("the same, -o yaml", thousands.clone(), "yaml"),
        (LOWEST, thousands.clone(), "table"),
        ("all in one namespace", folder.write(&Input { namespaces: 1, ..spread(10_000) })?, "table"),
        (
            "in 100 namespaces, without Deployments",
            folder.write(&Input { deployments: false, ..spread(10_000) })?,
            "table",
        ),
        ("5,000 Services, each with its Deployment, in 100 namespaces", folder.write(&spread(5_000))?, "table"),
        ("20,000 Services, each with its Deployment, in 100 namespaces", folder.write(&spread(20_000))?, "table"),
    ];
    let mut runs = vec![(Vec::new(), Vec::new()); rows.len()];
    for _ in 0..ROUNDS {
        for ((what, manifests, output), (seconds, megabytes)) in rows.iter().zip(&mut runs) {
            let settings = if *what == LOWEST { "lowest.yaml" } else { "settings.yaml" };
            let run = folder.plan(settings, manifests, output)?;
            seconds.push(run.seconds);
            megabytes.push(run.megabytes);
        }
    }
    let medians: Vec<(f64, f64)> = runs.into_iter().map(|(s, m)| (median(s), median(m))).collect();
    for ((what, ..), (seconds, megabytes)) in rows.iter().zip(&medians) {
        let bounded = !what.starts_with("20");
        let bound = if *what == LOWEST { LOWEST_SECONDS } else { SECONDS };
        table.row(what, *seconds, "s", bounded.then_some(bound));
        table.row("", *megabytes, "MB", bounded.then_some(MEGABYTES));
    }
    if let [(ten, _), .., (five, _), (twenty, _)] = medians[..] {
        table.row("seconds a Service, 10,000 : 5,000", (ten / 10.0) / (five / 5.0), "", None);
        table.row("seconds a Service, 20,000 : 10,000", (twenty / 20.0) / (ten / 10.0), "", None);
    }
    Ok(())
}

struct Input {
    services: usize,
    namespaces: usize,
    deployments: bool,
}

impl Input {
    fn yaml(&self) -> Result<String, std::fmt::Error> {
        let mut yaml = String::new();
        for number in 0..self.services {
            let (name, namespace) = (format!("web-{number:05}"), format!("team-{:03}", number % self.namespaces));
            let os = if number % 2 == 0 { "linux" } else { "windows" };
            write!(
                yaml,
                "---
apiVersion: v1
kind: Service
metadata:
  name: {name}
  namespace: {namespace}
  labels:
    app: {name}
spec:
  selector:
    app: {name}
  ports:
  - name: http
    port: 80
    targetPort: 8080
"
            )?;
            if self.deployments {
                write!(
                    yaml,
                    "---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  namespace: {namespace}
spec:
  replicas: 2
  selector:
    matchLabels:
      app: {name}
  template:
    metadata:
      labels:
        app: {name}
    spec:
      nodeSelector:
        kubernetes.io/os: {os}
      containers:
      - name: web
        image: registry.example.com/web:1.0
        ports:
        - containerPort: 8080
"
                )?;
            }
        }
        Ok(yaml)
    }
}

/// A folder with settings and manifests.
struct Folder(TempDir);

impl Folder {
    fn new() -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("settings.yaml"), SETTINGS)?;
        fs::write(folder.path().join("lowest.yaml"), SETTINGS.replace("services:\n", "services:\n  order: lowest\n"))?;
        Ok(Self(folder))
    }

    fn write(&self, input: &Input) -> Result<PathBuf, Box<dyn std::error::Error>> {
        let Input { services, namespaces, deployments } = input;
        let file = self.0.path().join(format!("{services}-{namespaces}-{deployments}.yaml"));
        fs::write(&file, input.yaml()?)?;
        Ok(file)
    }

    fn plan(&self, settings: &str, manifests: &Path, output: &str) -> Result<Run, Box<dyn std::error::Error>> {
        let settings = self.0.path().join(settings);
        Run::of(program().args(["plan", "--output", output, "--settings"]).args([&settings, manifests]))
    }
}
