//! An administrator sees what is wrong with a pool in `kubectl`, in the status and the Events of the pool, and in the log.

use axum::http::Method;
use serde_json::{Value, json};

use super::commands::commands_say_which_fences_nothing_enforces;
use super::support::{PoolCluster, condition, pool_of};
use crate::support::command::clusterip;
use crate::support::control_plane::Options;
use crate::support::eventually::eventually;
use crate::support::move_helpers::send;
use crate::support::pools::pool;
use crate::support::webhook_cluster::service;

/// The Events about a pool: the reason and the note of each.
async fn events(cluster: &PoolCluster, name: &str) -> Vec<(String, String)> {
    let listed =
        send(&cluster.plane.client(), Method::GET, "/apis/events.k8s.io/v1/namespaces/default/events", None).await;
    let listed = listed.unwrap_or_default();
    let events = listed["items"].as_array().into_iter().flatten();
    let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
    let of_pool =
        events.filter(|event| event["regarding"]["kind"] == "ServicePool" && event["regarding"]["name"] == name);
    of_pool.map(|event| (text(event, "reason"), text(event, "note"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn misspelt_pool_is_told_everywhere_and_a_fence_that_nothing_enforces_by_commands() {
    const MISSPELT: &str = "spec.match.os: unknown operating system \"Windos\": did you mean windows?";
    let cluster = PoolCluster::start(Options { audit: false, ..Options::default() }).await;
    let warnings = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/api/pool-warnings.yaml");
    cluster.plane.kubectl(&["apply", "-f", warnings]).await.ok();
    let windows = |os: &str| pool("ServicePool", "windows", json!({"cidrs": ["172.21.1.0/24"], "match": {"os": os}}));
    cluster.apply(&[windows("windows")]).await;
    let good = cluster.until_reason("ServicePool", "windows", "InUse", "").await;
    assert_eq!(condition(&good, "HasWarnings"), Value::Null, "{good}");

    // The policy takes a moment to take effect.
    let misspell = ["patch", "servicepool", "windows", "--type", "merge", "--patch"];
    eventually("a warning of the API server", async || {
        cluster.apply(&[windows("windows")]).await;
        let patched =
            cluster.plane.kubectl(&[&misspell[..], &[r#"{"spec":{"match":{"os":"Windos"}}}"#]].concat()).await;
        assert_eq!(patched.status, 0, "{}", patched.stderr);
        let warning = "'pool-warnings.clusterip-policy.io': spec.match.os: unknown operating system \"Windos\": known \
                       are linux, windows";
        patched.stderr.contains(warning).then_some(())
    })
    .await;
    let warned = cluster
        .status_of("ServicePool", "windows", |object| condition(object, "HasWarnings")["message"] == MISSPELT)
        .await;
    let expected = (json!("True"), json!("ProbablyNotIntended"), json!("InUse"));
    let has_warnings = condition(&warned, "HasWarnings");
    let found =
        (has_warnings["status"].clone(), has_warnings["reason"].clone(), condition(&warned, "Ready")["reason"].clone());
    assert_eq!(found, expected, "{warned}");
    eventually("an Event", async || {
        let expected = ("ProbablyNotIntended".to_owned(), MISSPELT.to_owned());
        events(&cluster, "windows").await.contains(&expected).then_some(())
    })
    .await;
    let logged = cluster.server.logged("ServicePool windows: spec.match.os: unknown operating system").await;
    assert!(logged.contains("WARN"), "{logged}");

    cluster.apply(&[windows("windows")]).await;
    cluster.status_of("ServicePool", "windows", |object| condition(object, "HasWarnings") == Value::Null).await;

    let PoolCluster { mut server, plane } = cluster;
    assert_eq!(server.terminate().await, 0);
    commands_say_which_fences_nothing_enforces(&plane).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_told_of_a_pool_that_is_not_ready_or_misplaces_services() {
    let cluster = PoolCluster::lent().await;
    let folder = tempfile::tempdir().unwrap();
    cluster.apply(&[pool_of("first", "172.21.1.0/24", "first")]).await;
    cluster.until_reason("ServicePool", "first", "InUse", "").await;
    let second = pool_of("second", "172.21.1.128/25", "second");
    let overlap = "spec.cidrs[0]: 172.21.1.128/25 overlaps 172.21.1.0/24 of pool \"first\"";

    // Before it is applied.
    std::fs::write(folder.path().join("second.yaml"), second.to_string()).unwrap();
    let run = async |arguments: &[&str]| clusterip(folder.path(), cluster.plane.kubeconfig(), arguments).await;
    let ended = run(&["validate", "--cluster", "second.yaml"]).await;
    let refused = format!("second.yaml: error: ServicePool second: Overlaps: {overlap}");
    assert!(ended.status == 1 && ended.stdout.starts_with(&refused), "{ended:?}");

    // Afterwards.
    cluster.apply(&[second]).await;
    cluster.until_reason("ServicePool", "second", "Overlaps", overlap).await;
    eventually("an Event", async || {
        let events = events(&cluster, "second").await;
        events.iter().any(|(reason, note)| reason == "Overlaps" && note.contains(overlap)).then_some(())
    })
    .await;

    // An existing Service that the pools of a file would misplace.
    cluster.plane.namespace("first").await;
    cluster.serves("first", &json!({}), "172.21.1.0/24").await;
    cluster.create("first", &service("web", json!({}))).await.unwrap();
    std::fs::write(folder.path().join("first.yaml"), pool_of("first", "172.21.9.0/24", "first").to_string()).unwrap();
    let printed = run(&["validate", "--cluster", "first.yaml"]).await.ok();
    let warning = "first.yaml: warning: 1 Service of the cluster would be misplaced: first/web; `clusterip move \
                   --settings FILE --dry-run` lists them\n";
    assert!(printed.contains(warning), "{printed}");
}
