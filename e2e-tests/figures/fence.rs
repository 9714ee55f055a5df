//! The fence, without a server: how much longer a create of a Service takes, also with many addresses, and how many
//! Services are refused because the API server picked an address of a fenced pool.

use std::iter;
use std::net::Ipv4Addr;
use std::time::Instant;

use http::Method;
use serde_json::Value;

use super::bench::{API, Bench, Created, PARALLEL, SERVICE_POOLS, services};
use super::layout::median;
use super::manifests::service;
use super::support::costly_services::{POOLS, costly, fenced_pools, ordinary};
use super::support::eventually::eventually;
use super::support::move_helpers::send;
use super::support::pools::fenced_pool;
use super::table::{Bound, Table, ratios};

const FENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/fence");
/// The namespace of the Services. No pool is for it.
const NAMESPACE: &str = "tenant";
/// The number of Services that a turn creates one after the other.
const SINGLY: u8 = 75;
/// The pool that shows whether the fence is in force, and an address of it.
const PROBE: &str = "probe";
const PROBE_RANGE: &str = "172.21.250.0/24";
const PROBE_ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 21, 250, 7);
/// The number of Services for which the API server picks an address.
const PICKS: usize = 1_000;
/// A text of each refusal by the fence.
const REFUSAL: &str = "lies in ServicePool";

/// The fence with a number of pools.
struct Way {
    /// `None`: without the fence.
    pools: Option<u8>,
    /// The bound of the ratio to the way without the fence.
    ratio: Bound,
}

const WAYS: [Way; 5] = [
    Way { pools: None, ratio: Bound::None },
    Way { pools: Some(0), ratio: Bound::AtMost(1.2) },
    Way { pools: Some(1), ratio: Bound::AtMost(1.5) },
    Way { pools: Some(10), ratio: Bound::AtMost(3.0) },
    // The time for each pool has a bound instead.
    Way { pools: Some(100), ratio: Bound::None },
];
const MOST_POOLS: f64 = 100.0;

/// A fenced range, and how many of [`PICKS`] Services the fence may refuse.
struct Fenced {
    what: &'static str,
    range: &'static str,
    inside: Ipv4Addr,
    bound: Bound,
}

const FENCED: [Fenced; 2] = [
    // The first 256 addresses of a /16, where the API server picks no address before all others are used.
    Fenced {
        what: "a /25 in the static band",
        range: "172.21.0.128/25",
        inside: Ipv4Addr::new(172, 21, 0, 200),
        bound: Bound::Exactly(0.0),
    },
    // A sixteenth of the Service range: about 63.
    Fenced {
        what: "a /20 beside the static band",
        range: "172.21.16.0/20",
        inside: Ipv4Addr::new(172, 21, 16, 200),
        bound: Bound::AtMost(90.0),
    },
];

/// The number of dry runs of a costly Service in a round.
const COSTLY_RUNS: usize = 9;

/// The measurements of all rounds.
pub struct FenceFigures {
    /// The median time in milliseconds of a create in each round, for each of [`WAYS`].
    p50: [Vec<f64>; WAYS.len()],
    /// For each of [`FENCED`].
    picked: Vec<Picked>,
    /// The time of a dry run of each of [`costly`], divided by that of an ordinary Service beside the same pools.
    costly: Vec<Vec<f64>>,
}

/// Creates of Services for which the API server picked the address.
#[derive(Default)]
struct Picked {
    /// Creates that the fence refused.
    refused: usize,
    /// Creates that failed for another reason.
    failed: usize,
}

/// Measures all ways in turns; in every second round, the order is reversed.
pub async fn measure(bench: &Bench, rounds: usize) -> FenceFigures {
    bench.plane().install_pools().await;
    bench.namespace(NAMESPACE).await;
    // The first turn warms up connections, caches and the API server.
    turn(bench).await;
    let mut p50 = WAYS.map(|_| Vec::new());
    for round in 0..rounds {
        for nth in 0..WAYS.len() {
            let way = if round % 2 == 0 { nth } else { WAYS.len() - 1 - nth };
            prepare(bench, WAYS[way].pools).await;
            p50[way].push(turn(bench).await);
        }
    }
    prepare(bench, Some(0)).await;
    let mut picked = Vec::new();
    for fenced in &FENCED {
        picked.push(pick(bench, fenced).await);
    }
    FenceFigures { p50, picked, costly: measure_costly(bench, rounds).await }
}

/// Measures dry runs of an ordinary Service and of each costly one in turns.
async fn measure_costly(bench: &Bench, rounds: usize) -> Vec<Vec<f64>> {
    prepare(bench, Some(0)).await;
    for pool in fenced_pools() {
        bench.add(&format!("{API}/{}s", pool["kind"].as_str().unwrap().to_lowercase()), iter::once(pool)).await;
    }
    let last_pool = Ipv4Addr::new(172, 21, 99 + POOLS, 7);
    wait_until_refused(bench, last_pool, true).await;
    let path = format!("{}?dryRun=All", services(NAMESPACE));
    let (ordinary, costly) = (ordinary(), costly());
    let mut ratios = Vec::new();
    for service in &costly {
        let mut rounds_of_service = Vec::new();
        for _ in 0..rounds {
            let mut took = [Vec::new(), Vec::new()];
            for _ in 0..COSTLY_RUNS {
                for (took, object) in took.iter_mut().zip([&ordinary, &service.object]) {
                    let begin = Instant::now();
                    // The API server refuses some of them, after it has evaluated all policies.
                    let _ = bench.create(&path, object).await;
                    took.push(begin.elapsed().as_secs_f64());
                }
            }
            let [usual, took] = took.map(median);
            rounds_of_service.push(took / usual);
        }
        ratios.push(rounds_of_service);
    }
    ratios
}

/// Creates this number of pools, installs or removes the fence, and waits until this is in force.
async fn prepare(bench: &Bench, pools: Option<u8>) {
    bench.clear(SERVICE_POOLS).await;
    let of_another_team = |nth: u8| service_pool(&format!("team-{nth}"), &format!("172.21.{}.0/24", 128 + nth));
    bench.add(SERVICE_POOLS, (0..pools.unwrap_or_default()).map(of_another_team)).await;
    // The API server sees pools in the order in which they are written, so it has seen the other ones before.
    bench.add(SERVICE_POOLS, iter::once(service_pool(PROBE, PROBE_RANGE))).await;
    let args: &[&str] = match pools {
        Some(_) => &["apply", "-k", FENCE],
        None => &["delete", "--ignore-not-found", "-k", FENCE],
    };
    bench.plane().kubectl(args).await.ok();
    wait_until_refused(bench, PROBE_ADDRESS, pools.is_some()).await;
    send(bench.client(), Method::DELETE, &format!("{SERVICE_POOLS}/{PROBE}"), None).await.unwrap();
    wait_until_refused(bench, PROBE_ADDRESS, false).await;
}

/// Waits until a Service with this address is refused by the fence, or until it is accepted.
async fn wait_until_refused(bench: &Bench, address: Ipv4Addr, is_refused: bool) {
    let path = format!("{}?dryRun=All", services(NAMESPACE));
    let trial = service_at(0, address);
    eventually(&format!("the fence to be in force: {is_refused}"), async || {
        let created = bench.create(&path, &trial).await;
        let is_expected = if is_refused { is_refused_by_fence(&created) } else { created.is_ok() };
        is_expected.then_some(())
    })
    .await;
}

/// Creates Services one after the other, and returns the median time in milliseconds.
async fn turn(bench: &Bench) -> f64 {
    let path = services(NAMESPACE);
    let mut singly = Vec::new();
    for nth in 0..SINGLY {
        // Set by hand, so that no Service gets an address of a pool.
        let object = service_at(usize::from(nth), Ipv4Addr::new(172, 21, 16, 1 + nth));
        let begin = Instant::now();
        let created = bench.create(&path, &object).await;
        singly.push(begin.elapsed().as_secs_f64() * 1e3);
        created.unwrap();
    }
    bench.clear(&path).await;
    median(singly)
}

/// Creates Services without addresses while a range is fenced.
async fn pick(bench: &Bench, fenced: &Fenced) -> Picked {
    bench.clear(SERVICE_POOLS).await;
    bench.add(SERVICE_POOLS, iter::once(service_pool("team", fenced.range))).await;
    wait_until_refused(bench, fenced.inside, true).await;
    let path = services(NAMESPACE);
    let mut picked = Picked::default();
    for answered in bench.create_all(&path, (0..PICKS).map(|nth| service(NAMESPACE, nth)), PARALLEL).await {
        if is_refused_by_fence(&answered.created) {
            picked.refused += 1;
        } else if let Err(error) = answered.created {
            eprintln!("a create failed: {error}");
            picked.failed += 1;
        }
    }
    bench.clear(&path).await;
    picked
}

fn is_refused_by_fence(created: &Created) -> bool {
    created.as_ref().is_err_and(|error| error.contains(REFUSAL))
}

/// A ServicePool that refuses the Services of all namespaces except the one with its name.
fn service_pool(name: &str, range: &str) -> Value {
    fenced_pool("ServicePool", name, &[range], name)
}

fn service_at(index: usize, address: Ipv4Addr) -> Value {
    let mut service = service(NAMESPACE, index);
    service["spec"]["clusterIP"] = address.to_string().into();
    service
}

impl FenceFigures {
    /// Prints the figures.
    pub fn rows(&self, table: &mut Table) {
        let [without, no_pool, .., most_pools] = &self.p50;
        for (way, p50) in WAYS.iter().zip(&self.p50) {
            let Some(pools) = way.pools else {
                table.rounds("p50 without the fence, one at a time", p50, "ms", Bound::None);
                continue;
            };
            table.rounds(&format!("p50 with the fence, pools: {pools}"), p50, "ms", Bound::None);
            table.rounds("  ratio to the p50 without the fence", &ratios(p50, without), "", way.ratio);
        }
        let each = most_pools.iter().zip(no_pool).map(|(most, none)| (most - none) / MOST_POOLS);
        table.rounds("time for each of 100 pools", &each.collect::<Vec<_>>(), "ms", Bound::AtMost(0.25));
        for (fenced, picked) in FENCED.iter().zip(&self.picked) {
            let what = format!("refused of {PICKS}, fenced: {}", fenced.what);
            table.total(&what, picked.refused as f64, "", fenced.bound);
            table.total("  failed otherwise", picked.failed as f64, "", Bound::Exactly(0.0));
        }
        for (service, ratios) in costly().iter().zip(&self.costly) {
            let what = format!("time of an ordinary one with {POOLS} pools: {}", service.name);
            table.rounds(&what, ratios, "", Bound::AtMost(15.0));
        }
    }
}
