//! Faults in a cluster, and what must hold during and after each of them, as a table. The test injects small faults.
//! With `CHAOS` (`make chaos`) the faults have full size, and time limits apply.

mod bad_client;
mod changed_settings;
mod fault_cluster;
mod load;
mod outages;
mod outcome;
mod pools;
mod renewed_certificates;

use std::sync::Arc;
use std::time::Duration;

use crate::missing;
use crate::support::control_plane::{ControlPlane, Options};

#[tokio::test(flavor = "multi_thread")]
async fn faults() {
    let full = std::env::var_os("CHAOS").is_some();
    let count = |of: usize| if full { of } else { of / 10 };
    let plane = &Arc::new(ControlPlane::start(Options::default()));
    let only = std::env::var("FAULT").unwrap_or_default();
    let wanted = |name: &str| only.is_empty() || only == name;
    let mut rows = Vec::new();
    if wanted("kill") {
        // At full size, the load runs as fast as possible.
        let over = if full { Duration::ZERO } else { Duration::from_secs(3) };
        rows.push(outages::replicas_are_killed(plane, count(600), over).await);
    }
    if wanted("etcd") {
        rows.push(outages::away(plane, count(300), "etcd", if full { 5 } else { 2 }).await);
    }
    if wanted("apiserver") {
        rows.push(outages::away(plane, count(300), "API server", 1).await);
    }
    if wanted("clock") {
        match outages::a_clock_is_wrong(plane, count(300)).await {
            Some(row) => rows.push(row),
            None => missing::skip("faketime", "a wrong clock needs libfaketime: sudo apt-get install faketime"),
        }
    }
    if wanted("webhook") {
        // Nearly all of them have to move, and a namespace may have 100 moves a minute.
        rows.push(outages::the_webhook_is_away(plane, count(90)).await);
    }
    if wanted("certificates") {
        rows.push(renewed_certificates::certificates_are_renewed(plane, count(300), full).await);
    }
    if wanted("settings") {
        // With fewer than twenty Services the brake would not apply.
        let (count, over) = if full { (300, 10) } else { (90, 4) };
        rows.push(changed_settings::settings_are_changed(plane, count, Duration::from_secs(over)).await);
    }
    if wanted("bad") {
        let (requests, stays) = if full { (10_000, 1000) } else { (500, 200) };
        rows.push(bad_client::a_client_is_bad(plane, count(300), requests, Duration::from_millis(stays)).await);
    }
    println!("{}", outcome::table(&rows));
    let missed: Vec<String> = rows.iter().flat_map(|row| row.missed(full)).collect();
    assert_eq!(missed, [""; 0]);
}
