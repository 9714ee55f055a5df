//! `deploy/external` as docs/external.md describes it: agents run as a DaemonSet, and Services answer at their external
//! addresses.
//!
//! Windows nodes run no Pods here. So the Pods of Services in the pool `windows` run on Linux nodes, and the annotation
//! of these Services names the pool. The traffic does not depend on the operating system: kube-proxy and the agents
//! handle addresses of both pools.

use std::net::{IpAddr, SocketAddr};

use e2e_tests::support::documented_steps::{Operator, Step, steps_of, types};
use e2e_tests::support::eventually::eventually;
use e2e_tests::support::installation::{AGENTS, field, service, uninstall};
use e2e_tests::support::whole_cluster::WholeCluster;
use serde_json::json;

/// The range of the page, and one in the network of the nodes.
const RANGES: [&str; 2] = ["10.0.9.10-10.0.9.40", "10.88.0.100-10.88.0.130"];
/// Each pool of Services, and the first octets of its addresses.
const POOLS: [(&str, &str); 2] = [("linux", "172.21.0."), ("windows", "172.21.1.")];
/// A kubelet listens on this port of all addresses of its node.
const KUBELET: u16 = 10250;

pub async fn addresses_of_both_pools_answer(cluster: &WholeCluster) {
    let operator = Operator::with_pods(cluster);
    let quick = steps_of("external.md", "Quick start");
    let [pools, api, established, apply, begun, agents_begun, fence, manifest, create, waited, shown, holders] =
        &quick[..]
    else {
        panic!("{quick:?}")
    };
    assert!(types(begun, "rollout status") && types(agents_begun, "rollout status"));
    let Step::Write { path, text } = pools else { panic!("{pools:?}") };
    assert!(text.contains(RANGES[0]), "{text}");
    operator.write(path, &text.replace(RANGES[0], RANGES[1]));
    for step in [api, established, apply, begun, agents_begun, fence] {
        operator.does(step).await;
    }
    let addresses = Addresses { cluster, namespace: "default", pod: "web" };
    cluster.web_server_on_port("default", "web", "node-1", 80).await;
    cluster.web_server("default", "client", "node-2").await;
    for step in [manifest, create, waited] {
        operator.does(step).await;
    }
    let address = addresses.external().await;
    assert!(operator.does(shown).await.contains(&address.to_string()));
    let node = holder(cluster, &operator.does(holders).await, address);
    addresses.answers(address, 80).await;
    // The kubelet answers at the address of its node, but the agent opens only the port of the Service.
    assert!(cluster.ask_from_outside(SocketAddr::new(node, KUBELET)).await.is_ok());
    assert!(cluster.ask_from_outside(SocketAddr::new(address, KUBELET)).await.is_err());

    add_pools_of_services(cluster, &operator, apply).await;
    let namespace = &cluster.namespace("external").await;
    cluster.web_server(namespace, "client", "node-2").await;
    for pool in POOLS {
        service_of_pool_answers(cluster, namespace, pool).await;
    }
    cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.ok();
    cluster.kubectl(&["delete", "service/web", "pod/web", "pod/client"]).await.ok();
    uninstall(cluster).await;
    assert!(cluster.kubectl(&["get", "namespace", AGENTS]).await.refused().contains("NotFound"));
}

/// The address of the node that holds an external address, according to the table of the page.
fn holder(cluster: &WholeCluster, table: &str, address: IpAddr) -> IpAddr {
    let rows = table.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let mut rows = rows.filter(|(held, _)| *held == address.to_string());
    let (_, holder) = rows.next().unwrap_or_else(|| panic!("{table}"));
    let nodes = cluster.nodes().iter();
    let mut nodes = nodes.filter(|(node, _)| holder.trim().starts_with(&format!("{node}_agent_")));
    *nodes.next().unwrap_or_else(|| panic!("{table}")).1
}

/// Removes the patch that deletes the ServicePools, as the page says.
async fn add_pools_of_services(cluster: &WholeCluster, operator: &Operator<'_>, apply: &Step) {
    let file = "deploy/external/kustomization.yaml";
    let text = operator.read(file);
    let (kept, patches) = text.split_once("patches:\n").unwrap();
    assert_eq!(patches.matches("target:").count(), 1, "{patches}");
    operator.write(file, kept);
    operator.does(apply).await;
    let ready = ["wait", "--for=condition=Ready", "servicepool", "--all", "--timeout=60s"];
    cluster.kubectl(&ready).await.ok();
}

/// A Service answers at its cluster address, its node port and its external address.
async fn service_of_pool_answers(cluster: &WholeCluster, namespace: &str, (pool, prefix): (&str, &str)) {
    cluster.web_server(namespace, pool, "node-1").await;
    let fields = json!({"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external"});
    let mut service = service(namespace, pool, fields);
    service["metadata"]["annotations"] = json!({"clusterip-policy/os": pool});
    cluster.apply(&service.to_string()).await;

    let addresses = Addresses { cluster, namespace, pod: pool };
    let cluster_ip = addresses.field(".spec.clusterIP").await;
    assert!(cluster_ip.starts_with(prefix), "{pool}: {cluster_ip}");
    addresses.answers_a_pod(&cluster_ip, 80).await;
    let node_port: u16 = addresses.field(".spec.ports[0].nodePort").await.parse().unwrap();
    for node in cluster.nodes().values() {
        addresses.answers(*node, node_port).await;
    }
    addresses.answers(addresses.external().await, 80).await;
}

/// The addresses of a Service, whose only Pod has the same name and runs on the first node. The Pod `client` runs on
/// the second one.
struct Addresses<'c> {
    cluster: &'c WholeCluster,
    namespace: &'c str,
    pod: &'c str,
}

impl Addresses<'_> {
    async fn field(&self, path: &str) -> String {
        field(self.cluster, self.namespace, &format!("service/{}", self.pod), path).await
    }

    /// Waits until the status shows an external address.
    async fn external(&self) -> IpAddr {
        eventually("an external address", async || {
            self.field(".status.loadBalancer.ingress[0].ip").await.parse::<IpAddr>().ok()
        })
        .await
    }

    /// Waits until the Pod answers a Pod on the other node and a client outside of the cluster.
    async fn answers(&self, address: IpAddr, port: u16) {
        self.answers_a_pod(&address.to_string(), port).await;
        let server = SocketAddr::new(address, port);
        eventually(&format!("an answer from {server} to a client outside"), async || {
            self.cluster.ask_from_outside(server).await.ok().filter(|answer| answer == self.pod)
        })
        .await;
    }

    async fn answers_a_pod(&self, host: &str, port: u16) {
        eventually(&format!("an answer from {host}:{port} to a Pod"), async || {
            let asked = self.cluster.ask_from_pod(self.namespace, "client", host, port).await;
            asked.ok().filter(|answer| answer == self.pod)
        })
        .await;
    }
}
