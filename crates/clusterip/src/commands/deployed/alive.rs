//! Tells servers that are alive from those that have ended without giving their Lease back.

use std::time::Duration;

use clusterip_failover::leases::election::{self, Timing};
use clusterip_failover::leases::identity::Identity;
use clusterip_failover::leases::observed::Observed;
use kube::Client;
use tokio::time::{Instant, sleep};

use super::{LOOK, Server, listed, one_lease};
use crate::commands::terminal_options::notice;

/// A check whether servers are alive that takes longer than this prints a notice. Servers renew their Leases every 2 s.
const LONG_CHECK: Duration = Duration::from_secs(5);
/// A holder whose Lease has not expired after this time counts as alive.
const MAX_DOUBT: Duration = Duration::from_secs(20);

/// Returns the servers that are alive because they renew their Leases. A Lease that expires under observation belongs
/// to a server that has ended.
pub(super) async fn alive(client: &Client, mut undecided: Vec<Server>) -> anyhow::Result<Vec<Server>> {
    let mut alive = Vec::new();
    let begin = Instant::now();
    let mut is_announced = false;
    while !undecided.is_empty() {
        if !is_announced && begin.elapsed() > LONG_CHECK {
            notice(&format!("checking whether these servers are alive: {}", listed(&undecided)));
            is_announced = true;
        }
        sleep(LOOK).await;
        let mut later = Vec::new();
        for server in undecided {
            let Some(spec) = one_lease(client, &server.namespace).await?.and_then(|lease| lease.spec) else { continue };
            // The next leader stores its settings first.
            if election::holder(&spec).map(Identity::of).as_ref() != Some(&server.holder) {
                continue;
            }
            let now = Instant::now();
            let lease = Observed::next(Some(server.lease), spec, now);
            let (changed, end) = (lease.changed, election::end(&lease, Timing::default()));
            let server = Server { lease, ..server };
            if changed || now >= begin + MAX_DOUBT {
                alive.push(server);
            } else if now < end {
                later.push(server);
            }
        }
        undecided = later;
    }
    alive.sort_by(|one, other| one.namespace.cmp(&other.namespace));
    Ok(alive)
}
