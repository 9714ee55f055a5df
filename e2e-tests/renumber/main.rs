//! Measures how many requests fail while the Service range of a cluster with two nodes and two API servers changes:
//! `make bench-renumber`. `SERVICES` (60) is the number of Services, and `PROXY` the mode of kube-proxy: `nftables` or
//! `iptables`. The result is a table in Markdown for docs/renumbering.md. A missed goal is not a failure, because the
//! machine may be busy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use e2e_tests::support::markdown::grouped;
use e2e_tests::support::move_load::Requests;
use e2e_tests::support::renumbering::{Kind, Plan, StepResult, missed_goals, options, renumber};
use e2e_tests::support::whole_cluster::{WholeCluster, lacking, write_image};
use e2e_tests::support::{program, use_ring};

/// The image of `deploy/renumbering`.
const IMAGE: &str = "ghcr.io/clusterip-policy/clusterip:v0.1.0";
const SERVICES: usize = 60;
/// The fewest requests to Services and DNS, none of which may fail.
const REQUESTS: u64 = 100_000;

fn main() {
    if let Some(lacking) = lacking() {
        eprintln!("a renumbering is measured in a cluster with nodes: {lacking}");
        std::process::exit(1);
    }
    use_ring();
    let proxy = std::env::var("PROXY").unwrap_or_else(|_| "nftables".to_owned());
    let services = std::env::var("SERVICES").map_or(SERVICES, |number| number.parse().unwrap());
    let plan = Plan { services, rate: 30, grace_period: None, rest: Duration::from_secs(10), compares_restarts: true };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("clusterip.tar");
    write_image(IMAGE, &image, &program());
    let cluster = WholeCluster::start_with(options(vec![image], &proxy));
    let results = tokio::runtime::Runtime::new().unwrap().block_on(renumber(&cluster, plan));
    println!("{}", table(&about(&cluster, &proxy, services), &results));
}

/// The conditions of the measurements.
fn about(cluster: &WholeCluster, proxy: &str, services: usize) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "Kubernetes {}, two nodes with an API server each on one machine with {cores} processors, kube-proxy in mode \
         {proxy}, CoreDNS with `ttl 30` and `cache 30`, {services} Services.",
        cluster.version(),
    )
}

/// A row for each step, with the failed requests, all requests and the longest pause of each kind. Then the sums of the
/// steps of the renumbering, the errors and the missed goals.
fn table(about: &str, results: &[StepResult]) -> String {
    let row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let kinds = || Kind::ALL.iter();
    let mut lines = vec![about.to_owned(), String::new()];
    lines.push(row(["step", "duration"]
        .into_iter()
        .chain(kinds().map(|kind| kind.name()))
        .map(str::to_owned)
        .collect()));
    lines.push(row(["---", "---:"].into_iter().chain(kinds().map(|_| "---:")).map(str::to_owned).collect()));
    let cells =
        |requests: Option<&Requests>| requests.filter(|requests| requests.requests > 0).map_or(String::new(), cell);
    for result in results {
        let first = [result.step.name().to_owned(), format!("{} s", result.seconds)];
        lines.push(row(first.into_iter().chain(kinds().map(|kind| cells(result.kinds.get(kind)))).collect()));
    }
    let renumbering = || results.iter().filter(|result| !result.step.is_alone());
    let sum = |is_meant: &dyn Fn(Kind) -> bool| {
        let mut sum = Requests::default();
        let all = renumbering().flat_map(|result| &result.kinds).filter(|(kind, _)| is_meant(**kind));
        all.for_each(|(_, requests)| sum.add(requests));
        sum
    };
    let seconds: u64 = renumbering().map(|result| result.seconds).sum();
    let first = ["all steps of the renumbering".to_owned(), format!("{seconds} s")];
    lines.push(row(first.into_iter().chain(kinds().map(|kind| cell(&sum(&|it| it == *kind)))).collect()));
    let all = sum(&|kind| !kind.is_to_api_server());
    lines.extend([String::new(), format!("- Services and DNS: {}", cell(&all))]);
    for result in results {
        for (kind, requests) in &result.kinds {
            let errors = requests.errors.iter();
            let line = |(error, count): (&String, &u64)| {
                format!("- {}, {}: {error}: {}", result.step.name(), kind.name(), grouped(*count))
            };
            lines.extend(errors.map(line));
        }
    }
    lines.extend(missed_goals(results, REQUESTS).into_iter().map(|goal| format!("- MISSED: {goal}")));
    lines.join("\n")
}

/// Requests are slow that succeed after a second or more, for example after a second query to DNS.
fn cell(requests: &Requests) -> String {
    let [failed, all, pause, slow] =
        [requests.failed, requests.requests, requests.longest_pause, requests.slow].map(grouped);
    let slow = if requests.slow > 0 { format!(", {slow} slow") } else { String::new() };
    format!("{failed} of {all}, {pause} ms{slow}")
}
