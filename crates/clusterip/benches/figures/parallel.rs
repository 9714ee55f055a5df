//! Conflicts between Services that are created together, in a host that does not remember the addresses it gave.

use clusterip_core::address::Order;

use crate::conflicts::{Load, Way};
use crate::table::Table;

/// How many addresses are picked for a figure.
const PICKS: u64 = 60_000;
/// How much a simulation may exceed the calculated value of an even draw by chance.
const CHANCE: f64 = 1.05;

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    for prefix in [24, 20] {
        for parallel in [5, 20, 60_usize] {
            let load = Load { prefix, used: 50, parallel };
            let refused = |way| load.refused(way, PICKS / parallel as u64).map(|part| part * 100.0);
            let random = load.refused_at_random() * 100.0;
            let what = |way: &str| format!("/{prefix}, {parallel} together, {way}");
            table.row(&what("spread"), refused(Way::Policy(Order::Spread))?, "%", Some(round(random * CHANCE)));
            table.row(&what("at random"), refused(Way::Random)?, "%", None);
            table.row(&what("at random, by calculation"), random, "%", None);
            table.row(&what("lowest"), load.refused(Way::Policy(Order::Lowest), 20)? * 100.0, "%", None);
        }
    }
    Ok(())
}

/// Rounds up to two digits, because a bound is printed as it is.
fn round(bound: f64) -> f64 {
    (bound * 100.0).ceil() / 100.0
}
