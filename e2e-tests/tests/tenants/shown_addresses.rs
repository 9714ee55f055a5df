//! The server restores no status with an IP that another Service has been given meanwhile.

use axum::http::Method;
use futures::future::join_all;
use serde_json::{Value, json};

use super::support::{LINUX, Scene};
use crate::support::eventually::eventually;
use crate::support::move_helpers::{path, request, stored};
use crate::support::webhook_cluster::{addresses, annotated, within};

/// How another Service, in another namespace, gets the IP.
struct Row {
    namespace: &'static str,
    /// The spec of that Service.
    spec: Value,
    /// Whether its status shows the IP.
    is_shown: bool,
    /// Whether the status of the first Service is restored.
    is_restored: bool,
}

#[tokio::test]
async fn move_restores_no_ip_that_another_service_shows_or_has() {
    let scene = Scene::shared().await;
    let balancer = || json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none"});
    let with = |field: &str, value: Value| {
        let mut spec = balancer();
        spec[field] = value;
        spec
    };
    let ip = |nth: usize| format!("203.0.113.{}", 40 + nth);
    let rows = [
        Row { namespace: "ip-kept", spec: balancer(), is_shown: false, is_restored: true },
        Row { namespace: "ip-shown", spec: balancer(), is_shown: true, is_restored: false },
        Row { namespace: "ip-had", spec: json!({"externalIPs": [ip(2)]}), is_shown: false, is_restored: false },
        // Otherwise any user could keep the status of others empty.
        Row {
            namespace: "ip-requested",
            spec: with("loadBalancerIP", ip(3).into()),
            is_shown: false,
            is_restored: true,
        },
    ];
    let admin = scene.admin();
    let show = async |namespace: &str, name: &str, ip: &str| {
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
        let path = format!("{}/status", path(namespace, name));
        admin.request::<Value>(request(Method::PATCH, &path, &status)).await.unwrap();
    };
    let moved = rows.into_iter().enumerate().map(async |(nth, Row { namespace, spec, is_shown, is_restored })| {
        let (tenant, other, ip) = (scene.tenant(namespace).await, format!("{namespace}-other"), ip(nth));
        let other = scene.plane.namespace(&other).await;
        let web = annotated("web", json!({"clusterip-policy/os": "linux"}), balancer());
        let created = tenant.creates(&web).await;
        assert!(within(addresses(&created)[0], LINUX), "{created}");
        show(&tenant.namespace, "web", &ip).await;
        // No other load balancer fits into the quota, so the move can't give the Service its type back.
        let quotas = format!("/api/v1/namespaces/{}/resourcequotas", tenant.namespace);
        let most = |count: &str| json!({"services.loadbalancers": count});
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"},
            "spec": {"hard": most("1")}});
        admin.request::<Value>(request(Method::POST, &quotas, &quota)).await.unwrap();
        let limit = async |count: &str| {
            let limits = json!({"spec": {"hard": most(count)}, "status": {"hard": most(count), "used": most("1")}});
            for suffix in ["", "/status"] {
                let path = format!("{quotas}/few{suffix}");
                admin.request::<Value>(request(Method::PATCH, &path, &limits)).await.unwrap();
            }
        };
        limit("1").await;
        tenant.annotates("web", json!({"clusterip-policy/os": "windows"})).await.unwrap();
        eventually(&format!("{namespace}: the Service to be released"), async || {
            let now = stored(&admin, &tenant.namespace, "web").await?;
            (now["spec"]["type"] == "ExternalName").then_some(())
        })
        .await;
        scene.create(&admin, &other, &annotated("other", json!({}), spec), "").await.unwrap();
        if is_shown {
            show(&other, "other", &ip).await;
        }
        limit("2").await;
        let moved = eventually(&format!("{namespace}: the move to end"), async || {
            let now = stored(&admin, &tenant.namespace, "web").await?;
            let is_marked = !now["metadata"]["annotations"]["clusterip-policy/moving"].is_null();
            (now["spec"]["type"] == "LoadBalancer" && !is_marked).then_some(now)
        })
        .await;
        let expected = if is_restored { json!({"ingress": [{"ip": ip, "ipMode": "VIP"}]}) } else { json!({}) };
        assert_eq!(moved["status"]["loadBalancer"], expected, "{namespace}: {moved}");
    });
    join_all(moved).await;
}
