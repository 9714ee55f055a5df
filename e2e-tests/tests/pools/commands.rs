//! Commands on a cluster with pool objects and without a server.

use serde_json::{Value, json};

use super::support::{apply, policy};
use crate::support::command::clusterip;
use crate::support::control_plane::ControlPlane;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::pools::pool;
use crate::support::serve_process::ServerBuilder;
use crate::support::webhook_cluster::service;

/// A request to create the Service `web`.
fn request() -> String {
    let mut object = service("web", json!({}));
    object["metadata"]["namespace"] = json!("default");
    let request = json!({
        "uid": "1", "operation": "CREATE", "namespace": "default", "name": "web", "object": object, "dryRun": true,
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"}, "userInfo": {"username": "alice"},
    });
    request.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_use_the_pools_of_a_cluster_without_a_server_and_a_server_with_a_file_names_them() {
    let plane = LentControlPlane::get().await;
    plane.install_pools().await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("web.yaml", &service("web", json!({})).to_string());
    write("request.json", &request());
    let run = async |arguments: &[&str]| clusterip(folder.path(), plane.kubeconfig(), arguments).await;

    // The cluster has no pools yet.
    let printed = run(&["plan", "web.yaml", "--cluster"]).await.ok();
    assert!(printed.starts_with("settings: the pools of K2s (no --settings): "), "{printed}");
    let unknown = "error: no server leads in this cluster, so its settings are unknown: use --settings FILE\n";
    assert_eq!(run(&["audit"]).await.refused(), unknown);

    apply(&plane, &pool("ServicePool", "all", json!({"cidrs": ["172.21.7.0/24"]}))).await;
    let mut server = ServerBuilder::new(&plane).args(&["--no-webhook", "--move", "never"]).start().await;
    server
        .logged("the cluster has 1 pool object, which this server does not follow: omit --settings to use them")
        .await;
    assert_eq!(server.terminate().await, 0);
    apply(&plane, &policy(&plane, json!({}))).await;
    struct Case {
        arguments: &'static [&'static str],
        stdout: &'static str,
        notice: &'static str,
    }
    const READ: &str = "settings: the pools of the cluster\n";
    const WITHOUT_SERVER: &str = "settings: the pools of the cluster (no server leads)\n";
    let cases = [
        Case { arguments: &["plan", "web.yaml", "--cluster"], stdout: "172.21.7.", notice: READ },
        Case {
            arguments: &["evaluate", "--request", "request.json", "-o", "decoded"],
            stdout: "172.21.7.",
            notice: READ,
        },
        Case { arguments: &["audit"], stdout: "172.21.7.0/24", notice: WITHOUT_SERVER },
        Case { arguments: &["move", "--dry-run"], stdout: "", notice: WITHOUT_SERVER },
        Case { arguments: &["move", "--yes"], stdout: "", notice: WITHOUT_SERVER },
    ];
    for Case { arguments, stdout, notice } in cases {
        let ended = run(arguments).await;
        // `move` can fail to move the Services of the control plane.
        assert!(matches!(ended.status, 0 | 1), "{arguments:?}: {ended:?}");
        assert!(ended.stdout.contains(stdout) && ended.stderr.contains(notice), "{arguments:?}: {ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_with_a_file_use_the_service_cidrs_of_the_cluster() {
    let plane = LentControlPlane::get().await;
    if !plane.tells_addresses() {
        return plane.does_not_apply("pools that select ServiceCIDRs");
    }
    let labelled = ["label", "servicecidr", "kubernetes", "team=a"];
    plane.kubectl(&labelled).await.ok();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let selecting = |team: &str| {
        pool("ServicePool", "team", json!({"serviceCIDRSelector": {"matchLabels": {"team": team}}})).to_string()
    };
    write("pools.yaml", &selecting("a"));
    write("none.yaml", &selecting("nobody"));
    write("web.yaml", &service("web", json!({})).to_string());
    write("request.json", &request());
    let commands: [&[&str]; 5] = [
        &["validate", "--cluster"],
        &["move", "--dry-run", "--settings"],
        &["audit", "--settings"],
        &["evaluate", "--request", "request.json", "--cluster", "--settings"],
        &["plan", "web.yaml", "--cluster", "--settings"],
    ];
    for command in commands {
        let run =
            async |file: &'static str| clusterip(folder.path(), plane.kubeconfig(), &[command, &[file]].concat()).await;
        let ended = run("pools.yaml").await;
        assert!(ended.status == 0 && !ended.stderr.contains("Kubewarden"), "{command:?}: {ended:?}");
        let ended = run("none.yaml").await;
        assert!(matches!(ended.status, 1 | 2), "{command:?}: {ended:?}");
        let said = ended.stdout + &ended.stderr;
        assert!(
            said.contains("ServicePool team: NoRanges: ") && !said.contains("in files, add"),
            "{command:?}: {said}"
        );
    }
}

/// `plane` has the definitions of pools, no fence, and no webhook.
pub async fn commands_say_which_fences_nothing_enforces(plane: &ControlPlane) {
    let folder = tempfile::tempdir().unwrap();
    let fenced = |kind, name, cidr: &str, fence| {
        pool(kind, name, json!({"cidrs": [cidr], "fence": fence, "match": {"namespaces": [name]}}))
    };
    let pools = json!({"apiVersion": "v1", "kind": "List", "items": [
        fenced("ServicePool", "a", "172.21.7.0/24", "Deny"), fenced("ServicePool", "b", "172.21.8.0/24", "Deny"),
        fenced("ServicePool", "c", "172.21.9.0/24", "Allow"), fenced("ExternalPool", "edge", "10.0.9.0/24", "Warn"),
    ]});
    std::fs::write(folder.path().join("pools.yaml"), pools.to_string()).unwrap();
    plane.apply(&pools.to_string()).await;
    let run = async |arguments: &[&str]| clusterip(folder.path(), plane.kubeconfig(), arguments).await.ok();
    let of = |pools, binding| {
        format!(
            "nothing enforces spec.fence of {pools}: the cluster has no ValidatingAdmissionPolicyBinding \
             {binding}.clusterip-policy.io; apply deploy/fence, or run helm upgrade if the chart is installed"
        )
    };
    let service = of("ServicePool a, ServicePool b", "service-fence");
    let external = of("ExternalPool edge", "external-fence-warning");
    let notes = async || {
        let audit: Value = serde_json::from_str(&run(&["audit", "-o", "json"]).await).unwrap();
        let notes = audit["notes"].as_array().unwrap().clone();
        notes.into_iter().filter(|note| note.as_str().unwrap().contains("fence")).collect::<Vec<_>>()
    };
    assert_eq!(notes().await, [service.as_str(), &external]);
    let validated = run(&["validate", "--cluster", "pools.yaml"]).await;
    assert!(validated.contains(&format!("warning: {service}\n")), "{validated}");
    let fence = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/fence");
    plane.kubectl(&["apply", "-k", fence]).await.ok();
    assert!(notes().await.is_empty());
    let validated = run(&["validate", "--cluster", "pools.yaml"]).await;
    assert!(!validated.contains("fence"), "{validated}");
}
