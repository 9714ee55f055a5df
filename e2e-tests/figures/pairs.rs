//! Services with existing Deployments are created with the webhook and without it, in turns.

use std::time::{Duration, Instant};

use serde_json::json;

use super::bench::{Bench, Created, PARALLEL, deployments, is_duplicate, is_placed, metric, quiet, services};
use super::layout::median;
use super::manifests::{deployment, service};
use super::support::serve_process::Server;
use super::table::{Bound, Table, ratios};
use crate::support::process_usage::processor_time;

const NAMESPACE: &str = "shop";
/// The number of Services of a load.
const SERVICES: usize = 150;
/// The number of loads in a turn, because a rate over half a second is not reliable.
const BATCHES: usize = 3;
/// The number of Services that a turn creates one after the other.
const SINGLY: usize = 75;
/// The number of reviews that a turn sends without the API server, one after the other.
const DIRECT: usize = 300;

/// The measurements of each round.
#[derive(Default)]
pub struct Pairs {
    with: Vec<Turn>,
    without: Vec<Turn>,
}

type Figure = fn(&Turn) -> f64;

#[derive(Default)]
struct Turn {
    /// Services per second with concurrent requests.
    rate: f64,
    /// Milliseconds for one Service, one after the other.
    single: f64,
    created: usize,
    failed: usize,
    /// Failed creates for which another Service had the address.
    duplicate: usize,
    misplaced_at_creation: usize,
    misplaced_later: usize,
    /// Milliseconds of an admission as `clusterip` measures it, one after the other and concurrently.
    admission_single: f64,
    admission: f64,
    /// As `admission_single`, for reviews that do not come from the API server.
    admission_direct: f64,
    /// Milliseconds of processor time of `clusterip` for a Service, including all other work.
    processor: f64,
}

/// Measures with the webhook and without it in turns.
pub async fn measure(bench: &Bench, rounds: usize) -> Pairs {
    let [with, without] = in_turns(bench, rounds, [Some("memory"), None]).await;
    Pairs { with, without }
}

/// Measures with claims and without them in turns, both with the webhook.
pub async fn measure_claims(bench: &Bench, rounds: usize) -> Pairs {
    let [with, without] = in_turns(bench, rounds, [Some("lease"), Some("memory")]).await;
    Pairs { with, without }
}

/// Measures two ways in turns, each with a server that stores claims there, or without a server. In every second round,
/// the order is reversed.
async fn in_turns(bench: &Bench, rounds: usize, ways: [Option<&str>; 2]) -> [Vec<Turn>; 2] {
    create_deployments(bench).await;
    let mut turns = [Vec::new(), Vec::new()];
    // The first turn warms up connections, caches and the API server.
    turn(bench, None).await;
    for round in 0..rounds {
        for way in [round % 2, (round + 1) % 2] {
            turns[way].push(match ways[way] {
                Some(claims) => {
                    let server = bench.serve(claims).await;
                    let turn = turn(bench, Some(&server)).await;
                    bench.end(server).await;
                    turn
                }
                None => turn(bench, None).await,
            });
        }
    }
    turns
}

/// Creates the Deployments of the Services, unless they exist.
async fn create_deployments(bench: &Bench) {
    bench.namespace(NAMESPACE).await;
    let path = deployments(NAMESPACE);
    if bench.get(&path).await["items"].as_array().is_none_or(Vec::is_empty) {
        bench.add(&path, (0..SERVICES).map(|index| deployment(NAMESPACE, index))).await;
    }
}

/// Measures the time of an admission without the API server, in milliseconds, once with each of so many servers.
pub async fn admission_without_api_server(bench: &Bench, rounds: usize) -> Vec<f64> {
    create_deployments(bench).await;
    let mut took = Vec::new();
    for _ in 0..rounds {
        let mut server = bench.server("memory").spawn();
        server.ready().await;
        quiet(&server).await;
        took.push(asked_directly(&server).await);
        bench.end(server).await;
    }
    took
}

async fn turn(bench: &Bench, server: Option<&Server>) -> Turn {
    let mut turn = Turn::default();
    let path = services(NAMESPACE);
    let before = Spent::of(server).await;
    let mut took = Duration::ZERO;
    for _ in 0..BATCHES {
        let begin = Instant::now();
        let objects = (0..SERVICES).map(|index| service(NAMESPACE, index));
        let created = bench.create_all(&path, objects, PARALLEL).await;
        took += begin.elapsed();
        turn.count(created.into_iter().map(|answered| answered.created).collect());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let later = bench.get(&path).await;
        let index = |name: &str| name.rsplit_once('-').unwrap().1.parse().unwrap();
        let misplaced = later["items"].as_array().unwrap().iter();
        let misplaced =
            misplaced.filter(|service| !is_placed(service, index(service["metadata"]["name"].as_str().unwrap())));
        turn.misplaced_later += misplaced.count();
        bench.clear(&path).await;
    }
    turn.rate = turn.created as f64 / took.as_secs_f64();
    let after = Spent::of(server).await;
    turn.admission = after.admission_since(&before);
    turn.processor = (after.processor - before.processor) * 1e3 / turn.created as f64;
    let mut singly = Vec::new();
    for index in 0..SINGLY {
        let object = service(NAMESPACE, index);
        let begin = Instant::now();
        let created = bench.create(&path, &object).await;
        singly.push(begin.elapsed().as_secs_f64() * 1e3);
        created.unwrap();
    }
    turn.single = median(singly);
    turn.admission_single = Spent::of(server).await.admission_since(&after);
    bench.clear(&path).await;
    if let Some(server) = server {
        turn.admission_direct = asked_directly(server).await;
    }
    turn
}

/// Milliseconds of an admission, as `clusterip` measures it, while the API server is idle.
async fn asked_directly(server: &Server) -> f64 {
    let before = Spent::of(Some(server)).await;
    for index in 0..DIRECT {
        let object = service(NAMESPACE, index % SERVICES);
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": format!("00000000-0000-0000-0000-{index:012}"), "operation": "CREATE", "dryRun": true,
            "kind": {"group": "", "version": "v1", "kind": "Service"},
            "resource": {"group": "", "version": "v1", "resource": "services"},
            "namespace": NAMESPACE, "name": object["metadata"]["name"], "object": object,
        }});
        let (_, answer) = server.post("/mutate", &review).await.unwrap();
        assert_eq!(answer["response"]["allowed"], true, "{answer}");
    }
    Spent::of(Some(server)).await.admission_since(&before)
}

impl Turn {
    fn count(&mut self, created: Vec<Created>) {
        for (index, created) in created.iter().enumerate() {
            match created {
                Ok(service) => {
                    self.created += 1;
                    self.misplaced_at_creation += usize::from(!is_placed(service, index));
                }
                Err(error) => {
                    eprintln!("a create failed: {error}");
                    self.failed += 1;
                    self.duplicate += usize::from(is_duplicate(error));
                }
            }
        }
    }
}

/// The processor time of `clusterip` since its start.
#[derive(Default)]
struct Spent {
    processor: f64,
    admissions: f64,
    seconds: f64,
}

impl Spent {
    async fn of(server: Option<&Server>) -> Self {
        let Some(server) = server else { return Self::default() };
        // The server shows the same metrics for a second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        Self {
            processor: processor_time(server.pid()).as_secs_f64(),
            admissions: metric(server, "clusterip_admission_duration_seconds_count").await,
            seconds: metric(server, "clusterip_admission_duration_seconds_sum").await,
        }
    }

    fn admission_since(&self, before: &Self) -> f64 {
        (self.seconds - before.seconds) * 1e3 / (self.admissions - before.admissions)
    }
}

impl Pairs {
    /// Prints whether all requests succeeded.
    pub fn correctness(&self, table: &mut Table) {
        let sum = |count: fn(&Turn) -> usize| self.with.iter().map(count).sum::<usize>() as f64;
        let created = sum(|turn| turn.created);
        table.total("created through the webhook, 60 at a time", created, "", Bound::None);
        table.total("failed", sum(|turn| turn.failed), "", Bound::Exactly(0.0));
        table.total("refused, as another Service had the address", sum(|turn| turn.duplicate), "", Bound::Exactly(0.0));
        let misplaced = sum(|turn| turn.misplaced_at_creation) * 100.0 / created;
        table.total("misplaced at creation", misplaced, "%", Bound::AtMost(1.0));
        table.total("misplaced after 1 s", sum(|turn| turn.misplaced_later), "", Bound::Exactly(0.0));
    }

    /// Prints the rates, and their ratio, which must be at least `least`.
    pub fn rates(&self, table: &mut Table, least: f64) {
        let [with, without] = self.both(|turn| turn.rate);
        table.rounds("rate without a webhook, 60 at a time", &without, "/s", Bound::None);
        table.rounds("rate with the webhook, 60 at a time", &with, "/s", Bound::None);
        table.rounds("ratio of the rates", &ratios(&with, &without), "", Bound::AtLeast(least));
    }

    /// Prints the rates with claims and without, and their ratio, which must be at least one half.
    pub fn claims(&self, table: &mut Table) {
        let [with, without] = self.both(|turn| turn.rate);
        table.rounds("rate without claims, 60 at a time", &without, "/s", Bound::None);
        table.rounds("rate with claims, 60 at a time", &with, "/s", Bound::None);
        table.rounds("ratio of the rates", &ratios(&with, &without), "", Bound::AtLeast(0.5));
        let [with, without] = self.both(|turn| turn.admission_single);
        table.rounds("admission without claims, one at a time (mean)", &without, "ms", Bound::None);
        table.rounds("admission with claims, one at a time (mean)", &with, "ms", Bound::None);
    }

    /// Prints how much longer a create takes.
    pub fn latency(&self, table: &mut Table, bound: Bound) {
        let [with, without] = self.both(|turn| turn.single);
        let more: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
        table.rounds("p50 without a webhook, one at a time", &without, "ms", Bound::None);
        table.rounds("p50 with the webhook, one at a time", &with, "ms", Bound::None);
        table.rounds("difference", &more, "ms", bound);
        let admission: Vec<f64> = self.with.iter().map(|turn| turn.admission_single).collect();
        table.rounds("of it the admission, as clusterip measures it (mean)", &admission, "ms", Bound::None);
    }

    /// Prints the time in the process of `clusterip`, compared with `before`.
    pub fn own_time(&self, table: &mut Table, before: &Self) {
        let figures: [(&str, Figure, Bound); 4] = [
            ("admission, one at a time", |turn| turn.admission_single, Bound::AtMost(1.1)),
            ("admission, one at a time without the API server", |turn| turn.admission_direct, Bound::AtMost(1.1)),
            ("admission, 60 at a time", |turn| turn.admission, Bound::AtMost(1.2)),
            ("processor time for a Service", |turn| turn.processor, Bound::AtMost(1.2)),
        ];
        for (what, figure, bound) in figures {
            let of = |pairs: &Self| pairs.with.iter().map(figure).collect::<Vec<_>>();
            let (now, before) = (of(self), of(before));
            table.rounds(&format!("{what}: with none"), &before, "ms", Bound::None);
            table.rounds(&format!("{what}: with 10,000"), &now, "ms", Bound::None);
            let ratio = median(now) / median(before);
            table.total("  ratio of the medians", ratio, "", bound);
        }
    }

    fn both(&self, figure: Figure) -> [Vec<f64>; 2] {
        [&self.with, &self.without].map(|turns| turns.iter().map(figure).collect())
    }
}
