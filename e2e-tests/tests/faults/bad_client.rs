//! A client sends malformed, too large or slow requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::Method;

use super::fault_cluster::FaultCluster;
use super::load::{Planned, REPLICAS, load};
use super::outcome::Row;
use crate::support::bad_client;
use crate::support::control_plane::ControlPlane;
use crate::support::move_helpers::{path, send};
use crate::support::process_usage::peak_memory;
use crate::support::replicas::Kind;

/// The maximum memory of a replica in MB of 1,000,000 bytes: two thirds of the limit of its Pod (`deploy/webhook`).
const MEMORY: f64 = 268.0;

pub async fn a_client_is_bad(plane: &ControlPlane, count: usize, requests: usize, stays: Duration) -> Row {
    let cluster = FaultCluster::new(plane, count, "Fail", vec![Kind::usual(); REPLICAS]).await;
    let (port, pid) = (cluster.replicas.server(0).port(), cluster.replicas.server(0).pid());
    let trusted = cluster.replicas.trusted().await;
    let (before, done) = (peak_memory(pid), AtomicBool::new(false));
    let bad = async {
        let taken = bad_client::send(port, &trusted, requests, stays).await;
        done.store(true, Ordering::Release);
        taken
    };
    // Creates each Service once, and then more of them until the bad requests end.
    let good = async {
        let mut tally = load(&cluster.client, &cluster.namespace, &cluster.planned, Duration::ZERO).await;
        let mut more = 0;
        while !done.load(Ordering::Acquire) {
            more += 1;
            let planned = Planned { name: format!("more-{more}"), os: "linux", late: false, replica: 0 };
            tally.add(load(&cluster.client, &cluster.namespace, std::slice::from_ref(&planned), Duration::ZERO).await);
            send(&cluster.client, Method::DELETE, &path(&cluster.namespace, &planned.name), None).await;
        }
        tally
    };
    let (taken, tally) = tokio::join!(bad, good);
    let after = peak_memory(pid);
    let mut wrong: Vec<String> = taken.into_iter().map(|what| format!("accepted a bad request: {what}")).collect();
    if after > MEMORY {
        wrong.push(format!("{after:.0} MB of memory, not {MEMORY}"));
    }
    let fault = format!("{requests} bad requests to one replica (memory {before:.0} MB before, {after:.0} MB at most)");
    let row = cluster.row(fault, tally, Instant::now()).await;
    Row { reached: true, wrong, ..row }
}
