//! `deploy/webhook` as it is shipped: which requests reach the webhook, and the permissions of the program.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::certificates::registration::service_account_of_the_deployment_may_renew_and_register;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::service_webhook_rules::only_what_may_need_an_address;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/webhook");
const NAMESPACE: &str = "clusterip-policy";
const ACCOUNT: &str = "clusterip";
const WEBHOOK: &str = "services.clusterip-policy.io";

/// No server answers at the Service of the webhook.
#[tokio::test]
async fn deployment_is_installed_and_uninstalled_as_documented() {
    // The controller manager deletes the objects of the Deployment and of the namespace.
    let plane = ControlPlane::start(Options { controller_manager: true, ..Options::dual_stack() });
    plane.install_pools().await;
    uninstalling_waits_for_open_moves(&plane).await;
    apply(&plane, FOLDER).await;
    service_account_has_exactly_these_permissions(&plane).await;
    service_account_of_the_deployment_may_renew_and_register(&plane).await;
    only_requests_that_may_need_an_address_reach_the_webhook(&plane).await;
}

async fn only_requests_that_may_need_an_address_reach_the_webhook(plane: &ControlPlane) {
    let mover = plane.client_with(&plane.token(NAMESPACE, ACCOUNT).await);
    let creates = [("kube-system", "not called"), (NAMESPACE, "not called")];
    only_what_may_need_an_address(plane, WEBHOOK, mover, &creates, async || drop(disconnect(plane, WEBHOOK).await))
        .await;
}

/// Applies a folder of `deploy`. Applying the manifests again changes nothing.
pub async fn apply(plane: &ControlPlane, folder: &str) {
    let apply = ["apply", "-k", folder];
    plane.kubectl(&apply).await.ok();
    let again = plane.kubectl(&apply).await.ok();
    assert_eq!(again.lines().filter(|line| !line.ends_with(" unchanged")).collect::<Vec<_>>(), [""; 0]);
}

/// Gives the shipped configuration an address where no server answers, and this webhook `failurePolicy: Fail`, so that
/// each call of it fails its request. Returns the configuration as it is shipped.
pub async fn disconnect(plane: &ControlPlane, webhook: &str) -> Value {
    let get = ["get", "mutatingwebhookconfiguration", "clusterip-policy", "--output", "json"];
    let shipped: Value = serde_json::from_str(&plane.kubectl(&get).await.ok()).unwrap();
    let mut configuration = shipped.clone();
    for each in configuration["webhooks"].as_array_mut().unwrap() {
        each["clientConfig"] = json!({ "url": "https://127.0.0.1:1/mutate" });
        each["failurePolicy"] = json!(if each["name"] == webhook { "Fail" } else { "Ignore" });
    }
    plane.kubectl_with(&["replace", "-f", "-"], &configuration.to_string()).await.ok();
    shipped
}

/// The permissions of a service account in a namespace, without those that every account has, as the API server reports
/// them.
pub async fn rights(plane: &ControlPlane, account: &str, namespace: &str) -> BTreeSet<String> {
    let account = format!("--as=system:serviceaccount:{account}");
    let list = plane.kubectl(&["auth", "can-i", "--list", "--no-headers", &account, "-n", namespace]).await.ok();
    let lines = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    // Kubernetes grants these to every service account, the bundles of certificates since 1.37.
    let of_all = ["[/", "selfsubject", "clustertrustbundles.certificates.k8s.io "];
    lines.filter(|line| !of_all.iter().any(|begin| line.starts_with(begin))).collect()
}

pub fn set(lines: &[&str]) -> BTreeSet<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

async fn service_account_has_exactly_these_permissions(plane: &ControlPlane) {
    let account = format!("{NAMESPACE}:{ACCOUNT}");
    let everywhere = [
        "apiservices.apiregistration.k8s.io [] [] [list watch]",
        "clusterippolicies.clusterip-policy.io [] [] [list watch]",
        "clusterippolicies.clusterip-policy.io/status [] [] [patch]",
        "cronjobs.batch [] [] [list watch]",
        "customresourcedefinitions.apiextensions.k8s.io [] [] [list watch]",
        "daemonsets.apps [] [] [list watch]",
        "deployments.apps [] [] [list watch]",
        "endpointslices.discovery.k8s.io [] [] [list watch]",
        "events.events.k8s.io [] [] [create patch]",
        "externalpools.clusterip-policy.io [] [] [list watch]",
        "externalpools.clusterip-policy.io/status [] [] [patch]",
        "ipaddresses.networking.k8s.io [] [] [list watch]",
        "jobs.batch [] [] [list watch]",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io [] [] [list watch]",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io [] [clusterip-policy] [get list watch update]",
        "namespaces [] [] [list watch]",
        "nodeblockpools.clusterip-policy.io [] [] [list watch]",
        "nodeblockpools.clusterip-policy.io/status [] [] [patch]",
        "nodes [] [] [list watch]",
        "pods [] [] [list watch]",
        "replicasets.apps [] [] [list watch]",
        "replicationcontrollers [] [] [list watch]",
        "runtimeclasses.node.k8s.io [] [] [list watch]",
        "servicecidrs.networking.k8s.io [] [] [list watch]",
        "servicepools.clusterip-policy.io [] [] [list watch]",
        "servicepools.clusterip-policy.io/status [] [] [patch]",
        "services [] [] [get list watch update]",
        "statefulsets.apps [] [] [list watch]",
        "validatingwebhookconfigurations.admissionregistration.k8s.io [] [] [list watch]",
    ];
    let own = [
        "controllerrevisions.apps [] [] [get list watch create delete]",
        "leases.coordination.k8s.io [] [] [create]",
        "leases.coordination.k8s.io [] [clusterip-leader] [get update]",
        "secrets [] [] [create]",
        "secrets [] [clusterip-authority] [get update]",
    ];
    assert_eq!(rights(plane, &account, "default").await, set(&everywhere));
    assert_eq!(rights(plane, &account, NAMESPACE).await, set(&[&everywhere[..], &own].concat()));
}

async fn uninstalling_waits_for_open_moves(plane: &ControlPlane) {
    plane.kubectl(&["apply", "-k", &format!("{FOLDER}/../api")]).await.ok();
    let left = async || {
        let kinds = "namespaces,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,\
                     validatingadmissionpolicies,validatingadmissionpolicybindings,roles,rolebindings";
        let label = "app.kubernetes.io/name in (clusterip,clusterip-agent)";
        let of_label = ["--namespace", "kube-system", "--selector", label, "--output", "name"];
        plane.kubectl(&[&["get", kinds], &of_label[..]].concat()).await.ok()
    };
    let api = left().await;
    plane.kubectl(&["apply", "-k", FOLDER]).await.ok();
    let pools = async || {
        let kinds = "servicepools,externalpools,clusterippolicies";
        plane.kubectl(&["get", kinds, "--output", "name"]).await.ok()
    };
    // Components on top of it are uninstalled with it.
    plane.kubectl(&["apply", "-k", &format!("{FOLDER}/../external")]).await.ok();
    for file in ["dns-permissions.yaml", "server-services.yaml"] {
        plane.kubectl(&["apply", "-f", &format!("{FOLDER}/../seamless/{file}")]).await.ok();
    }
    let namespace = plane.namespace("uninstall").await;
    let record = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 0,
        "metadata": {"namespace": NAMESPACE, "name": "clusterip-move-7", "labels": {"clusterip-policy/move": "record"}},
        "data": {"namespace": namespace, "name": "half-moved", "uid": "7"},
    });
    plane.kubectl_with(&["create", "--filename", "-"], &record.to_string()).await.ok();
    let uninstall = || {
        let kubectl = plane.kubectl_program().parent().unwrap();
        let path = format!("{}:{}", kubectl.display(), std::env::var("PATH").unwrap());
        let output = Command::new(format!("{FOLDER}/uninstall"))
            .env("PATH", path)
            .env("KUBECONFIG", plane.kubeconfig())
            .env("MAX_WAIT", "2")
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (installed, pools_before) = (left().await, pools().await);
    assert_eq!(
        uninstall(),
        (
            Some(1),
            "uninstall: moves are not finished after 2 s:\n  uninstall/half-moved\nNothing was removed. The log gives \
             the reason: kubectl logs --namespace clusterip-policy deployment/clusterip\n"
                .to_owned()
        )
    );
    assert_eq!(left().await, installed);
    plane.kubectl(&["get", "deployment", ACCOUNT, "--namespace", NAMESPACE]).await.ok();

    plane.kubectl(&["delete", "controllerrevision", "clusterip-move-7", "--namespace", NAMESPACE]).await.ok();
    assert_eq!(uninstall(), (Some(0), String::new()));
    // The program is removed. The pools, and the API server's own policies about them, stay.
    assert_eq!(left().await, api);
    assert_eq!(pools().await, pools_before);
    assert_eq!(pools_before.lines().count(), 4, "{pools_before}");
    // A second run has nothing to do.
    assert_eq!(uninstall(), (Some(0), String::new()));
}
