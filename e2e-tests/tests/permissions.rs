//! The message about missing permissions, of servers at the start and of commands.

use std::process::{Command, Stdio};

use clusterip_cluster::permissions::{self, Duties, Missing, Registration};
use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use kube::Client;
use kube::api::{ApiResource, GroupVersionKind};
use serde_json::json;

use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::program;
use crate::support::serve_process::ServerBuilder;

/// A client of a new service account without any permissions.
async fn without_permissions(plane: &ControlPlane, namespace: &str) -> Client {
    plane.kubectl(&["create", "serviceaccount", "clusterip", "--namespace", namespace]).await.ok();
    plane.client_with(&plane.token(namespace, "clusterip").await)
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

/// Creates the roles that a message proposes.
async fn grant(plane: &ControlPlane, namespace: &str, message: &str) {
    let mut objects = Vec::new();
    let mut lines = message.lines().skip(1).peekable();
    while let Some(heading) = lines.next() {
        let mut rules = Vec::new();
        while let Some(rule) = lines.next_if(|line| line.starts_with("- ")) {
            let rule = clusterip_cluster::yaml::single(rule).unwrap();
            rules.extend(rule.as_array().unwrap().clone());
        }
        let role = if heading == "in a ClusterRole:" { "ClusterRole" } else { "Role" };
        assert!(role == "ClusterRole" || heading == format!("in a Role of namespace {namespace}:"), "{heading}");
        let metadata = json!({ "name": namespace, "namespace": namespace });
        let api_version = "rbac.authorization.k8s.io/v1";
        objects.push(json!({ "apiVersion": api_version, "kind": role, "metadata": metadata, "rules": rules }));
        objects.push(json!({
            "apiVersion": api_version,
            "kind": format!("{role}Binding"),
            "metadata": metadata,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": namespace },
            "subjects": [{ "kind": "ServiceAccount", "name": "clusterip", "namespace": namespace }],
        }));
    }
    plane.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string()).await;
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
    let mut last = String::new();
    for _ in 0..500 {
        last = missing(&client, &duties).await.unwrap().to_string();
        if last == expected {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(last, expected);

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
    const PODS: &str = r#"- {apiGroups: [""], resources: ["pods"], verbs: ["list"]}"#;
    const NODES: &str = r#"- {apiGroups: [""], resources: ["nodes"], verbs: ["list"]}"#;
    const SERVICE_CIDRS: &str = r#"- {apiGroups: ["networking.k8s.io"], resources: ["servicecidrs"], verbs: ["list"]}"#;
    const LEASES: &str = r#"- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["list"]}"#;
    let cases = [
        Case {
            args: &["audit"],
            refused: "ControllerRevisions can't be listed in all namespaces, so it is unknown where a server leads",
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
            refused: "ControllerRevisions can't be listed in all namespaces, so it is unknown where a server leads",
            rules: &[
                r#"- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch", "get", "update"]}"#,
                r#"- {apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]}"#,
                r#"- {apiGroups: ["apps"], resources: ["controllerrevisions"], verbs: ["list", "get"]}"#,
                "in a Role of namespace default:",
                r#"- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create"]}"#,
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
            let mut command = Command::new(program());
            command.args(args).current_dir(folder.path()).env("KUBECONFIG", &kubeconfig).stdin(Stdio::null());
            let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
            assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{args:?}");
            let stderr = String::from_utf8(output.stderr).unwrap();
            // Tokens of new accounts may not be known at once.
            (!stderr.contains("Unauthorized")).then_some(stderr)
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
async fn rules_in_the_message_are_enough_for_agents() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("permissions-agent").await;
    let client = without_permissions(&plane, &namespace).await;
    let duties = Duties { namespace: namespace.clone(), agent: true, pools: true, ..Duties::default() };
    let found = missing(&client, &duties).await.unwrap();
    let expected = format!(
        "system:serviceaccount:{namespace}:clusterip lacks permissions; these rules grant what is missing:\n\
         in a ClusterRole:\n\
         - {{apiGroups: [\"\"], resources: [\"services\"], verbs: [\"list\", \"watch\"]}}\n\
         - {{apiGroups: [\"\"], resources: [\"namespaces\"], verbs: [\"list\", \"watch\"]}}\n\
         - {{apiGroups: [\"\"], resources: [\"nodes\"], verbs: [\"list\", \"watch\"]}}\n\
         - {{apiGroups: [\"networking.k8s.io\"], resources: [\"servicecidrs\"], verbs: [\"list\", \"watch\"]}}\n\
         - {{apiGroups: [\"clusterip-policy.io\"], resources: [\"servicepools\"], verbs: [\"list\", \"watch\"]}}\n\
         - {{apiGroups: [\"clusterip-policy.io\"], resources: [\"externalpools\"], verbs: [\"list\", \"watch\"]}}\n\
         - {{apiGroups: [\"clusterip-policy.io\"], resources: [\"nodeblockpools\"], verbs: [\"list\", \"watch\"]}}\n\
         - {{apiGroups: [\"clusterip-policy.io\"], resources: [\"clusterippolicies\"], \
         verbs: [\"list\", \"watch\"]}}\n\
         in a Role of namespace {namespace}:\n\
         - {{apiGroups: [\"coordination.k8s.io\"], resources: [\"leases\"], \
         verbs: [\"get\", \"list\", \"watch\", \"create\", \"update\", \"delete\"]}}"
    );
    assert_eq!(found.to_string(), expected);
    grant(&plane, &namespace, &found.to_string()).await;
    eventually("all permissions", async || missing(&client, &duties).await.is_none().then_some(())).await;
}

#[tokio::test]
async fn permissions_for_external_addresses_are_checked_if_there_are_pools() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("permissions-external").await;
    let (client, plain) = (without_permissions(&plane, &namespace).await, everything(&namespace));
    let before = missing(&client, &plain).await.unwrap();
    let duties = Duties { external: true, ..plain };
    assert_eq!(missing(&client, &duties).await.unwrap(), before, "there is no pool");

    let pools = json!({"external": {"pools": [{"name": "edge", "cidrs": ["10.0.9.0/24"]}]}});
    let settings = Settings::from_value(&pools).unwrap();
    let lacks = async || match permissions::check(&client, &settings, &duties).await {
        Ok(_) => vec![],
        Err(error) => error.downcast::<Missing>().unwrap().needs,
    };
    grant(&plane, &namespace, &before.to_string()).await;
    #[derive(PartialEq)]
    struct Need<'a> {
        group: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        verb: &'a str,
    }
    let more = [
        Need { group: "", resource: "services", namespace: None, verb: "patch" },
        Need { group: "", resource: "services/status", namespace: None, verb: "patch" },
        Need { group: "coordination.k8s.io", resource: "leases", namespace: Some(namespace.as_str()), verb: "list" },
        Need { group: "coordination.k8s.io", resource: "leases", namespace: Some(namespace.as_str()), verb: "watch" },
    ];
    eventually("exactly these missing permissions", async || {
        let lacks = lacks().await;
        let lacks: Vec<_> = lacks
            .iter()
            .map(|need| Need {
                group: need.group.as_str(),
                resource: need.resource.as_str(),
                namespace: need.namespace.as_deref(),
                verb: need.verb,
            })
            .collect();
        (lacks.as_slice() == more.as_slice()).then_some(())
    })
    .await;
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
    let settings = json!({"nodes": {"pools": [{"name": "all", "cidrs": ["10.64.0.0/16"]}]}});
    std::fs::write(server.folder().join("settings.yaml"), settings.to_string()).unwrap();
    server.logged("lacks permissions; these rules grant what is missing:").await;
    server.logged(r#"- {apiGroups: [""], resources: ["nodes"], verbs: ["get", "patch"]}"#).await;
}

#[tokio::test]
async fn permissions_for_custom_kinds_use_their_plural() {
    let plane = ControlPlane::shared().await;
    plane
        .apply(
            r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: herd.farms.example.org}
spec:
  group: farms.example.org
  scope: Namespaced
  names: {kind: Sheep, plural: herd}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
",
        )
        .await;
    let kinds = ["farms.example.org/v1/Sheep", "farms.example.org/v1/Goat", "nowhere.example.org/v1/Goat", "CronJob"];
    let kinds = kinds.map(|kind| WorkloadKind::parse(kind).unwrap());
    let resource = |group: &str, version: &str, kind: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    };
    let expected =
        [resource("farms.example.org", "v1", "Sheep", "herd"), resource("batch", "v1", "CronJob", "cronjobs")];
    let client = plane.client();
    let found = eventually("the kind to be served", async || {
        let found = permissions::workloads(&client, &kinds).await.unwrap();
        (found.len() == 2).then_some(found)
    })
    .await;
    assert_eq!(found, expected);
    let needs = permissions::needs(&found, &Duties::default());
    let herd: Vec<_> = needs.iter().filter(|need| need.resource == "herd").map(|need| need.verb).collect();
    assert_eq!(herd, ["list", "watch"]);
    plane.kubectl(&["delete", "customresourcedefinition", "herd.farms.example.org"]).await.ok();
}
