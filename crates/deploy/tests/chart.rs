//! The Helm chart renders the same objects as the kustomizations in `deploy`, apart from order and comments, so the
//! tests of the kustomizations also apply to the chart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::Command;

use deploy::{document, documents, read, workspace};
use serde_json::{Value, json};

/// The namespace of the kustomizations.
const NAMESPACE: &str = "clusterip-policy";
/// The namespace of the agents in the kustomizations.
const AGENTS: &str = "clusterip-policy-agents";

/// Objects, by kind, namespace and name.
type Objects = BTreeMap<String, Value>;

/// A program whose path, or whose folder, is in an environment variable.
fn program(variable: &str, name: &str) -> Command {
    let path = env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} is not set: these tests need helm and kubectl; run `make e2e-tests`"));
    let mut path = PathBuf::from(path);
    if path.is_dir() {
        path.push(name);
    }
    let mut command = Command::new(path);
    command.current_dir(workspace());
    command
}

/// The output of a command, or its error output if it fails.
fn run(mut command: Command) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn objects(text: &str) -> Objects {
    let mut all = Objects::new();
    for mut object in documents(text).unwrap() {
        if object.is_null() {
            continue;
        }
        // Parse the documents inside of a document too, so that their order and comments do not matter.
        for (name, value) in object["data"].as_object_mut().into_iter().flatten() {
            if let (true, Some(text)) = (name.ends_with(".yaml") || name.ends_with(".json"), value.as_str()) {
                *value = document(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
        let of = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        let key = format!("{} {}/{}", object["kind"].as_str().unwrap(), of("namespace"), of("name"));
        assert!(all.insert(key.clone(), object).is_none(), "{key} twice");
    }
    all
}

/// The objects that `kubectl apply -k` would apply, except the namespace: `helm install --create-namespace` creates it.
fn kustomized(folders: &[&str]) -> Objects {
    let mut all = Objects::new();
    for folder in folders {
        let mut kubectl = program("KUBEBUILDER_ASSETS", "kubectl");
        kubectl.args(["kustomize", folder]);
        all.append(&mut objects(&run(kubectl).unwrap()));
    }
    all.remove(&format!("Namespace /{NAMESPACE}"));
    all
}

/// The objects that `helm install` would apply with these values.
fn rendered(namespace: &str, values: &Value) -> Result<Objects, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let mut helm = program("CLUSTERIP_HELM", "helm");
    helm.args(["template", "clusterip", "deploy/chart", "--namespace", namespace, "--values"]).arg(&file);
    run(helm).map(|text| objects(&text))
}

/// Folders of `deploy`, and the values with which the chart renders the same objects.
struct Pair {
    name: &'static str,
    folders: Vec<&'static str>,
    values: Value,
}

fn pairs() -> Vec<Pair> {
    let settings = read("deploy/kubewarden/moves/settings.yaml").unwrap();
    let moves = json!({ "settings": document(&settings).unwrap(), "webhook": { "enabled": false } });
    let mut nodes = document(&read("deploy/nodes/settings.yaml").unwrap()).unwrap();
    // The chart adds the namespace of the release.
    nodes["services"]["exemptNamespaces"] = json!(["kube-system"]);
    let mut external = document(&read("deploy/external/settings.yaml").unwrap()).unwrap();
    // These settings have no exempt namespaces.
    external["services"] = Value::Null;
    let on = json!({ "enabled": true });
    let monitoring = json!({ "monitoring": { "podMonitor": on, "rules": on, "dashboard": on } });
    vec![
        Pair { name: "the defaults", folders: vec!["deploy/webhook"], values: json!({}) },
        Pair {
            name: "several replicas",
            folders: vec!["deploy/replicas"],
            values: json!({ "replicas": 3, "claims": "lease" }),
        },
        Pair { name: "with Nodes", folders: vec!["deploy/nodes"], values: json!({ "settings": nodes }) },
        Pair {
            name: "with external addresses",
            folders: vec!["deploy/external"],
            values: json!({ "settings": external }),
        },
        Pair { name: "beside Kubewarden", folders: vec!["deploy/kubewarden/moves"], values: moves },
        Pair { name: "with monitoring", folders: vec!["deploy/webhook", "deploy/monitoring"], values: monitoring },
    ]
}

/// The first difference, which is easier to read than both values.
fn difference(path: &str, left: &Value, right: &Value) -> Option<String> {
    if left == right {
        return None;
    }
    match (left, right) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            keys.into_iter().find_map(|key| {
                let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                difference(&format!("{path}.{key}"), &of(a), &of(b))
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().find_map(|(at, (a, b))| difference(&format!("{path}[{at}]"), a, b))
        }
        _ => Some(format!("{path}: helm has {left}, kustomize {right}")),
    }
}

#[track_caller]
fn assert_same(name: &str, rendered: &Objects, kustomized: &Objects) {
    assert!(!kustomized.is_empty(), "{name}: nothing to compare");
    assert_eq!(rendered.keys().collect::<Vec<_>>(), kustomized.keys().collect::<Vec<_>>(), "{name}");
    for (key, object) in kustomized {
        assert_eq!(difference(key, &rendered[key], object), None, "{name}");
    }
    assert_eq!(rendered, kustomized, "{name}");
}

#[test]
fn chart_renders_the_same_as_the_kustomizations() {
    for Pair { name, folders, values } in pairs() {
        assert_same(name, &rendered(NAMESPACE, &values).unwrap(), &kustomized(&folders));
    }
}

#[test]
fn chart_renders_the_same_in_another_namespace() {
    let moved = |text: &str| {
        text.replace(AGENTS, "addresses-agents")
            .replace(r#""namespace":"clusterip-policy""#, r#""namespace":"addresses""#)
            .replace("system:serviceaccount:clusterip-policy:", "system:serviceaccount:addresses:")
            .replace("namespace('clusterip-policy')", "namespace('addresses')")
            .replace(r#""--settings-namespace","clusterip-policy""#, r#""--settings-namespace","addresses""#)
            .replace("clusterip.clusterip-policy.svc", "clusterip.addresses.svc")
            .replace(r#"["kube-system","clusterip-policy"]"#, r#"["kube-system","addresses"]"#)
    };
    for Pair { name, folders, values } in pairs() {
        let expected = kustomized(&folders).into_values().map(|object| moved(&object.to_string()));
        let expected = objects(&expected.collect::<Vec<_>>().join("\n---\n"));
        assert_same(name, &rendered("addresses", &values).unwrap(), &expected);
    }
}

#[test]
fn values_reach_the_right_fields() {
    let values = json!({
        "image": { "repository": "registry.example.com/clusterip", "tag": "v9" },
        "imagePullSecrets": [{ "name": "pull" }],
        "settings": { "services": {
            "pools": [{ "name": "all", "cidrs": ["10.96.0.0/12"], "reserved": 2_000_000 }],
            "exemptNamespaces": ["kube-system", "storage"],
        }, "external": { "pools": [{ "name": "edge", "cidrs": ["192.0.2.0/28"] }] } },
        "webhook": { "failurePolicy": "Fail", "timeoutSeconds": 9, "clientCA": { "configMap": "api-server-ca" } },
        "moves": { "loadBalancers": true },
        "networkPolicy": { "apiServerPorts": [7443] },
        "extraArgs": ["--move", "never"],
        "resources": { "limits": { "memory": "1Gi" } },
        "nodeSelector": { "pool": "system" },
        "tolerations": [{ "operator": "Exists" }],
        "hostNetwork": true,
        "affinity": { "nodeAffinity": {} },
        "priorityClassName": "",
        "podAnnotations": { "example.com/team": "net" },
        "agent": {
            "namespace": "edge-agents",
            "image": { "repository": "registry.example.com/agent", "tag": "v8", "pullPolicy": "Always" },
            "extraArgs": ["--interface", "eth1"],
            "resources": { "limits": { "memory": "1Gi" } },
            "nodeSelector": { "edge": "yes" },
            "tolerations": [{ "key": "edge", "operator": "Exists" }],
            "affinity": { "nodeAffinity": {} },
            "priorityClassName": "",
            "podAnnotations": { "example.com/team": "edge" },
        },
        "monitoring": { "rules": { "enabled": true, "labels": { "release": "prometheus" } } },
    });
    let objects = rendered(NAMESPACE, &values).unwrap();
    let agent = &objects["DaemonSet edge-agents/clusterip-agent"]["spec"]["template"];
    let (agents, holds) = (&agent["spec"], &agent["spec"]["containers"][0]);
    let agent_args = [
        "agent",
        "--node",
        "$(NODE_NAME)",
        "--settings-configmap",
        "clusterip-settings",
        "--settings-namespace",
        NAMESPACE,
        "--interface",
        "eth1",
    ];
    let deployment = &objects["Deployment clusterip-policy/clusterip"]["spec"]["template"];
    let pod = &deployment["spec"];
    let webhook = &objects["MutatingWebhookConfiguration /clusterip-policy"]["webhooks"][0];
    let settings = &objects["ConfigMap clusterip-policy/clusterip-settings"]["data"]["settings.yaml"]["services"];
    let exempt = json!(["kube-system", "storage", NAMESPACE]);
    let args = [
        "serve",
        "--listen",
        "0.0.0.0:8443",
        "--settings-configmap",
        "clusterip-settings",
        "--move-load-balancers",
        "--agents-namespace",
        "edge-agents",
        "--client-ca",
        "/etc/clusterip/client-ca/ca.crt",
        "--move",
        "never",
    ];
    let external = &objects["MutatingWebhookConfiguration /clusterip-policy"]["webhooks"][1];
    let client_ca = json!([{ "name": "client-ca", "configMap": { "name": "api-server-ca" } }]);
    let mounts = json!([{ "name": "client-ca", "mountPath": "/etc/clusterip/client-ca", "readOnly": true }]);
    let status = json!({ "apiGroups": [""], "resources": ["services/status"], "verbs": ["update"] });
    let rules = objects["ClusterRole /clusterip-policy"]["rules"].as_array().unwrap();
    assert!(rules.contains(&status), "{rules:?}");
    let egress = &objects["NetworkPolicy clusterip-policy/clusterip"]["spec"]["egress"][0]["ports"];
    struct Case<'a> {
        name: &'static str,
        found: &'a Value,
        expected: Value,
    }
    let cases = [
        Case {
            name: "image",
            found: &pod["containers"][0]["image"],
            expected: json!("registry.example.com/clusterip:v9"),
        },
        Case { name: "pull secrets", found: &pod["imagePullSecrets"], expected: json!([{ "name": "pull" }]) },
        Case { name: "pools", found: &settings["pools"], expected: values["settings"]["services"]["pools"].clone() },
        Case { name: "exempt namespaces", found: &settings["exemptNamespaces"], expected: exempt.clone() },
        Case {
            name: "namespaces that the webhook skips",
            found: &webhook["namespaceSelector"]["matchExpressions"][0]["values"],
            expected: exempt,
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
        Case { name: "volume of the client CA", found: &pod["volumes"], expected: client_ca },
        Case { name: "mount of the client CA", found: &pod["containers"][0]["volumeMounts"], expected: mounts },
        Case {
            name: "port of the API server",
            found: &egress[2],
            expected: json!({ "protocol": "TCP", "port": 7443 }),
        },
        Case { name: "failure policy", found: &webhook["failurePolicy"], expected: json!("Fail") },
        Case { name: "timeout", found: &webhook["timeoutSeconds"], expected: json!(9) },
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
        Case {
            name: "labels of the rules",
            found: &objects["PrometheusRule clusterip-policy/clusterip"]["metadata"]["labels"],
            expected: json!({ "app.kubernetes.io/name": "clusterip", "release": "prometheus" }),
        },
    ];
    for Case { name, found, expected } in cases {
        assert_eq!(*found, expected, "{name}");
    }
    let digest = format!("sha256:{}", "0".repeat(64));
    let objects = rendered(NAMESPACE, &json!({ "image": { "tag": "v9", "digest": digest } })).unwrap();
    assert_eq!(
        objects["Deployment clusterip-policy/clusterip"]["spec"]["template"]["spec"]["containers"][0]["image"],
        json!(format!("ghcr.io/clusterip-policy/clusterip@{digest}"))
    );
}

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

#[test]
fn exempt_namespaces_can_be_empty() {
    let settings = json!({ "services": { "exemptNamespaces": [] } });
    let objects = rendered(NAMESPACE, &json!({ "settings": settings })).unwrap();
    let settings = &objects["ConfigMap clusterip-policy/clusterip-settings"]["data"]["settings.yaml"];
    assert_eq!(settings["services"]["exemptNamespaces"], json!([NAMESPACE]));
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
        Case { name: "no settings", values: json!({ "settings": { "services": null } }), expected: "/settings" },
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
                "settings": { "external": { "pools": [{ "name": "all", "cidrs": ["192.0.2.0/28"] }] } },
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
            name: "settings without their first key",
            values: json!({ "settings": { "pools": [] } }),
            expected: "'pools' not allowed",
        },
    ];
    for Case { name, values, expected } in cases {
        let refused = rendered(NAMESPACE, &values).map(|objects| objects.into_keys().collect::<Vec<_>>()).unwrap_err();
        assert!(refused.contains(expected), "{name}: {refused}");
    }
}

#[test]
fn chart_has_the_released_version() {
    let chart = read("deploy/chart/Chart.yaml").unwrap();
    let chart = document(&chart).unwrap();
    assert_eq!([&chart["version"], &chart["appVersion"]], [env!("CARGO_PKG_VERSION"); 2]);
}

#[test]
fn helm_lint_finds_no_mistakes() {
    let mut helm = program("CLUSTERIP_HELM", "helm");
    helm.args(["lint", "--strict", "deploy/chart"]);
    let said = run(helm).unwrap();
    assert_eq!(
        said.lines().filter(|line| line.contains("WARNING") || line.contains("ERROR")).collect::<Vec<_>>(),
        [""; 0]
    );
}
