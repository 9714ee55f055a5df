//! `clusterip audit` of a live cluster, and the audit of a running server.

use std::process::{Command, Stdio};
use std::sync::Arc;

use axum::http::Method;
use clusterip::audit::LiveAudit;
use clusterip::audit::model::{Audit, Kind};
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::host_metrics::{ClusterMetrics, EvaluationMetrics};
use clusterip_cluster::live_settings::check_settings;
use clusterip_cluster::reservations::ledger::Ledger;
use clusterip_cluster::watch::stores::Stores;
use clusterip_failover::claims::{Owner, ReplicaClaim};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::cluster::{Cluster, Place, settings};
use crate::support::eventually::eventually;
use crate::support::move_helpers::{path, send};
use crate::support::pools::service_pools;
use crate::support::program;
use crate::support::serve_process::ServerBuilder;

/// The exit status and the output, parsed if it is JSON.
async fn audit(cluster: &Cluster, settings: Option<&str>, arguments: &[&str]) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.yaml");
    let mut command = Command::new(program());
    command.arg("audit").args(arguments).arg("--kubeconfig").arg(cluster.plane.kubeconfig()).stdin(Stdio::null());
    if let Some(settings) = settings {
        std::fs::write(&file, settings).unwrap();
        command.arg("--settings").arg(&file);
    }
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap().replace(&file.display().to_string(), "FILE");
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The same for a snapshot of the cluster.
async fn audit_of_snapshot(cluster: &Cluster, settings: &str, own: &[&str], output: &str) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("snapshot");
    let mut command = Command::new(program());
    command.arg("snapshot").args(own).args(["-o", output, "--kubeconfig"]).arg(cluster.plane.kubeconfig());
    command.arg("--output-file").arg(&snapshot).stdin(Stdio::null());
    let written = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert_eq!((written.status.code(), String::from_utf8(written.stderr).unwrap().as_str()), (Some(0), ""));
    let text = std::fs::read_to_string(&snapshot).unwrap();
    assert!(!text.contains("\"kind\":\"Secret\"") && !text.contains("\"kind\":\"ConfigMap\""), "{text}");

    let file = folder.path().join("settings.yaml");
    std::fs::write(&file, settings).unwrap();
    let mut command = Command::new(program());
    command.args(["audit", "-o", "json", "--snapshot"]).arg(&snapshot).arg("--settings").arg(&file);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

pub fn os(os: &str) -> Value {
    json!({"annotations": {"clusterip-policy/os": os}})
}

/// The findings, and the counts of each range that is used.
fn ranges_and_findings(text: &str, place: &Place) -> (Vec<String>, Vec<String>) {
    let audit: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let mut ranges = Vec::new();
    for pool in audit["pools"].as_array().unwrap() {
        for range in pool["ranges"].as_array().unwrap().iter().filter(|range| range["addresses"] != json!([])) {
            let counts = &range["counts"];
            let [used, in_flight, free, used_anyway] =
                ["used", "inFlight", "free", "usedAnyway"].map(|key| &counts[key]);
            let name = pool["name"].as_str().unwrap();
            ranges.push(format!("{name}: {used} used, {in_flight} in flight, {free} free, {used_anyway} used anyway"));
        }
    }
    let finding = |finding: &Value| {
        let message = finding["message"].as_str().unwrap().replace(&format!("{}/", place.namespace), "");
        format!("{}: {message}", finding["kind"].as_str().unwrap())
    };
    (ranges, audit["findings"].as_array().unwrap().iter().map(finding).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn live_cluster_is_audited() {
    let cluster = Cluster::alone().await;
    let place = cluster.place("audit").await;
    let none = json!({"selector": null});
    place.service_at("misplaced", [172, 21, 0, 70], os("windows"), none.clone()).await;
    place.service_named("by-hand", os("windows"), json!({"clusterIP": "172.21.0.71", "selector": null})).await;
    place.service_at("unmatched", [172, 21, 0, 72], os("darwin"), none.clone()).await;
    let journal = json!({"phase": "placed", "way": "externalName", "from": ["172.21.1.80"], "to": ["172.21.0.73"], "why": "it was elsewhere"});
    let moving = json!({"annotations": {"clusterip-policy/moving": journal.to_string()}});
    place.service_at("half", [172, 21, 0, 73], moving, none.clone()).await;
    for last in [1, 2] {
        let tiny = json!({"labels": {"size": "tiny"}});
        place.service_at(&format!("tiny-{last}"), [172, 21, 4, last], tiny, none.clone()).await;
    }
    place.service_at("right", [172, 21, 0, 74], os("linux"), none.clone()).await;
    let claim = ReplicaClaim {
        address: "172.21.1.77".parse().unwrap(),
        owner: Owner::new(&place.namespace, "soon", ""),
        holder: "pod_serve_1".to_owned(),
        duration: std::time::Duration::from_secs(70),
    };
    let lease = serde_json::to_value(claim.lease(&place.namespace, Timestamp::UNIX_EPOCH)).unwrap();
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", place.namespace);
    send(&cluster.client, Method::POST, &leases, Some(&lease)).await.unwrap();

    let settings = settings(&json!({}));
    // Only claims in the namespace of the server count.
    let own = ["--server-namespace", place.namespace.as_str()];
    let (status, json, stderr) =
        audit(&cluster, Some(&settings), &[&own[..], &["-o", "json", "--fail-on", "mixed-nodes,denied"][..]].concat())
            .await;
    assert_eq!((status, stderr.as_str()), (0, "settings: FILE\n"), "{json}");
    let (ranges, findings) = ranges_and_findings(&json, &place);
    let expected = [
        "tiny: 2 used, 0 in flight, 0 free, 0 used anyway",
        "windows: 0 used, 1 in flight, 204 free, 0 used anyway",
        "linux: 4 used, 1 in flight, 200 free, 1 used anyway",
    ];
    assert_eq!(ranges, expected);
    let expected = [
        "half-moved: Service half: it looks as if a move has begun and has not ended",
        "misplaced: Service misplaced: 172.21.0.70 lies in pool linux (172.21.0.0/24), and it belongs to pool windows \
         (172.21.1.0/24): kubernetes.io/os=windows (annotation clusterip-policy/os)",
        "by-hand: Service by-hand: 172.21.0.71 lies in pool linux (172.21.0.0/24), and it belongs to pool windows \
         (172.21.1.0/24): kubernetes.io/os=windows (annotation clusterip-policy/os)",
        "unmatched: Service unmatched: 172.21.0.72 lies in pool linux (172.21.0.0/24), and no pool matches it: \
         kubernetes.io/os=darwin (annotation clusterip-policy/os)",
        "full: pool tiny (172.21.4.0/30) is full: all 2 addresses are used, 0 more are reserved",
    ];
    assert_eq!(findings, expected);

    let live: Value = serde_json::from_str(&json).unwrap();
    for output in ["json", "yaml"] {
        let (status, json, stderr) = audit_of_snapshot(&cluster, &settings, &own, output).await;
        assert_eq!((status, stderr.as_str()), (0, ""), "{json}");
        assert_eq!(ranges_and_findings(&json, &place), (ranges.clone(), findings.clone()), "a snapshot as {output}");
        let audit: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(audit["notes"], live["notes"], "a snapshot as {output}");
    }

    let failed = audit(&cluster, Some(&settings), &["--fail-on", "full"]).await;
    assert_eq!(failed.0, 1, "{failed:?}");

    // The managed fields show the owner of the address.
    let of = |name: &str| format!("{}/{name}", place.namespace);
    for (name, moves) in [
        ("misplaced", "moves it to 172.21.1."),
        ("by-hand", "does not move it: its address was set by hand"),
        ("half", "finishes the move that has begun"),
        ("right", "does not move it: its address lies in its pool"),
    ] {
        let (status, text, _) = audit(&cluster, Some(&settings), &["-o", "json", "--service", &of(name)]).await;
        let why: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status, 0, "{name}");
        assert!(why["move"].as_str().unwrap().starts_with(moves), "{name}: {text}");
    }

    // A range that the cluster does not have: a server refuses it, and an audit reports it.
    if !cluster.plane.tells_addresses() {
        return cluster.plane.does_not_apply("a finding about a range that the cluster does not have");
    }
    let outside = "services: {pools: [{name: far, cidrs: [10.0.0.0/24]}]}";
    let (status, json, stderr) = audit(&cluster, Some(outside), &["-o", "json", "--fail-on", "outside-ranges"]).await;
    assert_eq!((status, stderr.as_str()), (1, "settings: FILE\n"));
    let (_, findings) = ranges_and_findings(&json, &place);
    let outside: Vec<&String> = findings.iter().filter(|finding| finding.starts_with("outside-ranges")).collect();
    let expected = "outside-ranges: pool far: 10.0.0.0/24 lies outside of the cluster's Service ranges (172.21.0.0/16): \
                    the API server refuses its addresses";
    assert_eq!(outside, [expected]);
    send(&cluster.client, Method::DELETE, &format!("{leases}/ip-172-21-1-77"), None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_a_live_cluster_are_audited_and_planned() {
    let cluster = Cluster::alone().await;
    let place = cluster.place("audit-nodes").await;
    // Other tests create Nodes too, so the pools select the Nodes of this test.
    let (name, node) = (|name: &str| format!("{}-{name}", place.namespace), "/api/v1/nodes");
    let settings = format!(
        "nodes: {{pools: [{{name: own, cidrs: [10.77.0.0/22], match: {{nodeLabels: {{place: {}}}}}}}]}}",
        place.namespace
    );
    let object = |own: &str, spec: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name(own), "labels": {"place": place.namespace}}, "spec": spec});
    let block = |block: &str| json!({"podCIDR": block, "podCIDRs": [block]});
    for (own, spec) in [
        ("right", block("10.77.1.0/24")),
        ("twin", block("10.77.1.0/24")),
        ("far", block("10.78.0.0/24")),
        ("bare", json!({})),
    ] {
        send(&cluster.client, Method::POST, node, Some(&object(own, spec))).await.unwrap();
    }

    let (status, json, _) = audit(&cluster, Some(&settings), &["-o", "json", "--fail-on", "shared-block"]).await;
    assert_eq!(status, 1, "{json}");
    let found: Value = serde_json::from_str(&json).unwrap();
    let of = |finding: &Value| Some((finding["kind"].clone(), finding["node"].as_str()?.to_owned()));
    let findings: Vec<(Value, String)> = found["findings"].as_array().unwrap().iter().filter_map(of).collect();
    let expected =
        [("shared-block", "right"), ("shared-block", "twin"), ("outside-node-pool", "far"), ("no-block", "bare")];
    assert_eq!(findings, expected.map(|(kind, own)| (json!(kind), name(own))));
    let counts = json!({"usable": 4, "used": 1, "free": 3, "withheld": 0, "usedAnyway": 0});
    assert_eq!(found["nodes"]["pools"][0]["ranges"][0]["counts"], counts);

    let folder = tempfile::tempdir().unwrap();
    let (file, manifests) = (folder.path().join("settings.yaml"), folder.path().join("nodes.yaml"));
    std::fs::write(&file, &settings).unwrap();
    let planned = ["new", "bare", "right"].map(|own| object(own, json!({})).to_string()).join("\n---\n");
    std::fs::write(&manifests, planned).unwrap();
    let mut command = Command::new(program());
    command.args(["plan", "--cluster", "-o", "json", "--settings"]).arg(&file).arg(&manifests);
    command.env("KUBECONFIG", cluster.plane.kubeconfig()).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let given = |row: &Value| (row["name"].clone(), row["decision"].clone(), row["podCIDRs"].clone());
    let given: Vec<(Value, Value, Value)> = plan["nodes"].as_array().unwrap().iter().map(given).collect();
    let expected = [
        ("new", "allocated", "10.77.0.0/24"),
        ("bare", "allocated", "10.77.2.0/24"),
        ("right", "unchanged", "10.77.1.0/24"),
    ];
    assert_eq!(given, expected.map(|(own, decision, block)| (json!(name(own)), json!(decision), json!([block]))));

    // The API server accepts the blocks that `-o yaml` prints.
    let mut command = Command::new(program());
    command.args(["plan", "--cluster", "-o", "yaml", "--settings"]).arg(&file).arg(&manifests);
    command.env("KUBECONFIG", cluster.plane.kubeconfig()).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let filled = String::from_utf8(output.stdout).unwrap();
    let applied = cluster.plane.kubectl_with(&["apply", "-f", "-"], &filled).await;
    assert_eq!(applied.status, 0, "{applied:?}");
    let (_, json, _) = audit(&cluster, Some(&settings), &["-o", "json"]).await;
    let found: Value = serde_json::from_str(&json).unwrap();
    let blocks = found["nodes"]["pools"][0]["ranges"][0]["blocks"].as_array().unwrap().iter();
    let blocks: Vec<(Value, Value)> = blocks.map(|block| (block["node"].clone(), block["block"].clone())).collect();
    let expected =
        [("new", "10.77.0.0/24"), ("right", "10.77.1.0/24"), ("twin", "10.77.1.0/24"), ("bare", "10.77.2.0/24")];
    assert_eq!(blocks, expected.map(|(own, block)| (json!(name(own)), json!(block))));

    for own in ["new", "right", "twin", "far", "bare"] {
        send(&cluster.client, Method::DELETE, &format!("{node}/{}", name(own)), None).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_a_running_server_are_found() {
    let cluster = Cluster::alone().await;
    cluster.plane.install_pools().await;
    cluster.plane.apply(&service_pools(&settings(&json!({})))).await;
    let server = ServerBuilder::new(&cluster.plane).args(&["--namespace", &cluster.namespace, "--no-webhook"]);
    let mut server = server.pools().start().await;
    let (status, json, stderr) = audit(&cluster, None, &["-o", "json", "--server-namespace", &cluster.namespace]).await;
    let namespace = &cluster.namespace;
    let from = format!("settings: the pools of the cluster (server in namespace {namespace})\n");
    assert_eq!((status, stderr), (0, from));
    let audit: Value = serde_json::from_str(&json).unwrap();
    let names: Vec<&str> =
        audit["pools"].as_array().unwrap().iter().map(|pool| pool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["named", "labelled", "tiny", "east", "windows", "linux"]);
    assert_eq!(server.terminate().await, 0);
}

/// The kinds of the findings about the Services of this namespace.
fn kinds(audit: &Audit, place: &Place) -> Vec<(Kind, String)> {
    let own = audit.findings.iter().filter(|finding| finding.namespace.as_ref() == Some(&place.namespace));
    own.map(|finding| (finding.kind, finding.name.clone().unwrap_or_default())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn server_audits_the_current_state_of_the_cluster() {
    let cluster = Cluster::alone().await;
    let place = cluster.place("audit-live").await;
    place.service_at("web", [172, 21, 0, 70], json!({}), json!({})).await;
    place.workload("linux").await;

    let written: Value = serde_json::from_str(&settings(&json!({}))).unwrap();
    let live = check_settings(written, &vec!["172.21.0.0/16".to_owned()].into()).unwrap();
    let stores = Stores::new(cluster.client.clone(), ClusterMetrics::default(), |_| (), |_| ());
    stores.watch(&live.settings);
    stores.completed().await;
    let (settings, in_force) = watch::channel(Arc::new(live.clone()));
    let ledger = Ledger::default();
    let evaluator = Evaluator::new(in_force, stores, ledger.clone(), EvaluationMetrics::default());
    let leases = Api::namespaced(cluster.client.clone(), &place.namespace);
    let audits = Arc::new(LiveAudit::new(evaluator, leases, watch::channel(None).1));
    let becomes = async |what: &str, expected: &[(Kind, &str)]| {
        let expected: Vec<(Kind, String)> = expected.iter().map(|(kind, name)| (*kind, (*name).to_owned())).collect();
        eventually(what, async || {
            let audits = Arc::clone(&audits);
            let audit = tokio::task::spawn_blocking(move || audits.audit()).await.unwrap();
            (kinds(&audit, &place) == expected).then_some(())
        })
        .await;
    };
    becomes("no findings", &[]).await;
    place.workload("windows").await;
    becomes("the workload as evidence", &[(Kind::Misplaced, "web")]).await;
    place.service_named("fixed", os("windows"), json!({"clusterIP": "172.21.0.71", "selector": null})).await;
    becomes("the owner of an address", &[(Kind::Misplaced, "web"), (Kind::ByHand, "fixed")]).await;
    place.delete_workload().await;
    becomes("no finding with an assumed operating system", &[(Kind::ByHand, "fixed")]).await;
    let namespace = json!({"metadata": {"annotations": {"clusterip-policy/os": "darwin"}}});
    send(&cluster.client, Method::PATCH, &format!("/api/v1/namespaces/{}", place.namespace), Some(&namespace)).await;
    becomes("the namespace as evidence", &[(Kind::ByHand, "fixed"), (Kind::Unmatched, "web")]).await;
    send(&cluster.client, Method::DELETE, &path(&place.namespace, "fixed"), None).await;
    becomes("no finding about a deleted Service", &[(Kind::Unmatched, "web")]).await;

    ledger.reserve("172.21.0.90".parse().unwrap(), &Owner::new("shop", "soon", ""), || false);
    let all = json!({"services": {"pools": [{"name": "all", "cidrs": ["172.21.0.0/24"]}]}});
    settings.send_replace(Arc::new(check_settings(all, &vec!["172.21.0.0/16".to_owned()].into()).unwrap()));
    becomes("the new settings", &[]).await;
    let audit = tokio::task::spawn_blocking(move || audits.audit()).await.unwrap();
    let counts = audit.pools[0].ranges[0].counts;
    assert_eq!((counts.used, counts.in_flight, counts.used_anyway), (1, 1, 1), "{counts:?}");
}
