//! The values of the chart: the fields that they set, and the values that are refused.

use crate::deploy_files::document;
use serde_json::{Value, json};

use super::support::{NAMESPACE, Objects, rendered};

/// A field of an object that the chart renders, and its expected value.
struct Case<'a> {
    name: &'static str,
    found: &'a Value,
    expected: Value,
}

fn fields_of_the_server(objects: &Objects) -> Vec<Case<'_>> {
    let deployment = &objects["Deployment clusterip-policy/clusterip"]["spec"]["template"];
    let pod = &deployment["spec"];
    let args = [
        "serve",
        "--listen",
        "0.0.0.0:8443",
        "--move-load-balancers",
        "--seamless-moves",
        "--agents-namespace",
        "edge-agents",
        "--client-ca",
        "/etc/clusterip/client-ca/ca.crt",
        "--move",
        "never",
    ];
    let client_ca = json!([{ "name": "client-ca", "configMap": { "name": "api-server-ca" } }]);
    let mounts = json!([{ "name": "client-ca", "mountPath": "/etc/clusterip/client-ca", "readOnly": true }]);
    vec![
        Case {
            name: "image",
            found: &pod["containers"][0]["image"],
            expected: json!("registry.example.com/clusterip:v9"),
        },
        Case { name: "pull secrets", found: &pod["imagePullSecrets"], expected: json!([{ "name": "pull" }]) },
        Case { name: "volume of the client CA", found: &pod["volumes"], expected: client_ca },
        Case { name: "mount of the client CA", found: &pod["containers"][0]["volumeMounts"], expected: mounts },
        Case { name: "arguments", found: &pod["containers"][0]["args"], expected: json!(args) },
        Case {
            name: "resources",
            found: &pod["containers"][0]["resources"],
            expected: json!({ "requests": { "cpu": "50m", "memory": "64Mi" }, "limits": { "memory": "1Gi" } }),
        },
        Case {
            name: "nodes",
            found: &pod["nodeSelector"],
            expected: json!({ "kubernetes.io/os": "linux", "pool": "system" }),
        },
        Case { name: "tolerations", found: &pod["tolerations"], expected: json!([{ "operator": "Exists" }]) },
        Case { name: "network", found: &pod["hostNetwork"], expected: json!(true) },
        Case { name: "affinity", found: &pod["affinity"], expected: json!({ "nodeAffinity": {} }) },
        Case { name: "priority", found: &pod["priorityClassName"], expected: Value::Null },
        Case {
            name: "annotations",
            found: &deployment["metadata"]["annotations"],
            expected: json!({ "example.com/team": "net" }),
        },
    ]
}

fn fields_of_the_webhooks(objects: &Objects) -> Vec<Case<'_>> {
    let webhook = &objects["MutatingWebhookConfiguration /clusterip-policy"]["webhooks"][0];
    let external = &objects["MutatingWebhookConfiguration /clusterip-policy"]["webhooks"][1];
    vec![
        Case {
            name: "namespaces that the webhook skips",
            found: &webhook["namespaceSelector"]["matchExpressions"][0]["values"],
            expected: json!(["kube-system", "storage", NAMESPACE]),
        },
        // Services of other exempt namespaces claim external addresses too, so the policy must evaluate them.
        Case {
            name: "namespaces that the webhook of external addresses skips",
            found: &external["namespaceSelector"]["matchExpressions"][0]["values"],
            expected: json!(["kube-system", NAMESPACE]),
        },
        Case {
            name: "name of the webhook of external addresses",
            found: &external["name"],
            expected: json!("external.clusterip-policy.io"),
        },
        Case { name: "failure policy", found: &webhook["failurePolicy"], expected: json!("Fail") },
        Case { name: "timeout", found: &webhook["timeoutSeconds"], expected: json!(9) },
    ]
}

fn fields_of_the_agents(objects: &Objects) -> Vec<Case<'_>> {
    let agent = &objects["DaemonSet edge-agents/clusterip-agent"]["spec"]["template"];
    let (agents, holds) = (&agent["spec"], &agent["spec"]["containers"][0]);
    let agent_args = ["agent", "--node", "$(NODE_NAME)", "--interface", "eth1"];
    vec![
        Case { name: "image of the agents", found: &holds["image"], expected: json!("registry.example.com/agent:v8") },
        Case {
            name: "pull policy of the image of the agents",
            found: &holds["imagePullPolicy"],
            expected: json!("Always"),
        },
        Case { name: "arguments of the agents", found: &holds["args"], expected: json!(agent_args) },
        Case {
            name: "resources of the agents",
            found: &holds["resources"],
            expected: json!({ "requests": { "cpu": "20m", "memory": "48Mi" }, "limits": { "memory": "1Gi" } }),
        },
        Case {
            name: "nodes of the agents",
            found: &agents["nodeSelector"],
            expected: json!({ "kubernetes.io/os": "linux", "edge": "yes" }),
        },
        Case {
            name: "tolerations of the agents",
            found: &agents["tolerations"],
            expected: json!([{ "key": "edge", "operator": "Exists" }]),
        },
        Case { name: "affinity of the agents", found: &agents["affinity"], expected: json!({ "nodeAffinity": {} }) },
        Case { name: "priority of the agents", found: &agents["priorityClassName"], expected: Value::Null },
        Case {
            name: "pull secrets of the agents",
            found: &agents["imagePullSecrets"],
            expected: json!([{ "name": "pull" }]),
        },
        Case {
            name: "annotations of the agents",
            found: &agent["metadata"]["annotations"],
            expected: json!({ "example.com/team": "edge" }),
        },
    ]
}

fn fields_of_other_objects(objects: &Objects) -> Vec<Case<'_>> {
    let exempt = json!(["kube-system", "storage", NAMESPACE]);
    let egress = &objects["NetworkPolicy clusterip-policy/clusterip"]["spec"]["egress"][0]["ports"];
    vec![
        Case {
            name: "pool of Services",
            found: &objects["ServicePool /all"]["spec"],
            expected: json!({ "priority": 5, "cidrs": ["10.96.0.0/12"], "reserved": 2_000_000, "fence": "Warn" }),
        },
        Case {
            name: "pool of external addresses",
            found: &objects["ExternalPool /edge"]["spec"],
            expected: json!({ "cidrs": ["192.0.2.0/28"] }),
        },
        Case {
            name: "exempt namespaces",
            found: &objects["ClusterIPPolicy /default"]["spec"]["exemptNamespaces"],
            expected: exempt,
        },
        Case { name: "order", found: &objects["ClusterIPPolicy /default"]["spec"]["order"], expected: json!("Lowest") },
        Case {
            name: "port of the API server",
            found: &egress[2],
            expected: json!({ "protocol": "TCP", "port": 7443 }),
        },
        Case {
            name: "labels of the rules",
            found: &objects["PrometheusRule clusterip-policy/clusterip"]["metadata"]["labels"],
            expected: json!({ "app.kubernetes.io/name": "clusterip", "release": "prometheus" }),
        },
    ]
}

#[test]
fn values_reach_the_right_fields() {
    let values = document(include_str!("values.yaml")).unwrap();
    let objects = rendered(NAMESPACE, &values).unwrap();
    let cases = [
        fields_of_the_server(&objects),
        fields_of_the_webhooks(&objects),
        fields_of_the_agents(&objects),
        fields_of_other_objects(&objects),
    ];
    for Case { name, found, expected } in cases.into_iter().flatten() {
        assert_eq!(*found, expected, "{name}");
    }
    let status = json!({ "apiGroups": [""], "resources": ["services/status"], "verbs": ["update"] });
    let rules = objects["ClusterRole /clusterip-policy"]["rules"].as_array().unwrap();
    assert!(rules.contains(&status), "{rules:?}");

    // An image with a digest.
    let digest = format!("sha256:{}", "0".repeat(64));
    let objects = rendered(NAMESPACE, &json!({ "image": { "tag": "v9", "digest": digest } })).unwrap();
    assert_eq!(
        objects["Deployment clusterip-policy/clusterip"]["spec"]["template"]["spec"]["containers"][0]["image"],
        json!(format!("ghcr.io/clusterip-policy/clusterip@{digest}"))
    );
}

#[test]
fn invalid_values_are_refused() {
    struct Case {
        name: &'static str,
        values: Value,
        expected: &'static str,
    }
    let cases = [
        Case {
            name: "replicas without claims",
            values: json!({ "replicas": 2 }),
            expected: "replicas: 2 need claims: lease",
        },
        Case {
            name: "a pool without a name",
            values: json!({ "pools": { "services": [{ "cidrs": ["10.96.0.0/12"] }] } }),
            expected: "/pools/services/0",
        },
        Case { name: "a misspelt value", values: json!({ "replica": 2 }), expected: "'replica' not allowed" },
        Case {
            name: "a misspelt value inside",
            values: json!({ "webhook": { "failPolicy": "Fail" } }),
            expected: "'failPolicy' not allowed",
        },
        Case {
            name: "an unknown failure policy",
            values: json!({ "webhook": { "failurePolicy": "Retry" } }),
            expected: "/webhook/failurePolicy",
        },
        Case { name: "unknown claims", values: json!({ "claims": "etcd" }), expected: "/claims" },
        Case { name: "no replica", values: json!({ "replicas": 0 }), expected: "/replicas" },
        Case {
            name: "agents in the namespace of the server",
            values: json!({
                "pools": { "external": [{ "name": "all", "cidrs": ["192.0.2.0/28"] }] },
                "agent": { "namespace": NAMESPACE },
            }),
            expected: "the agents need a namespace of their own",
        },
        Case {
            name: "two client CAs",
            values: json!({ "webhook": { "clientCA": { "configMap": "a", "secret": "b" } } }),
            expected: "a configMap or a secret, not both",
        },
        Case {
            name: "a misspelt value of the agents",
            values: json!({ "agent": { "interface": "eth1" } }),
            expected: "'interface' not allowed",
        },
        Case {
            name: "a settings document",
            values: json!({ "settings": { "services": {} } }),
            expected: "'settings' not allowed",
        },
        Case {
            name: "an unknown kind of pools",
            values: json!({ "pools": { "ips": [] } }),
            expected: "'ips' not allowed",
        },
        Case {
            name: "a policy of Kubewarden beside the webhook",
            values: json!({ "kubewarden": { "policy": "clusterip-policy" } }),
            expected: "webhook.enabled must be false",
        },
        Case {
            name: "a policy of Kubewarden beside pools of external addresses",
            values: json!({
                "webhook": { "enabled": false },
                "kubewarden": { "policy": "clusterip-policy" },
                "pools": { "external": [{ "name": "all", "cidrs": ["192.0.2.0/28"] }] },
            }),
            expected: "write the pools into that policy",
        },
    ];
    for Case { name, values, expected } in cases {
        let refused = rendered(NAMESPACE, &values).map(|objects| objects.into_keys().collect::<Vec<_>>()).unwrap_err();
        assert!(refused.contains(expected), "{name}: {refused}");
    }
}

#[test]
fn exempt_namespaces_can_be_empty() {
    let objects = rendered(NAMESPACE, &json!({ "policy": { "exemptNamespaces": [] } })).unwrap();
    assert_eq!(objects["ClusterIPPolicy /default"]["spec"]["exemptNamespaces"], json!([NAMESPACE]));
}

#[test]
fn client_certificate_authority_can_be_in_a_secret() {
    let values = json!({ "webhook": { "clientCA": { "secret": "api-server", "key": "tls.crt" } } });
    let objects = rendered(NAMESPACE, &values).unwrap();
    let pod = &objects["Deployment clusterip-policy/clusterip"]["spec"]["template"]["spec"];
    let items = json!([{ "key": "tls.crt", "path": "tls.crt" }]);
    let secret = json!([{ "name": "client-ca", "secret": { "secretName": "api-server", "items": items } }]);
    assert_eq!(pod["volumes"], secret);
    let args = pod["containers"][0]["args"].as_array().unwrap();
    assert!(args.ends_with(&[json!("--client-ca"), json!("/etc/clusterip/client-ca/tls.crt")]), "{args:?}");
}
