//! The message about missing permissions, of servers at the start and of commands.

use clusterip_cluster::permissions::{self, Duties, Missing, Registration};
use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use kube::Client;
use serde_json::json;

use crate::support::command::clusterip;
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::serve_process::ServerBuilder;

/// A client of a new service account without any permissions.
async fn without_permissions(plane: &ControlPlane, namespace: &str) -> Client {
    plane.service_account(namespace, "clusterip").await;
    plane.client_with(&plane.token(namespace, "clusterip").await)
}

/// Grants the account in a namespace what a message proposes.
async fn grant(plane: &ControlPlane, namespace: &str, message: &str) {
    let user = format!("system:serviceaccount:{namespace}:clusterip");
    let mut lines = message.lines().skip(1).peekable();
    while let Some(heading) = lines.next() {
        let mut rules = Vec::new();
        while let Some(rule) = lines.next_if(|line| line.starts_with("- ")) {
            rules.extend(clusterip_cluster::yaml::single(rule).unwrap().as_array().unwrap().clone());
        }
        let role = heading.strip_prefix("in a Role of namespace ").map(|rest| rest.trim_end_matches(':'));
        assert!(role == Some(namespace) || heading == "in a ClusterRole:", "{heading}");
        plane.grant(&user, role, rules.into()).await;
    }
}

fn everything(namespace: &str) -> Duties {
    Duties {
        namespace: namespace.to_owned(),
        moves: true,
        load_balancers: true,
        authority: Some("clusterip-authority".to_owned()),
        registration: Some(Registration { name: format!("{namespace}-webhook"), own: true }),
        pools: true,
        ..Duties::default()
    }
}

async fn missing(client: &Client, duties: &Duties) -> Option<Missing> {
    match permissions::check(client, &Settings::default(), duties).await {
        Ok(_) => None,
        Err(error) => Some(error.downcast().unwrap()),
    }
}

#[tokio::test]
async fn message_lists_missing_permissions_and_its_rules_grant_them() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("permissions-none").await;
    let (client, duties) = (without_permissions(&plane, &namespace).await, everything(&namespace));
    assert_eq!(missing(&plane.client(), &duties).await, None, "an administrator lacks none");

    let mut found = missing(&client, &duties).await.unwrap();
    let all = found.to_string();
    let served = permissions::workloads(&client, &WorkloadKind::known()).await.unwrap();
    let user = Some(format!("system:serviceaccount:{namespace}:clusterip"));
    assert_eq!(found, Missing { user, needs: permissions::needs(&served, &duties) });

    // All permissions but three different ones: a verb, a sub-resource, and a name in a namespace.
    let left_out = |need: &permissions::Need| {
        (need.resource == "pods" && need.verb == "watch")
            || need.resource == "services/status"
            || (need.resource == "leases" && need.verb == "update")
    };
    found.needs.retain(|need| !left_out(need));
    grant(&plane, &namespace, &found.to_string()).await;
    let expected = format!(
        "system:serviceaccount:{namespace}:clusterip lacks permissions; these rules grant what is missing:\n\
         in a ClusterRole:\n\
         - {{apiGroups: [\"\"], resources: [\"pods\"], verbs: [\"watch\"]}}\n\
         - {{apiGroups: [\"\"], resources: [\"services/status\"], verbs: [\"update\"]}}\n\
         in a Role of namespace {namespace}:\n\
         - {{apiGroups: [\"coordination.k8s.io\"], resources: [\"leases\"], resourceNames: [\"clusterip-leader\"], \
         verbs: [\"update\"]}}"
    );
    eventually(&expected, async || (missing(&client, &duties).await.unwrap().to_string() == expected).then_some(()))
        .await;

    grant(&plane, &namespace, &all).await;
    eventually("all permissions", async || missing(&client, &duties).await.is_none().then_some(())).await;
}

#[tokio::test]
async fn commands_list_all_permissions_that_they_lack() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("permissions-commands").await;
    without_permissions(&plane, &namespace).await;
    let kubeconfig = plane.kubeconfig_of(&namespace, "clusterip").await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("settings.yaml"), "{}").unwrap();
    let service = "{apiVersion: v1, kind: Service, metadata: {name: web}}";
    std::fs::write(folder.path().join("web.yaml"), service).unwrap();
    struct Case {
        args: &'static [&'static str],
        refused: &'static str,
        /// Some of the lines with rules.
        rules: &'static [&'static str],
    }
    const UNKNOWN_SERVER: &str = "ControllerRevisions can't be listed in all namespaces, so it is unknown where a server \
                                  leads (--server-namespace names its namespace): ";
    const PODS: &str = r#"- {apiGroups: [""], resources: ["pods"], verbs: ["list"]}"#;
    const NODES: &str = r#"- {apiGroups: [""], resources: ["nodes"], verbs: ["list"]}"#;
    const SERVICE_CIDRS: &str = r#"- {apiGroups: ["networking.k8s.io"], resources: ["servicecidrs"], verbs: ["list"]}"#;
    const LEASES: &str = r#"- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["list"]}"#;
    let cases = [
        Case {
            args: &["audit"],
            refused: UNKNOWN_SERVER,
            rules: &[
                PODS,
                r#"- {apiGroups: ["apps"], resources: ["controllerrevisions"], verbs: ["list", "get"]}"#,
                "in a Role of namespace default:",
                LEASES,
            ],
        },
        Case {
            args: &["audit", "--settings", "settings.yaml", "-q"],
            refused: "listing v1/Service failed: services is forbidden: ",
            rules: &[PODS, NODES, SERVICE_CIDRS, "in a Role of namespace default:", LEASES],
        },
        Case {
            args: &["move", "--yes"],
            refused: UNKNOWN_SERVER,
            rules: &[
                r#"- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch", "get", "update"]}"#,
                r#"- {apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]}"#,
                r#"- {apiGroups: ["apps"], resources: ["controllerrevisions"], verbs: ["list", "get"]}"#,
                "in a Role of namespace default:",
                r#"- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create"]}"#,
            ],
        },
        Case {
            args: &["move", "--yes", "--seamless"],
            refused: "ControllerRevisions can't be listed in all namespaces, so it is unknown where a server leads",
            rules: &[
                r#"- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch", "get", "update", "create", "delete"]}"#,
                r#"- {apiGroups: [""], resources: ["resourcequotas"], verbs: ["list"]}"#,
            ],
        },
        Case {
            args: &["plan", "web.yaml", "--cluster", "--settings", "settings.yaml"],
            refused: "listing v1/Service failed: services is forbidden: ",
            rules: &[PODS, NODES, SERVICE_CIDRS],
        },
        Case {
            args: &["snapshot"],
            refused: "listing v1/Service failed: services is forbidden: ",
            rules: &[PODS, NODES, SERVICE_CIDRS, "in a Role of namespace default:", LEASES],
        },
        Case {
            args: &["init"],
            refused: "listing networking.k8s.io/v1/ServiceCIDR failed: ",
            rules: &[SERVICE_CIDRS, NODES],
        },
        Case {
            args: &["validate", "--cluster", "settings.yaml"],
            refused: "listing networking.k8s.io/v1/ServiceCIDR failed: ",
            rules: &[
                SERVICE_CIDRS,
                r#"- {apiGroups: ["networking.k8s.io"], resources: ["ipaddresses"], verbs: ["get"]}"#,
            ],
        },
    ];
    for Case { args, refused, rules } in cases {
        let stderr = eventually("an answer of the API server", async || {
            let ended = clusterip(folder.path(), &kubeconfig, args).await;
            assert_eq!((ended.status, ended.stdout.as_str()), (2, ""), "{args:?}");
            // Tokens of new accounts may not be known at once.
            (!ended.stderr.contains("Unauthorized")).then_some(ended.stderr)
        })
        .await;
        assert!(stderr.starts_with(&format!("error: {refused}")), "{args:?}: {stderr}");
        let heading = format!(
            "system:serviceaccount:{namespace}:clusterip lacks permissions; these rules grant what is missing:"
        );
        for expected in [heading.as_str(), "in a ClusterRole:"].iter().chain(rules) {
            assert!(stderr.lines().any(|line| line == *expected), "{args:?}: no {expected}: {stderr}");
        }
    }
}

#[tokio::test]
async fn changed_settings_check_permissions_again() {
    let plane = LentControlPlane::get().await;
    let namespace = plane.namespace("permissions-later").await;
    let (client, plain) = (without_permissions(&plane, &namespace).await, everything(&namespace));
    let duties = Duties { nodes: true, external: true, registration: None, pools: false, ..plain };
    grant(&plane, &namespace, &missing(&client, &duties).await.unwrap().to_string()).await;
    eventually("all permissions", async || missing(&client, &duties).await.is_none().then_some(())).await;

    let kubeconfig = plane.kubeconfig_of(&namespace, "clusterip").await;
    let server = ServerBuilder::as_user(&kubeconfig).args(&["--namespace", &namespace, "--no-webhook"]).settings("{}");
    let server = server.start().await;
    let settings = json!({
        "nodes": {"pools": [{"name": "all", "cidrs": ["10.64.0.0/16"]}]},
        "external": {"pools": [{"name": "edge", "cidrs": ["10.0.9.0/24"]}]},
    });
    std::fs::write(server.folder().join("settings.yaml"), settings.to_string()).unwrap();
    server.logged("lacks permissions; these rules grant what is missing:").await;
    server.logged(r#"- {apiGroups: [""], resources: ["nodes"], verbs: ["get", "patch"]}"#).await;
    server.logged(r#"- {apiGroups: [""], resources: ["services/status"], verbs: ["patch"]}"#).await;
}
