//! The triage of created and updated Services, row by row.

use serde_json::{Value, json};

use crate::support::webhook_cluster::{
    AuditedDecision, WebhookCluster, addresses, all, deployment, on, place, service,
};

/// A summary: whether the webhook was called, its decision, and the reason.
fn short(audit: Option<AuditedDecision>) -> String {
    let Some(audit) = audit else { return "not asked".to_owned() };
    let reason = audit.reason.map_or(String::new(), |reason| format!(": {reason}"));
    let pool = audit.pool.map_or(String::new(), |pool| format!(" in {pool}"));
    format!("{}{pool}{reason}", audit.decision)
}

fn places(service: &Value) -> String {
    match service["spec"]["clusterIP"].as_str() {
        None => "none".to_owned(),
        Some("None") => "headless".to_owned(),
        Some(_) => addresses(service).into_iter().map(place).collect::<Vec<_>>().join(","),
    }
}

#[tokio::test]
async fn created_services_are_triaged() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("triage").await;
    let exempt = cluster.plane.namespace("triage-exempt").await;
    struct Case {
        name: &'static str,
        spec: Value,
        decision: &'static str,
        place: &'static str,
    }
    let case = |name, spec, decision, place| Case { name, spec, decision, place };
    let cases = [
        case("plain", json!({}), "allocated in linux", "linux"),
        case("headless", json!({"clusterIP": "None"}), "unchanged: headless", "headless"),
        case(
            "external",
            json!({"type": "ExternalName", "externalName": "example.com"}),
            "unchanged: type ExternalName has no address",
            "none",
        ),
        case(
            "by-hand",
            json!({"clusterIP": cluster.released_address(&namespace, &service("released", json!({}))).await}),
            "unchanged in linux: set by hand",
            "linux",
        ),
        case("by-hand-outside", json!({"clusterIP": "172.21.200.7"}), "unchanged in linux: set by hand", "elsewhere"),
    ];
    let (mut seen, mut expected) = (Vec::new(), Vec::new());
    for Case { name, spec, decision, place } in cases {
        // kubectl prints the warnings.
        let applied = cluster.plane.kubectl_with(&["create", "-f", "-"], &all(&namespace, [service(name, spec)])).await;
        let warnings = applied.stderr.clone();
        applied.ok();
        let now = cluster.get(&namespace, name).await;
        seen.push((name, short(cluster.decided(&namespace, name)), places(&now), warnings));
        let warning = match name {
            "by-hand-outside" => {
                "Warning: 172.21.200.7 lies in no pool, expected pool \"linux\": kubernetes.io/os=linux (setting assumeOS)\n"
            }
            _ => "",
        };
        expected.push((name, decision.to_owned(), place.to_owned(), warning.to_owned()));
    }
    assert_eq!(seen, expected);

    let lone = json!({"clusterIPs": ["172.21.0.8"], "clusterIP": null});
    let refused = cluster.create(&namespace, &service("addresses-alone", lone)).await.unwrap_err();
    assert!(refused.contains("spec.clusterIPs"), "{refused}");
    let decided = short(cluster.decided(&namespace, "addresses-alone"));
    assert_eq!(decided, "unchanged in linux: set by hand");

    let both = service("requires-two", json!({"ipFamilyPolicy": "RequireDualStack"}));
    let refused = cluster.create(&namespace, &both).await.unwrap_err();
    let expected = "admission webhook \"services.clusterip-policy.io\" denied the request: Service triage/requires-two: \
                    pool \"linux\" has no IPv6 range";
    assert!(refused.starts_with(expected), "{refused}");

    cluster.create(&exempt, &service("web", json!({}))).await.unwrap();
    assert_eq!(short(cluster.decided(&exempt, "web")), "unchanged: namespace triage-exempt is exempt");
    cluster.dry_run("kube-system", &service("web", json!({}))).await.unwrap();
    assert_eq!(short(cluster.decided("kube-system", "web")), "not asked");
}

#[tokio::test]
async fn updated_services_are_triaged() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("triage-updates").await;
    cluster.plane.apply(&all(&namespace, [deployment("windows", on("windows"))])).await;
    let external = || json!({"type": "ExternalName", "externalName": "example.com"});
    let back = || json!({"spec": {"type": "ClusterIP", "externalName": null}});
    struct Case {
        name: &'static str,
        spec: Value,
        change: Value,
        decision: &'static str,
        place: &'static str,
    }
    let case = |name, spec, change, decision, place| Case { name, spec, change, decision, place };
    let cases = [
        case("label", json!({}), json!({"metadata": {"labels": {"a": "b"}}}), "not asked", "linux"),
        case("type", json!({}), json!({"spec": {"type": "NodePort"}}), "unchanged: no new address", "linux"),
        case(
            "to-external",
            json!({}),
            json!({"spec": external()}),
            "unchanged: type ExternalName has no address",
            "none",
        ),
        case("windows", external(), back(), "allocated in windows", "windows"),
    ];
    let (mut seen, mut expected) = (Vec::new(), Vec::new());
    for Case { name, spec, change, decision, place } in cases {
        cluster.create(&namespace, &service(name, spec)).await.unwrap();
        let now = cluster.patch(&namespace, name, change).await.unwrap();
        let audited = cluster.audited(&namespace, name);
        assert_eq!(audited.len(), 2, "{name}: {audited:?}");
        seen.push((name, short(audited[1].clone()), places(&now)));
        expected.push((name, decision.to_owned(), place.to_owned()));
    }
    assert_eq!(seen, expected);

    // The Service of the API server itself.
    let change = r#"{"spec": {"ipFamilyPolicy": "PreferDualStack"}}"#;
    let patch = ["patch", "service", "kubernetes", "--namespace=default", "--type=merge", "--dry-run=server", "-p"];
    cluster.plane.kubectl(&[&patch[..], &[change]].concat()).await.ok();
    let decided = short(cluster.decided("default", "kubernetes"));
    assert_eq!(decided, "unchanged: default/kubernetes belongs to the API server");
}

/// The API server refuses its own address, after the warning of the policy.
#[tokio::test]
async fn address_of_the_api_server_causes_a_warning_and_is_refused() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("by-hand").await;
    let taken = all(&namespace, [service("kubernetes", json!({"clusterIP": "172.21.0.1"}))]);
    let refused = cluster.plane.kubectl_with(&["apply", "-f", "-"], &taken).await.refused();
    assert!(refused.starts_with("Warning: 172.21.0.1 is the address of default/kubernetes\n"), "{refused}");
    assert!(refused.contains("provided IP is already allocated"), "{refused}");
}
