//! The Pod of `deploy/webhook`: its probes, the token of its service account and its memory limit.

use std::collections::BTreeMap;

use e2e_tests::support::eventually::eventually;
use e2e_tests::support::installation::{NAMESPACE, field, install, roll_out, service, uninstall};
use e2e_tests::support::whole_cluster::WholeCluster;
use serde_json::{Value, json};

/// How many Services are created at once.
const SERVICES: usize = 100;

/// The state of a Pod, as its kubelet reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    /// The startup probe has succeeded.
    started: bool,
    ready: bool,
    restarts: u64,
}

const READY: State = State { started: true, ready: true, restarts: 0 };
const ALIVE: State = State { started: true, ready: false, restarts: 0 };

async fn pods(cluster: &WholeCluster) -> Vec<Value> {
    let get = ["get", "pods", "--namespace", NAMESPACE, "--output", "json"];
    let list: Value = serde_json::from_str(&cluster.kubectl(&get).await.ok()).unwrap();
    let pods = list["items"].as_array().unwrap().iter();
    pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).cloned().collect()
}

/// The states of all Pods that are not being deleted, by their names.
async fn states(cluster: &WholeCluster) -> BTreeMap<String, State> {
    let pods = pods(cluster).await;
    let states = pods.iter().filter_map(|pod| {
        let status = pod["status"]["containerStatuses"].get(0)?;
        let state = State {
            started: status["started"] == true,
            ready: status["ready"] == true,
            restarts: status["restartCount"].as_u64()?,
        };
        Some((pod["metadata"]["name"].as_str()?.to_owned(), state))
    });
    states.collect()
}

/// Waits until one Pod is ready and another one is only alive, and returns their names in this order.
async fn ready_and_alive(cluster: &WholeCluster) -> [String; 2] {
    eventually("a Pod that is ready, and another one that is not", async || {
        let states = states(cluster).await;
        let named = |wanted: State| states.iter().find(|(_, state)| **state == wanted).map(|(name, _)| name.clone());
        (states.len() == 2).then_some([named(READY)?, named(ALIVE)?])
    })
    .await
}

/// The answer of a Pod to its readiness probe; `Err` if it is not 200.
async fn readiness(cluster: &WholeCluster, pod: &str) -> Result<String, String> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/https:{pod}:8443/proxy/readyz");
    let answer = cluster.kubectl(&["get", "--raw", &path]).await;
    if answer.status == 0 { Ok(answer.stdout) } else { Err(answer.stderr) }
}

pub async fn pods_become_ready_and_stay(cluster: &WholeCluster) {
    install(cluster, "webhook").await;
    let all = pods(cluster).await;
    assert_eq!(all.len(), 1);
    assert_has_token_and_limit(&all[0]);

    // Without claims only one server may run: a second Pod is alive, and not ready as long as the first one leads.
    let scale = async |replicas: &str| {
        let replicas = format!("--replicas={replicas}");
        cluster.kubectl(&["scale", "deployment/clusterip", "--namespace", NAMESPACE, &replicas]).await.ok();
    };
    scale("2").await;
    let [first, second] = ready_and_alive(cluster).await;
    assert!(readiness(cluster, &first).await.is_ok());
    assert!(readiness(cluster, &second).await.is_err());
    // When the first Pod has ended, another one leads, without a restart.
    cluster.kubectl(&["delete", "pod", &first, "--namespace", NAMESPACE]).await.ok();
    let left = ready_and_alive(cluster).await;
    assert!(left.contains(&second) && !left.contains(&first), "{left:?} after {first} and {second}");
    scale("1").await;
    roll_out(cluster).await;

    create_services(cluster).await;
    uninstall(cluster).await;
}

/// The Pod has a token that its kubelet renews, and its memory is limited.
fn assert_has_token_and_limit(pod: &Value) {
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let sources = volumes.iter().filter_map(|volume| volume["projected"]["sources"].as_array()).flatten();
    let tokens: Vec<&Value> =
        sources.map(|source| &source["serviceAccountToken"]).filter(|token| !token.is_null()).collect();
    assert!(matches!(tokens[..], [token] if token["expirationSeconds"].is_u64()), "{volumes:?}");
    let limit = &pod["spec"]["containers"][0]["resources"]["limits"]["memory"];
    assert!(limit.is_string(), "{}", pod["spec"]);
}

/// Creates many Services at once. If the server needed more memory than its limit, the kernel would kill it.
async fn create_services(cluster: &WholeCluster) {
    let namespace = &cluster.namespace("many").await;
    // The API server reaches the Pod that leads now when kube-proxy has programmed the change.
    eventually("the API server to call the server", async || {
        let create = ["create", "--dry-run=server", "--output", "jsonpath={.spec.clusterIP}", "-f", "-"];
        let created = cluster.kubectl_with(&create, &service(namespace, "trial", json!({})).to_string()).await;
        created.stdout.starts_with("172.21.0.").then_some(())
    })
    .await;
    let services: Vec<Value> = (0..SERVICES).map(|nth| service(namespace, &format!("web-{nth}"), json!({}))).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": services});
    cluster.kubectl_with(&["create", "-f", "-"], &list.to_string()).await.ok();
    let addresses = field(cluster, namespace, "services", ".items[*].spec.clusterIP").await;
    let addresses: Vec<&str> = addresses.split_whitespace().collect();
    assert_eq!(addresses.len(), SERVICES);
    assert!(addresses.iter().all(|address| address.starts_with("172.21.0.")), "{addresses:?}");
    cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.ok();
}
