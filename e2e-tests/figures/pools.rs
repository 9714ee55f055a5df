//! Many pools as objects: how soon `clusterip serve` uses them, how soon their status is right, and what this costs.
//!
//! The policies of the fence are not installed. With this many pools, they would add more to each create than what is
//! measured here; `fence` measures them.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use http::{Method, Request};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::bench::{Bench, SERVICE_POOLS, services};
use super::manifests::{name, service};
use super::support::eventually::eventually;
use super::support::move_helpers::send;
use super::support::pools::pool;
use super::support::serve_process::{Server, ServerBuilder};
use super::support::webhook_cluster::{address, within};
use super::surveys::surveys;
use super::table::{Bound, Table};
use crate::support::process_usage::{peak_memory, processor_time};

const POOLS: usize = 500;
const SERVICES: usize = 10_000;
/// Each pool is a /27 for the namespace of the same name, one range behind the other.
const FIRST_RANGE: Ipv4Addr = Ipv4Addr::new(172, 21, 128, 0);
const SIZE: usize = 32;
/// The addresses of a /27 that Services can have: neither the first nor the last.
const USABLE: usize = SIZE - 2;
/// The pool that is edited. It has no Service, so that no Service is outside of all pools after an edit.
const EDITED: usize = POOLS - 1;
/// Nothing is compared here, and a start takes long, so there are few rounds.
const MOST_ROUNDS: usize = 3;
/// The number of edits in a round.
const EDITS: u8 = 3;
/// Longer than the server waits between two writes of the same status.
const SETTLING: Duration = Duration::from_secs(6);
const REST: Duration = Duration::from_secs(60);

/// The measurements of each round.
pub struct Pools(Vec<Round>);

struct Round {
    /// The time in seconds from the start of the process until `/readyz` answers 200.
    ready: f64,
    /// The time in seconds from the start of the process until the status of every pool is right.
    right: f64,
    /// The requests until then that wrote a status.
    writes: f64,
    /// The processor time in seconds until then.
    processor: f64,
    rest: Rest,
    edits: Vec<Edit>,
    /// The maximum memory in MB.
    peak: f64,
}

/// A minute in which nothing changes in the cluster.
struct Rest {
    /// The requests that wrote a status.
    writes: f64,
    /// The processor time in seconds.
    processor: f64,
}

/// An edit of a pool.
struct Edit {
    /// The time in seconds from sending the edit until a new Service gets an address of the new range.
    in_use: f64,
    /// The time in seconds from sending the edit until the status describes it.
    shown: f64,
    /// The time in seconds from sending the edit until the server has examined all Services.
    examined: f64,
}

/// Fills the cluster, and starts a server in it several times, each time with new pools, which have no status.
pub async fn measure(bench: &Bench, pairs: usize) -> Pools {
    bench.plane().install_pools().await;
    fill(bench).await;
    let mut rounds = Vec::new();
    for _ in 0..pairs.min(MOST_ROUNDS) {
        bench.add(SERVICE_POOLS, (0..POOLS).map(pool_of)).await;
        rounds.push(round(bench).await);
        bench.clear(SERVICE_POOLS).await;
    }
    Pools(rounds)
}

/// Creates the namespaces, and the Services with addresses set by hand.
async fn fill(bench: &Bench) {
    let namespace = |nth: usize| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": pool_name(nth)}});
    bench.add("/api/v1/namespaces", (0..POOLS).map(namespace)).await;
    for pool in 0..POOLS {
        let namespace = pool_name(pool);
        let service = |nth: usize| {
            let mut service = service(&namespace, nth);
            service["spec"]["clusterIP"] = address_in(pool, 1 + nth).to_string().into();
            service
        };
        bench.add(&services(&namespace), (0..services_of(pool)).map(service)).await;
    }
}

async fn round(bench: &Bench) -> Round {
    let writes = status_writes(bench).await;
    let begin = Instant::now();
    let server = ServerBuilder::new(bench.plane()).pools().args(&["--claims", "memory"]).registered().start().await;
    let ready = begin.elapsed().as_secs_f64();
    wait_for_status(bench).await;
    let right = begin.elapsed().as_secs_f64();
    let processor = processor_time(server.pid()).as_secs_f64();
    let writes = status_writes(bench).await - writes;
    assert!(writes > 0.0, "the metrics of the API server do not count the requests that write a status");
    let rest = rest(bench, &server).await;
    let mut edits = Vec::new();
    for nth in 1..=EDITS {
        edits.push(edit(bench, &server, nth).await);
    }
    let peak = peak_memory(server.pid());
    bench.end(server).await;
    Round { ready, right, writes, processor, rest, edits, peak }
}

/// Waits until the status of every pool is right.
async fn wait_for_status(bench: &Bench) {
    eventually("the status of every pool to be right", async || {
        let list = bench.get(SERVICE_POOLS).await;
        list["items"].as_array().unwrap().iter().all(is_right).then_some(())
    })
    .await;
}

async fn rest(bench: &Bench, server: &Server) -> Rest {
    sleep(SETTLING).await;
    let writes = status_writes(bench).await;
    let processor = processor_time(server.pid());
    sleep(REST).await;
    let processor = (processor_time(server.pid()) - processor).as_secs_f64();
    let writes = status_writes(bench).await - writes;
    Rest { writes, processor }
}

/// Gives the edited pool its `nth` range, which replaces the one before.
async fn edit(bench: &Bench, server: &Server, nth: u8) -> Edit {
    // The server writes the status at intervals. Edits begin at different moments of an interval.
    sleep(Duration::from_millis(700) * u32::from(nth)).await;
    let namespace = pool_name(EDITED);
    let path = format!("{SERVICE_POOLS}/{namespace}");
    let cidr = range(Ipv4Addr::new(172, 21, 200 + nth, 0));
    let patch = json!({"spec": {"cidrs": [cidr]}});
    let surveys_before = surveys(server);
    let begin = Instant::now();
    send(bench.client(), Method::PATCH, &path, Some(&patch)).await.unwrap();
    let dry_run = format!("{}?dryRun=All", services(&namespace));
    let in_use = eventually("a new Service to get an address of the new range", async || {
        let tried = bench.create(&dry_run, &service(&namespace, 0)).await.ok()?;
        within(address(&tried), &cidr).then(|| begin.elapsed().as_secs_f64())
    });
    let shown = eventually("the status to describe the new range", async || {
        let object = bench.get(&path).await;
        let is_shown = is_ready(&object) && object["status"]["ranges"] == json!([cidr]);
        is_shown.then(|| begin.elapsed().as_secs_f64())
    });
    let examined = eventually("all Services to be examined", async || {
        (surveys(server) > surveys_before).then(|| begin.elapsed().as_secs_f64())
    });
    let (in_use, shown, examined) = tokio::join!(in_use, shown, examined);
    let path = services(&namespace);
    let created = bench.create(&path, &service(&namespace, 0)).await.unwrap();
    bench.clear(&path).await;
    assert!(within(address(&created), &cidr), "a new Service is outside of the new range {cidr}: {created}");
    Edit { in_use, shown, examined }
}

/// The number of requests that wrote the status of a pool, also if they changed nothing.
async fn status_writes(bench: &Bench) -> f64 {
    let request = Request::get("/metrics").body(Vec::new()).unwrap();
    let text = bench.client().request_text(request).await.unwrap();
    let is_write = |line: &&str| {
        let labels = [r#"group="clusterip-policy.io""#, r#"subresource="status""#];
        line.starts_with("apiserver_request_total{") && labels.iter().all(|label| line.contains(label))
    };
    text.lines().filter(is_write).map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

/// The name of a pool and of its namespace.
fn pool_name(pool: usize) -> String {
    format!("team-{pool}")
}

/// The number of Services in a pool. The edited pool has none.
fn services_of(pool: usize) -> usize {
    let others = EDITED;
    if pool == EDITED { 0 } else { SERVICES / others + usize::from(pool < SERVICES % others) }
}

fn has_reservations(pool: usize) -> bool {
    pool.is_multiple_of(10)
}

fn address_in(pool: usize, nth: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(FIRST_RANGE) + u32::try_from(pool * SIZE + nth).unwrap())
}

fn range(first: Ipv4Addr) -> String {
    format!("{first}/27")
}

/// A pool. Every tenth one keeps an address for its first Service, and another one for a Service that does not exist.
/// Every fifth one has a fence.
fn pool_of(nth: usize) -> Value {
    let namespace = pool_name(nth);
    let mut spec = json!({"cidrs": [range(address_in(nth, 0))], "match": {"namespaces": [namespace]}});
    if has_reservations(nth) {
        spec["reservations"] = json!([
            {"address": address_in(nth, 1).to_string(), "namespace": namespace, "name": name(0)},
            {"address": address_in(nth, USABLE).to_string(), "namespace": namespace, "name": "absent"},
        ]);
    }
    if nth.is_multiple_of(5) {
        spec["fence"] = "Deny".into();
    }
    pool("ServicePool", &namespace, spec)
}

/// Whether the status of a pool describes its latest version, and the pool is in use.
fn is_ready(object: &Value) -> bool {
    let status = &object["status"];
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    status["observedGeneration"] == object["metadata"]["generation"]
        && conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Whether a pool is in use, and its status counts its Services and shows who has the addresses of its reservations.
fn is_right(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str().unwrap();
    let pool: usize = name.rsplit_once('-').unwrap().1.parse().unwrap();
    let used = services_of(pool);
    // An address with a reservation is neither usable nor free, also if its owner uses it.
    let (reserved, of_owner) = if has_reservations(pool) { (2, 1) } else { (0, 0) };
    let (usable, free) = (USABLE - reserved, USABLE - reserved - (used - of_owner));
    let addresses = json!({
        "used": used, "free": free, "misplaced": 0,
        "ipv4": {"usable": usable, "used": used, "free": free, "inFlight": 0, "misplaced": 0},
    });
    let holders: Vec<&Value> = object["status"]["reservations"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|reservation| &reservation["holder"])
        .collect();
    let expected: &[&str] = if has_reservations(pool) { &["Owner", "Nobody"] } else { &[] };
    is_ready(object) && object["status"]["addresses"] == addresses && holders == expected
}

impl Pools {
    /// Prints the figures.
    pub fn rows(&self, table: &mut Table) {
        let rounds = |figure: fn(&Round) -> f64| self.0.iter().map(figure).collect::<Vec<_>>();
        let edits =
            |figure: fn(&Edit) -> f64| self.0.iter().flat_map(|round| &round.edits).map(figure).collect::<Vec<_>>();
        let once_or_twice = Bound::AtMost((2 * POOLS) as f64);
        table.rounds("until /readyz answers 200", &rounds(|round| round.ready), "s", Bound::AtMost(10.0));
        table.rounds("until the status of every pool is right", &rounds(|round| round.right), "s", Bound::AtMost(15.0));
        table.rounds("  writes of a status until then", &rounds(|round| round.writes), "", once_or_twice);
        table.rounds("  processor time until then", &rounds(|round| round.processor), "s", Bound::None);
        let at_rest = self.0.iter().map(|round| round.rest.writes).sum();
        table.total("writes of a status in a minute at rest", at_rest, "", Bound::Exactly(0.0));
        table.rounds("  processor time, with the survey", &rounds(|round| round.rest.processor), "s", Bound::None);
        table.rounds("until an edit of a pool is in use", &edits(|edit| edit.in_use), "s", Bound::AtMost(1.0));
        table.rounds("until every Service was examined", &edits(|edit| edit.examined), "s", Bound::AtMost(2.0));
        table.rounds("until the status describes the edit", &edits(|edit| edit.shown), "s", Bound::AtMost(5.0));
        table.rounds("peak memory (VmHWM)", &rounds(|round| round.peak), "MB", Bound::AtMost(150.0));
    }
}
