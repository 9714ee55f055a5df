//! `deploy/seamless` as it is shipped: what it adds to `deploy/webhook`, and that the server can move a Service
//! seamlessly with these permissions and policies, also out of a fenced pool.

use std::collections::BTreeSet;

use axum::http::Method;
use serde_json::{Value, json};

use crate::deploy_webhook::{rights, set};
use crate::gitops;
use crate::support::cluster::pool_of;
use crate::support::documented_steps::{Operator, Step};
use crate::support::eventually::eventually;
use crate::support::fake_kubelet::Installed;
use crate::support::move_helpers::{addresses, patch, send, stored};

/// Adds the component, and a short grace period.
const KUSTOMIZATION: &str = "resources: [../webhook]
components: [../seamless]
patches:
- target: {kind: Deployment, name: clusterip}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --grace-period=5}
";

/// The permissions of the server in a namespace that matter here.
async fn permissions(cluster: &Installed, namespace: &str) -> BTreeSet<String> {
    let mut all = rights(&cluster.plane, "clusterip-policy:clusterip", namespace).await;
    all.retain(|line| ["services ", "resourcequotas ", "configmaps "].iter().any(|kind| line.starts_with(kind)));
    all
}

/// Adds the component to `deploy/webhook`, and waits until the new Pod runs.
async fn add_the_component(cluster: &Installed, operator: &Operator<'_>) {
    std::fs::create_dir(operator.folder().join("deploy/own")).unwrap();
    operator.write("deploy/own/kustomization.yaml", KUSTOMIZATION);
    for command in [
        "kubectl apply -k deploy/own",
        "kubectl rollout status --namespace clusterip-policy deployment/clusterip --timeout 120s",
    ] {
        operator.does(&Step::Type(command.to_owned())).await;
    }
    cluster.is_asked().await;
}

/// Creates a Service with a ready Pod, and waits until the Pod is its endpoint. A Pod is an endpoint only if its Node
/// exists.
async fn serving(cluster: &Installed, namespace: &str) -> Value {
    cluster.plane.apply(r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}"#).await;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"nodeName": "node-1", "containers": [{"name": "web", "image": "example.com/web"}]}});
    send(&cluster.client, Method::POST, &pods, Some(&pod)).await.unwrap();
    let status = json!({"status": {"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}]}});
    send(&cluster.client, Method::PATCH, &format!("{pods}/web/status"), Some(&status)).await.unwrap();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    let services = format!("/api/v1/namespaces/{namespace}/services");
    let service = send(&cluster.client, Method::POST, &services, Some(&service)).await.unwrap();
    let slices = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io/service-name=web"
    );
    eventually("the endpoint of the Service", async || {
        let list = send(&cluster.client, Method::GET, &slices, None).await?;
        (list["items"][0]["endpoints"][0]["conditions"]["ready"] == true).then_some(())
    })
    .await;
    service
}

#[tokio::test(flavor = "multi_thread")]
async fn installation_shows_no_difference_and_moves_a_service_seamlessly_out_of_a_fenced_pool() {
    let cluster = Installed::nothing().await;
    let operator = Operator::new(&cluster.plane, &cluster.node.url());
    cluster.install(&operator).await;
    gitops::installation_shows_no_difference_and_keeps_what_the_server_wrote(&operator).await;
    add_the_component(&cluster, &operator).await;
    let everywhere = ["resourcequotas [] [] [list]", "services [] [] [get list watch update create delete]"];
    assert_eq!(permissions(&cluster, "default").await, set(&everywhere));
    let dns = ["configmaps [] [coredns] [get]"];
    assert_eq!(permissions(&cluster, "kube-system").await, set(&[&everywhere[..], &dns].concat()));

    let shop = cluster.place("shop").await;
    let before = serving(&cluster, &shop.namespace).await;
    let pool = |service: &Value| addresses(service).first().map_or("no address", |address| pool_of(*address));
    assert_eq!(pool(&before), "linux");
    // From now on, the pool of the old address does not admit the Service.
    let fenced = r#"{"spec": {"fence": "Deny", "match": {"os": "linux", "namespaces": ["another-team"]}}}"#;
    cluster.plane.kubectl(&["patch", "servicepool", "linux", "--type=merge", "--patch", fenced]).await.ok();
    let windows =
        json!({"metadata": {"annotations": {"clusterip-policy/os": "windows", "clusterip-policy/move": "now"}}});
    patch(&cluster.client, &shop.namespace, "web", windows).await;

    let temporaries = async || -> Vec<Value> {
        let list = "/api/v1/services?labelSelector=clusterip-policy/temporary";
        let list = send(&cluster.client, Method::GET, list, None).await.unwrap();
        list["items"].as_array().unwrap().clone()
    };
    // The old address answers while the name has the new one.
    eventually("the new address beside the old one", async || {
        let web = stored(&cluster.client, &shop.namespace, "web").await.unwrap();
        let keeps_old = temporaries().await.iter().any(|temporary| addresses(temporary) == addresses(&before));
        (pool(&web) == "windows" && keeps_old).then_some(())
    })
    .await;
    eventually("the end of the grace period", async || temporaries().await.is_empty().then_some(())).await;
    let after = stored(&cluster.client, &shop.namespace, "web").await.unwrap();
    assert_eq!((pool(&after), &after["metadata"]["uid"]), ("windows", &before["metadata"]["uid"]));
    let refused: Vec<String> =
        cluster.node.log().await.into_iter().filter(|line| line.contains("denied request")).collect();
    assert_eq!(refused, [""; 0]);
}
