//! The installation of the policy, its monitor mode, the policy of a team, and the uninstallation, as
//! `docs/kubewarden.md` describes them.

use e2e_tests::support::documented_steps::{Operator, steps_of, types};
use e2e_tests::support::installation::{field, roll_out, service};
use e2e_tests::support::shop;
use e2e_tests::support::whole_cluster::WholeCluster;
use serde_json::{Value, json};

use crate::kubewarden_cluster::{KUBEWARDEN, operator};
use crate::registry::PAGE;

/// The webhook configuration that Kubewarden creates from the policy.
const WEBHOOK: &str = "clusterwide-clusterip-policy";

/// Installs the policy and the mover with the commands of the page. Kubewarden is there already.
pub async fn install(cluster: &WholeCluster, operator: &Operator<'_>) {
    for step in steps_of(PAGE, "Installation").iter().filter(|step| !types(step, "helm")) {
        operator.does(step).await;
    }
    roll_out(cluster).await;
}

/// Removes what [`install`] created, with the commands of the page.
pub async fn uninstall(cluster: &WholeCluster, operator: &Operator<'_>) {
    operator.does_all(&steps_of(PAGE, "Uninstallation")).await;
    let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations,clusteradmissionpolicies,clusterroles";
    let left = cluster.kubectl(&["get", kinds, "--output", "name"]).await.ok();
    let ours: Vec<&str> = left.lines().filter(|name| name.contains("clusterip")).collect();
    assert_eq!(ours, Vec::<&str>::new());
}

pub async fn shop_is_placed_as_planned(cluster: &WholeCluster) {
    let operator = operator(cluster);
    install(cluster, &operator).await;
    assert!(webhooks(cluster).await.contains(WEBHOOK));
    let settings = operator.folder().join("deploy/kubewarden/policy/policy.yaml");
    let placed = shop::place_as_planned(cluster, &settings).await;

    uninstall(cluster, &operator).await;
    assert_eq!(shop::placed(cluster, &placed).await, placed);
    // Services are created as before the installation.
    let namespace = &cluster.namespace("uninstalled").await;
    cluster.apply(&service(namespace, "web", json!({})).to_string()).await;
    shop::delete(cluster).await;
    cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.ok();
}

/// In monitor mode, policy-server logs its answers, and the client gets warnings. The policy sets no address.
pub async fn monitor_mode_only_warns(cluster: &WholeCluster) {
    let operator = operator(cluster);
    let steps = steps_of(PAGE, "Installation");
    let (wait, permissions) = (
        steps.iter().find(|step| types(step, "kubectl wait")).unwrap(),
        steps.iter().filter(|step| types(step, "permissions")),
    );
    for step in permissions.chain(&steps_of(PAGE, "Monitor mode")).chain([wait]) {
        operator.does(step).await;
    }

    let namespace = &cluster.namespace("monitored").await;
    let create = async |name: &str, fields: Value| {
        let manifest = service(namespace, name, fields).to_string();
        let created = cluster.kubectl_with(&["create", "-f", "-"], &manifest).await;
        assert_eq!(created.status, 0, "{}", created.stderr);
        created.stderr
    };
    create("web", json!({})).await;
    let address = field(cluster, namespace, "service/web", ".spec.clusterIP").await;
    // Kubernetes keeps the first 256 addresses for those set by hand, so it gives none of the pool linux.
    assert!(!address.starts_with("172.21.0."), "{address}");
    let warning = create("by-hand", json!({"clusterIP": "172.21.1.9"})).await;
    assert_eq!(
        warning,
        "Warning: 172.21.1.9 lies in pool \"windows\", expected pool \"linux\": kubernetes.io/os=linux (setting \
         assumeOS)\n"
    );
    let log = ["logs", "--namespace", KUBEWARDEN, "deployment/policy-server-default", "--tail=-1"];
    let log = cluster.kubectl(&log).await.ok();
    let answers = log.lines().filter(|line| line.contains("policy evaluation (monitor mode)"));
    assert_eq!(answers.count(), 2, "{log}");
    cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.ok();
    uninstall(cluster, &operator).await;
}

/// The policy of a single namespace, which can't look anything up.
pub async fn team_policy_denies_addresses_of_other_teams(cluster: &WholeCluster) {
    let operator = operator(cluster);
    let folder = operator.folder().join("deploy/kubewarden/team");
    let folder = folder.to_str().unwrap();
    let namespace = &cluster.namespace("payments").await;
    cluster.kubectl(&["apply", "-k", folder]).await.ok();
    let active = ["wait", "--for=condition=PolicyActive", "admissionpolicy/clusterip-of-the-team", "--timeout=120s"];
    cluster.kubectl(&[&active[..], &["--namespace", namespace]].concat()).await.ok();

    let create = async |name: &str, fields: Value| {
        let manifest = service(namespace, name, fields).to_string();
        cluster.kubectl_with(&["create", "-f", "-"], &manifest).await
    };
    create("without", json!({})).await.ok();
    create("own", json!({"clusterIP": "172.21.32.9"})).await.ok();
    let refused = create("theirs", json!({"clusterIP": "172.21.48.9"})).await.refused();
    let reason = "172.21.48.9 lies in pool \"data\", expected pool \"payments\": namespace payments";
    assert!(refused.contains(reason), "{refused}");

    cluster.kubectl(&["delete", "-k", folder]).await.ok();
    cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.ok();
}

/// The names of the webhook configurations.
async fn webhooks(cluster: &WholeCluster) -> String {
    cluster.kubectl(&["get", "mutatingwebhookconfigurations", "--output", "name"]).await.ok()
}
