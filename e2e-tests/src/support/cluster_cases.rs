//! Runs tests that share one cluster, one after the other.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Trial, run};

use super::use_ring;
use super::whole_cluster::WholeCluster;

/// A test, which gets the shared cluster.
pub type Case = for<'c> fn(&'c WholeCluster) -> Pin<Box<dyn Future<Output = ()> + 'c>>;

/// Runs the tests that the command line selects, and exits. The first one starts the cluster. Tests that can't run
/// count as ignored.
pub fn run_cases(cases: &[(&'static str, Case)], can_run: bool, start: fn() -> WholeCluster) -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    use_ring();
    let cluster = Arc::new(OnceLock::new());
    let trials = cases.iter().map(|(name, case)| {
        let (cluster, case) = (Arc::clone(&cluster), *case);
        let trial = Trial::test(*name, move || {
            let cluster = cluster.get_or_init(start);
            tokio::runtime::Runtime::new()?.block_on(case(cluster));
            Ok(())
        });
        trial.with_ignored_flag(!can_run)
    });
    let conclusion = run(&arguments, trials.collect());
    // Waits until nothing is left of the cluster.
    drop(cluster);
    conclusion.exit()
}
