//! `clusterip move` and `clusterip audit` use the settings of the server that leads, or those of the command line.

use std::path::Path;

use axum::http::Method;
use serde_json::{Value, json};

use crate::support::command::{self, Ended};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::{self, send, stored};
use crate::support::pools::service_pools;
use crate::support::serve_process::{Server, ServerBuilder};

/// The settings of the server: not the pools of K2s.
const SERVER: &str = "{services: {pools: [{name: all, cidrs: [172.21.7.0/24]}]}}";
/// Other settings.
const OTHER: &str = "{services: {pools: [{name: other, cidrs: [172.21.8.0/24]}]}}";

/// Runs `clusterip` with these arguments and a folder with the files `server.yaml` and `other.yaml`.
async fn clusterip(plane: &ControlPlane, arguments: &[&str]) -> Ended {
    run(plane.kubeconfig(), arguments).await
}

async fn run(kubeconfig: &Path, arguments: &[&str]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("server.yaml"), SERVER).unwrap();
    std::fs::write(folder.path().join("other.yaml"), OTHER).unwrap();
    command::clusterip(folder.path(), kubeconfig, arguments).await
}

/// Starts a server without a webhook in a new namespace, with pool objects. Returns its namespace, too.
async fn start_server(plane: &ControlPlane, arguments: &[&str]) -> (Server, String) {
    let namespace = plane.namespace("installed").await;
    plane.install_pools().await;
    plane.apply(&service_pools(SERVER)).await;
    let server = ServerBuilder::new(plane).pools().args(&["--namespace", &namespace, "--no-webhook"]);
    (server.args(arguments).start().await, namespace)
}

/// Creates the Service `web` at this address, without an owner of the address, as if the API server had picked it.
async fn service(plane: &ControlPlane, namespace: &str, address: &str, kind: &str) {
    let client = plane.client();
    let spec = json!({"clusterIP": address, "type": kind, "ports": [{"port": 80}]});
    move_helpers::create(&client, namespace, "web", spec).await;
    let fields = json!([{"manager": "author", "operation": "Update", "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:ports": {}}}}]);
    move_helpers::patch(&client, namespace, "web", json!({"metadata": {"managedFields": fields}})).await;
}

async fn address(plane: &ControlPlane, namespace: &str) -> String {
    let web = stored(&plane.client(), namespace, "web").await.unwrap();
    web["spec"]["clusterIP"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_leading_server_are_used_and_no_others_beside_it() {
    let plane = LentControlPlane::get().await;
    // Without a server, the default settings are not used.
    let unknown = "error: no server leads in this cluster, so its settings are unknown: use --settings FILE\n";
    for arguments in [&["audit"][..], &["move", "--dry-run"][..], &["move", "--yes"][..]] {
        let ended = clusterip(&plane, arguments).await;
        assert_eq!((ended.status, ended.stdout.as_str(), ended.stderr.as_str()), (2, "", unknown), "{arguments:?}");
    }
    let audit = clusterip(&plane, &["audit", "--settings", "server.yaml"]).await;
    assert_eq!((audit.status, audit.stderr.as_str()), (0, "settings: server.yaml\n"));

    let (mut server, namespace) = start_server(&plane, &["--move", "never"]).await;
    let (shop, empty) = (plane.namespace("shop").await, plane.namespace("empty").await);
    service(&plane, &shop, "172.21.0.70", "ClusterIP").await;
    let from = format!("settings: the pools of the cluster (server in namespace {namespace})\n");

    // With the pools of K2s, the Service would be in its pool.
    let shown = clusterip(&plane, &["move", "-n", &shop, "--dry-run", "-o", "json"]).await;
    assert_eq!((shown.status, shown.stderr.as_str()), (0, from.as_str()));
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(shown["summary"], json!({"toMove": 1, "stay": 0, "moved": 0, "failed": 0}), "{shown}");
    assert!(shown["services"][0]["to"][0].as_str().unwrap().starts_with("172.21.7."), "{shown}");
    let audit = clusterip(&plane, &["audit", "-o", "json"]).await;
    assert_eq!((audit.status, audit.stderr.as_str()), (0, from.as_str()));
    let audit: Value = serde_json::from_str(&audit.stdout).unwrap();
    assert_eq!(audit["pools"][0]["name"], "all");

    // The server uses its own settings, so a command with other settings moves nothing.
    let refused = clusterip(&plane, &["move", "-n", &shop, "--yes", "--settings", "other.yaml"]).await;
    assert_eq!(refused.status, 2, "{}", refused.stdout);
    let expected =
        format!("the server in namespace {namespace} uses the pools of the cluster, and would not use other.yaml");
    assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
    let shown = clusterip(&plane, &["move", "-n", &shop, "--dry-run", "--settings", "other.yaml"]).await;
    assert_eq!(shown.status, 0, "{}", shown.stderr);

    // Nothing is moved beside a server of another namespace.
    for settings in [&["--settings", "other.yaml"][..], &[] as &[&str]] {
        let arguments = [&["move", "-A", "--yes", "--server-namespace", empty.as_str()][..], settings].concat();
        let refused = clusterip(&plane, &arguments).await;
        assert_eq!((refused.status, refused.stdout.as_str()), (2, ""), "{settings:?}");
        let expected =
            format!("no server leads in namespace {empty}, but a server leads in another namespace: {namespace} (");
        assert!(refused.stderr.contains(&expected), "{settings:?}: {}", refused.stderr);
    }
    assert_eq!(address(&plane, &shop).await, "172.21.0.70");
    let audit = clusterip(&plane, &["audit", "--server-namespace", &empty]).await;
    let expected =
        format!("error: no server leads in namespace {empty}, so its settings are unknown: use --settings FILE\n");
    assert_eq!((audit.status, audit.stdout.as_str(), audit.stderr), (2, "", expected));

    let moved = clusterip(&plane, &["move", "-n", &shop, "--yes", "-o", "json"]).await;
    assert_eq!(moved.status, 0, "{}", moved.stderr);
    let moved: Value = serde_json::from_str(&moved.stdout).unwrap();
    assert_eq!(moved["services"][0]["outcome"], "moved", "{moved}");
    assert!(address(&plane, &shop).await.starts_with("172.21.7."));
    server.logged("leading: misplaced Services are reported, and moved only by `clusterip move`").await;
    let log = server.log();
    assert!(!log.iter().any(|line| line.contains("misplaced Services are moved")), "{log:#?}");
    assert_eq!(server.terminate().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_trial_leaves_nothing_behind_and_an_old_event_is_no_reason() {
    let plane = LentControlPlane::get().await;
    let trial = plane.namespace("trial").await;
    let builder = ServerBuilder::new(&plane).args(&["--namespace", &trial]).settings(OTHER);
    let mut server = builder.registered().start().await;
    let client = plane.client();
    let objects = [
        format!("/apis/coordination.k8s.io/v1/namespaces/{trial}/leases/clusterip-leader"),
        format!("/api/v1/namespaces/{trial}/secrets/clusterip-authority"),
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/clusterip-policy".to_owned(),
    ];
    let revisions = format!("/apis/apps/v1/namespaces/{trial}/controllerrevisions");
    let revisions = format!("{revisions}?labelSelector=clusterip-policy/move=server");
    let stored =
        async || send(&client, Method::GET, &revisions, None).await.unwrap()["items"].as_array().unwrap().len();
    for object in &objects {
        eventually(object, async || send(&client, Method::GET, object, None).await).await;
    }
    eventually("the stored settings", async || (stored().await > 0).then_some(())).await;
    assert_eq!(server.terminate().await, 0);
    for object in &objects {
        assert_eq!(send(&client, Method::GET, object, None).await, None, "{object}");
    }
    assert_eq!(stored().await, 0);

    // An earlier version left its Lease behind.
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "clusterip-leader", "namespace": trial},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
    });
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{trial}/leases");
    send(&client, Method::POST, &leases, Some(&lease)).await.unwrap();
    let (mut server, namespace) = start_server(&plane, &[]).await;
    for arguments in [&["audit"][..], &["move", "--yes"][..]] {
        let ended = clusterip(&plane, arguments).await;
        let from = format!("settings: the pools of the cluster (server in namespace {namespace})\n");
        assert_eq!((ended.status, ended.stderr), (0, from), "{arguments:?}");
    }

    // The reason of a failed move is of this move.
    let shop = plane.namespace("shop").await;
    service(&plane, &shop, "172.21.0.70", "LoadBalancer").await;
    server.logged("reason=\"load_balancer\"").await;
    // The clock of the server that wrote this Event was ahead.
    let old = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "web.old", "namespace": shop},
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": shop, "name": "web"},
        "reportingController": "clusterip", "reportingInstance": "clusterip", "action": "Move", "type": "Warning",
        "reason": "AddressMisplaced", "note": "the reason of an earlier move", "eventTime": "2099-01-01T00:00:00.000000Z",
    });
    let events = format!("/apis/events.k8s.io/v1/namespaces/{shop}/events");
    send(&client, Method::POST, &events, Some(&old)).await.unwrap();
    let failed = clusterip(&plane, &["move", "-n", &shop, "--load-balancers", "--yes"]).await;
    assert_eq!(failed.status, 1, "{}", failed.stderr);
    let expected = "it stays: type LoadBalancer: a cloud provider might remove its load balancer";
    let line = failed.stderr.lines().find(|line| line.starts_with("error: ")).unwrap();
    assert!(line.ends_with(expected), "{line}");
    assert_eq!(server.terminate().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_needs_permissions_to_read_only_in_all_namespaces() {
    let plane = LentControlPlane::get().await;
    let namespace = plane.namespace("reader").await;
    let reader = plane.service_account(&namespace, "reader").await;
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]);
    plane.grant(&reader, None, rules).await;
    service(&plane, &namespace, "172.21.0.70", "ClusterIP").await;
    let kubeconfig = plane.kubeconfig_of(&namespace, "reader").await;
    let ended = eventually("the permissions of the role", async || {
        let arguments = ["move", "-n", &namespace, "--dry-run", "--settings", "server.yaml"];
        let ended = run(&kubeconfig, &arguments).await;
        (ended.status == 0).then_some(ended)
    })
    .await;
    assert_eq!((ended.status, ended.stderr.as_str()), (0, "settings: server.yaml\n"));
    assert!(ended.stdout.ends_with("\n1 to move, 0 stay\n"), "{}", ended.stdout);
    let refused = run(&kubeconfig, &["move", "-n", &namespace, "--yes", "--settings", "server.yaml"]).await;
    assert_eq!(refused.status, 2);
    assert!(refused.stderr.contains("lacks permissions; these rules grant what is missing:"), "{}", refused.stderr);

    user_of_one_namespace_is_told_what_is_missing(&plane).await;
}

async fn user_of_one_namespace_is_told_what_is_missing(plane: &ControlPlane) {
    let namespace = plane.namespace("limited").await;
    let user = plane.service_account(&namespace, "limited").await;
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch", "update"]}]);
    plane.grant(&user, Some(&namespace), rules).await;
    let revisions = format!("/apis/apps/v1/namespaces/{namespace}/controllerrevisions");
    let limited = plane.client_as(&user);
    eventually("the permissions of the role", async || {
        limited.request::<Value>(move_helpers::request(Method::GET, &revisions, &Value::Null)).await.ok()
    })
    .await;
    let kubeconfig = plane.kubeconfig_of(&namespace, "limited").await;
    let arguments = ["move", "--yes", "--settings", "server.yaml", "-n", &namespace, "--server-namespace", &namespace];
    let ended = run(&kubeconfig, &arguments).await;
    let expected = format!(
        "error: no server leads in namespace {namespace}, and without the permission to read ControllerRevisions it is \
         unknown whether one leads in another namespace"
    );
    assert_eq!((ended.status, ended.stdout.as_str()), (2, ""), "{}", ended.stderr);
    assert!(ended.stderr.starts_with(&expected), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_are_selected_as_with_kubectl() {
    let plane = LentControlPlane::get().await;
    let (shop, bank) = (plane.namespace("shop").await, plane.namespace("bank").await);
    service(&plane, &shop, "172.21.0.70", "ClusterIP").await;
    service(&plane, &bank, "172.21.0.71", "ClusterIP").await;
    for command in [&["move", "--dry-run"][..], &["audit"][..]] {
        let arguments = [command, &["--settings", "server.yaml", "-n", "nope"][..]].concat();
        let ended = clusterip(&plane, &arguments).await;
        assert_eq!((ended.status, ended.stdout.as_str()), (2, ""), "{command:?}");
        let expected = "settings: server.yaml\nerror: there is no namespace nope: check --namespace\n";
        assert_eq!(ended.stderr, expected, "{command:?}");
    }
    let (of_server, of_agents) = ("--server-namespace", "--agents-namespace");
    let rows: [(&[&str], &str); 4] = [
        (&["move", "--dry-run", of_server, "nope"], of_server),
        (&["audit", of_server, "nope"], of_server),
        (&["audit", of_agents, "nope"], of_agents),
        (&["move", "--dry-run", "--service", "nope/web"], "--service"),
    ];
    for (arguments, option) in rows {
        let ended = clusterip(&plane, &[arguments, &["--settings", "server.yaml"]].concat()).await;
        assert_eq!((ended.status, ended.stdout.as_str()), (2, ""), "{arguments:?}");
        let expected = format!("error: there is no namespace nope: check {option}\n");
        assert!(ended.stderr.ends_with(&expected), "{arguments:?}: {}", ended.stderr);
    }

    // The current context names a namespace.
    let text = std::fs::read_to_string(plane.kubeconfig()).unwrap();
    let mut kubeconfig: Value = clusterip_cluster::yaml::single(&text).unwrap();
    kubeconfig["contexts"][0]["context"]["namespace"] = shop.as_str().into();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    for (command, list) in [(&["move", "--dry-run"][..], "services"), (&["audit"][..], "findings")] {
        for (more, expected) in [(&[][..], vec![&shop]), (&["-n", &bank], vec![&bank]), (&["-A"], vec![&bank, &shop])] {
            let arguments = [command, &["-o", "json", "--settings", "server.yaml"], more].concat();
            let document: Value = serde_json::from_str(&run(&file, &arguments).await.ok()).unwrap();
            let found = document[list].as_array().unwrap().iter().filter(|found| found["name"] == "web");
            let found: Vec<&str> = found.map(|found| found["namespace"].as_str().unwrap()).collect();
            assert_eq!(found, expected, "{arguments:?}");
        }
    }
    let unknown = clusterip(&plane, &["audit", "--settings", "server.yaml", "--context", "nope"]).await;
    assert_eq!(unknown.status, 2);
    assert!(unknown.stderr.starts_with("error: there is no context nope\n"), "{}", unknown.stderr);
}
