//! Runs Kubernetes' own tests of Services on a cluster without `clusterip`, with one replica and with three:
//! `make conformance`. The result is a table in Markdown for docs/conformance.md. It fails if a test passes without
//! `clusterip`, and not with it. `FOCUS`, a regular expression, selects fewer tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod table;

use std::path::Path;

use e2e_tests::support::installation::{NAMESPACE, field, install, uninstall};
use e2e_tests::support::upstream_tests::{Selection, run_tests};
use e2e_tests::support::whole_cluster::{WholeCluster, lacking, tested_images};

use table::Run;

const NODES: usize = 2;
/// The folder of `deploy` that each run installs, beside the name of the run in the table.
const RUNS: [(&str, Option<&str>); 3] =
    [("without", None), ("one replica", Some("webhook")), ("three replicas", Some("replicas"))];

/// The groups of tests in which Services get addresses, and are reached by address and by name.
const FOCUS: &str = r"\[sig-network\] (Services|Service CIDRs|ServiceCIDR|EndpointSlice|DNS)";
/// Tests that can't pass on this cluster. docs/conformance.md says why.
const SKIP: [&str; 5] = [r"\[Disruptive\]", r"\[Slow\]", r"\[Provider:GCE\]", "SCTP", "evicted pods"];
/// Tests spend most of their time waiting.
const PROCESSES: u32 = 4;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if !runtime.block_on(run_all()) {
        std::process::exit(1);
    }
}

/// Returns whether every test that passes without `clusterip` passes with it.
async fn run_all() -> bool {
    if let Some(lacking) = lacking().or_else(|| tested_images().err()) {
        eprintln!("the tests need a cluster with nodes: {lacking}");
        return false;
    }
    let focus = std::env::var("FOCUS").unwrap_or_else(|_| FOCUS.to_owned());
    let selection = Selection { focus: &focus, skip: &SKIP, processes: PROCESSES };
    let cluster = WholeCluster::start(NODES, &tested_images().unwrap());

    let mut runs = Vec::new();
    for (name, deployment) in RUNS {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance").join(name.replace(' ', "-"));
        eprintln!("{name}: the output of the tests is in {}", folder.display());
        if let Some(deployment) = deployment {
            install(&cluster, deployment).await;
        }
        let outcomes = run_tests(&cluster, &selection, &folder).await;
        let mut requests = None;
        if deployment.is_some() {
            requests = Some(requests_answered(&cluster).await);
            uninstall(&cluster).await;
        }
        runs.push(Run { name, outcomes, requests });
    }
    println!(
        "Kubernetes {}, {NODES} nodes, kube-proxy in mode nftables.\n\n{}",
        cluster.version(),
        table::table(&runs)
    );
    let regressions = table::regressions(&runs);
    for regression in &regressions {
        eprintln!("REGRESSION: {regression}");
    }
    regressions.is_empty()
}

/// How many admission requests the replicas have answered.
async fn requests_answered(cluster: &WholeCluster) -> u64 {
    let mut requests = 0;
    for pod in field(cluster, NAMESPACE, "pods", ".items[*].metadata.name").await.split_whitespace() {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/https:{pod}:8443/proxy/metrics");
        let metrics = cluster.kubectl(&["get", "--raw", &path]).await.ok();
        let counts = metrics.lines().filter(|line| line.starts_with("clusterip_admissions_total{"));
        requests += counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>();
    }
    assert!(requests > 0, "the API server did not call the webhook");
    requests
}
