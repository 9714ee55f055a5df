//! The procedures of `docs/changing-pools.md`, which change the pools of a cluster in use.

use std::collections::BTreeMap;

use axum::http::Method;
use ipnet::IpNet;
use serde_json::json;

use crate::support::cluster::Place;
use crate::support::documented_steps::{Operator, Step, steps_of, types};
use crate::support::eventually::eventually;
use crate::support::fake_kubelet::Installed;
use crate::support::move_helpers::{path, send};

/// The steps below a heading of `docs/changing-pools.md`.
fn steps(heading: &str) -> Vec<Step> {
    steps_of("changing-pools.md", heading)
}

/// More than twenty Services, and more than a tenth of all.
const MANY: usize = 24;
/// The Services of the other namespace: more than twenty of them, too.
const JOBS: usize = 30;

async fn create(place: &Place, name: &str, os: &str) -> String {
    let annotations = json!({"annotations": {"clusterip-policy/os": os}});
    let created = place.service_named(name, annotations, json!({"selector": {"app": name}})).await;
    created["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned()
}

fn within(address: &str, range: &str) -> bool {
    // A Service has no address during its move.
    address.parse().is_ok_and(|address: std::net::IpAddr| range.parse::<IpNet>().unwrap().contains(&address))
}

/// The number of Services of a namespace in each of these ranges.
fn count(services: &BTreeMap<String, (String, String)>, namespace: &str, ranges: &[&str]) -> Vec<usize> {
    let of: Vec<&str> = services
        .iter()
        .filter(|(name, _)| name.split('/').next() == Some(namespace))
        .map(|(_, (_, address))| address.as_str())
        .collect();
    ranges.iter().map(|range| of.iter().filter(|address| within(address, range)).count()).collect()
}

/// The metric of Services that are misplaced for this reason.
async fn misplaced(cluster: &Installed, reason: &str, expected: usize) {
    let line = format!("clusterip_misplaced_services{{reason=\"{reason}\"}} {expected}");
    eventually(&line, async || {
        let server = cluster.node.server().await;
        let (_, metrics) = server.as_ref()?.get("/metrics").await?;
        metrics.lines().any(|other| other == line).then_some(())
    })
    .await;
}

/// Waits until the log says that the settings of the operator's folder are in use.
async fn in_use(cluster: &Installed, nth: usize) {
    eventually(&format!("settings number {nth}"), async || {
        let log = cluster.node.log().await;
        (log.iter().filter(|line| line.contains("settings in use")).count() >= nth).then_some(())
    })
    .await;
}

async fn apply_counted(cluster: &Installed, operator: &Operator<'_>, steps: &[Step]) -> String {
    let before = cluster.node.log().await.iter().filter(|line| line.contains("settings in use")).count();
    let printed = operator.does_all(steps).await;
    in_use(cluster, before + 1).await;
    printed
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_are_added_shrunk_and_moved_to_a_new_range() {
    let cluster = Installed::nothing().await;
    let operator = Operator::new(&cluster.plane, &cluster.node.url());
    cluster.install(&operator).await;
    let (shop, batch) = (cluster.place("shop").await, cluster.place("batch").await);
    for number in 0..MANY {
        create(&shop, &format!("web-{number}"), if number % 2 == 0 { "linux" } else { "windows" }).await;
    }
    for number in 0..8 {
        create(&batch, &format!("job-{number}"), "linux").await;
    }
    // A Service with ready endpoints.
    let node = batch.node(json!({"kubernetes.io/os": "linux"})).await;
    batch
        .apply(json!({"kind": "EndpointSlice", "addressType": "IPv4", "ports": [{"port": 80}],
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "nodeName": node}],
            "metadata": {"name": "job-7-by-hand", "labels": {"kubernetes.io/service-name": "job-7"}}}))
        .await;
    let linux_windows = ["172.21.0.0/24", "172.21.1.0/24"];
    let first = cluster.services().await;
    assert_eq!(count(&first, "shop", &linux_windows), [MANY / 2, MANY / 2]);
    assert_eq!(count(&first, "batch", &linux_windows), [8, 0]);

    // Add a pool.
    let add = steps("Add a pool");
    let [write, list, apply] = &add[..] else { panic!("{add:?}") };
    operator.does(write).await;
    let listed = operator.does(list).await;
    assert!(listed.ends_with("\n8 to move, 0 stay\n"), "{listed}");
    assert_eq!(cluster.services().await, first, "listing changes no Service");
    apply_counted(&cluster, &operator, std::slice::from_ref(apply)).await;
    eventually("all Services but one in the new pool", async || {
        (count(&cluster.services().await, "batch", &["172.21.2.0/24"]) == [7]).then_some(())
    })
    .await;
    misplaced(&cluster, "ready_endpoints", 1).await;
    assert_eq!(cluster.services().await["batch/job-7"], first["batch/job-7"]);
    let moved = operator.does(&Step::Type("clusterip move --namespace batch --yes".to_owned())).await;
    assert!(moved.ends_with("moved 1 of 1, 0 stay\n"), "{moved}");
    let added = cluster.services().await;
    assert_eq!(count(&added, "batch", &["172.21.2.0/24"]), [8]);
    assert_eq!(count(&added, "shop", &linux_windows), [MANY / 2, MANY / 2]);

    // From here on, no Service has ready endpoints, and none has just moved: it would not move again for a minute.
    let slice = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices/job-7-by-hand", batch.namespace);
    send(&batch.client, Method::DELETE, &slice, None).await.unwrap();
    for number in 0..8 {
        send(&batch.client, Method::DELETE, &path(&batch.namespace, &format!("job-{number}")), None).await.unwrap();
        create(&batch, &format!("task-{number}"), "linux").await;
    }
    let added = cluster.services().await;
    assert_eq!(count(&added, "batch", &["172.21.2.0/24"]), [8]);

    // Shrink a pool.
    let halves = ["172.21.2.0/25", "172.21.2.128/25"];
    let spread = count(&added, "batch", &halves);
    assert!(spread[1] > 0, "no Service has to move: {added:?}");
    let shrink = steps("Shrink a pool");
    let [exclude, apply, cut, list, apply_cut] = &shrink[..] else { panic!("{shrink:?}") };
    apply_counted(&cluster, &operator, &[exclude.clone(), apply.clone()]).await;
    for number in 8..JOBS {
        let address = create(&batch, &format!("job-{number}"), "linux").await;
        assert!(within(&address, halves[0]), "{address} lies in the excluded part of the pool");
    }
    let drained = cluster.services().await;
    assert_eq!(count(&drained, "batch", &halves), [spread[0] + JOBS - 8, spread[1]], "no Service moves");
    operator.does(cut).await;
    let listed = operator.does(list).await;
    assert!(listed.ends_with(&format!("\n{} to move, 0 stay\n", spread[1])), "{listed}");
    apply_counted(&cluster, &operator, std::slice::from_ref(apply_cut)).await;
    eventually("all Services in the rest of the pool", async || {
        (count(&cluster.services().await, "batch", &halves) == [JOBS, 0]).then_some(())
    })
    .await;

    if !cluster.plane.tells_addresses() {
        return cluster.plane.does_not_apply("moving everything to a new range");
    }
    // Move everything to a new range: first in the wrong order, then in the right one.
    let all = steps("Move all Services to a new range");
    let [range, create_range, wait, write, list, apply, one, rest, last] = &all[..] else { panic!("{all:?}") };
    assert!(types(create_range, "new-range.yaml") && types(rest, "clusterip move --yes"));
    let before = cluster.services().await;
    operator.does_all(&[write.clone(), apply.clone()]).await;
    cluster.node.logged("OutsideServiceCIDRs").await;
    let too_early = operator.tries(list).await;
    assert_eq!(too_early.status, 2, "{too_early:?}");
    assert!(too_early.stderr.contains("172.22.1.0/24"), "{too_early:?}");
    assert_eq!(cluster.services().await, before, "pools that can't be used change nothing");
    let reasons = "kubectl get servicepools --output jsonpath='{.items[*].status.conditions[*].reason}'";
    eventually("the reason in the status of the pools", async || {
        operator.does(&Step::Type(reasons.to_owned())).await.contains("OutsideServiceCIDRs").then_some(())
    })
    .await;

    operator.does_all(&[range.clone(), create_range.clone(), wait.clone()]).await;
    cluster.node.logged("the latest version of the object is in use").await;
    // On a busy machine, the survey ends after several rounds, each of which is logged.
    cluster.node.logged(&format!("the moves wait for `clusterip move` misplaced={}", MANY + JOBS)).await;
    operator.does(write).await;
    let listed = operator.does(list).await;
    assert!(listed.ends_with(&format!("\n{} to move, 0 stay\n", MANY + JOBS)), "{listed}");
    operator.does(apply).await;
    misplaced(&cluster, "brake", MANY + JOBS).await;
    assert_eq!(cluster.services().await, before, "the brake stops the moves");
    let new = create(&shop, "new", "windows").await;
    assert!(within(&new, "172.22.1.0/24"), "{new}");

    let moved = operator.does(one).await;
    assert!(moved.ends_with(&format!("moved {MANY} of {MANY}, 0 stay\n")), "{moved}");
    let half = cluster.services().await;
    assert_eq!(count(&half, "batch", &[halves[0]]), [JOBS], "the Services of another namespace wait");
    let moved = operator.does(rest).await;
    assert!(moved.ends_with(&format!("moved {JOBS} of {JOBS}, 0 stay\n")), "{moved}");
    assert_eq!(operator.does(last).await, "nothing is misplaced\n");
    let after = cluster.services().await;
    let new_ranges = ["172.22.0.0/24", "172.22.1.0/24", "172.22.2.0/24"];
    assert_eq!(count(&after, "shop", &new_ranges), [MANY / 2, MANY / 2 + 1, 0]);
    assert_eq!(count(&after, "batch", &new_ranges), [0, 0, JOBS]);
    for (name, (uid, _)) in &before {
        assert_eq!(&after[name].0, uid, "{name} was recreated");
    }
}
