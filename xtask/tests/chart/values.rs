//! The values of the chart: the fields that they set, and the values that are refused.

use crate::files::{assert_fields, document};
use serde_json::{Value, json};

use super::support::{NAMESPACE, rendered};

#[test]
fn values_reach_the_right_fields() {
    let objects = rendered(NAMESPACE, &document(include_str!("values.yaml"))).unwrap();
    let server = &objects["Deployment clusterip-policy/clusterip"]["spec"]["template"];
    let agent = &objects["DaemonSet edge-agents/clusterip-agent"]["spec"]["template"];
    let container = json!({
        "image": "registry.example.com/clusterip:v9",
        "args": [
            "serve", "--listen", "0.0.0.0:8443", "--move-load-balancers", "--seamless-moves", "--agents-namespace",
            "edge-agents", "--client-ca", "/etc/clusterip/client-ca/ca.crt", "--move", "never",
        ],
        "volumeMounts": [{ "name": "client-ca", "mountPath": "/etc/clusterip/client-ca", "readOnly": true }],
        "resources": { "requests": { "cpu": "50m", "memory": "64Mi" }, "limits": { "memory": "1Gi" } },
    });
    assert_fields("container of the server", &server["spec"]["containers"][0], &container);
    let pod = json!({
        "imagePullSecrets": [{ "name": "pull" }],
        "volumes": [{ "name": "client-ca", "configMap": { "name": "api-server-ca" } }],
        "nodeSelector": { "kubernetes.io/os": "linux", "pool": "system" },
        "tolerations": [{ "operator": "Exists" }],
        "hostNetwork": true,
        "affinity": { "nodeAffinity": {} },
        "priorityClassName": null,
    });
    assert_fields("Pod of the server", &server["spec"], &pod);
    assert_eq!(server["metadata"]["annotations"], json!({ "example.com/team": "net" }));

    let container = json!({
        "image": "registry.example.com/agent:v8",
        "imagePullPolicy": "Always",
        "args": ["agent", "--node", "$(NODE_NAME)", "--interface", "eth1"],
        "resources": { "requests": { "cpu": "20m", "memory": "48Mi" }, "limits": { "memory": "1Gi" } },
    });
    assert_fields("container of the agents", &agent["spec"]["containers"][0], &container);
    let pod = json!({
        "imagePullSecrets": [{ "name": "pull" }],
        "nodeSelector": { "kubernetes.io/os": "linux", "edge": "yes" },
        "tolerations": [{ "key": "edge", "operator": "Exists" }],
        "affinity": { "nodeAffinity": {} },
        "priorityClassName": null,
    });
    assert_fields("Pod of the agents", &agent["spec"], &pod);
    assert_eq!(agent["metadata"]["annotations"], json!({ "example.com/team": "edge" }));

    let keep = &objects["Deployment clusterip-policy/clusterip-renumbering"]["spec"]["template"];
    let container = json!({
        "image": "registry.example.com/clusterip:v9",
        "args": ["renumber", "keep", "--server-namespace", "clusterip-policy"],
        "resources": { "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "128Mi" } },
    });
    assert_fields("container of the renumbering", &keep["spec"]["containers"][0], &container);
    let tolerations = json!({ "tolerations": [{ "operator": "Exists" }], "priorityClassName": null });
    assert_fields("Pod of the renumbering", &keep["spec"], &tolerations);

    let webhooks = &objects["MutatingWebhookConfiguration /clusterip-policy"]["webhooks"];
    assert_fields("webhook", &webhooks[0], &json!({ "failurePolicy": "Fail", "timeoutSeconds": 9 }));
    assert_eq!(webhooks[1]["name"], "external.clusterip-policy.io");
    let skipped = |nth: usize| &webhooks[nth]["namespaceSelector"]["matchExpressions"][0]["values"];
    let exempt = json!(["kube-system", "storage", NAMESPACE]);
    assert_eq!(*skipped(0), exempt);
    // Services of other exempt namespaces claim external addresses too, so the policy must evaluate them.
    assert_eq!(*skipped(1), json!(["kube-system", NAMESPACE]));

    let pool = json!({ "priority": 5, "cidrs": ["10.96.0.0/12"], "reserved": 2_000_000, "fence": "Warn" });
    assert_eq!(objects["ServicePool /all"]["spec"], pool);
    assert_eq!(objects["ExternalPool /edge"]["spec"], json!({ "cidrs": ["192.0.2.0/28"] }));
    let policy = json!({ "exemptNamespaces": exempt, "order": "Lowest" });
    assert_fields("ClusterIPPolicy", &objects["ClusterIPPolicy /default"]["spec"], &policy);
    let egress = &objects["NetworkPolicy clusterip-policy/clusterip"]["spec"]["egress"][0]["ports"];
    assert_eq!(egress[2], json!({ "protocol": "TCP", "port": 7443 }));
    let labels = &objects["PrometheusRule clusterip-policy/clusterip"]["metadata"]["labels"];
    assert_eq!(*labels, json!({ "app.kubernetes.io/name": "clusterip", "release": "prometheus" }));
    let status = json!({ "apiGroups": [""], "resources": ["services/status"], "verbs": ["update"] });
    let rules = objects["ClusterRole /clusterip-policy"]["rules"].as_array().unwrap();
    assert!(rules.contains(&status), "{rules:?}");
}

#[test]
fn digest_of_an_image_replaces_its_tag() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let objects = rendered(NAMESPACE, &json!({ "image": { "tag": "v9", "digest": digest } })).unwrap();
    let pod = &objects["Deployment clusterip-policy/clusterip"]["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], format!("ghcr.io/clusterip-policy/clusterip@{digest}"));
}

#[test]
fn invalid_values_are_refused() {
    struct Case {
        name: &'static str,
        values: Value,
        expected: &'static str,
    }
    let case = |name, values, expected| Case { name, values, expected };
    let cases = [
        case("replicas without claims", json!({ "replicas": 2 }), "replicas: 2 need claims: lease"),
        case(
            "a pool without a name",
            json!({ "pools": { "services": [{ "cidrs": ["10.96.0.0/12"] }] } }),
            "/pools/services/0",
        ),
        case("a misspelt value", json!({ "replica": 2 }), "'replica' not allowed"),
        case("a misspelt value inside", json!({ "webhook": { "failPolicy": "Fail" } }), "'failPolicy' not allowed"),
        case("an unknown failure policy", json!({ "webhook": { "failurePolicy": "Retry" } }), "/webhook/failurePolicy"),
        case("unknown claims", json!({ "claims": "etcd" }), "/claims"),
        case("no replica", json!({ "replicas": 0 }), "/replicas"),
        case(
            "a renumbering without seamless moves",
            json!({ "renumbering": { "enabled": true } }),
            "moves.seamless must be true",
        ),
        case(
            "agents in the namespace of the server",
            json!({
                "pools": { "external": [{ "name": "all", "cidrs": ["192.0.2.0/28"] }] },
                "agent": { "namespace": NAMESPACE },
            }),
            "the agents need a namespace of their own",
        ),
        case(
            "two client CAs",
            json!({ "webhook": { "clientCA": { "configMap": "a", "secret": "b" } } }),
            "a configMap or a secret, not both",
        ),
        case("a misspelt value of the agents", json!({ "agent": { "interface": "eth1" } }), "'interface' not allowed"),
        case("a settings document", json!({ "settings": { "services": {} } }), "'settings' not allowed"),
        case("an unknown kind of pools", json!({ "pools": { "ips": [] } }), "'ips' not allowed"),
        case(
            "a policy of Kubewarden beside the webhook",
            json!({ "kubewarden": { "policy": "clusterip-policy" } }),
            "webhook.enabled must be false",
        ),
        case(
            "a policy of Kubewarden beside pools of external addresses",
            json!({
                "webhook": { "enabled": false },
                "kubewarden": { "policy": "clusterip-policy" },
                "pools": { "external": [{ "name": "all", "cidrs": ["192.0.2.0/28"] }] },
            }),
            "write the pools into that policy",
        ),
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
