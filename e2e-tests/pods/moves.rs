//! Clients reach a Service whatever happens to `clusterip`, and while the Service moves seamlessly. `make bench-moves`
//! counts every failed request, of more Services, and compares other methods: a plain move fails half of these requests.

use e2e_tests::support::eventually::eventually;
use e2e_tests::support::installation::{NAMESPACE, field, install, roll_out, uninstall};
use e2e_tests::support::move_helpers::addresses;
use e2e_tests::support::move_load::{MoveLoad, MoveMethod};
use e2e_tests::support::whole_cluster::{AGNHOST, WholeCluster};
use serde_json::json;

use super::replicas::leader;

const NODES: [&str; 2] = ["node-1", "node-2"];
const SERVICES: usize = 2;

pub async fn seamless_move_keeps_a_service_reachable(cluster: &WholeCluster) {
    let load = MoveLoad::start(cluster, &NODES, AGNHOST).await;
    let tally = load.measure(MoveMethod::Seamless, SERVICES).await;
    load.end().await;
    assert!(tally.by_name.requests > 1_000, "{tally}");
    // A kube-proxy on a busy machine may program one half of a swap alone, and then requests fail for a second.
    for requests in [&tally.by_name, &tally.by_address, &tally.long_lived] {
        assert!(requests.failed * 10 < requests.requests, "{tally}");
    }
}

/// While `work` is done, no request to the Service `served` may fail, and the Service keeps its address.
async fn fails_no_request(cluster: &WholeCluster, load: &MoveLoad<'_>, what: &str, work: impl Future<Output = ()>) {
    let now = async || field(cluster, load.namespace(), "service/served", ".spec.clusterIP").await;
    let before = now().await;
    let tally = load.during("served", before.parse().unwrap(), work).await;
    eprintln!("{what}: {tally}");
    for requests in [&tally.by_name, &tally.by_address, &tally.long_lived] {
        assert!(requests.requests > 100 && requests.failed == 0, "{what}: {tally}");
    }
    assert_eq!(now().await, before, "{what}");
}

/// A Service that lies in no pool answers before `clusterip` is installed, and no request to it fails afterwards.
pub async fn installation_interrupts_no_request(cluster: &WholeCluster) {
    let load = MoveLoad::start(cluster, &NODES, AGNHOST).await.patient();
    let created = load.create_service("served", json!({})).await;
    let (namespace, address) = (load.namespace(), addresses(&created)[0]);
    let third = address.to_string().split('.').nth(2).unwrap().to_owned();
    assert!(!["0", "1"].contains(&third.as_str()), "{address} lies in a pool");
    let event = async |note: &str| {
        eventually(&format!("an Event that says {note}"), async || {
            let notes = field(cluster, namespace, "events.events.k8s.io", ".items[*].note").await;
            notes.contains(note).then_some(())
        })
        .await;
    };

    let install_it = async {
        install(cluster, "webhook").await;
        event("it lies in no pool, and belongs to pool linux").await;
    };
    fails_no_request(cluster, &load, "installation", install_it).await;
    // Now it lies in the pool of nodes on which none of its endpoints runs.
    let change_settings = async {
        let range = json!({"spec": {"cidrs": [format!("172.21.{third}.0/24")]}}).to_string();
        cluster.kubectl(&["patch", "servicepool", "windows", "--type=merge", "--patch", &range]).await.ok();
        event("the settings changed, and the Service has ready endpoints").await;
    };
    fails_no_request(cluster, &load, "change of settings", change_settings).await;
    let restart = async {
        cluster.kubectl(&["rollout", "restart", "--namespace", NAMESPACE, "deployment/clusterip"]).await.ok();
        roll_out(cluster).await;
    };
    fails_no_request(cluster, &load, "restart", restart).await;
    let upgrade = async {
        install(cluster, "replicas").await;
        let before = leader(cluster).await;
        cluster.kubectl(&["delete", "pod", "--namespace", NAMESPACE, &before]).await.ok();
        roll_out(cluster).await;
        assert_ne!(leader(cluster).await, before);
    };
    fails_no_request(cluster, &load, "upgrade and change of the leader", upgrade).await;
    let stop = async {
        let scale = async |replicas: &str| {
            let replicas = format!("--replicas={replicas}");
            cluster.kubectl(&["scale", "--namespace", NAMESPACE, "deployment/clusterip", &replicas]).await.ok();
        };
        scale("0").await;
        let pods = "app.kubernetes.io/name=clusterip";
        let gone = ["wait", "--namespace", NAMESPACE, "--for=delete", "pod", "--selector", pods, "--timeout=60s"];
        cluster.kubectl(&gone).await.ok();
        load.create_service("late", json!({"selector": {"app": "nothing"}})).await;
        // One at a time: on a busy machine, several that start at once take the time of the clients.
        scale("1").await;
        roll_out(cluster).await;
        eventually("the move of the Service that was created meanwhile", async || {
            let late = field(cluster, namespace, "service/late", ".spec.clusterIP").await;
            late.starts_with("172.21.0.").then_some(())
        })
        .await;
    };
    fails_no_request(cluster, &load, "webhook away", stop).await;
    fails_no_request(cluster, &load, "uninstallation", uninstall(cluster)).await;
    load.end().await;
}
