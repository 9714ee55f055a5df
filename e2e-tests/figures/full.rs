//! More Services than a pool has addresses.

use super::bench::{Bench, PARALLEL, is_duplicate, metric, services};
use super::manifests::service;
use super::support::eventually::eventually;
use super::table::{Bound, Table};

const NAMESPACE: &str = "full";
const SERVICES: usize = 300;
/// The addresses of a /24 that Services can have: neither the first nor the last. If the metric of the server is lower,
/// it still has reservations.
const USABLE: usize = 254;
/// The message of the pool.
const MESSAGE: &str = r#"pool "full" (172.21.2.0/24) is full"#;

/// The counts of all rounds.
#[derive(Default)]
pub struct Full {
    /// The number of Services in the round that differs most from [`USABLE`].
    succeeded: usize,
    /// Creates that were refused because another Service had the address.
    duplicate: usize,
    /// Creates that were refused with another message than that of the pool.
    otherwise: usize,
    refused: usize,
}

/// Fills the pool and empties it again, in this number of rounds.
pub async fn measure(bench: &Bench, rounds: usize) -> Full {
    let mut full = Full::default();
    let server = bench.serve("memory").await;
    let path = services(NAMESPACE);
    for round in 0..rounds {
        eventually("all addresses of the pool to be free", async || {
            let free = metric(&server, r#"clusterip_pool_free_addresses{pool="full",family="IPv4"}"#).await;
            (free as usize == USABLE).then_some(())
        })
        .await;
        let objects = (0..SERVICES).map(|index| service(NAMESPACE, index));
        let created = bench.create_all(&path, objects, PARALLEL).await;
        let succeeded = created.iter().filter(|answered| answered.created.is_ok()).count();
        if round == 0 || succeeded.abs_diff(USABLE) > full.succeeded.abs_diff(USABLE) {
            full.succeeded = succeeded;
        }
        for error in created.iter().filter_map(|answered| answered.created.as_ref().err()) {
            full.refused += 1;
            full.duplicate += usize::from(is_duplicate(error));
            if !error.contains(MESSAGE) {
                eprintln!("refused otherwise: {error}");
                full.otherwise += 1;
            }
        }
        bench.clear(&path).await;
    }
    bench.end(server).await;
    full
}

impl Full {
    /// Prints the figures.
    pub fn rows(&self, table: &mut Table) {
        let usable = Bound::Exactly(USABLE as f64);
        table.total("succeeded, in the round that is farthest off", self.succeeded as f64, "", usable);
        table.total("refused, as another Service had the address", self.duplicate as f64, "", Bound::Exactly(0.0));
        table.total("refused, in all rounds", self.refused as f64, "", Bound::None);
        table.total("refused without the pool's own message", self.otherwise as f64, "", Bound::Exactly(0.0));
    }
}
