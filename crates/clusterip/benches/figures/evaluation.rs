//! The cost of one decision.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use clusterip_cluster::lookups::stored_cluster::StoredCluster;
use clusterip_cluster::snapshot::Snapshot;
use clusterip_core::address::Order;
use clusterip_core::settings::Settings;
use clusterip_core::{InUse, decide_value};

use crate::fixtures::{HalfFull, NAMESPACE, create};
use crate::layout::median;
use crate::table::{Table, micros, time};

const ROUNDS: usize = 15;
const NAMES_A_ROUND: usize = 200;
/// How many single addresses the policy asks for before it lists.
const LOOKUPS_BEFORE_LIST: i32 = 16;

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    let [few, many] = [Cluster::new(100)?, Cluster::new(10_000)?];
    let (mut few_runs, mut many_runs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (mut few_time, mut many_time) = (Duration::ZERO, Duration::ZERO);
        for index in 0..NAMES_A_ROUND {
            let name = format!("web-{round}-{index}");
            few_time += few.place(&name)?;
            many_time += many.place(&name)?;
        }
        // The first round is a warm-up.
        if round > 0 {
            let [few_mean, many_mean] = [few_time, many_time].map(|sum| micros(sum) / NAMES_A_ROUND as f64);
            few_runs.push(few_mean);
            many_runs.push(many_mean);
            ratios.push(many_mean / few_mean);
        }
    }
    table.row("100 Services in the cluster", median(few_runs.clone()), "us", None);
    table.row("10,000 Services in the cluster", median(many_runs.clone()), "us", None);

    // Names for which the policy lists are too rare to occur by chance: they are searched for, timed separately, and
    // weighted with their probability.
    let rare = many.names_that_list().take(5);
    let listing = rare.map(|name| many.place(&name).map(micros)).collect::<Result<Vec<_>, _>>()?;
    let listing = median(listing);
    let probability = 0.5_f64.powi(LOOKUPS_BEFORE_LIST);
    table.row("10,000 Services, the one evaluation of 65,536 that has to list", listing, "us", None);
    let with_rare = |(many, few): (f64, f64)| (many * (1.0 - probability) + listing * probability) / few;
    let ratios = many_runs.into_iter().zip(few_runs).map(with_rare).collect();
    table.row("10,000 : 100, listing included", median(ratios), "", Some(1.2));
    Ok(())
}

struct Cluster {
    settings: Settings,
    snapshot: Arc<RwLock<Snapshot>>,
    usable: Vec<Ipv4Addr>,
    used: HashSet<Ipv4Addr>,
}

impl Cluster {
    fn new(services: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let half = HalfFull::new(services);
        Ok(Self {
            snapshot: Arc::new(RwLock::new(half.snapshot())),
            used: half.used.iter().copied().collect(),
            settings: Settings::from_value(&half.settings)?,
            usable: half.usable,
        })
    }

    /// Places a Service, and checks that it got a free address.
    fn place(&self, name: &str) -> Result<Duration, Box<dyn std::error::Error>> {
        let request = create(name);
        let (duration, decision) = time(|| {
            let cluster = StoredCluster::new(&self.snapshot, &request["object"]);
            decide_value(&request, &self.settings, InUse::default(), &cluster)
        });
        match *decision.allocated().unwrap_or_default() {
            [IpAddr::V4(address)] if self.usable.contains(&address) && !self.used.contains(&address) => Ok(duration),
            _ => Err(format!("{name} was not placed: {decision:?}").into()),
        }
    }

    /// Names of Services for which the policy finds only used addresses until it lists.
    fn names_that_list(&self) -> impl Iterator<Item = String> {
        (0_u64..).map(|number| format!("rare-{number}")).filter(|name| {
            let key = format!("{NAMESPACE}/{name}");
            let walk = Order::Spread.walk(&key, self.usable.len() as u128);
            walk.take(LOOKUPS_BEFORE_LIST as usize).all(|position| self.used.contains(&self.usable[position as usize]))
        })
    }
}
