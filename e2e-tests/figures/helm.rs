//! The order of Helm: first Services, and then the Deployments that show their pools. The same moves are made by bare
//! requests too, without `clusterip`, because the speed of the API server limits both.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt, stream};
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::bench::{Bench, FIRST_OF_BARE, deployments, is_placed, services};
use super::manifests::{deployment, is_windows, name, service};
use super::support::eventually::MAX_WAIT;
use super::support::move_helpers::send;
use super::table::{Bound, Table, percentile_95, ratios};

const SERVICES: usize = 140;
/// How the Deployments are created: one after the other, or many at a time. Each way has its own namespace, so that one
/// server moves the Services of both, despite the cooldown after a move.
const WAYS: [Way; 2] = [
    Way {
        namespace: "in-turn",
        at_a_time: 1,
        how: "one Deployment after the other",
        p95_bound: Bound::AtMost(300.0),
        ratio_bound: Bound::None,
    },
    Way {
        namespace: "side-by-side",
        at_a_time: 20,
        how: "20 Deployments at a time",
        p95_bound: Bound::None,
        ratio_bound: Bound::AtMost(1.4),
    },
];
/// The time for the work that the creation of the Services causes, which is not measured.
const SETTLING: Duration = Duration::from_secs(2);
/// The number of bare moves at a time, as in `clusterip serve`.
const BARE_MOVES: usize = 16;

struct Way {
    namespace: &'static str,
    at_a_time: usize,
    how: &'static str,
    p95_bound: Bound,
    /// The bound of the ratio of the 95th percentile to that of bare requests.
    ratio_bound: Bound,
}

/// The measurements of each round.
#[derive(Default)]
pub struct Moves {
    /// The 95th percentile of the time until the new address, in milliseconds from the request that creates the
    /// Deployment.
    p95: Vec<f64>,
    /// The same for bare requests, until the API server answers the request with the new address.
    bare_p95: Vec<f64>,
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
    for nth in 0..rounds {
        // In every second round, the order is reversed.
        for is_bare in [nth % 2 == 0, nth % 2 == 1] {
            if is_bare {
                for (way, moves) in WAYS.iter().zip(&mut moves) {
                    moves.bare_p95.push(bare_requests(bench, way).await);
                    // Both ways use the same addresses.
                    clear(bench, way).await;
                }
            } else {
                let server = bench.serve("memory").await;
                for (way, moves) in WAYS.iter().zip(&mut moves) {
                    round(bench, way, moves).await;
                }
                bench.end(server).await;
                for way in &WAYS {
                    clear(bench, way).await;
                }
            }
        }
    }
    moves
}

async fn clear(bench: &Bench, way: &Way) {
    bench.clear(&services(way.namespace)).await;
    bench.clear(&deployments(way.namespace)).await;
}

/// Creates Deployments, and moves each Windows Service with the four requests of a move when its Deployment exists.
/// Returns the 95th percentile of the time until the new address, in milliseconds from the request that creates the
/// Deployment.
async fn bare_requests(bench: &Bench, way: &Way) -> f64 {
    let path = services(way.namespace);
    bench.add(&path, (0..SERVICES).map(|index| service(way.namespace, index))).await;
    tokio::time::sleep(SETTLING).await;
    let before = by_name(&bench.get(&path).await, Value::clone);
    let turns = Arc::new(Semaphore::new(BARE_MOVES));
    let mut moves = JoinSet::new();
    let create = async |index: usize| {
        let sent = Instant::now();
        bench.create(&deployments(way.namespace), &deployment(way.namespace, index)).await.unwrap();
        (index, sent)
    };
    let mut created = pin!(stream::iter(0..SERVICES).map(create).buffer_unordered(way.at_a_time));
    while let Some((index, sent)) = created.next().await {
        if is_windows(index) {
            let (client, turns) = (bench.client().clone(), Arc::clone(&turns));
            let (path, service) = (format!("{path}/{}", name(index)), before[&name(index)].clone());
            moves.spawn(async move {
                let _turn = turns.acquire().await.unwrap();
                let has_address = bare_move(&client, &path, &service, index).await;
                has_address.duration_since(sent).as_secs_f64() * 1e3
            });
        }
    }
    percentile_95(moves.join_all().await)
}

/// Moves a Service with four requests: a dry run of the release, the release, the new address, and the removal of the
/// annotation. Returns when the Service had its new address.
async fn bare_move(client: &Client, path: &str, original: &Value, index: usize) -> Instant {
    let put = async |query: &str, service: &Value| -> Value {
        send(client, Method::PUT, &format!("{path}{query}"), Some(service)).await.unwrap()
    };
    let mut release = original.clone();
    release["metadata"]["annotations"] = json!({"example.com/journal": original.to_string()});
    release["spec"]["type"] = "ExternalName".into();
    release["spec"]["externalName"] = "moving.invalid".into();
    put("?dryRun=All", &release).await;
    let mut assign = put("", &release).await;
    let to = Ipv4Addr::from(u32::from(FIRST_OF_BARE) + u32::try_from(index).unwrap()).to_string();
    assign["spec"] = original["spec"].clone();
    assign["spec"]["clusterIP"] = to.clone().into();
    assign["spec"]["clusterIPs"] = json!([to]);
    let mut moved = put("", &assign).await;
    let has_address = Instant::now();
    moved["metadata"]["annotations"] = Value::Null;
    put("", &moved).await;
    has_address
}

async fn round(bench: &Bench, way: &Way, moves: &mut Moves) {
    let namespace = way.namespace;
    let path = services(namespace);
    bench.add(&path, (0..SERVICES).map(|index| service(namespace, index))).await;
    tokio::time::sleep(SETTLING).await;
    let before = bench.get(&path).await;
    let uids = by_name(&before, |service| service["metadata"]["uid"].clone());
    let mut placed = placed(bench, namespace, &before).await;
    let objects = (0..SERVICES).map(|index| deployment(namespace, index));
    let created = bench.create_all(&deployments(namespace), objects, way.at_a_time).await;
    let windows: Vec<usize> = (0..SERVICES).filter(|index| is_windows(*index)).collect();
    let mut seen: BTreeMap<String, Instant> = BTreeMap::new();
    let deadline = tokio::time::Instant::now() + MAX_WAIT;
    while seen.len() < windows.len() {
        let Ok(Some((name, when))) = tokio::time::timeout_at(deadline, placed.recv()).await else { break };
        seen.entry(name).or_insert(when);
    }
    let mut took = Vec::new();
    for index in &windows {
        let answered = &created[*index];
        answered.created.as_ref().unwrap();
        if let Some(when) = seen.get(&name(*index)) {
            took.push(when.saturating_duration_since(answered.sent).as_secs_f64() * 1e3);
        }
    }
    moves.to_move += windows.len();
    moves.moved += took.len();
    moves.p95.push(percentile_95(took));
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

/// Sends each Windows Service that a watch shows in its pool, and when.
async fn placed(bench: &Bench, namespace: &str, from: &Value) -> mpsc::UnboundedReceiver<(String, Instant)> {
    let version = from["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{}?watch=true&resourceVersion={version}", services(namespace));
    let request = Request::get(path).body(Vec::new()).unwrap();
    let mut lines = bench.client().request_stream(request).await.unwrap().lines();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.try_next().await {
            let when = Instant::now();
            let event: Value = serde_json::from_str(&line).unwrap();
            let service = &event["object"];
            let name = service["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let index: usize = name.rsplit_once('-').and_then(|(_, index)| index.parse().ok()).unwrap_or_default();
            let moved = is_windows(index) && service["spec"]["type"] == "ClusterIP" && is_placed(service, index);
            if moved && sender.send((name, when)).is_err() {
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
        moves.rows(table, way);
    }
}

impl Moves {
    fn rows(&self, table: &mut Table, way: &Way) {
        table.total(&format!("moved, {}", way.how), self.moved as f64, "", Bound::Exactly(self.to_move as f64));
        table.rounds("  from sending the Deployment, p95", &self.p95, "ms", way.p95_bound);
        table.rounds("  with bare requests, p95", &self.bare_p95, "ms", Bound::None);
        table.rounds("  ratio, round by round", &ratios(&self.p95, &self.bare_p95), "", way.ratio_bound);
        table.total("  lost", self.lost as f64, "", Bound::Exactly(0.0));
        table.total("  with another UID", self.other_uid as f64, "", Bound::Exactly(0.0));
        table.total("  misplaced at the end", self.misplaced as f64, "", Bound::Exactly(0.0));
        table.total("  with traces of a move", self.with_traces as f64, "", Bound::Exactly(0.0));
    }
}
