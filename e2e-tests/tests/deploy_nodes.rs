//! `deploy/nodes` as it is shipped: what it adds to `deploy/webhook`, which requests reach the webhook, and the
//! permissions of the program.

use serde_json::{Value, json};

use crate::deploy_webhook::{apply, disconnect};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::documented_steps::{Operator, steps_of};
use crate::support::node_webhook_rules::only_new_pod_cidrs;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const NAMESPACE: &str = "clusterip-policy";
const ACCOUNT: &str = "clusterip";
const WEBHOOK: &str = "nodes.clusterip-policy.io";

/// No server answers at the Service of the webhooks.
#[tokio::test]
async fn deployment_works_as_documented() {
    let plane = ControlPlane::start(Options { audit: false, ..Options::default() });
    plane.install_pools().await;
    pod_on_the_host_network_is_admitted_in_a_new_cluster(&plane).await;
    let folder = format!("{ROOT}/deploy/nodes");
    apply(&plane, &folder).await;
    patching_nodes_is_the_only_additional_permission(&plane).await;
    only_new_pod_cidrs_reach_the_webhook(&plane).await;
}

async fn only_new_pod_cidrs_reach_the_webhook(plane: &ControlPlane) {
    let controller = plane.client_with(&plane.token(NAMESPACE, ACCOUNT).await);
    only_new_pod_cidrs(plane.client(), controller, WEBHOOK, async || drop(disconnect(plane, WEBHOOK).await)).await;
}

/// In a cluster where Pods have no network yet.
async fn pod_on_the_host_network_is_admitted_in_a_new_cluster(plane: &ControlPlane) {
    let operator = Operator::new(plane, "https://127.0.0.1:1");
    let steps = steps_of("nodes.md", "In a new cluster");
    let [network, install] = &steps[..] else { panic!("{steps:?}") };
    operator.does(network).await;
    // A namespace with another Pod Security level would warn, and refuse the Pods.
    let applied = operator.tries(install).await;
    assert_eq!((applied.status, applied.stderr.as_str()), (0, ""));
    let pod = "get deployment clusterip --namespace clusterip-policy --output jsonpath={.spec.template.spec['hostNetwork','tolerations']}";
    let pod = plane.kubectl(&pod.split(' ').collect::<Vec<_>>()).await.ok();
    assert!(pod.starts_with("true [") && pod.contains("node.kubernetes.io/not-ready"), "{pod}");
}

/// Beside Kubewarden, the pools of Nodes are in the settings of another policy. Names the policy for Services instead.
fn follow_the_policy_for_services(value: &mut Value) {
    match value {
        Value::String(name) if name == "clusterip-policy-nodes" => *name = "clusterip-policy".to_owned(),
        Value::Array(items) => items.iter_mut().for_each(follow_the_policy_for_services),
        Value::Object(fields) => fields.values_mut().for_each(follow_the_policy_for_services),
        _ => {}
    }
}

/// Compares the kustomizations with Nodes to those without.
async fn patching_nodes_is_the_only_additional_permission(plane: &ControlPlane) {
    let objects = |folder: &str| {
        let folder = format!("{ROOT}/deploy/{folder}");
        async move {
            let all = plane.kubectl(&["kustomize", &folder]).await.ok();
            let all: Vec<Value> =
                clusterip_cluster::yaml::documents(&all).map(|document| document.unwrap().to_value()).collect();
            all
        }
    };
    for (with, without) in [("nodes", "webhook"), ("kubewarden/nodes", "kubewarden/moves")] {
        let (mut with, without) = (objects(with).await, objects(without).await);
        for object in &mut with {
            follow_the_policy_for_services(object);
            match object["kind"].as_str().unwrap() {
                "ClusterRole" => {
                    let rules = object["rules"].as_array_mut().unwrap();
                    let more = rules.pop().unwrap();
                    assert_eq!(more, json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}));
                }
                "ClusterIPPolicy" => {
                    let nodes = object["spec"].as_object_mut().unwrap().remove("nodes");
                    assert_eq!(nodes, Some(json!({"explicit": "Warn"})));
                }
                "MutatingWebhookConfiguration" => {
                    let webhooks = object["webhooks"].as_array_mut().unwrap();
                    assert_eq!(webhooks.pop().unwrap()["name"], WEBHOOK);
                }
                _ => {}
            }
        }
        with.retain(|object| object["kind"] != "ClusterAdmissionPolicy" && object["kind"] != "NodeBlockPool");
        assert_eq!(with, without);
    }
}
