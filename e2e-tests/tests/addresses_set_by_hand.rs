//! Whether the address of a Service was set by hand, as the managed fields of the API server show it.

use clusterip_core::service::may_be_set_by_hand;
use serde_json::{Value, json};

use crate::support::webhook_cluster::{WebhookCluster, service};

#[tokio::test]
async fn set_by_hand_is_detected_for_every_way_to_write_a_service() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("ownership").await;
    let flag = format!("--namespace={namespace}");
    let create = async |name: &str, spec: Value| drop(cluster.create(&namespace, &service(name, spec)).await.unwrap());
    let kubectl = async |verb: &[&str], name: &str, spec: Value| {
        let manifest = service(name, spec).to_string();
        cluster.plane.kubectl_with(&[verb, &[&*flag, "-f", "-"]].concat(), &manifest).await.ok();
    };
    let replace = async |name: &str| {
        let whole = cluster.plane.kubectl(&["get", "service", name, &flag, "-o", "json"]).await.ok();
        cluster.plane.kubectl_with(&["replace", &flag, "-f", "-"], &whole).await.ok();
    };
    let relabel = async |name: &str| {
        cluster.plane.kubectl(&["label", "service", name, "a=b", &flag]).await.ok();
    };

    create("created", json!({})).await;
    kubectl(&["create"], "kubectl-created", json!({})).await;
    kubectl(&["apply"], "applied", json!({})).await;
    kubectl(&["apply"], "applied-twice", json!({})).await;
    kubectl(&["apply"], "applied-twice", json!({"ports": [{"port": 81}]})).await;
    kubectl(&["apply", "--server-side"], "server-side", json!({})).await;
    kubectl(&["apply", "--server-side"], "server-side-twice", json!({})).await;
    kubectl(&["apply", "--server-side"], "server-side-twice", json!({"ports": [{"port": 81}]})).await;
    create("replaced", json!({})).await;
    replace("replaced").await;
    create("labelled", json!({})).await;
    relabel("labelled").await;
    kubectl(&["create"], "empty", json!({"clusterIP": ""})).await;
    kubectl(&["replace"], "empty", json!({"clusterIP": "", "ports": [{"port": 81}]})).await;
    kubectl(&["apply", "--server-side"], "taken-back", json!({"clusterIP": "172.21.0.39"})).await;
    kubectl(&["apply", "--server-side"], "taken-back", json!({"clusterIP": ""})).await;
    create("back", json!({"type": "ExternalName", "externalName": "example.com"})).await;
    cluster.patch(&namespace, "back", json!({"spec": {"type": "ClusterIP", "externalName": null}})).await.unwrap();

    let hand = |last: u8| json!({"clusterIP": format!("172.21.0.{last}")});
    create("hand-created", hand(31)).await;
    kubectl(&["create"], "hand-kubectl-created", hand(32)).await;
    kubectl(&["apply"], "hand-applied", hand(33)).await;
    kubectl(&["apply", "--server-side"], "hand-server-side", hand(34)).await;
    create("hand-replaced", hand(35)).await;
    replace("hand-replaced").await;
    kubectl(&["apply"], "hand-applied-twice", hand(36)).await;
    kubectl(&["apply"], "hand-applied-twice", {
        let mut spec = hand(36);
        spec["ports"] = json!([{"port": 81}]);
        spec
    })
    .await;
    create("hand-back", json!({"type": "ExternalName", "externalName": "example.com"})).await;
    let back = json!({"spec": {"type": "ClusterIP", "externalName": null, "clusterIP": "172.21.0.37"}});
    cluster.patch(&namespace, "hand-back", back).await.unwrap();

    let services = cluster.list(&namespace).await;
    let found: Vec<(String, bool)> =
        services.iter().map(|(name, service)| (name.clone(), may_be_set_by_hand(service))).collect();
    let expected: Vec<(String, bool)> = services.keys().map(|name| (name.clone(), name.starts_with("hand-"))).collect();
    assert_eq!(found, expected);
    assert_eq!(found.len(), 18);
    let kubernetes = cluster.get("default", "kubernetes").await;
    assert!(may_be_set_by_hand(&kubernetes));
}
