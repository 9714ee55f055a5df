//! `clusterip init` and `clusterip validate` on clusters, and the warning of a server about a pool that may hand out
//! the usual address of DNS.

use std::path::Path;

use serde_json::json;

use crate::support::command::{self, Ended};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::webhook_cluster::{WebhookCluster, address, annotated, service, within};

/// Runs `clusterip` as the administrator.
async fn clusterip(plane: &ControlPlane, args: &[&str]) -> Ended {
    command::clusterip(plane.folder(), plane.kubeconfig(), args).await
}

/// The output of `clusterip init`, which must succeed.
async fn init(plane: &ControlPlane, args: &[&str]) -> String {
    let ended = clusterip(plane, &[&["init"], args].concat()).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{}", ended.stdout);
    ended.stdout
}

/// Checks settings against the cluster: the exit status and the output.
async fn validate(plane: &ControlPlane, folder: &Path, settings: &str) -> (i32, String) {
    let file = folder.join("settings.yaml");
    std::fs::write(&file, settings).unwrap();
    let ended = clusterip(plane, &["validate", "--cluster", file.to_str().unwrap()]).await;
    let warned = ended.stderr.starts_with("warning: the cluster does not show its Service ranges");
    assert_eq!(!ended.stderr.is_empty(), !plane.tells_addresses(), "{}", ended.stderr);
    assert_eq!(warned, !plane.tells_addresses(), "{}", ended.stderr);
    (ended.status, ended.stdout.replace(&format!("{}: ", file.display()), ""))
}

async fn create_nodes(plane: &ControlPlane, systems: &[&str]) {
    for os in systems {
        let labels = json!({"kubernetes.io/os": os});
        let node =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{os}"), "labels": labels}});
        plane.apply(&node.to_string()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn starter_settings_of_a_kubeadm_cluster_with_windows_nodes_are_used_by_a_server() {
    let options = Options { service_ranges: vec!["10.96.0.0/12".to_owned()], ..Options::default() };
    let own = "\nservices:\n  pools:\n  - {name: rest, cidrs: [10.97.0.0/16]}\n";
    let cluster = WebhookCluster::start(options, own).await;
    let plane = &cluster.plane;
    create_nodes(plane, &["linux", "windows"]).await;
    if !plane.tells_addresses() {
        // Before Kubernetes 1.33, the ranges are known from kubeadm, or from the user.
        let unknown = clusterip(plane, &["init"]).await;
        assert_eq!((unknown.status, unknown.stdout.as_str()), (2, ""));
        assert!(unknown.stderr.contains("use --service-cidr"), "{}", unknown.stderr);
        assert!(unknown.stderr.contains("10.96.0.1; the default of kubeadm is 10.96.0.0/12"), "{}", unknown.stderr);
        let given = init(plane, &["--service-cidr", "10.96.0.0/12"]).await;
        assert!(given.contains("\n  serviceCIDRs: [10.96.0.0/12]\n"), "{given}");
        let configuration = "networking:\n  serviceSubnet: 10.96.0.0/12\n";
        let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubeadm-config",
            "namespace": "kube-system"}, "data": {"ClusterConfiguration": configuration}});
        plane.apply(&config_map.to_string()).await;
    }
    let settings = init(plane, &[]).await;
    for line in ["    cidrs: [10.96.0.0/13]", "    cidrs: [10.104.0.0/13]", "    match: {os: windows}"] {
        assert!(settings.lines().any(|printed| printed == line), "no {line:?} in\n{settings}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(validate(plane, folder.path(), &settings).await, (0, "valid\n".to_owned()));

    cluster.use_settings(&settings).await;
    let windows = annotated("windows", json!({"clusterip-policy/os": "windows"}), json!({}));
    let windows = cluster.create("default", &windows).await.unwrap();
    assert!(within(address(&windows), "10.104.0.0/13"), "{windows}");
    for number in 0..5 {
        let created = cluster.create("default", &service(&format!("linux-{number}"), json!({}))).await.unwrap();
        assert!(within(address(&created), "10.96.0.0/13"), "{created}");
        // The static band ends at 10.96.1.0.
        assert!(!within(address(&created), "10.96.0.0/24"), "{created}");
    }

    if plane.tells_addresses() {
        let (status, printed) = validate(plane, folder.path(), "{}").await;
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!((status, lines.len()), (1, 3), "{printed}");
        assert!(lines[2].ends_with("`clusterip init` prints settings that do"), "{printed}");
        let over_dns = "services: {pools: [{name: all, cidrs: [10.96.0.0/24]}]}";
        let (status, printed) = validate(plane, folder.path(), over_dns).await;
        assert_eq!(status, 0, "{printed}");
        assert!(printed.contains("warning: services.pools[0]: pool \"all\" may hand out 10.96.0.10"), "{printed}");

        // The server says so once, and not about an address that is in use.
        let over_dns = "\nservices:\n  pools:\n  - {name: all, cidrs: [10.96.0.0/24]";
        let logged = || cluster.server.log().iter().filter(|line| line.contains("may hand out 10.96.0.10")).count();
        cluster.use_settings(&format!("{over_dns}}}\n")).await;
        eventually("a warning in the log", async || (logged() == 1).then_some(())).await;
        cluster.create("default", &service("dns", json!({"clusterIP": "10.96.0.10"}))).await.unwrap();
        cluster.use_settings(&format!("{over_dns}, reserved: 20}}\n")).await;
        cluster.use_settings(&format!("{over_dns}, reserved: 1}}\n")).await;
        assert_eq!(logged(), 1, "{:#?}", cluster.server.log());
    }
}
