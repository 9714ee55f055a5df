//! The parts of an installation that the values leave out.

use serde_json::{Value, json};

use super::support::{NAMESPACE, rendered};

#[test]
fn nodes_need_no_pools_of_services() {
    let pools = json!([{ "name": "all", "cidrs": ["10.64.0.0/14"] }]);
    let objects =
        rendered(NAMESPACE, &json!({ "settings": { "services": null, "nodes": { "pools": pools } } })).unwrap();
    let settings = &objects["ConfigMap clusterip-policy/clusterip-settings"]["data"]["settings.yaml"];
    assert_eq!(
        *settings,
        json!({ "services": { "exemptNamespaces": ["kube-system", NAMESPACE] }, "nodes": { "pools": pools } })
    );
    let webhooks = objects["MutatingWebhookConfiguration /clusterip-policy"]["webhooks"].as_array().unwrap();
    let names: Vec<_> = webhooks.iter().map(|webhook| webhook["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["services.clusterip-policy.io", "nodes.clusterip-policy.io"]);
}

/// This also holds beside Kubewarden: the agents hold the addresses that its controller assigns.
#[test]
fn agents_need_no_webhook() {
    let pools = json!([{ "name": "all", "cidrs": ["192.0.2.0/28"] }]);
    let settings = json!({ "services": null, "external": { "pools": pools } });
    let objects = rendered(NAMESPACE, &json!({ "settings": settings, "webhook": { "enabled": false } })).unwrap();
    let kinds: Vec<&str> = objects.keys().map(|key| key.split(' ').next().unwrap()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "DaemonSet").count(), 1, "{kinds:?}");
    assert!(!kinds.contains(&"MutatingWebhookConfiguration"), "{kinds:?}");
}

#[test]
fn policies_and_the_network_policy_can_be_left_out() {
    let pools = json!([{ "name": "all", "cidrs": ["192.0.2.0/28"] }]);
    let settings = json!({ "external": { "pools": pools } });
    let off = json!({ "enabled": false });
    let kinds = |values: &Value| -> Vec<String> {
        let objects = rendered(NAMESPACE, values).unwrap();
        let kinds = objects.keys().map(|key| key.split(' ').next().unwrap().to_owned());
        kinds.filter(|kind| kind.contains("Policy")).collect()
    };
    let all = kinds(&json!({ "settings": settings }));
    assert_eq!(all.iter().filter(|kind| *kind == "NetworkPolicy").count(), 2, "{all:?}");
    assert_eq!(all.iter().filter(|kind| *kind == "ValidatingAdmissionPolicy").count(), 4, "{all:?}");
    let none = json!({ "settings": settings, "policies": off, "networkPolicy": off });
    assert_eq!(kinds(&none), Vec::<String>::new());
}
