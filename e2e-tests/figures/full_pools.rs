//! What a create into a full pool costs `clusterip serve`, compared with one into an empty pool.

use std::net::Ipv4Addr;

use serde_json::json;

use super::bench::{Bench, quiet};
use super::etcd;
use super::reviews::send_reviews;
use super::support::control_plane::Options;
use super::table::{Bound, Table};
use crate::support::process_usage::processor_time;

/// A pool for the namespaces `NAME-0` and `NAME-1`. A server leaves out some of the Services if one namespace has more.
struct Pool {
    name: &'static str,
    what: &'static str,
    first: Ipv4Addr,
    prefix: u32,
    free: u32,
}

const POOLS: [Pool; 4] = [
    // The others are compared with this one.
    Pool { name: "empty", what: "an empty /20", first: Ipv4Addr::new(172, 21, 16, 0), prefix: 20, free: 4_094 },
    Pool { name: "ten-free", what: "a /20 with 10 free", first: Ipv4Addr::new(172, 21, 32, 0), prefix: 20, free: 10 },
    Pool { name: "full", what: "a full /20", first: Ipv4Addr::new(172, 21, 48, 0), prefix: 20, free: 0 },
    Pool { name: "larger", what: "a full /18", first: Ipv4Addr::new(172, 21, 64, 0), prefix: 18, free: 0 },
];
/// The number of reviews for each pool in a round. The kernel counts processor time in steps of 10 ms.
const REVIEWS: usize = 1_000;

/// The processor time of a create in each round, for each of [`POOLS`], in milliseconds.
pub struct FullPools([Vec<f64>; POOLS.len()]);

/// Fills the pools of a new control plane, and sends reviews for each pool in turns.
pub async fn measure(rounds: usize) -> FullPools {
    let pools: Vec<_> = POOLS.iter().map(Pool::settings).collect();
    let settings = json!({"services": {"pools": pools}}).to_string();
    let bench = Bench::start_with(Options { audit: false, ..Options::default() }, settings).await;
    for pool in &POOLS {
        for nth in 0..2 {
            bench.namespace(&pool.namespace(nth)).await;
        }
    }
    etcd::write_services(&bench, POOLS.iter().flat_map(Pool::services)).await;
    etcd::wait_until_idle(&bench).await;
    let mut server = bench.server("memory").spawn();
    server.ready().await;
    quiet(&server).await;
    let mut processor = POOLS.map(|_| Vec::new());
    // The first round warms up the server.
    for round in 0..=rounds {
        for (pool, processor) in POOLS.iter().zip(&mut processor) {
            let before = processor_time(server.pid());
            send_reviews(&server, &pool.namespace(0), REVIEWS, pool.free > 0).await;
            let spent = (processor_time(server.pid()) - before).as_secs_f64();
            if round > 0 {
                processor.push(spent * 1e3 / REVIEWS as f64);
            }
        }
    }
    bench.end(server).await;
    FullPools(processor)
}

impl Pool {
    fn namespace(&self, nth: u32) -> String {
        format!("{}-{nth}", self.name)
    }

    fn settings(&self) -> serde_json::Value {
        let namespaces = [self.namespace(0), self.namespace(1)];
        let cidr = format!("{}/{}", self.first, self.prefix);
        json!({"name": self.name, "cidrs": [cidr], "match": {"namespaces": namespaces}})
    }

    /// The namespaces, numbers and addresses of the Services in the pool. Neither the first address nor the last can be
    /// used.
    fn services(&self) -> impl Iterator<Item = (String, usize, Ipv4Addr)> + Clone {
        let used = (1 << (32 - self.prefix)) - 2 - self.free;
        // Their names differ from those of the reviews.
        (0..used).map(|nth| {
            let address = Ipv4Addr::from_bits(self.first.to_bits() + 1 + nth);
            (self.namespace(nth % 2), REVIEWS + nth as usize, address)
        })
    }
}

impl FullPools {
    /// Prints the processor time for each pool, and how much more it is than for the empty one.
    pub fn rows(&self, table: &mut Table) {
        let [empty, ..] = &self.0;
        for (nth, (pool, spent)) in POOLS.iter().zip(&self.0).enumerate() {
            table.rounds(&format!("processor time of a create into {}", pool.what), spent, "ms", Bound::None);
            if nth > 0 {
                let more: Vec<f64> = spent.iter().zip(empty).map(|(spent, empty)| spent - empty).collect();
                table.rounds("  more than into the empty one", &more, "ms", Bound::AtMost(0.2));
            }
        }
    }
}
