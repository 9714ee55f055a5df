//! Replicas, etcd, the API server or the webhook are unavailable, or the clock of a replica is wrong.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::fault_cluster::FaultCluster;
use super::load::{REPLICAS, load};
use super::outcome::Row;
use crate::support::control_plane::ControlPlane;
use crate::support::replicas::Kind;

/// The paths of libfaketime in Debian.
const FAKETIME: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1"];

pub async fn replicas_are_killed(plane: &ControlPlane, count: usize, over: Duration) -> Row {
    let mut cluster = FaultCluster::new(plane, count, "Fail", vec![Kind::usual(); REPLICAS]).await;
    let done = AtomicBool::new(false);
    let (client, namespace, planned) = (cluster.client.clone(), cluster.namespace.clone(), cluster.planned.clone());
    let loaded = async {
        let tally = load(&client, &namespace, &planned, over).await;
        done.store(true, Ordering::Release);
        tally
    };
    let replicas = &mut cluster.replicas;
    let killed = async {
        let mut kills = 0;
        while !done.load(Ordering::Acquire) {
            let begin = tokio::time::Instant::now();
            replicas.replace(kills % REPLICAS).await;
            kills += 1;
            tokio::time::sleep_until(begin + Duration::from_secs(1)).await;
        }
        kills
    };
    let (tally, kills) = tokio::join!(loaded, killed);
    cluster.row(format!("{REPLICAS} replicas, one killed every second ({kills})"), tally, Instant::now()).await
}

pub async fn away(plane: &Arc<ControlPlane>, count: usize, what: &str, seconds: u64) -> Row {
    let cluster = FaultCluster::new(plane, count, "Fail", vec![Kind::usual(); REPLICAS]).await;
    let (client, namespace, planned) = (cluster.client.clone(), cluster.namespace.clone(), cluster.planned.clone());
    let is_etcd = what == "etcd";
    let fault = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let plane = Arc::clone(plane);
        tokio::task::spawn_blocking(move || {
            if is_etcd {
                plane.stop_etcd();
                std::thread::sleep(Duration::from_secs(seconds));
                plane.start_etcd();
            } else {
                plane.stop_api_server();
                std::thread::sleep(Duration::from_secs(seconds));
                plane.start_api_server();
            }
        })
        .await
        .unwrap();
        Instant::now()
    };
    // The load begins before the fault and ends after it.
    let over = Duration::from_secs(seconds + 3);
    let (tally, back) = tokio::join!(load(&client, &namespace, &planned, over), fault);
    let row = cluster.row(format!("{what} away for {seconds} s"), tally, back).await;
    Row { most: Some(10.0), away: true, ..row }
}

pub async fn a_clock_is_wrong(plane: &ControlPlane, count: usize) -> Option<Row> {
    let library = FAKETIME.iter().find(|library| Path::new(library).exists())?;
    let mut kinds = vec![Kind::usual(); REPLICAS];
    for (name, value) in [("LD_PRELOAD", *library), ("FAKETIME", "+1h"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")] {
        kinds[1].environment.push((name.to_owned(), value.to_owned()));
    }
    let cluster = FaultCluster::new(plane, count, "Fail", kinds).await;
    let (tally, now) =
        (load(&cluster.client, &cluster.namespace, &cluster.planned, Duration::ZERO).await, Instant::now());
    Some(cluster.row("clock of one replica 1 h off", tally, now).await)
}

pub async fn the_webhook_is_away(plane: &ControlPlane, count: usize) -> Row {
    let mut cluster = FaultCluster::new(plane, count, "Ignore", vec![Kind::usual(); REPLICAS]).await;
    for nth in 0..REPLICAS {
        cluster.replicas.kill(nth);
    }
    let tally = load(&cluster.client, &cluster.namespace, &cluster.planned, Duration::ZERO).await;
    for nth in 0..REPLICAS {
        cluster.replicas.spawn(nth);
    }
    let begin = Instant::now();
    for nth in 0..REPLICAS {
        cluster.replicas.is_ready(nth).await;
    }
    let row = cluster.row("webhook away (failurePolicy: Ignore)", tally, begin).await;
    Row { most: Some(30.0), ..row }
}
