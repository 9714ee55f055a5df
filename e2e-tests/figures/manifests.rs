//! The created objects, as raw JSON.

use serde_json::{Value, json};

/// Every second Service is for Windows.
pub fn is_windows(index: usize) -> bool {
    index % 2 == 1
}

/// The name of a Service and of its Deployment.
pub fn name(index: usize) -> String {
    format!("app-{index}")
}

/// A Service without an address.
pub fn service(namespace: &str, index: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name(index), "labels": {"app": name(index), "part-of": "shop"}},
        "spec": {
            "selector": {"app": name(index)},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}, {"name": "metrics", "port": 9090}],
        },
    })
}

/// The Deployment of a Service.
pub fn deployment(namespace: &str, index: usize) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": namespace, "name": name(index), "labels": {"app": name(index)}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name(index)}},
            "template": {"metadata": {"labels": labels(index)}, "spec": pod_spec(is_windows(index))},
        },
    })
}

/// A Pod of a Deployment, on a node.
pub fn pod(namespace: &str, index: usize, nth: usize) -> Value {
    let mut spec = pod_spec(is_windows(index));
    spec["nodeName"] = format!("node-{}", nth % 50).into();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": format!("{}-6c8f9d7b5-{nth:05}", name(index)),
            "labels": labels(index),
            "annotations": {
                "prometheus.io/scrape": "true",
                "checksum/config": "8b1a9953c4611296a827abf8c47804d7f2c1e1c3a5b8d9e0f1a2b3c4d5e6f708",
            },
        },
        "spec": spec,
    })
}

fn labels(index: usize) -> Value {
    json!({"app": name(index), "pod-template-hash": "6c8f9d7b5", "app.kubernetes.io/part-of": "shop"})
}

/// As large as a typical Pod.
fn pod_spec(windows: bool) -> Value {
    let variable = |nth: usize| json!({"name": format!("SETTING_{nth}"), "value": format!("value-of-setting-{nth}")});
    let container = |name: &str, port: u16| {
        json!({
            "name": name,
            "image": format!("registry.example/shop/{name}:v1.2.3"),
            "env": (0..10).map(variable).collect::<Vec<_>>(),
            "ports": [{"name": name, "containerPort": port}],
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": port}, "periodSeconds": 10},
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": port}, "periodSeconds": 5},
            "volumeMounts": [{"name": "config", "mountPath": "/etc/shop"}],
        })
    };
    json!({
        "nodeSelector": {"kubernetes.io/os": if windows { "windows" } else { "linux" }},
        "containers": [container("server", 8080), container("sidecar", 9090)],
        "volumes": [{"name": "config", "configMap": {"name": "config"}}],
        "tolerations": [{"key": "os", "operator": "Exists", "effect": "NoSchedule"}],
    })
}
