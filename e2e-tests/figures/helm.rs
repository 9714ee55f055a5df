//! The order of Helm: first Services, and then the Deployments that show their pools.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::{AsyncBufReadExt, TryStreamExt};
use http::Request;
use serde_json::Value;
use tokio::sync::mpsc;

use super::bench::{Bench, deployments, is_placed, services};
use super::manifests::{deployment, is_windows, name, service};
use super::support::eventually::MAX_WAIT;
use super::table::{Bound, Table, percentile_95};

const SERVICES: usize = 140;
/// How the Deployments are created: one after the other, or many at a time. Each way has its own namespace, so that one
/// server moves the Services of both, despite the cooldown after a move.
const WAYS: [Way; 2] = [
    Way { namespace: "in-turn", at_a_time: 1, how: "one Deployment after the other" },
    Way { namespace: "side-by-side", at_a_time: 20, how: "20 Deployments at a time" },
];

struct Way {
    namespace: &'static str,
    at_a_time: usize,
    how: &'static str,
}

/// The measurements of each round.
#[derive(Default)]
pub struct Moves {
    /// The 95th percentile of the time until the new address, in milliseconds from the request that creates the
    /// Deployment.
    p95: Vec<f64>,
    slowest: Vec<f64>,
    /// The 95th percentile of the time without an address, in milliseconds, as a watch shows it.
    without_p95: Vec<f64>,
    without_longest: Vec<f64>,
    moved: usize,
    to_move: usize,
    lost: usize,
    other_uid: usize,
    misplaced: usize,
    with_traces: usize,
}

/// Measures in rounds, each with a new server, because the number of moves per minute is limited.
pub async fn measure(bench: &Bench, rounds: usize) -> [Moves; 2] {
    let mut moves = [Moves::default(), Moves::default()];
    for way in &WAYS {
        bench.namespace(way.namespace).await;
    }
    for _ in 0..rounds {
        let server = bench.serve("memory").await;
        for (way, moves) in WAYS.iter().zip(&mut moves) {
            round(bench, way, moves).await;
        }
        bench.end(server).await;
        for way in &WAYS {
            bench.clear(&services(way.namespace)).await;
            bench.clear(&deployments(way.namespace)).await;
        }
    }
    moves
}

async fn round(bench: &Bench, way: &Way, moves: &mut Moves) {
    let namespace = way.namespace;
    let path = services(namespace);
    bench.add(&path, (0..SERVICES).map(|index| service(namespace, index))).await;
    // Waits for the work that the creation of the Services causes, which is not measured.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = bench.get(&path).await;
    let uids = by_name(&before, |service| service["metadata"]["uid"].clone());
    let mut placed = placed(bench, namespace, &before).await;
    let objects = (0..SERVICES).map(|index| deployment(namespace, index));
    let created = bench.create_all(&deployments(namespace), objects, way.at_a_time).await;
    let windows: Vec<usize> = (0..SERVICES).filter(|index| is_windows(*index)).collect();
    let mut seen: BTreeMap<String, Placed> = BTreeMap::new();
    let deadline = tokio::time::Instant::now() + MAX_WAIT;
    while seen.len() < windows.len() {
        let Ok(Some((name, service))) = tokio::time::timeout_at(deadline, placed.recv()).await else { break };
        seen.entry(name).or_insert(service);
    }
    let (mut took, mut without) = (Vec::new(), Vec::new());
    for index in &windows {
        let answered = &created[*index];
        answered.created.as_ref().unwrap();
        if let Some(placed) = seen.get(&name(*index)) {
            took.push(placed.when.saturating_duration_since(answered.sent).as_secs_f64() * 1e3);
            without.push(placed.without_address.as_secs_f64() * 1e3);
        }
    }
    moves.to_move += windows.len();
    moves.moved += took.len();
    moves.slowest.push(took.iter().copied().fold(0.0, f64::max));
    moves.p95.push(percentile_95(took));
    moves.without_longest.push(without.iter().copied().fold(0.0, f64::max));
    moves.without_p95.push(percentile_95(without));
    // The last writes of a move come after its new address.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = bench.get(&path).await;
    let services = by_name(&after, Value::clone);
    for (name, uid) in &uids {
        let Some(service) = services.get(name) else {
            moves.lost += 1;
            continue;
        };
        let index = name.rsplit_once('-').unwrap().1.parse().unwrap();
        moves.other_uid += usize::from(service["metadata"]["uid"] != *uid);
        moves.misplaced += usize::from(!is_placed(service, index));
        moves.with_traces += usize::from(!service["metadata"]["annotations"].is_null());
    }
}

/// A Service that has moved to its pool.
struct Placed {
    when: Instant,
    /// The time without an address before.
    without_address: Duration,
}

/// Sends each Windows Service that a watch shows in its pool.
async fn placed(bench: &Bench, namespace: &str, from: &Value) -> mpsc::UnboundedReceiver<(String, Placed)> {
    let version = from["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{}?watch=true&resourceVersion={version}", services(namespace));
    let request = Request::get(path).body(Vec::new()).unwrap();
    let mut lines = bench.client().request_stream(request).await.unwrap().lines();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        // The begin of the time without an address, for each Service.
        let mut lost: BTreeMap<String, Instant> = BTreeMap::new();
        while let Ok(Some(line)) = lines.try_next().await {
            let when = Instant::now();
            let event: Value = serde_json::from_str(&line).unwrap();
            let service = &event["object"];
            let name = service["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let index: usize = name.rsplit_once('-').and_then(|(_, index)| index.parse().ok()).unwrap_or_default();
            if service["spec"]["clusterIP"].as_str().is_none_or(str::is_empty) {
                lost.entry(name).or_insert(when);
                continue;
            }
            let without_address = lost.remove(&name).map_or(Duration::ZERO, |since| when - since);
            let moved = is_windows(index) && service["spec"]["type"] == "ClusterIP" && is_placed(service, index);
            if moved && sender.send((name, Placed { when, without_address })).is_err() {
                break;
            }
        }
    });
    receiver
}

fn by_name<T>(list: &Value, of: impl Fn(&Value) -> T) -> BTreeMap<String, T> {
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| (item["metadata"]["name"].as_str().unwrap().to_owned(), of(item))).collect()
}

/// Prints whether all Services were moved, and how soon.
pub fn rows(all: &[Moves; 2], table: &mut Table) {
    for (way, moves) in WAYS.iter().zip(all) {
        moves.rows(table, way.how);
    }
}

impl Moves {
    fn rows(&self, table: &mut Table, how: &str) {
        table.total(&format!("moved, {how}"), self.moved as f64, "", Bound::Exactly(self.to_move as f64));
        table.rounds("  from sending the Deployment, p95", &self.p95, "ms", Bound::AtMost(300.0));
        table.rounds("  the slowest", &self.slowest, "ms", Bound::None);
        table.rounds("  without an address, p95", &self.without_p95, "ms", Bound::None);
        table.rounds("  the longest", &self.without_longest, "ms", Bound::None);
        table.total("  lost", self.lost as f64, "", Bound::Exactly(0.0));
        table.total("  with another UID", self.other_uid as f64, "", Bound::Exactly(0.0));
        table.total("  misplaced at the end", self.misplaced as f64, "", Bound::Exactly(0.0));
        table.total("  with traces of a move", self.with_traces as f64, "", Bound::Exactly(0.0));
    }
}
