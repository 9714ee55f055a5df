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
    let cases = [
        Case { name: "plain", spec: json!({}), decision: "allocated in linux", place: "linux" },
        Case { name: "null-address", spec: json!({"clusterIP": null}), decision: "allocated in linux", place: "linux" },
        Case { name: "empty-address", spec: json!({"clusterIP": ""}), decision: "allocated in linux", place: "linux" },
        Case {
            name: "headless",
            spec: json!({"clusterIP": "None"}),
            decision: "unchanged: headless",
            place: "headless",
        },
        Case {
            name: "external",
            spec: json!({"type": "ExternalName", "externalName": "example.com"}),
            decision: "unchanged: type ExternalName has no address",
            place: "none",
        },
        Case {
            name: "prefers-two",
            spec: json!({"ipFamilyPolicy": "PreferDualStack"}),
            decision: "allocated in linux",
            place: "linux",
        },
        Case {
            name: "by-hand",
            spec: json!({"clusterIP": cluster.released_address(&namespace, &service("released", json!({}))).await}),
            decision: "unchanged in linux: set by hand",
            place: "linux",
        },
        Case {
            name: "by-hand-outside",
            spec: json!({"clusterIP": "172.21.200.7"}),
            decision: "unchanged in linux: set by hand",
            place: "elsewhere",
        },
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
    let cases = [
        Case {
            name: "label",
            spec: json!({}),
            change: json!({"metadata": {"labels": {"a": "b"}}}),
            decision: "not asked",
            place: "linux",
        },
        Case {
            name: "port",
            spec: json!({}),
            change: json!({"spec": {"ports": [{"port": 81}]}}),
            decision: "not asked",
            place: "linux",
        },
        Case {
            name: "selector",
            spec: json!({}),
            change: json!({"spec": {"selector": {"app": "other"}}}),
            decision: "not asked",
            place: "linux",
        },
        Case {
            name: "label-of-external",
            spec: external(),
            change: json!({"metadata": {"labels": {"a": "b"}}}),
            decision: "not asked",
            place: "none",
        },
        Case {
            name: "type",
            spec: json!({}),
            change: json!({"spec": {"type": "NodePort"}}),
            decision: "unchanged: no new address",
            place: "linux",
        },
        Case {
            name: "to-external",
            spec: json!({}),
            change: json!({"spec": external()}),
            decision: "unchanged: type ExternalName has no address",
            place: "none",
        },
        Case { name: "windows", spec: external(), change: back(), decision: "allocated in windows", place: "windows" },
        Case {
            name: "to-headless",
            spec: external(),
            change: json!({"spec": {"type": "ClusterIP", "externalName": null, "clusterIP": "None"}}),
            decision: "unchanged: headless",
            place: "headless",
        },
        Case {
            name: "by-hand",
            spec: external(),
            change: json!({"spec": {"type": "ClusterIP", "externalName": null, "clusterIP": "172.21.0.9"}}),
            decision: "unchanged in linux: set by hand",
            place: "linux",
        },
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
