//! `deploy/monitoring`: Pods answer where its PodMonitor says.
//!
//! Prometheus and its operator do not run here: a Pod sends the request that the PodMonitor describes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use e2e_tests::support::installation::{DEPLOY, NAMESPACE, field, install, uninstall};
use e2e_tests::support::whole_cluster::WholeCluster;
use serde_json::{Value, json};

/// The kinds of the Prometheus operator, with the plurals of their names. Their definitions accept every object here.
const KINDS: [(&str, &str); 2] = [("PodMonitor", "podmonitors"), ("PrometheusRule", "prometheusrules")];

fn definition(kind: &str, plural: &str) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// An object as JSON.
async fn object(cluster: &WholeCluster, arguments: &[&str]) -> Value {
    let get = [&["get", "--namespace", NAMESPACE, "--output", "json"], arguments].concat();
    serde_json::from_str(&cluster.kubectl(&get).await.ok()).unwrap()
}

pub async fn scrape_target_answers(cluster: &WholeCluster) {
    install(cluster, "webhook").await;
    let names = KINDS.map(|(_, plural)| format!("crd/{plural}.monitoring.coreos.com"));
    for (kind, plural) in KINDS {
        cluster.apply(&definition(kind, plural).to_string()).await;
    }
    let established = ["wait", "--for=condition=Established", "--timeout=60s", &names[0], &names[1]];
    cluster.kubectl(&established).await.ok();
    cluster.kubectl(&["apply", "-k", &format!("{DEPLOY}/monitoring")]).await.ok();

    let monitor = object(cluster, &["podmonitor/clusterip"]).await;
    let labels = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap())).collect();
    let pods = object(cluster, &["pods", "--selector", &labels.join(",")]).await;
    let pods = pods["items"].as_array().unwrap();
    assert_eq!(pods.len(), 1);
    let metrics = scrape(cluster, &monitor["spec"]["podMetricsEndpoints"][0], &pods[0]).await;
    for metric in ["\nclusterip_build_info{", "\nclusterip_leader 1\n"] {
        assert!(metrics.contains(metric), "{metric:?} is missing: {metrics}");
    }

    cluster.kubectl(&["delete", "-k", &format!("{DEPLOY}/monitoring")]).await.ok();
    cluster.kubectl(&["delete", &names[0], &names[1]]).await.ok();
    uninstall(cluster).await;
}

/// Gets the metrics of a Pod from another Pod, and trusts only the certificate authority of the endpoint.
async fn scrape(cluster: &WholeCluster, endpoint: &Value, pod: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let authority = &endpoint["tlsConfig"]["ca"]["secret"];
    let key = format!(".data.{}", text(&authority["key"]).replace('.', "\\."));
    let authority = field(cluster, NAMESPACE, &format!("secret/{}", text(&authority["name"])), &key).await;
    let authority = String::from_utf8(STANDARD.decode(authority).unwrap()).unwrap();
    let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
    let port = ports.iter().find(|port| port["name"] == endpoint["port"]).unwrap()["containerPort"].as_u64().unwrap();
    let (host, address) = (text(&endpoint["tlsConfig"]["serverName"]), text(&pod["status"]["podIP"]));
    let url = format!("{}://{host}:{port}{}", text(&endpoint["scheme"]), text(&endpoint["path"]));

    let namespace = &cluster.namespace("prometheus").await;
    cluster.web_server(namespace, "prometheus", "node-1").await;
    let exec = ["exec", "--namespace", namespace, "prometheus", "--"];
    cluster.kubectl(&[&exec[..], &["sh", "-c", "echo \"$0\" > /ca.crt", &authority]].concat()).await.ok();
    let resolve = format!("{host}:{port}:{address}");
    let curl = ["curl", "--silent", "--show-error", "--fail", "--cacert", "/ca.crt", "--resolve", &resolve, &url];
    let metrics = cluster.kubectl(&[&exec[..], &curl].concat()).await.ok();
    cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.ok();
    metrics
}
