//! The settings change: a pool is added, and another one is shrunk.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::fault_cluster::FaultCluster;
use super::load::{REPLICAS, load};
use super::outcome::{Row, state};
use super::pools::{ADDED, Pools, SHRUNK, settings};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{MAX_WAIT, eventually};
use crate::support::program;
use crate::support::replicas::{Kind, REPLICA, Replicas};

/// The settings in use, if all replicas use the same.
async fn in_force(replicas: &Replicas<'_>) -> Option<String> {
    let mut hashes = BTreeSet::new();
    for nth in 0..REPLICAS {
        let (_, metrics) = replicas.server(nth).get("/metrics").await?;
        let line = metrics.lines().find(|line| line.starts_with("clusterip_settings_info{"))?;
        hashes.insert(line.to_owned());
    }
    hashes.pop_first().filter(|_| hashes.is_empty())
}

pub async fn settings_are_changed(plane: &ControlPlane, count: usize, over: Duration) -> Row {
    let cluster = FaultCluster::new(plane, count, "Fail", vec![Kind::usual(); REPLICAS]).await;
    let FaultCluster { replicas, client, namespace, planned, .. } = &cluster;
    let before = in_force(replicas).await.unwrap();
    let added = format!(
        "{{name: added, cidrs: [{ADDED}], match: {{os: linux, serviceSelector: {{matchLabels: {{{REPLICA}: \"2\"}}}}}}}}, "
    );
    let (first, later) = planned.split_at(count * 2 / 3);
    let change = async {
        tokio::time::sleep(over * 3 / 4).await;
        for nth in 0..REPLICAS {
            replicas.change_settings_of(nth, &settings(SHRUNK, &added));
        }
        let agree = async || in_force(replicas).await.filter(|now| *now != before);
        eventually("the new settings to be in force", agree).await;
        Instant::now()
    };
    let (mut tally, since) = tokio::join!(load(client, namespace, first, over), change);
    tally.add(load(client, namespace, later, Duration::ZERO).await);
    let outside = |(begin, address): &&(Instant, IpAddr)| *begin >= since && Pools::Changed.of(*address) == "no pool";
    let outside = tally.placed.iter().filter(outside).count();
    let mut wrong = Vec::new();
    if outside > 0 {
        wrong.push(format!("{outside} new addresses lie outside of the new pools"));
    }
    if !tally.placed.iter().any(|(begin, _)| *begin >= since) {
        wrong.push("nothing was created after the change".to_owned());
    }
    // A change for so many Services waits for an administrator. A Service that has just moved is not moved again for a
    // minute.
    let line = "clusterip_misplaced_services{reason=\"brake\"}";
    let deadline = Instant::now() + 2 * MAX_WAIT;
    let (mut astray, mut reported);
    loop {
        astray = state(client, namespace, planned, Pools::Changed).await.map_or(0, |state| state.astray);
        reported = replicas.metric(line).await as usize;
        if (astray == reported && astray > 0) || Instant::now() >= deadline {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    if astray != reported || astray == 0 {
        wrong.push(format!("{reported} are reported, and {astray} outside of their pool"));
    }
    let begin = Instant::now();
    let mut command = std::process::Command::new(program());
    command.args(["move", "--yes", "--namespace", namespace, "--server-namespace", &replicas.namespace]);
    command.arg("--kubeconfig").arg(plane.kubeconfig());
    command.arg("--settings").arg(replicas.server(0).folder().join("settings.yaml"));
    let moved = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&moved.stdout);
    let end = format!("moved {astray} of {astray}, 0 stay");
    if !moved.status.success() || said.lines().last() != Some(end.as_str()) {
        wrong.push(format!("clusterip move: {}: {:?}, not {end}", moved.status, said.lines().last()));
    }
    let fault =
        format!("settings changed: a pool added, one shrunk ({reported} reported, and moved by `clusterip move`)");
    let row = cluster.row_in(Pools::Changed, fault, tally, begin).await;
    Row { reached: true, wrong, ..row }
}
