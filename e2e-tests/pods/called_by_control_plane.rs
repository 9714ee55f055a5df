//! Services that the API server calls while they move: those of a webhook that fails closed, of an aggregated API and
//! of the conversion webhook of a custom resource.
//!
//! The webhook is called for updates of Services, so also for those that move its own Service. `agnhost` serves all
//! three: its webhook adds a label, and its conversion knows the versions `v1` and `v2` of the group
//! `stable.example.com`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip::webhook::issuer::CaCertificate;
use e2e_tests::support::command::{Ended, clusterip};
use e2e_tests::support::eventually::eventually;
use e2e_tests::support::installation::{field, install, service, uninstall};
use e2e_tests::support::whole_cluster::{AGNHOST, WholeCluster};
use jiff::Timestamp;
use serde_json::{Value, json};

/// The Services, each with the arguments of its Pod. The aggregated API gives the same answer to every request.
const SERVERS: [(&str, &[&str]); 3] = [
    ("webhook", &["webhook", "--port=8443"]),
    ("convert", &["crd-conversion-webhook", "--port=8443"]),
    ("api", &["netexec", "--http-port=8443", RESOURCES]),
];
const RESOURCES: &str = "--http-override=/echo?msg={\"kind\":\"APIResourceList\",\"apiVersion\":\"v1\",\
                         \"groupVersion\":\"called.example.org/v1\",\"resources\":[]}";
/// The objects that make the API server call these Services.
const CALLERS: [&str; 4] = [
    "mutatingwebhookconfiguration/called",
    "validatingwebhookconfiguration/called",
    "customresourcedefinition/things.stable.example.com",
    "apiservice/v1.called.example.org",
];
/// A pool that contains none of the Services, for a second move.
const OTHER_POOL: &str = "services: {pools: [{name: other, cidrs: [172.21.2.0/24]}]}\n";

/// The server leaves the Services where they are. An administrator moves them, that of the webhook only after the
/// webhook fails open, and also seamlessly. The API server can call them afterwards.
pub async fn moves_do_not_deadlock(cluster: &WholeCluster) {
    let namespace = &cluster.namespace("called").await;
    start_servers(cluster, namespace).await;
    wait_for_answers(cluster, namespace).await;
    let before = addresses(cluster, namespace).await;

    install(cluster, "webhook").await;
    let callers = ["called by CustomResourceDefinition", "called by APIService", "called by MutatingWebhook"];
    eventually("the Events about the three Services", async || {
        let messages = field(cluster, namespace, "events", ".items[*].message").await;
        callers.iter().all(|caller| messages.contains(caller)).then_some(())
    })
    .await;
    assert_eq!(addresses(cluster, namespace).await, before);
    wait_for_answers(cluster, namespace).await;

    for more in [&[][..], &["--seamless", "--grace-period", "1"]] {
        let told = move_command(cluster, namespace, "webhook", more).await.ok();
        let remedy = "set failurePolicy: Ignore and timeoutSeconds: 1 in webhook called.example.org";
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(told.contains(remedy) && told.ends_with("0 to move, 1 stay"), "{told}");
    }
    assert_eq!(addresses(cluster, namespace).await, before);
    ignore_failures(cluster).await;
    for (name, _) in SERVERS {
        run_move(cluster, namespace, name, &[]).await;
        assert!(address(cluster, namespace, name).await.starts_with("172.21.0."), "{name}");
        // The webhook was called for the move: it did not exist yet when the Service was created.
        assert_eq!(field(cluster, namespace, &format!("service/{name}"), ".metadata.labels.added-label").await, "yes");
        wait_for_answers(cluster, namespace).await;
    }
    uninstall(cluster).await;

    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("settings.yaml");
    std::fs::write(&settings, OTHER_POOL).unwrap();
    let settings = settings.to_str().unwrap();
    let seamless = ["--seamless", "--grace-period", "1", "--settings", settings, "--server-namespace", namespace];
    run_move(cluster, namespace, "webhook", &seamless).await;
    assert!(address(cluster, namespace, "webhook").await.starts_with("172.21.2."));
    wait_for_answers(cluster, namespace).await;

    // While an aggregated API does not answer, the API server deletes no namespace.
    cluster.kubectl(&[&["delete"], &CALLERS[..]].concat()).await.ok();
    cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.ok();
}

/// Lets requests succeed if the webhook does not answer within a second.
async fn ignore_failures(cluster: &WholeCluster) {
    let patch = json!([
        {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"},
        {"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 1},
    ]);
    for configuration in &CALLERS[..2] {
        cluster.kubectl(&["patch", configuration, "--type=json", "--patch", &patch.to_string()]).await.ok();
    }
}

/// Creates the Services and their Pods, and then the objects that make the API server call them.
async fn start_servers(cluster: &WholeCluster, namespace: &str) {
    let authority = CaCertificate::generate(Timestamp::now()).unwrap();
    let hosts = SERVERS.map(|(name, _)| format!("{name}.{namespace}.svc"));
    let leaf = authority.issue(&hosts, Timestamp::now()).unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls", "namespace": namespace},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": leaf.certificate, "tls.key": leaf.key},
    });
    cluster.apply(&secret.to_string()).await;
    for (name, arguments) in SERVERS {
        cluster.apply(&pod(namespace, name, arguments).to_string()).await;
        let fields = json!({"ports": [{"port": 443, "targetPort": 8443}]});
        cluster.apply(&service(namespace, name, fields).to_string()).await;
    }
    let ready = ["wait", "--namespace", namespace, "--for=condition=Ready", "pod", "--all", "--timeout=90s"];
    cluster.kubectl(&ready).await.ok();

    let callers = callers(namespace, &STANDARD.encode(&authority.certificate));
    cluster.apply(&callers.to_string()).await;
    let established = ["wait", "--for=condition=Established", CALLERS[2], "--timeout=60s"];
    cluster.kubectl(&established).await.ok();
    let available = ["wait", "--for=condition=Available", CALLERS[3], "--timeout=60s"];
    cluster.kubectl(&available).await.ok();
    let thing = json!({
        "apiVersion": "stable.example.com/v1", "kind": "Thing", "metadata": {"name": "one", "namespace": namespace},
        "hostPort": "localhost:80",
    });
    eventually("the API server to store a custom resource", async || {
        let created = cluster.kubectl_with(&["apply", "-f", "-"], &thing.to_string()).await;
        (created.status == 0).then_some(())
    })
    .await;
}

fn pod(namespace: &str, name: &str, arguments: &[&str]) -> Value {
    let tls = ["--tls-cert-file=/tls/tls.crt", "--tls-private-key-file=/tls/tls.key"];
    let arguments = [arguments, &tls].concat();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "server", "image": AGNHOST, "args": arguments,
                "readinessProbe": {
                    "httpGet": {"scheme": "HTTPS", "path": "/readyz", "port": 8443}, "periodSeconds": 1,
                },
                "volumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": true}],
            }],
            "volumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
        },
    })
}

/// The objects of [`CALLERS`].
fn callers(namespace: &str, ca_bundle: &str) -> Value {
    let client = |name: &str, path: &str| {
        let service = json!({"namespace": namespace, "name": name, "path": path});
        json!({"caBundle": ca_bundle, "service": service})
    };
    // The validating webhook refuses only objects with certain `data`, which Services do not have.
    let configuration = |kind: &str, path: &str| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "called"},
            "webhooks": [{
                "name": "called.example.org", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": client("webhook", path), "failurePolicy": "Fail",
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                    "resources": ["services"],
                }],
            }],
        })
    };
    let version = |name: &str, storage: bool| {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}})
    };
    json!({"apiVersion": "v1", "kind": "List", "items": [
        configuration("MutatingWebhookConfiguration", "/add-label"),
        configuration("ValidatingWebhookConfiguration", "/custom-resource"),
        {
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.stable.example.com"},
            "spec": {
                "group": "stable.example.com", "scope": "Namespaced",
                "names": {"kind": "Thing", "plural": "things"},
                "versions": [version("v1", true), version("v2", false)],
                "conversion": {"strategy": "Webhook", "webhook": {
                    "conversionReviewVersions": ["v1"], "clientConfig": client("convert", "/crdconvert"),
                }},
            },
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1.called.example.org"},
            "spec": {
                "group": "called.example.org", "version": "v1", "groupPriorityMinimum": 10, "versionPriority": 10,
                "caBundle": ca_bundle, "service": {"namespace": namespace, "name": "api"},
            },
        },
    ]})
}

/// Waits until the API server gets an answer from all three Services.
async fn wait_for_answers(cluster: &WholeCluster, namespace: &str) {
    eventually("an answer of the webhook", async || {
        let label = "jsonpath={.metadata.labels.added-label}";
        let create = ["create", "--dry-run=server", "--output", label, "-f", "-"];
        let created = cluster.kubectl_with(&create, &service(namespace, "trial", json!({})).to_string()).await;
        (created.stdout == "yes").then_some(())
    })
    .await;
    let converted = format!("/apis/stable.example.com/v2/namespaces/{namespace}/things/one");
    for (what, path, text) in [
        ("the aggregated API", "/apis/called.example.org/v1", "APIResourceList"),
        ("the conversion", converted.as_str(), r#""host":"localhost""#),
    ] {
        eventually(&format!("an answer of {what}"), async || {
            let got = cluster.kubectl(&["get", "--raw", path]).await;
            got.stdout.contains(text).then_some(())
        })
        .await;
    }
}

async fn address(cluster: &WholeCluster, namespace: &str, name: &str) -> String {
    field(cluster, namespace, &format!("service/{name}"), ".spec.clusterIP").await
}

async fn addresses(cluster: &WholeCluster, namespace: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (name, _) in SERVERS {
        found.push(address(cluster, namespace, name).await);
    }
    found
}

/// Moves a Service with `clusterip move`, which must succeed.
async fn run_move(cluster: &WholeCluster, namespace: &str, name: &str, arguments: &[&str]) {
    move_command(cluster, namespace, name, arguments).await.ok();
}

async fn move_command(cluster: &WholeCluster, namespace: &str, name: &str, arguments: &[&str]) -> Ended {
    let service = format!("{namespace}/{name}");
    let order = ["move", "--yes", "--service", &service, "--called-by-control-plane", &service];
    clusterip(cluster.folder(), cluster.kubeconfig(), &[&order[..], arguments].concat()).await
}
