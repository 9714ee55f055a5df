//! The triage of created and updated Services.

use serde_json::{Value, json};

use crate::support::webhook_cluster::{AuditedDecision, WebhookCluster, address, all, deployment, on, place, service};

/// A summary: whether the webhook was called, its decision, and the reason.
fn short(audit: Option<AuditedDecision>) -> String {
    let Some(audit) = audit else { return "not asked".to_owned() };
    let reason = audit.reason.map_or(String::new(), |reason| format!(": {reason}"));
    let pool = audit.pool.map_or(String::new(), |pool| format!(" in {pool}"));
    format!("{}{pool}{reason}", audit.decision)
}

/// `triage.rs` of the core has all decisions. Here kubectl prints the warnings, and the conditions of the webhook decide
/// which requests it is asked about.
#[tokio::test]
async fn created_and_updated_services_are_triaged() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("triage").await;
    let by_hand = all(&namespace, [service("by-hand", json!({"clusterIP": "172.21.200.7"}))]);
    let created = cluster.plane.kubectl_with(&["create", "-f", "-"], &by_hand).await;
    let warning = "Warning: 172.21.200.7 lies in no pool, expected pool \"linux\": kubernetes.io/os=linux (setting \
                   assumeOS)\n";
    assert_eq!((created.status, created.stderr.as_str()), (0, warning));
    assert_eq!(short(cluster.decided(&namespace, "by-hand")), "unchanged in linux: set by hand");
    cluster.dry_run("kube-system", &service("web", json!({}))).await.unwrap();
    assert_eq!(short(cluster.decided("kube-system", "web")), "not asked");

    cluster.plane.apply(&all(&namespace, [deployment("windows", on("windows"))])).await;
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
            name: "windows",
            spec: json!({"type": "ExternalName", "externalName": "example.com"}),
            change: json!({"spec": {"type": "ClusterIP", "externalName": null}}),
            decision: "allocated in windows",
            place: "windows",
        },
    ];
    for Case { name, spec, change, decision, place: expected } in cases {
        cluster.create(&namespace, &service(name, spec)).await.unwrap();
        let now = cluster.patch(&namespace, name, change).await.unwrap();
        let audited = cluster.audited(&namespace, name);
        assert_eq!(audited.len(), 2, "{name}: {audited:?}");
        assert_eq!((short(audited[1].clone()).as_str(), place(address(&now))), (decision, expected), "{name}");
    }
    // The Service of the API server itself.
    let change = r#"{"spec": {"ipFamilyPolicy": "PreferDualStack"}}"#;
    let patch = ["patch", "service", "kubernetes", "--namespace=default", "--type=merge", "--dry-run=server", "-p"];
    cluster.plane.kubectl(&[&patch[..], &[change]].concat()).await.ok();
    let decided = short(cluster.decided("default", "kubernetes"));
    assert_eq!(decided, "unchanged: default/kubernetes belongs to the API server");
}
