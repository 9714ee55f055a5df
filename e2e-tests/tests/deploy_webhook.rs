//! `deploy/webhook` as it stands: who is let through to the webhook, and what the program may do.

use std::process::Command;

use k8s_openapi::api::core::v1::Service;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/webhook");
const NAMESPACE: &str = "clusterip-policy";
const ACCOUNT: &str = "clusterip";
const WEBHOOK: &str = "services.clusterip-policy.io";
const MOVING: &str = "clusterip-policy/moving";

/// A control plane with `deploy/webhook`; nobody answers at the Service of its webhook.
async fn deployed() -> &'static ControlPlane {
    static DEPLOYED: OnceCell<ControlPlane> = OnceCell::const_new();
    DEPLOYED
        .get_or_init(async || {
            let plane = ControlPlane::start(Options::dual_stack());
            plane.kubectl(&["apply", "-k", FOLDER]).await.ok();
            // Applied once more, it changes nothing.
            let again = plane.kubectl(&["apply", "-k", FOLDER]).await.ok();
            assert_eq!(again.lines().filter(|line| !line.ends_with(" unchanged")).collect::<Vec<_>>(), [""; 0]);
            plane
        })
        .await
}

fn services(client: Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<Service>(&()))
}

fn service(name: &str, spec: Value) -> DynamicObject {
    let spec = Value::Object(
        [("ports", json!([{ "port": 80 }])), ("selector", json!({ "app": "web" }))]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .chain(spec.as_object().unwrap().clone())
            .collect(),
    );
    DynamicObject::new(name, &ApiResource::erase::<Service>(&())).data(json!({ "spec": spec }))
}

/// `called` where the webhook was: it does not answer, and this fails the request.
fn outcome<T>(result: Result<T, kube::Error>) -> String {
    match result {
        Ok(_) => "not called".to_owned(),
        Err(kube::Error::Api(status)) if status.message.contains(&format!("failed calling webhook {WEBHOOK:?}")) => {
            "called".to_owned()
        }
        Err(error) => error.to_string(),
    }
}

/// An update: who makes it, what there is before, and what is changed.
struct Update {
    name: &'static str,
    by: By,
    before: Value,
    moving_before: bool,
    change: fn(&mut DynamicObject),
    expected: &'static str,
}

#[derive(Clone, Copy)]
enum By {
    User,
    Mover,
}

fn moving(service: &mut DynamicObject) {
    service.metadata.annotations.get_or_insert_default().insert(MOVING.to_owned(), "{}".to_owned());
}

fn to_external_name(service: &mut DynamicObject) {
    service.data["spec"]["type"] = json!("ExternalName");
    service.data["spec"]["externalName"] = json!("moving.invalid");
}

fn to_cluster_ip(service: &mut DynamicObject) {
    service.data["spec"]["type"] = json!("ClusterIP");
}

#[tokio::test]
async fn only_requests_that_may_need_an_address_reach_the_webhook() {
    let plane = deployed().await;
    let namespace = plane.namespace("reach").await;
    let user = plane.client();
    let mover = plane.client_with(&plane.token(NAMESPACE, ACCOUNT).await);
    let address = || json!({});
    let external = || json!({ "type": "ExternalName", "externalName": "moving.invalid" });
    let updates = [
        Update {
            name: "a label",
            by: By::User,
            before: address(),
            moving_before: false,
            change: |service| {
                service.metadata.labels.get_or_insert_default().insert("team".into(), "shop".into());
            },
            expected: "not called",
        },
        Update {
            name: "a label of one without any address",
            by: By::User,
            before: external(),
            moving_before: false,
            change: |service| {
                service.metadata.labels.get_or_insert_default().insert("team".into(), "shop".into());
            },
            expected: "not called",
        },
        Update {
            name: "ports and selector",
            by: By::User,
            before: address(),
            moving_before: false,
            change: |service| {
                service.data["spec"]["ports"] = json!([{ "port": 81 }]);
                service.data["spec"]["selector"] = json!({ "app": "other" });
            },
            expected: "not called",
        },
        Update {
            name: "type NodePort",
            by: By::User,
            before: address(),
            moving_before: false,
            change: |service| service.data["spec"]["type"] = json!("NodePort"),
            expected: "called",
        },
        Update {
            name: "away from ExternalName",
            by: By::User,
            before: external(),
            moving_before: false,
            change: to_cluster_ip,
            expected: "called",
        },
        Update {
            name: "a second family, by policy",
            by: By::User,
            before: address(),
            moving_before: false,
            change: |service| service.data["spec"]["ipFamilyPolicy"] = json!("PreferDualStack"),
            expected: "called",
        },
        Update {
            name: "the only family",
            by: By::User,
            before: json!({ "ipFamilyPolicy": "RequireDualStack" }),
            moving_before: false,
            change: |service| service.data["spec"]["ipFamilies"] = json!(["IPv4"]),
            expected: "called",
        },
        Update {
            name: "another address",
            by: By::User,
            before: address(),
            moving_before: false,
            change: |service| service.data["spec"]["clusterIP"] = json!("172.21.9.9"),
            expected: "called",
        },
        Update {
            name: "more addresses",
            by: By::User,
            before: address(),
            moving_before: false,
            change: |service| {
                service.data["spec"]["clusterIPs"].as_array_mut().unwrap().push(json!("fd00:21::9"));
            },
            expected: "called",
        },
        Update {
            name: "the annotation of a move, written by a user",
            by: By::User,
            before: external(),
            moving_before: false,
            change: |service| {
                moving(service);
                to_cluster_ip(service);
            },
            expected: "called",
        },
        Update {
            name: "the mover, away from its address",
            by: By::Mover,
            before: address(),
            moving_before: false,
            change: |service| {
                moving(service);
                to_external_name(service);
            },
            expected: "not called",
        },
        Update {
            name: "the mover, back",
            by: By::Mover,
            before: external(),
            moving_before: true,
            change: to_cluster_ip,
            expected: "not called",
        },
        Update {
            name: "the mover, back, with nothing left to do",
            by: By::Mover,
            before: external(),
            moving_before: true,
            change: |service| {
                service.metadata.annotations = None;
                to_cluster_ip(service);
            },
            expected: "not called",
        },
        Update {
            name: "the mover's account, without a move",
            by: By::Mover,
            before: external(),
            moving_before: false,
            change: to_cluster_ip,
            expected: "called",
        },
    ];

    let name = |row: usize| format!("row-{row}");
    let mut before = Vec::new();
    for (row, update) in updates.iter().enumerate() {
        let mut created = service(&name(row), update.before.clone());
        if update.moving_before {
            moving(&mut created);
        }
        before.push(services(user.clone(), &namespace).create(&PostParams::default(), &created).await.unwrap());
    }

    // As it stands, but with nobody to ask, and who asks hears of it.
    let mut configuration: Value = serde_json::from_str(
        &plane.kubectl(&["get", "mutatingwebhookconfiguration", "clusterip-policy", "--output", "json"]).await.ok(),
    )
    .unwrap();
    configuration["webhooks"][0]["clientConfig"] = json!({ "url": "https://127.0.0.1:1/mutate" });
    configuration["webhooks"][0]["failurePolicy"] = json!("Fail");
    plane.kubectl_with(&["replace", "-f", "-"], &configuration.to_string()).await.ok();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let create = async |namespace: &str, spec: Value| {
        outcome(services(user.clone(), namespace).create(&dry_run, &service("new", spec)).await)
    };
    eventually("the API server to call the webhook", async || {
        (create(&namespace, json!({})).await == "called").then_some(())
    })
    .await;

    let mut seen = vec![
        ("create", create(&namespace, json!({})).await, "called"),
        ("create, headless", create(&namespace, json!({ "clusterIP": "None" })).await, "called"),
        ("create in kube-system", create("kube-system", json!({})).await, "not called"),
        ("create in its own namespace", create(NAMESPACE, json!({})).await, "not called"),
    ];
    for (row, (update, mut changed)) in updates.iter().zip(before).enumerate() {
        (update.change)(&mut changed);
        let client = match update.by {
            By::User => user.clone(),
            By::Mover => mover.clone(),
        };
        let result = services(client, &namespace).replace(&name(row), &dry_run, &changed).await;
        seen.push((update.name, outcome(result), update.expected));
    }
    let mut status = services(user.clone(), &namespace).get(&name(0)).await.unwrap();
    status.data["status"] = json!({ "loadBalancer": {} });
    let result = services(user.clone(), &namespace).replace_status(&name(0), &dry_run, &status).await;
    seen.push(("status", outcome(result), "not called"));

    let (seen, expected): (Vec<_>, Vec<_>) =
        seen.into_iter().map(|(name, seen, expected)| ((name, seen), (name, expected.to_owned()))).unzip();
    assert_eq!(seen, expected);
}

/// Everything that the account may do beyond what every account may, as the API server answers.
#[tokio::test]
async fn the_account_has_these_rights_and_no_others() {
    let plane = deployed().await;
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:{ACCOUNT}");
    let rights = async |namespace: &str| {
        let list = plane.kubectl(&["auth", "can-i", "--list", "--no-headers", &account, "-n", namespace]).await.ok();
        let mut rights: Vec<String> = list
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .filter(|line| !line.starts_with("[/") && !line.starts_with("selfsubject"))
            .collect();
        rights.sort();
        rights
    };
    let everywhere = [
        "cronjobs.batch [] [] [list watch]",
        "daemonsets.apps [] [] [list watch]",
        "deployments.apps [] [] [list watch]",
        "endpointslices.discovery.k8s.io [] [] [list watch]",
        "events.events.k8s.io [] [] [create patch]",
        "ipaddresses.networking.k8s.io [] [] [get list watch]",
        "jobs.batch [] [] [list watch]",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io [] [clusterip-policy] [get list watch update]",
        "namespaces [] [] [list watch]",
        "nodes [] [] [list watch]",
        "pods [] [] [list watch]",
        "replicasets.apps [] [] [list watch]",
        "replicationcontrollers [] [] [list watch]",
        "runtimeclasses.node.k8s.io [] [] [list watch]",
        "servicecidrs.networking.k8s.io [] [] [list watch]",
        "services [] [] [get list watch update]",
        "services/status [] [] [update]",
        "statefulsets.apps [] [] [list watch]",
    ];
    assert_eq!(rights("default").await, everywhere);
    let mut own: Vec<&str> = everywhere.to_vec();
    own.extend([
        "configmaps [] [clusterip-settings] [get list watch]",
        "leases.coordination.k8s.io [] [] [create]",
        "leases.coordination.k8s.io [] [clusterip-leader] [get update]",
        "secrets [] [] [create]",
        "secrets [] [clusterip-authority] [get update]",
    ]);
    own.sort_unstable();
    assert_eq!(rights(NAMESPACE).await, own);
}

#[tokio::test]
async fn is_uninstalled_when_no_move_is_open() {
    // Somebody must delete what belongs to the Deployment, and to the namespace.
    let plane = ControlPlane::start(Options { controller_manager: true, ..Options::default() });
    plane.kubectl(&["apply", "-k", FOLDER]).await.ok();
    let namespace = plane.namespace("uninstall").await;
    let services = services(plane.client(), &namespace);
    let mut open = service("half-moved", json!({ "type": "ExternalName", "externalName": "moving.invalid" }));
    moving(&mut open);
    services.create(&PostParams::default(), &open).await.unwrap();
    let uninstall = || {
        let kubectl = plane.kubectl_program().parent().unwrap();
        let path = format!("{}:{}", kubectl.display(), std::env::var("PATH").unwrap());
        let output = Command::new(format!("{FOLDER}/uninstall"))
            .env("PATH", path)
            .env("KUBECONFIG", plane.kubeconfig())
            .env("PATIENCE", "2")
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let left = async || {
        let kinds = "namespaces,clusterroles,clusterrolebindings,mutatingwebhookconfigurations";
        let label = "app.kubernetes.io/name=clusterip";
        plane.kubectl(&["get", kinds, "--selector", label, "--output", "name"]).await.ok()
    };

    let installed = left().await;
    assert_eq!(
        uninstall(),
        (
            Some(1),
            "uninstall: moves are not finished after 2 s:\n  uninstall/half-moved\nNothing was removed. See what holds \
             them up: kubectl logs --namespace clusterip-policy deployment/clusterip\n"
                .to_owned()
        )
    );
    assert_eq!(left().await, installed);
    plane.kubectl(&["get", "deployment", ACCOUNT, "--namespace", NAMESPACE]).await.ok();

    plane.kubectl(&["annotate", "service", "half-moved", "--namespace", &namespace, &format!("{MOVING}-")]).await.ok();
    assert_eq!(uninstall(), (Some(0), String::new()));
    assert_eq!(left().await, "");
    // Once more, there is nothing to do.
    assert_eq!(uninstall(), (Some(0), String::new()));
}
