//! A renumbering from the first command to the last, and back.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{
    NEW, addresses, begin, changes_since, cluster, cluster_without_services, delete_pod, ranges, ready_pod, renumber,
    version,
};
use crate::support::cluster::Place;
use crate::support::command;
use crate::support::eventually::eventually;
use crate::support::move_helpers::{send, stored};

const BEFORE: [&str; 4] = [
    "default/kubernetes 10.96.0.1",
    "kube-system/kube-dns 10.96.0.10",
    "shop/cart 10.96.0.102",
    "shop/web 10.96.0.101",
];

/// In the new range, an address depends on the name of the Service alone.
fn without_shop(addresses: Vec<String>) -> Vec<String> {
    addresses.into_iter().filter(|service| !service.starts_with("shop/")).collect()
}

fn is_moved(addresses: &[String]) -> bool {
    let mut shop = addresses.iter().filter(|service| service.starts_with("shop/"));
    shop.all(|service| service.split_once(' ').unwrap().1.starts_with("10.100.0."))
}

#[tokio::test(flavor = "multi_thread")]
async fn service_range_is_replaced_while_every_old_address_is_held() {
    let plane = cluster().await;
    assert_eq!(addresses(&plane).await, BEFORE);
    let begun = begin(&plane).await;
    assert_eq!(begun.status, 0, "{}{}", begun.stdout, begun.stderr);
    assert!(is_moved(&addresses(&plane).await), "{:?}", addresses(&plane).await);
    assert_eq!(
        ranges(&plane).await,
        [r#"clusterip-new ["10.100.0.0/24"]"#, r#"clusterip-old ["10.96.0.0/24"]"#, r#"kubernetes ["10.96.0.0/24"]"#]
    );

    // The API server still has the old flag.
    let early = renumber(&plane, &["switch"]).await;
    assert_eq!(early.status, 1, "{}{}", early.stdout, early.stderr);
    let expected = "not all API servers run with --service-cluster-ip-range=10.100.0.0/24 (the flag of one is \
                    10.96.0.0/24): restart each of them with it, and try again";
    assert!(early.stderr.contains(expected), "{}", early.stderr);
    let too_early = renumber(&plane, &["finish"]).await;
    let expected = "the renumbering is in the phase moved; next: restart the API servers with the new range";
    assert!(too_early.stderr.contains(expected), "{}", too_early.stderr);

    plane.stop_api_server();
    plane.start_api_server_with(NEW);
    let uid = async || {
        let kubernetes = stored(&plane.client(), "default", "kubernetes").await.unwrap();
        kubernetes["metadata"]["uid"].clone()
    };
    let before = (uid().await, version(&plane, "default").await, version(&plane, "kube-system").await);
    let switched = renumber(&plane, &["switch"]).await;
    assert_eq!(switched.status, 0, "{}{}", switched.stdout, switched.stderr);
    // The names always point to an address.
    let changes = |name: &str, namespace: &str, last: u8| {
        [
            format!("added clusterip-alias-new-{name}: 10.100.0.{last}"),
            format!("modified {name}: clusterip-alias-new-{name}.{namespace}.svc.cluster.local"),
            format!("added clusterip-alias-{name}: 10.96.0.{last}"),
            format!("modified {name}: clusterip-alias-{name}.{namespace}.svc.cluster.local"),
            format!("deleted clusterip-alias-new-{name}: 10.100.0.{last}"),
            format!("modified {name}: 10.100.0.{last}"),
        ]
    };
    assert_eq!(changes_since(&plane, "default", &before.1).await, changes("kubernetes", "default", 1));
    let of_dns = changes_since(&plane, "kube-system", &before.2).await;
    let of_dns: Vec<String> = of_dns.into_iter().filter(|change| !change.contains("clusterip-trigger-")).collect();
    assert_eq!(of_dns, changes("kube-dns", "kube-system", 10));
    assert_eq!(uid().await, before.0);
    assert_eq!(
        without_shop(addresses(&plane).await),
        [
            "default/clusterip-alias-kubernetes 10.96.0.1",
            "default/kubernetes 10.100.0.1",
            "kube-system/clusterip-alias-kube-dns 10.96.0.10",
            "kube-system/kube-dns 10.100.0.10",
        ]
    );
    let dns = stored(&plane.client(), "kube-system", "kube-dns").await.unwrap();
    assert_eq!(dns["metadata"]["annotations"]["example.com/kept"], "yes");
    assert_eq!(dns["spec"]["internalTrafficPolicy"], "Local");
    let rollback = renumber(&plane, &["rollback"]).await;
    assert!(rollback.stderr.contains("there is no way back"), "{}", rollback.stderr);
    let status: Value = serde_json::from_str(&renumber(&plane, &["status", "-o", "json"]).await.ok()).unwrap();
    assert_eq!(
        (&status["phase"], &status["swaps"], &status["usersOfOld"], &status["leftOld"]),
        (
            &json!("switched"),
            &json!([
                {"service": "default/kubernetes", "addresses": ["10.96.0.1"],
                    "heldBy": "default/clusterip-alias-kubernetes", "endpointsEqual": true},
                {"service": "kube-system/kube-dns", "addresses": ["10.96.0.10"],
                    "heldBy": "kube-system/clusterip-alias-kube-dns", "endpointsEqual": true},
            ]),
            &json!([
                "Nodes node-a: the configuration of 1 kubelet can't be read: the API server answers 500",
                "Pod kube-system/coredns-a: Pods older than the change: 1",
            ]),
            &json!([]),
        )
    );

    // The endpoints of the alias are kept, whatever happens to them.
    let (folder, kubeconfig) = (plane.folder().to_owned(), plane.kubeconfig().to_owned());
    let keep = tokio::spawn(async move { command::clusterip(&folder, &kubeconfig, &["renumber", "keep"]).await });
    let copy = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/clusterip-copy-kubernetes";
    send(&plane.client(), Method::DELETE, copy, None).await.unwrap();
    let kept = eventually("the endpoints of the alias", async || send(&plane.client(), Method::GET, copy, None).await);
    assert_eq!(kept.await["endpoints"][0]["addresses"], json!(["192.0.2.1"]));

    // The Pod of DNS is older than the switch.
    let in_use = renumber(&plane, &["finish", "--kubelets-changed"]).await;
    assert_eq!(in_use.status, 1);
    assert!(in_use.stderr.contains("Pod kube-system/coredns-a: Pods older than the change: 1"), "{}", in_use.stderr);
    delete_pod(&plane, "coredns-a").await;
    // Times of creation have seconds.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    ready_pod(&plane, "coredns-b").await;
    let finished = renumber(&plane, &["finish", "--kubelets-changed"]).await;
    assert_eq!(
        (finished.status, finished.stdout.as_str()),
        (0, "the Service range is 10.100.0.0/24\n"),
        "{finished:?}"
    );
    let kept = keep.await.unwrap();
    assert_eq!(kept.status, 0, "{}", kept.stderr);
    assert_eq!(ranges(&plane).await, [r#"kubernetes ["10.100.0.0/24"]"#]);
    assert_eq!(
        without_shop(addresses(&plane).await),
        ["default/kubernetes 10.100.0.1", "kube-system/kube-dns 10.100.0.10"]
    );
    let slices = "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=endpointslice.kubernetes.io/managed-by=clusterip-policy.io";
    let copies = send(&plane.client(), Method::GET, slices, None).await.unwrap();
    assert_eq!(copies["items"], json!([]));
    let again = renumber(&plane, &["status"]).await;
    assert_eq!(again.stdout, "no renumbering is recorded\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_gives_services_addresses_of_the_old_range_again() {
    let plane = cluster().await;
    begin(&plane).await.ok();
    assert!(is_moved(&addresses(&plane).await));
    let other = renumber(&plane, &["begin", "--to", "10.101.0.0/24", "--yes"]).await;
    let expected = "a renumbering to 10.100.0.0/24 has begun: finish it, or use clusterip renumber rollback";
    assert!(other.stderr.contains(expected), "{}", other.stderr);
    let back = renumber(&plane, &["rollback", "--grace-period", "1"]).await;
    assert_eq!(back.status, 0, "{}{}", back.stdout, back.stderr);
    let now = addresses(&plane).await;
    assert!(now.iter().all(|service| service.split_once(' ').unwrap().1.starts_with("10.96.0.")), "{now:?}");
    assert_eq!(without_shop(now), BEFORE[..2]);
    assert_eq!(ranges(&plane).await, [r#"kubernetes ["10.96.0.0/24"]"#]);
}

#[tokio::test(flavor = "multi_thread")]
async fn services_of_tenants_neither_hold_up_the_phases_nor_take_the_new_address_of_kubernetes() {
    let plane = cluster_without_services().await;
    let shop = Place { client: plane.client(), namespace: plane.namespace("shop").await };
    // A Service of more than 256 KiB is not moved.
    let large = json!({"metadata": {"annotations": {"example.com/large": "a".repeat(255 << 10)}}});
    let ports: Vec<Value> = (1..100).map(|port| json!({"name": format!("port-{port}"), "port": port})).collect();
    shop.service_at("large", [10, 96, 0, 101], large["metadata"].clone(), json!({"ports": ports})).await;
    shop.service_at("web", [10, 96, 0, 102], json!({}), json!({})).await;
    let begun = begin(&plane).await;
    let expected = "the other Services have moved, and these stay: Service shop/large; next: restart the API servers";
    assert_eq!((begun.status, begun.stdout.contains(expected)), (0, true), "{}{}", begun.stdout, begun.stderr);

    shop.service_named("thief", json!({}), json!({"clusterIP": "10.100.0.1"})).await;
    plane.stop_api_server();
    plane.start_api_server_with(NEW);
    let stopped = renumber(&plane, &["switch"]).await;
    let expected = "10.100.0.1 of Service default/kubernetes belongs to Service shop/thief: delete this Service";
    assert_eq!((stopped.status, stopped.stderr.contains(expected)), (2, true), "{}{}", stopped.stdout, stopped.stderr);
    assert_eq!(addresses(&plane).await[0], "default/kubernetes 10.96.0.1");
    send(&plane.client(), Method::DELETE, "/api/v1/namespaces/shop/services/thief", None).await.unwrap();

    let switched = renumber(&plane, &["switch", "--grace-period", "1"]).await;
    assert_eq!(switched.status, 0, "{}{}", switched.stdout, switched.stderr);
    delete_pod(&plane, "coredns-a").await;
    let finished = renumber(&plane, &["finish", "--kubelets-changed"]).await.ok();
    let expected = "the Service range is 10.100.0.0/24; these Services keep their addresses, and ServiceCIDR \
                    clusterip-old stays until they have others: Service shop/large\n";
    assert!(finished.ends_with(expected), "{finished}");
    // The list of the moves has the Service that can't move, and no alias.
    assert_eq!((finished.contains("shop       large"), finished.contains("alias")), (true, false), "{finished}");
    let left = addresses(&plane).await;
    assert!(left.contains(&"shop/large 10.96.0.101".to_owned()), "{left:?}");
    assert_eq!(without_shop(left), ["default/kubernetes 10.100.0.1", "kube-system/kube-dns 10.100.0.10"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn switch_that_could_not_create_an_alias_does_not_begin() {
    let plane = cluster_without_services().await;
    begin(&plane).await.ok();
    plane.stop_api_server();
    plane.start_api_server_with(NEW);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": "default"},
        "spec": {"hard": {"services": "1"}}});
    plane.apply(&quota.to_string()).await;
    let path = "/api/v1/namespaces/default/resourcequotas/few";
    eventually("the quota to be counted", async || {
        let quota = send(&plane.client(), Method::GET, path, None).await?;
        (quota["status"]["used"]["services"] == "1").then_some(())
    })
    .await;
    let stopped = renumber(&plane, &["switch", "--grace-period", "1"]).await;
    let expected = ["Service clusterip-alias-kubernetes can't be created: ", "exceeded quota: few"];
    assert!(expected.iter().all(|expected| stopped.stderr.contains(expected)), "{}", stopped.stderr);
    assert_eq!((stopped.status, addresses(&plane).await), (2, BEFORE[..2].iter().map(ToString::to_string).collect()));
    renumber(&plane, &["rollback", "--grace-period", "1"]).await;
    let status: Value = serde_json::from_str(&renumber(&plane, &["status", "-o", "json"]).await.ok()).unwrap();
    assert_eq!(status["phase"], "moved", "an API server has the new flag, so nothing is rolled back");
}

/// A Service of a tenant gets an address of the new range, and then can't move back.
#[tokio::test(flavor = "multi_thread")]
async fn service_that_can_not_move_back_does_not_hold_up_a_rollback_and_answers() {
    let plane = cluster().await;
    begin(&plane).await.ok();
    let shop = Place { client: plane.client(), namespace: "shop".to_owned() };
    shop.service_named("stays", json!({}), json!({"clusterIP": "10.100.0.77"})).await;
    let back = renumber(&plane, &["rollback", "--grace-period", "1"]).await.ok();
    let expected = "the renumbering is rolled back; these Services keep their addresses, and ServiceCIDR \
                    clusterip-new stays until they have others: Service shop/stays\n";
    assert!(back.ends_with(expected), "{back}");
    let (stays, others): (Vec<_>, Vec<_>) =
        addresses(&plane).await.into_iter().partition(|service| service.starts_with("shop/stays "));
    assert_eq!(stays, ["shop/stays 10.100.0.77"]);
    assert!(others.iter().all(|service| service.contains(" 10.96.0.")), "{others:?}");
    // The Service can be changed, and new ones get no address of the range.
    let patch = json!({"spec": {"ports": [{"port": 8080}]}});
    send(&plane.client(), Method::PATCH, "/api/v1/namespaces/shop/services/stays", Some(&patch)).await.unwrap();
    shop.service_named("later", json!({}), json!({})).await;
    assert!(addresses(&plane).await.iter().any(|service| service.starts_with("shop/later 10.96.0.")));
    let again = renumber(&plane, &["begin", "--to", NEW, "--dry-run"]).await;
    let expected = "ServiceCIDR clusterip-new   Services have had its addresses since an earlier renumbering";
    assert_eq!((again.status, again.stdout.contains(expected)), (1, true), "{}", again.stdout);
    send(&plane.client(), Method::DELETE, "/api/v1/namespaces/shop/services/stays", None).await.unwrap();
    eventually("the end of the new range", async || {
        (ranges(&plane).await == [r#"kubernetes ["10.96.0.0/24"]"#]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_are_mapped_to_the_new_range_and_back() {
    let plane = cluster().await;
    plane.install_pools().await;
    let pool = json!({"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool",
        "metadata": {"name": "all"}, "spec": {"cidrs": ["10.96.0.64/26"], "exclude": ["10.96.0.80/30"], "reserved": 4}});
    plane.apply(&pool.to_string()).await;
    let spec = async || {
        let path = "/apis/clusterip-policy.io/v1alpha1/servicepools/all";
        let pool = send(&plane.client(), Method::GET, path, None).await.unwrap();
        (pool["spec"]["cidrs"].clone(), pool["spec"]["exclude"].clone(), pool["spec"]["reserved"].clone())
    };
    let old = (json!(["10.96.0.64/26"]), json!(["10.96.0.80/30"]), json!(4));
    let new = (json!(["10.100.0.64/26"]), json!(["10.100.0.80/30"]), json!(4));
    let dry_run = renumber(&plane, &["begin", "--to", NEW, "--dry-run"]).await.ok();
    let (_, shown) = dry_run.split_once("The pools become:\n").unwrap();
    let mut wanted = pool.clone();
    wanted["spec"]["cidrs"] = new.0.clone();
    wanted["spec"]["exclude"] = new.1.clone();
    let mut shown = clusterip_cluster::yaml::single(shown.trim_start_matches("---\n")).unwrap();
    json_patch::merge(&mut shown, &json!({"spec": {"bands": null, "fence": null, "priority": null}}));
    assert_eq!(shown, wanted);
    assert_eq!(spec().await, old);

    begin(&plane).await.ok();
    assert_eq!(spec().await, new);
    assert!(is_moved(&addresses(&plane).await), "{:?}", addresses(&plane).await);
    renumber(&plane, &["rollback", "--grace-period", "1"]).await.ok();
    assert_eq!(spec().await, old);
    assert!(addresses(&plane).await.iter().all(|service| service.contains(" 10.96.0.")));
}
