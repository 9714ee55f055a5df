//! More Services than a pool has addresses.

use super::bench::{Bench, PARALLEL, is_duplicate, metric, services};
use super::manifests::service;
use super::support::eventually::eventually;
use super::table::{Bound, Table};

const NAMESPACE: &str = "full";
const SERVICES: usize = 300;
/// The addresses of a /24 that Services can have: not the first, nor the last. The server's own metric must say the
/// same, or it still holds some.
const USABLE: usize = 254;
/// What the pool says itself.
const MESSAGE: &str = r#"pool "full" (172.21.2.0/24) is full"#;

/// What was counted in all rounds.
#[derive(Default)]
pub struct Full {
    /// Of the round that differs most from [`USABLE`].
    succeeded: usize,
    /// Refused because another Service had the address.
    duplicate: usize,
    /// Refused in other words than the pool's own.
    otherwise: usize,
    refused: usize,
}

/// Fills the pool and empties it again, so many times.
pub async fn measure(bench: &Bench, rounds: usize) -> Full {
    let mut full = Full::default();
    let host = bench.serve("memory").await;
    let path = services(NAMESPACE);
    for round in 0..rounds {
        eventually("all addresses of the pool to be free", async || {
            let free = metric(&host, r#"clusterip_pool_free_addresses{pool="full",family="IPv4"}"#).await;
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
    bench.end(host).await;
    full
}

impl Full {
    /// What became of the Services.
    pub fn rows(&self, table: &mut Table) {
        let usable = Bound::Exactly(USABLE as f64);
        table.total("succeeded, in the round that is farthest off", self.succeeded as f64, "", usable);
        table.total("refused, as another Service had the address", self.duplicate as f64, "", Bound::Exactly(0.0));
        table.total("refused, in all rounds", self.refused as f64, "", Bound::None);
        table.total("refused without the pool's own message", self.otherwise as f64, "", Bound::Exactly(0.0));
    }
}
