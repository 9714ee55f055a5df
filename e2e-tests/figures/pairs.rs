//! Services with existing Deployments are created with the webhook of `clusterip serve`, with the least possible webhook
//! and without a webhook, in turns.

use std::time::{Duration, Instant};

use super::bench::{Bench, Created, PARALLEL, deployments, is_duplicate, is_placed, metric, quiet, services};
use super::layout::median;
use super::least_webhook::LeastWebhook;
use super::manifests::{deployment, service};
use super::reviews::send_reviews;
use super::support::serve_process::Server;
use super::table::{Bound, Table, ratios};
use crate::support::process_usage::processor_time;

const NAMESPACE: &str = "shop";
/// The number of Services of a load.
const SERVICES: usize = 150;
/// The number of loads in a turn, because a rate over half a second is not reliable.
const BATCHES: usize = 3;
/// How often a turn sends the reviews of all these Services without the API server, one after the other.
const DIRECT_ROUNDS: usize = 4;
/// How often each server is measured so if two of them are compared: an admission takes a few hundredths of a
/// millisecond, so 300 reviews tell too little.
const DIRECT_TURNS: usize = 10;

/// What is called about each Service.
#[derive(Clone, Copy)]
enum Way {
    /// `clusterip serve`, which stores claims there.
    Clusterip(&'static str),
    LeastWebhook,
    Nothing,
}

/// The measurements of each round, with `clusterip serve` and with another way.
pub struct Pairs {
    with: Vec<Turn>,
    other: Vec<Turn>,
    least: Vec<Turn>,
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

/// Measures with the webhook, with the least webhook, and without a webhook.
pub async fn measure_with_least(bench: &Bench, rounds: usize) -> Pairs {
    let ways = [Way::Clusterip("memory"), Way::LeastWebhook, Way::Nothing];
    let [with, least, other] = in_turns(bench, rounds, ways).await;
    Pairs { with, other, least }
}

/// Measures with the webhook and without one.
pub async fn measure(bench: &Bench, rounds: usize) -> Pairs {
    let [with, other] = in_turns(bench, rounds, [Way::Clusterip("memory"), Way::Nothing]).await;
    Pairs { with, other, least: Vec::new() }
}

/// Measures with claims and without them, both with the webhook.
pub async fn measure_claims(bench: &Bench, rounds: usize) -> Pairs {
    let [with, other] = in_turns(bench, rounds, [Way::Clusterip("lease"), Way::Clusterip("memory")]).await;
    Pairs { with, other, least: Vec::new() }
}

/// Measures all ways in turns. In every second round, the order is reversed.
async fn in_turns<const N: usize>(bench: &Bench, rounds: usize, ways: [Way; N]) -> [Vec<Turn>; N] {
    create_deployments(bench).await;
    let mut turns = ways.map(|_| Vec::new());
    // The first turn warms up connections, caches and the API server.
    turn(bench, None).await;
    for round in 0..rounds {
        for nth in 0..N {
            let way = if round % 2 == 0 { nth } else { N - 1 - nth };
            turns[way].push(match ways[way] {
                Way::Clusterip(claims) => {
                    let server = bench.serve(claims).await;
                    let turn = turn(bench, Some(&server)).await;
                    bench.end(server).await;
                    turn
                }
                Way::LeastWebhook => {
                    let webhook = LeastWebhook::start(bench).await;
                    let turn = turn(bench, None).await;
                    webhook.end(bench).await;
                    turn
                }
                Way::Nothing => turn(bench, None).await,
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

/// Measures the times of admissions without the API server, in milliseconds, of a new server for each cluster. The
/// servers take turns, so that all are measured while the machine is equally busy.
pub async fn admissions_without_api_server<const N: usize>(benches: [&Bench; N]) -> [Vec<f64>; N] {
    let mut servers = Vec::new();
    for bench in benches {
        create_deployments(bench).await;
        let mut server = bench.server("memory").spawn();
        server.ready().await;
        servers.push(server);
    }
    for server in &servers {
        quiet(server).await;
    }
    let mut took = [const { Vec::new() }; N];
    for _ in 0..DIRECT_TURNS {
        for (server, took) in servers.iter().zip(&mut took) {
            took.push(asked_directly(server).await);
        }
    }
    for (bench, server) in benches.into_iter().zip(servers) {
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
    for index in 0..SERVICES {
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
    for _ in 0..DIRECT_ROUNDS {
        send_reviews(server, NAMESPACE, SERVICES, true).await;
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

    /// Compares the webhook with the least possible one: an address from a counter, without a look-up.
    pub fn beside_least(&self, table: &mut Table) {
        let least = |figure: Figure| self.least.iter().map(figure).collect::<Vec<_>>();
        let ([rate, _], least_rate) = (self.both(|turn| turn.rate), least(|turn| turn.rate));
        table.rounds("rate with the least webhook, 60 at a time", &least_rate, "/s", Bound::None);
        table.rounds("ratio of the rates to the least webhook", &ratios(&rate, &least_rate), "", Bound::AtLeast(0.95));
        let ([single, _], least_single) = (self.both(|turn| turn.single), least(|turn| turn.single));
        table.rounds("p50 with the least webhook, one at a time", &least_single, "ms", Bound::None);
        table.rounds("ratio of the p50 to the least", &ratios(&single, &least_single), "", Bound::AtMost(1.10));
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
    pub fn latency(&self, table: &mut Table) {
        let [with, without] = self.both(|turn| turn.single);
        let more: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
        table.rounds("p50 without a webhook, one at a time", &without, "ms", Bound::None);
        table.rounds("p50 with the webhook, one at a time", &with, "ms", Bound::None);
        table.rounds("difference", &more, "ms", Bound::AtMost(3.0));
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
        [&self.with, &self.other].map(|turns| turns.iter().map(figure).collect())
    }
}
