//! `deploy/replicas` while the node of the leader is drained.

use std::sync::atomic::{AtomicBool, Ordering};

use e2e_tests::support::command::Ended;
use e2e_tests::support::eventually::eventually;
use e2e_tests::support::installation::{NAMESPACE, field, install, roll_out, service, uninstall};
use e2e_tests::support::whole_cluster::WholeCluster;
use serde_json::json;

/// The Pod of the leader: the identity in the Lease begins with the name of the Pod.
pub async fn leader(cluster: &WholeCluster) -> String {
    eventually("a leader", async || {
        let holder = field(cluster, NAMESPACE, "lease/clusterip-leader", ".spec.holderIdentity").await;
        let pods = field(cluster, NAMESPACE, "pods", ".items[*].metadata.name").await;
        pods.split_whitespace().find(|pod| holder.contains(pod)).map(str::to_owned)
    })
    .await
}

/// Asks the API server to evict a Pod. kubectl asks once. The client of the tests would repeat a request that is
/// refused with the code 429.
async fn evict(cluster: &WholeCluster, pod: &str) -> Ended {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}});
    cluster.kubectl_with(&["create", "--raw", &path, "--filename", "-"], &eviction.to_string()).await
}

/// The PodDisruptionBudget lets one replica be evicted, and the next one only when three are ready again.
async fn one_replica_is_evicted_at_a_time(cluster: &WholeCluster) {
    let allows_one = async || {
        eventually("the budget to allow a disruption", async || {
            let budget = "poddisruptionbudget/clusterip";
            (field(cluster, NAMESPACE, budget, ".status.disruptionsAllowed").await == "1").then_some(())
        })
        .await;
    };
    allows_one().await;
    let pods = field(cluster, NAMESPACE, "pods", ".items[*].metadata.name").await;
    let [first, second, _] = pods.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{pods}") };
    evict(cluster, first).await.ok();
    let refused = evict(cluster, second).await.refused();
    assert!(refused.contains("violate the pod's disruption budget"), "{refused}");
    allows_one().await;
}

/// All Services that are created during the drain get an address of their pool at once, and another replica leads.
pub async fn drain_of_the_leaders_node(cluster: &WholeCluster) {
    install(cluster, "replicas").await;
    one_replica_is_evicted_at_a_time(cluster).await;
    let namespace = &cluster.namespace("drained").await;
    let leader_before = leader(cluster).await;
    let node = field(cluster, NAMESPACE, &format!("pod/{leader_before}"), ".spec.nodeName").await;

    let drained = AtomicBool::new(false);
    let drain = async {
        let drain = ["drain", &node, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"];
        let done = cluster.kubectl(&drain).await;
        drained.store(true, Ordering::Relaxed);
        done.ok()
    };
    let create = async {
        let mut created = 0;
        while !drained.load(Ordering::Relaxed) {
            let name = format!("web-{created}");
            cluster.apply(&service(namespace, &name, json!({})).to_string()).await;
            let address = field(cluster, namespace, &format!("service/{name}"), ".spec.clusterIP").await;
            assert!(address.starts_with("172.21.0."), "{name} has {address}");
            // The drain respects the budget.
            let ready = field(cluster, NAMESPACE, "deployment/clusterip", ".status.readyReplicas").await;
            assert!(matches!(ready.as_str(), "2" | "3"), "{ready} replicas are ready");
            created += 1;
        }
        created
    };
    let (_, created) = tokio::join!(drain, create);
    assert!(created > 0);
    assert_ne!(leader(cluster).await, leader_before);
    roll_out(cluster).await;

    cluster.kubectl(&["uncordon", &node]).await.ok();
    cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.ok();
    uninstall(cluster).await;
}
