//! A renumbering beside a server that leads, with pools, the fence, and the account of `deploy/renumbering`, which runs all
//! commands.

use std::path::Path;

use axum::http::Method;
use serde_json::{Value, json};

use super::policies::{ACCOUNT, KEEP_ACCOUNT, NAMESPACE, install, tried};
use super::support::{NEW, addresses, cluster_without_services, delete_pod, ranges};
use crate::support::cluster::Place;
use crate::support::command::{Ended, clusterip};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::move_helpers::{send, tries};
use crate::support::serve_process::ServerBuilder;

const POOL: &str = "/apis/clusterip-policy.io/v1alpha1/servicepools/shop";

/// Runs a command as the account of the renumbering.
async fn renumber(plane: &ControlPlane, kubeconfig: &Path, arguments: &[&str]) -> Ended {
    clusterip(plane.folder(), kubeconfig, &[&["renumber"], arguments].concat()).await
}

/// Creates a Service, and checks that its pool gives it an address with this prefix.
async fn gets(shop: &Place, name: &str, prefix: &str) {
    let service = shop.service_named(name, json!({}), json!({})).await;
    let address = service["spec"]["clusterIP"].as_str().unwrap();
    assert!(address.starts_with(prefix), "{name} has {address}");
}

/// Waits until the fence keeps this address from Services of another namespace.
async fn is_fenced(plane: &ControlPlane, address: &str) {
    let other = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "other"},
        "spec": {"clusterIP": address, "ports": [{"port": 80}]}});
    let path = "/api/v1/namespaces/default/services?dryRun=All";
    eventually(&format!("the fence around {address}"), async || {
        (tried(&plane.client(), Method::POST, path, other.clone()).await == "service-fence").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn account_of_the_renumbering_runs_all_commands_and_new_services_get_addresses_of_the_pools() {
    let plane = cluster_without_services().await;
    install(&plane).await;
    let fence = format!("{}/../deploy/fence/fence.yaml", env!("CARGO_MANIFEST_DIR"));
    plane.apply(&std::fs::read_to_string(fence).unwrap()).await;
    let shop = Place { client: plane.client(), namespace: plane.namespace("shop").await };
    let pool = json!({"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": "shop"},
        "spec": {"cidrs": ["10.96.0.64/26"], "fence": "Deny", "match": {"namespaces": ["shop"]}}});
    plane.apply(&pool.to_string()).await;
    let server = ServerBuilder::new(&plane).pools().registered().args(&["--namespace", NAMESPACE, "--seamless-moves"]);
    let _server = server.arg("--grace-period=1").start().await;
    eventually("the webhook in force", async || {
        let path = "/api/v1/namespaces/shop/services?dryRun=All";
        let trial = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "trial"},
            "spec": {"ports": [{"port": 80}]}});
        let tried = tries(&plane.client(), Method::POST, path, &trial).await.ok()?;
        let address = tried["spec"]["clusterIP"].as_str()?.to_owned();
        let last: u8 = address.rsplit('.').next()?.parse().ok()?;
        (64..128).contains(&last).then_some(())
    })
    .await;
    gets(&shop, "web", "10.96.0.").await;
    is_fenced(&plane, "10.96.0.70").await;

    let kubeconfig = plane.kubeconfig_of(NAMESPACE, ACCOUNT).await;
    let run = async |arguments: &[&str]| renumber(&plane, &kubeconfig, arguments).await;
    let begin = ["begin", "--to", NEW, "--yes", "--grace-period", "1"];
    run(&begin).await.ok();
    gets(&shop, "after-begin", "10.100.0.").await;
    is_fenced(&plane, "10.100.0.70").await;
    let all_are_in = async |range: &str| {
        let shop: Vec<String> = addresses(&plane).await.into_iter().filter(|it| it.starts_with("shop/")).collect();
        assert!(!shop.is_empty() && shop.iter().all(|service| service.contains(&format!(" {range}"))), "{shop:?}");
    };
    all_are_in("10.100.0.").await;

    run(&["rollback", "--grace-period", "1"]).await.ok();
    all_are_in("10.96.0.").await;
    gets(&shop, "after-rollback", "10.96.0.").await;
    is_fenced(&plane, "10.96.0.70").await;

    run(&begin).await.ok();
    plane.stop_api_server();
    plane.start_api_server_with(NEW);
    // An API server allocates an address before a policy refuses the request.
    let tenant = plane.service_account("shop", "mallory").await;
    plane.grant(&tenant, Some("shop"), json!([{"apiGroups": [""], "resources": ["services"], "verbs": ["*"]}])).await;
    let thieves =
        ["10.96.0.1", "10.96.0.10", "10.100.0.1", "10.100.0.10"].into_iter().cycle().take(12).map(|address| {
            let client = plane.client_as(&tenant);
            tokio::spawn(async move {
                let theirs = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "theirs"},
                "spec": {"clusterIP": address, "ports": [{"port": 80}]}});
                let path = "/api/v1/namespaces/shop/services";
                while tried(&client, Method::POST, path, theirs.clone()).await != "allowed" {}
            })
        });
    let thieves: Vec<_> = thieves.collect();
    run(&["switch", "--grace-period", "1"]).await.ok();
    for thief in thieves {
        assert!(!thief.is_finished(), "a tenant has an address of the switch");
        thief.abort();
    }
    gets(&shop, "after-switch", "10.100.0.").await;
    is_fenced(&plane, "10.100.0.70").await;
    let status: Value = serde_json::from_str(&run(&["status", "-o", "json"]).await.ok()).unwrap();
    assert_eq!((&status["phase"], &status["leftOld"]), (&json!("switched"), &json!([])));

    let (folder, kubeconfig) = (plane.folder().to_owned(), plane.kubeconfig_of(NAMESPACE, KEEP_ACCOUNT).await);
    let keep = ["renumber", "keep", "--server-namespace", NAMESPACE];
    let keep = tokio::spawn(async move { clusterip(&folder, &kubeconfig, &keep).await });
    let copies = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let copy = format!("{copies}/clusterip-copy-kubernetes");
    send(&plane.client(), Method::DELETE, &copy, None).await.unwrap();
    let kept = eventually("the copy to exist again", async || send(&plane.client(), Method::GET, &copy, None).await);
    assert_eq!(kept.await["endpoints"][0]["addresses"], json!(["192.0.2.1"]));
    // `keep` deletes what is no copy of an EndpointSlice that exists.
    let labels = json!({"kubernetes.io/service-name": "clusterip-alias-kubernetes",
        "clusterip-policy/alias": "kubernetes", "endpointslice.kubernetes.io/managed-by": "clusterip-policy.io"});
    let extra = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "endpoints": [], "metadata": {"name": "clusterip-copy-extra", "labels": labels}});
    send(&plane.client(), Method::POST, copies, Some(&extra)).await.unwrap();
    let extra = format!("{copies}/clusterip-copy-extra");
    eventually("the other copy to be deleted", async || {
        send(&plane.client(), Method::GET, &extra, None).await.is_none().then_some(())
    })
    .await;

    delete_pod(&plane, "coredns-a").await;
    run(&["finish", "--kubelets-changed"]).await.ok();
    let kept = keep.await.unwrap();
    assert_eq!((kept.status, kept.stderr.as_str()), (0, ""));
    gets(&shop, "after-finish", "10.100.0.").await;
    all_are_in("10.100.0.").await;
    assert_eq!(ranges(&plane).await, [r#"kubernetes ["10.100.0.0/24"]"#]);
    let pool = send(&plane.client(), Method::GET, POOL, None).await.unwrap();
    assert_eq!(pool["spec"]["cidrs"], json!(["10.100.0.64/26"]));
}
