//! What the creates of others take while a tenant sends dry runs of a Service that selects many large workloads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};

use super::bench::{Bench, services};
use super::manifests::service;
use super::support::process_usage::processor_time;
use super::support::webhook_cluster;
use super::support::workloads::fill_with_inert_workloads;
use super::table::{Bound, Table, percentile_95, ratios};

/// The namespace of the creates that are measured.
const NEIGHBOUR: &str = "neighbour";
const TENANT: &str = "tenant";
/// The webhook is not called about this namespace.
const UNREVIEWED: &str = "kube-system";
/// How many dry runs run at once.
const PARALLEL: usize = 48;
/// How many creates a turn measures.
const CREATES: usize = 60;
/// How many dry runs of each Service measure the time of the server.
const REVIEWS: u32 = 200;

/// The times of all rounds, in milliseconds.
#[derive(Default)]
pub struct Tenants {
    alone: Vec<f64>,
    /// Beside dry runs that the API server answers without the webhook.
    beside_unreviewed: Vec<f64>,
    beside: Vec<f64>,
    unplaced: usize,
    /// The processor time of the server for a review of an ordinary Service, and of one that selects the workloads.
    ordinary: Vec<f64>,
    expensive: Vec<f64>,
}

/// Measures all loads in turns.
pub async fn measure(bench: &Bench, rounds: usize) -> Tenants {
    for namespace in [NEIGHBOUR, TENANT] {
        bench.namespace(namespace).await;
    }
    fill_with_inert_workloads(bench.client(), TENANT).await;
    let server = bench.serve("memory").await;
    let (ordinary, expensive) = (selecting("other"), selecting("web"));
    let mut measured = Tenants::default();
    turn(bench, None, &mut 0).await;
    for _ in 0..rounds {
        let unplaced = &mut measured.unplaced;
        measured.alone.push(turn(bench, None, unplaced).await);
        measured.beside_unreviewed.push(turn(bench, Some(UNREVIEWED), unplaced).await);
        measured.beside.push(turn(bench, Some(TENANT), unplaced).await);
        for (times, wanted) in [(&mut measured.ordinary, &ordinary), (&mut measured.expensive, &expensive)] {
            let begin = processor_time(server.pid());
            for _ in 0..REVIEWS {
                dry_run(bench, TENANT, wanted).await.unwrap();
            }
            times.push((processor_time(server.pid()) - begin).as_secs_f64() * 1e3 / f64::from(REVIEWS));
        }
    }
    bench.end(server).await;
    measured
}

fn selecting(app: &str) -> Value {
    webhook_cluster::service("any", json!({"selector": {"app": app}}))
}

async fn dry_run(bench: &Bench, namespace: &str, wanted: &Value) -> Result<Value, String> {
    bench.create(&format!("{}?dryRun=All", services(namespace)), wanted).await
}

/// The 95th percentile of creates, one after the other, while dry runs are sent in a namespace.
async fn turn(bench: &Bench, load: Option<&str>, unplaced: &mut usize) -> f64 {
    let (stop, wanted) = (AtomicBool::new(false), selecting("web"));
    let dry_runs =
        load.into_iter().flat_map(|namespace| (0..PARALLEL).map(move |_| namespace)).map(async |namespace| {
            while !stop.load(Ordering::Relaxed) {
                // The server may deny it, because the namespace has too many reviews.
                let _ = dry_run(bench, namespace, &wanted).await;
            }
        });
    let path = services(NEIGHBOUR);
    let creates = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut took = Vec::new();
        for nth in 0..CREATES {
            let begin = Instant::now();
            let created = bench.create(&path, &service(NEIGHBOUR, nth)).await.unwrap();
            took.push(begin.elapsed().as_secs_f64() * 1e3);
            let pool = webhook_cluster::within(webhook_cluster::address(&created), "172.21.32.0/20");
            *unplaced += usize::from(!pool);
        }
        stop.store(true, Ordering::Relaxed);
        took
    };
    let (took, _) = tokio::join!(creates, join_all(dry_runs));
    bench.clear(&path).await;
    percentile_95(took)
}

impl Tenants {
    /// Prints the figures.
    pub fn rows(&self, table: &mut Table) {
        table.rounds("p95 of creates of others, without load", &self.alone, "ms", Bound::None);
        table.rounds("p95 beside 48 dry runs without the webhook", &self.beside_unreviewed, "ms", Bound::None);
        table.rounds("p95 beside 48 dry runs of a tenant", &self.beside, "ms", Bound::None);
        table.rounds("  ratio of the two", &ratios(&self.beside, &self.beside_unreviewed), "", Bound::AtMost(2.0));
        table.total("creates of others outside of their pool", self.unplaced as f64, "", Bound::Exactly(0.0));
        table.rounds("processor time of an ordinary review", &self.ordinary, "ms", Bound::None);
        table.rounds("  of a review of 192 workloads", &self.expensive, "ms", Bound::None);
        table.rounds("  ratio", &ratios(&self.expensive, &self.ordinary), "", Bound::AtMost(10.0));
    }
}
