//! Users create and delete Services all the time while the documented commands install, upgrade and remove `clusterip`
//! and the fence, and the API server refuses none of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::support::{create, send, tenant};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::documented_steps::{Operator, Step, steps, steps_of, types};
use crate::support::fake_kubelet::{Installed, Node};
use crate::support::move_helpers::path;
use crate::support::webhook_cluster::service;

/// A user who creates and deletes one Service after the other.
struct User {
    stop: Arc<AtomicBool>,
    requests: JoinHandle<Requests>,
}

#[derive(Default)]
struct Requests {
    served: usize,
    /// The errors, and how often each occurred.
    refused: BTreeMap<String, usize>,
}

impl User {
    fn begin(client: Client, namespace: String) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let requests = tokio::spawn(async move {
            let mut requests = Requests::default();
            let web = service("web", json!({}));
            while !stopped.load(Ordering::Acquire) {
                match create(&client, &namespace, &web).await {
                    Ok(_) => {
                        requests.served += 1;
                        send(&client, Method::DELETE, &path(&namespace, "web"), &Value::Null).await.unwrap();
                    }
                    Err(message) => *requests.refused.entry(message).or_default() += 1,
                }
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
            requests
        });
        Self { stop, requests }
    }

    async fn end(self) -> Requests {
        self.stop.store(true, Ordering::Release);
        self.requests.await.unwrap()
    }
}

/// The names of the policies of the fence that are in force.
async fn fence(plane: &ControlPlane) -> Vec<String> {
    let get = ["get", "validatingadmissionpolicybindings", "--output", "jsonpath={.items[*].spec.policyName}"];
    let names = plane.kubectl(&get).await.ok();
    names.split(' ').filter(|name| name.contains("fence")).map(str::to_owned).collect()
}

/// Whether the API server refuses Services if it gets the fence too early depends on its timers, so the test below does
/// not always notice a wrong order.
#[test]
fn fence_is_installed_after_the_program_and_removed_before_the_definitions() {
    let position = |steps: &[Step], text: &str| {
        steps.iter().position(|step| types(step, text)).unwrap_or_else(|| panic!("{text}: {steps:?}"))
    };
    for (page, heading) in [
        ("../README.md", "Install it"),
        ("../deploy/webhook/README.md", "Deploying clusterip with kustomize"),
        ("migrate-from-k2s.md", "3. Install clusterip without moves"),
        ("operations.md", "After a full upgrade or a restore of K2s"),
        ("operations.md", "Upgrades and rollbacks"),
        ("nodes.md", "Installation"),
        ("nodes.md", "4. Install clusterip"),
        ("external.md", "Quick start"),
    ] {
        let steps = steps_of(page, heading);
        let [api, running, fence] =
            ["deploy/api", "rollout status", "apply -k deploy/fence"].map(|text| position(&steps, text));
        assert!(api < running && running < fence, "{page}, {heading}: {steps:?}");
    }
    let steps = steps("Uninstall");
    assert!(position(&steps, "delete -k deploy/fence") < position(&steps, "delete -k deploy/api"), "{steps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_service_is_refused_during_installation_upgrade_and_uninstallation() {
    let plane = Arc::new(ControlPlane::start(Options { controller_manager: true, audit: false, ..Options::default() }));
    if !plane.tells_addresses() {
        return plane.does_not_apply("`clusterip init` without --service-cidr, as in the documented steps");
    }
    // It has no pools yet, unlike `Installed::nothing`.
    let cluster = Installed { node: Node::start(Arc::clone(&plane)), client: plane.client(), plane };
    let operator = Operator::new(&cluster.plane, &cluster.node.url());
    let (namespace, client) = tenant(&cluster.plane, "shop").await;

    let upgrade = steps("Upgrades and rollbacks");
    let (upgrade, rollback) = upgrade.split_at(4);
    assert!(types(&upgrade[3], "deploy/fence") && types(&rollback[0], "rollout undo"), "{upgrade:?}");
    let again = steps_of("../deploy/webhook/README.md", "Deploying clusterip with kustomize");
    let until = again.iter().position(|step| types(step, "uninstall")).unwrap();
    let uninstallation = steps("Uninstall");
    let procedures: [(&str, &[Step], usize); 4] = [
        ("installation", &steps_of("../README.md", "Install it"), 4),
        ("upgrade", upgrade, 4),
        ("installation over an installation", &again[..until], 4),
        ("uninstallation", &uninstallation, 0),
    ];
    for (name, steps, policies) in procedures {
        let user = User::begin(client.clone(), namespace.clone());
        operator.does_all(steps).await;
        // The API server reads its policies once in a second.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let Requests { served, refused } = user.end().await;
        assert_eq!(refused, BTreeMap::new(), "{name}: {served} Services were created");
        assert!(served > 20, "{name}: only {served} Services were created");
        assert_eq!(fence(&cluster.plane).await.len(), policies, "{name}");
    }
}
