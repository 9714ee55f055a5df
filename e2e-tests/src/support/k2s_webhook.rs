//! The webhook of the K2s distribution: its objects, its documented behaviour, and what the commands of K2s do with
//! them. See `docs/operations.md` for the version of K2s.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::Method;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::documented_steps::Operator;
use super::eventually::eventually;
use super::move_helpers::tries;
use super::second_webhook::{Endpoint, Verdict, endpoint};

/// The user name of the webhook of K2s.
pub const ACCOUNT: &str = "system:serviceaccount:k2s-webhook:clusterip-webhook";

const CONFIGURATION: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/k2s-webhook";

/// The webhook remembers the `nodeSelector` of workloads, and gives a Service without an address the next one of the
/// Windows or Linux subnet, beginning with the fifty-first. This double does not delete and create Services when a
/// Windows workload comes after them.
#[derive(Default)]
struct State {
    windows: Vec<Value>,
    given: BTreeMap<u8, u8>,
}

impl State {
    fn review(&mut self, mut object: Value) -> Verdict {
        if object["kind"] != "Service" {
            let template = &object["spec"]["template"];
            if template["spec"]["nodeSelector"]["kubernetes.io/os"] == "windows" {
                self.windows.push(template["metadata"]["labels"].clone());
            }
            return Verdict::Keep;
        }
        if object["spec"]["clusterIP"].is_string() || object["spec"]["type"] == "ExternalName" {
            return Verdict::Keep;
        }
        let third = u8::from(self.windows.contains(&object["spec"]["selector"]));
        let last = self.given.entry(third).or_insert(49);
        *last += 1;
        object["spec"]["clusterIP"] = format!("172.21.{third}.{last}").into();
        Verdict::Change(object)
    }
}

/// The running webhook of K2s, and its objects.
pub struct K2sWebhook {
    endpoint: Endpoint,
    state: Arc<Mutex<State>>,
}

impl K2sWebhook {
    /// Starts the webhook, without installing its objects.
    pub async fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let reviewing = Arc::clone(&state);
        let review = move |object| reviewing.lock().unwrap_or_else(PoisonError::into_inner).review(object);
        Self { endpoint: endpoint(review).await, state }
    }

    /// How often the API server has called the webhook.
    pub fn calls(&self) -> usize {
        self.endpoint.calls.load(Ordering::Acquire)
    }

    /// How far the webhook has come in each subnet: the fourth number of its last address, by the third number.
    pub fn given(&self) -> BTreeMap<u8, u8> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).given.clone()
    }

    /// Replaces the Service of the webhook by its URL in `deploy/k2s`, because no Service leads to a Pod here.
    pub fn set_url(&self, operator: &Operator<'_>) {
        let file = "deploy/k2s/webhook-configuration.yaml";
        let mut text = operator.read(file);
        for path in ["/mutate", "/mutate-workload"] {
            let lines = ["namespace: k2s-webhook", "name: clusterip-webhook", "path: PATH", "port: 443"];
            let fields: String = lines.iter().map(|line| format!("      {line}\n")).collect();
            let service = format!("    service:\n{fields}").replace("PATH", path);
            assert!(text.contains(&service), "{file} names another Service");
            text = text.replace(&service, &format!("    url: {}\n", self.endpoint.url));
        }
        operator.write(file, &text);
    }

    /// Does what `k2s install` does: applies all objects, and starts a Pod.
    pub async fn install(&self, plane: &ControlPlane) {
        self.update(plane).await.unwrap();
    }

    /// Does what `k2s system update` does. The webhook configuration is applied only if it does not exist.
    ///
    /// # Errors
    /// If the webhook configuration has no `caBundle` in the end: then the update fails.
    pub async fn update(&self, plane: &ControlPlane) -> Result<(), String> {
        let exists = ["get", "mutatingwebhookconfiguration", "k2s-webhook"];
        plane.kubectl_with(&["apply", "-f", "-"], &namespace_and_permissions()).await;
        if plane.kubectl(&exists).await.status != 0 {
            plane.kubectl_with(&["apply", "-f", "-"], &self.configuration()).await;
        }
        plane.kubectl_with(&["apply", "-f", "-"], &deployment_and_service()).await;
        self.start_pod(plane).await;
        let bundle = [&exists[..], &["--output", "jsonpath={.webhooks[0].clientConfig.caBundle}"]].concat();
        let bundle = plane.kubectl(&bundle).await;
        if bundle.status != 0 || bundle.stdout.is_empty() {
            return Err(format!("no caBundle: {}", bundle.stderr));
        }
        Ok(())
    }

    /// Does what each Pod of the webhook does first, for example after `k2s system certificate renew`: with the
    /// permissions of the webhook, it writes the `caBundle` of all its webhooks, and leaves all other fields as they
    /// are.
    pub async fn start_pod(&self, plane: &ControlPlane) {
        let client = plane.client_as(ACCOUNT);
        // The API server may not know the permissions yet.
        eventually("a Pod of K2s to write the caBundle", async || {
            let mut configuration = tries(&client, Method::GET, CONFIGURATION, &Value::Null).await.ok()?;
            for webhook in configuration["webhooks"].as_array_mut()? {
                webhook["clientConfig"]["caBundle"] = self.endpoint.ca_bundle.clone().into();
            }
            tries(&client, Method::PUT, CONFIGURATION, &configuration).await.ok()
        })
        .await;
    }

    /// Waits until the API server calls the webhook for new Services of this namespace, which it also does in dry runs.
    pub async fn is_active(&self, plane: &ControlPlane, namespace: &str) {
        eventually("the API server to call the webhook of K2s", async || {
            self.is_called(plane, namespace).await.then_some(())
        })
        .await;
    }

    /// Waits until the API server does not call the webhook for new Services of this namespace.
    pub async fn is_idle(&self, plane: &ControlPlane, namespace: &str) {
        eventually("the API server not to call the webhook of K2s", async || {
            (!self.is_called(plane, namespace).await).then_some(())
        })
        .await;
    }

    async fn is_called(&self, plane: &ControlPlane, namespace: &str) -> bool {
        let before = self.calls();
        let trial = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "trial"},
            "spec": {"ports": [{"port": 80}]}});
        let path = format!("/api/v1/namespaces/{namespace}/services?dryRun=All");
        tries(&plane.client(), Method::POST, &path, &trial).await.unwrap();
        self.calls() > before
    }

    /// The webhook configuration as K2s ships it, without a `caBundle`.
    pub fn configuration(&self) -> String {
        let webhook = |name: &str, group: &str, resources: &[&str], side_effects: &str| {
            json!({
                "name": name,
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": self.endpoint.url, "caBundle": ""},
                "rules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"],
                           "resources": resources, "scope": "Namespaced"}],
                "namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn",
                    "values": ["kube-system", "k2s-webhook"]}]},
                "failurePolicy": "Ignore", "reinvocationPolicy": "IfNeeded", "sideEffects": side_effects,
                "timeoutSeconds": 10,
            })
        };
        let workloads = ["deployments", "statefulsets", "daemonsets"];
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "k2s-webhook", "labels": labels()}, "webhooks": [
                webhook("clusterip.k2s.io", "", &["services"], "None"),
                webhook("workload.clusterip.k2s.io", "apps", &workloads, "NoneOnDryRun")]})
        .to_string()
    }
}

fn labels() -> Value {
    json!({"app.kubernetes.io/name": "clusterip-webhook", "app.kubernetes.io/part-of": "k2s"})
}

fn namespaced(name: &str) -> Value {
    json!({"name": name, "namespace": "k2s-webhook", "labels": labels()})
}

fn list(items: Value) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn namespace_and_permissions() -> String {
    let role = json!({"name": "k2s:clusterip-webhook", "labels": labels()});
    list(json!([
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "k2s-webhook", "labels": labels()}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": namespaced("clusterip-webhook")},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": role, "rules": [
            {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "get", "delete", "create"]},
            {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"],
             "resourceNames": ["k2s-webhook"], "verbs": ["get", "update"]}]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": role,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "k2s:clusterip-webhook"},
            "subjects": [{"kind": "ServiceAccount", "name": "clusterip-webhook", "namespace": "k2s-webhook"}]},
    ]))
}

fn deployment_and_service() -> String {
    let selector = json!({"app.kubernetes.io/name": "clusterip-webhook"});
    list(json!([
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": namespaced("clusterip-webhook"), "spec": {
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": selector}, "spec": {"containers": [{"name": "webhook",
                "image": "example.com/clusterip-webhook",
                "args": ["--linux-subnet=172.21.0.0/24", "--windows-subnet=172.21.1.0/24", "--reserved-ips=50"]}]}}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": namespaced("clusterip-webhook"),
            "spec": {"selector": selector, "ports": [{"port": 443, "targetPort": 8443}]}},
    ]))
}
