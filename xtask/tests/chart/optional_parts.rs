//! The parts of an installation that the values leave out.

use serde_json::{Value, json};

use super::support::{NAMESPACE, Objects, rendered, rendered_for};

#[test]
fn nodes_need_no_pools_of_services() {
    let pools = json!([{ "name": "all", "cidrs": ["10.64.0.0/14"] }]);
    let objects = rendered(NAMESPACE, &json!({ "pools": { "services": [], "nodes": pools } })).unwrap();
    let found: Vec<&String> = objects.keys().filter(|key| key.contains("Pool /")).collect();
    assert_eq!(found, ["NodeBlockPool /all"]);
    assert_eq!(objects["NodeBlockPool /all"]["spec"], json!({ "cidrs": ["10.64.0.0/14"] }));
    assert_eq!(objects["ClusterIPPolicy /default"]["spec"]["exemptNamespaces"], json!(["kube-system", NAMESPACE]));
    let webhooks = objects["MutatingWebhookConfiguration /clusterip-policy"]["webhooks"].as_array().unwrap();
    let names: Vec<_> = webhooks.iter().map(|webhook| webhook["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["services.clusterip-policy.io", "nodes.clusterip-policy.io"]);
}

/// This also holds beside Kubewarden: the agents hold the addresses that the controller assigns.
#[test]
fn agents_need_no_webhook() {
    let pools = json!([{ "name": "all", "cidrs": ["192.0.2.0/28"] }]);
    let values = json!({ "pools": { "services": [], "external": pools }, "webhook": { "enabled": false } });
    let objects = rendered(NAMESPACE, &values).unwrap();
    let kinds: Vec<&str> = objects.keys().map(|key| key.split(' ').next().unwrap()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "DaemonSet").count(), 1, "{kinds:?}");
    assert!(!kinds.contains(&"MutatingWebhookConfiguration"), "{kinds:?}");
}

#[test]
fn policies_and_the_network_policy_can_be_left_out() {
    let pools = json!({ "external": [{ "name": "all", "cidrs": ["192.0.2.0/28"] }] });
    let off = json!({ "enabled": false });
    let kinds = |values: &Value| -> Vec<String> {
        let objects = rendered(NAMESPACE, values).unwrap();
        let kinds = objects.keys().map(|key| key.split(' ').next().unwrap().to_owned());
        kinds.filter(|kind| kind.contains("Policy") && kind != "ClusterIPPolicy").collect()
    };
    let all = kinds(&json!({ "pools": pools }));
    assert_eq!(all.iter().filter(|kind| *kind == "NetworkPolicy").count(), 2, "{all:?}");
    // Five protect clusterip, four are the fence, and one warns about pools.
    let policies = |all: &[String]| all.iter().filter(|kind| *kind == "ValidatingAdmissionPolicy").count();
    assert_eq!(policies(&all), 10, "{all:?}");
    let seamless = json!({ "seamless": true });
    let with_seamless_moves = kinds(&json!({ "pools": pools, "moves": seamless }));
    assert_eq!(policies(&with_seamless_moves), 11, "{with_seamless_moves:?}");
    let on = json!({ "enabled": true });
    let during_a_renumbering = kinds(&json!({ "pools": pools, "moves": seamless, "renumbering": on }));
    assert_eq!(policies(&during_a_renumbering), 13, "{during_a_renumbering:?}");
    let none = json!({ "pools": pools, "policies": off, "networkPolicy": off, "fence": off, "reservations": off, "moves": seamless, "renumbering": on });
    assert_eq!(kinds(&none), Vec::<String>::new());
}

/// The settings of the policy count, so no object could take effect.
#[test]
fn beside_a_policy_of_kubewarden_there_are_no_pools() {
    let values = |nodes: bool| {
        json!({
            "webhook": { "enabled": false },
            "kubewarden": { "policy": "clusterip-policy", "nodes": nodes },
        })
    };
    let objects = rendered(NAMESPACE, &values(false)).unwrap();
    let found: Vec<&String> = objects
        .keys()
        .filter(|key| ["ServicePool ", "ClusterIPPolicy "].iter().any(|kind| key.starts_with(kind)))
        .collect();
    assert_eq!(found, [""; 0]);
    let patches_nodes = json!({ "apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"] });
    let rules = |objects: &Objects| objects["ClusterRole /clusterip-policy"]["rules"].as_array().unwrap().clone();
    assert!(!rules(&objects).contains(&patches_nodes));
    assert!(rules(&rendered(NAMESPACE, &values(true)).unwrap()).contains(&patches_nodes));
}

#[test]
fn policy_of_reservations_needs_an_api_server_that_has_its_kind() {
    const KEY: &str = "MutatingAdmissionPolicy /reservations.clusterip-policy.io";
    let policy = |version: &str, reservations: Value| {
        let mut objects = rendered_for(version, NAMESPACE, &json!({ "reservations": reservations })).unwrap();
        let bindings = objects.keys().filter(|key| key.starts_with("MutatingAdmissionPolicyBinding")).count();
        let policy = objects.remove(KEY);
        assert_eq!(bindings, usize::from(policy.is_some()));
        policy
    };
    assert_eq!(policy("1.35.4", json!({})), None);
    assert_eq!(policy("1.36.0", json!({ "enabled": false })), None);
    for (family, expected) in [("", "''"), ("IPv4", "'IPv4'"), ("IPv6", "'IPv6'")] {
        let policy = policy("1.36.0", json!({ "primaryFamily": family })).unwrap();
        let variable = json!({ "name": "primaryFamily", "expression": expected });
        assert_eq!(policy["spec"]["variables"][0], variable, "{family}");
    }
}
