//! More Services than a pool has addresses.

use std::collections::BTreeSet;

use super::bench::{Bench, PARALLEL, metric, services};
use super::manifests::service;
use super::table::{Bound, Table};

const NAMESPACE: &str = "full";
const SERVICES: usize = 300;
/// What the pool says itself.
const MESSAGE: &str = r#"pool "full" (172.21.2.0/24) is full"#;

/// What was counted in all rounds.
#[derive(Default)]
pub struct Full {
    usable: usize,
    /// Of the round that differs most from `usable`.
    succeeded: usize,
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
        let usable = metric(&host, r#"clusterip_pool_free_addresses{pool="full",family="IPv4"}"#).await as usize;
        full.usable = full.usable.max(usable);
        let objects = (0..SERVICES).map(|index| service(NAMESPACE, index));
        let created = bench.create_all(&path, objects, PARALLEL).await;
        let addresses: Vec<String> = created
            .iter()
            .filter_map(|(created, _)| created.as_ref().ok())
            .map(|service| service["spec"]["clusterIP"].to_string())
            .collect();
        let different = addresses.iter().collect::<BTreeSet<_>>().len();
        full.duplicate += addresses.len() - different;
        if round == 0 || addresses.len().abs_diff(usable) > full.succeeded.abs_diff(full.usable) {
            full.succeeded = addresses.len();
        }
        for error in created.iter().filter_map(|(created, _)| created.as_ref().err()) {
            full.refused += 1;
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
        let usable = Bound::Exactly(self.usable as f64);
        table.total("succeeded, in the round that is farthest off", self.succeeded as f64, "", usable);
        table.total("duplicate addresses", self.duplicate as f64, "", Bound::Exactly(0.0));
        table.total("refused, in all rounds", self.refused as f64, "", Bound::None);
        table.total("refused without the pool's own message", self.otherwise as f64, "", Bound::Exactly(0.0));
    }
}
