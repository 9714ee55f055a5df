//! Services that are created at the same moment rarely want the same address.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conflicts;

use clusterip_core::address::Order;

use crate::conflicts::{Load, Way};

const ROUNDS: u64 = 200;

/// The random draw is simulated too, so that chance affects both sides equally; the calculation confirms the
/// simulation.
#[test]
fn spread_conflicts_no_more_often_than_a_random_draw() {
    let mut problems = Vec::new();
    for prefix in [24, 20] {
        for used in [0, 50, 90] {
            for parallel in [5, 20, 60] {
                let load = Load { prefix, used, parallel };
                let most = load.refused_at_random();
                // Three standard deviations of a count, for 1,000 to 12,000 picks. The result is the same in every run.
                let picks = (parallel as u64 * ROUNDS) as f64;
                let margin = 3.0 * (most / picks).sqrt();
                let spread = load.refused(Way::Policy(Order::Spread), ROUNDS).unwrap();
                let random = load.refused(Way::Random, ROUNDS).unwrap();
                if (random - most).abs() > margin {
                    problems.push(format!("{load:?}: {random:.4} at random, calculated {most:.4} ± {margin:.4}"));
                }
                if spread > most + margin {
                    problems.push(format!("{load:?}: {spread:.4} with spread, at random {most:.4} ± {margin:.4}"));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn lowest_gives_all_parallel_requests_the_same_address() {
    for parallel in [5, 20, 60] {
        let refused = Load { prefix: 24, used: 50, parallel }.refused(Way::Policy(Order::Lowest), 10).unwrap();
        assert_eq!(refused, (parallel - 1) as f64 / parallel as f64);
    }
}
