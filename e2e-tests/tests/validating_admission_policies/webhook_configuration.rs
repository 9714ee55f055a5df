//! The server may change only the CA bundle of its webhook configuration.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::support::{NAMESPACE, SERVER, deployed, outcome};
use crate::support::eventually::eventually;
use crate::support::service_webhook_rules::{assert_calls, call};

/// A change of the webhook configuration, and its result for the account of the server.
struct Change {
    name: &'static str,
    /// A JSON pointer into the configuration.
    path: &'static str,
    /// The new value; `None` removes the field.
    value: Option<Value>,
    expected: &'static str,
}

fn changes() -> Vec<Change> {
    let all =
        json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"], "scope": "*"}]);
    let labels = json!({"matchLabels": {"team": "blue"}});
    let ca = json!("Y2VydGlmaWNhdGU=");
    let allowed = |name, path, value: Value| Change { name, path, value: Some(value), expected: "allowed" };
    let refused = |name, path, value: Value| Change { name, path, value: Some(value), expected: "refused" };
    let removed = |name, path| Change { name, path, value: None, expected: "refused" };
    vec![
        allowed("its authority", "/webhooks/0/clientConfig/caBundle", ca.clone()),
        allowed("that of another webhook", "/webhooks/1/clientConfig/caBundle", ca),
        allowed("nothing", "/webhooks/0/name", json!("services.clusterip-policy.io")),
        refused("a URL", "/webhooks/0/clientConfig", json!({"url": "https://192.0.2.1/mutate"})),
        refused("another Service", "/webhooks/0/clientConfig/service/name", json!("mallory")),
        refused("another namespace", "/webhooks/0/clientConfig/service/namespace", json!("mallory")),
        refused("another path", "/webhooks/0/clientConfig/service/path", json!("/other")),
        refused("all resources", "/webhooks/0/rules", all.clone()),
        refused("all resources, of the second webhook", "/webhooks/1/rules", all),
        refused("one more resource", "/webhooks/0/rules/0/resources/1", json!("endpoints")),
        refused("the failure policy", "/webhooks/0/failurePolicy", json!("Fail")),
        refused("the match policy", "/webhooks/0/matchPolicy", json!("Exact")),
        refused("the namespaces", "/webhooks/0/namespaceSelector", json!({})),
        refused("the objects", "/webhooks/0/objectSelector", labels),
        refused("side effects", "/webhooks/0/sideEffects", json!("None")),
        refused("the timeout", "/webhooks/0/timeoutSeconds", json!(30)),
        refused("versions", "/webhooks/0/admissionReviewVersions", json!(["v1", "v1beta1"])),
        refused("reinvocation", "/webhooks/0/reinvocationPolicy", json!("Never")),
        removed("conditions", "/webhooks/0/matchConditions"),
        refused("the name of a webhook", "/webhooks/0/name", json!("pods.clusterip-policy.io")),
        removed("a webhook less", "/webhooks/1"),
        refused("a label", "/metadata/labels", json!({"team": "blue"})),
    ]
}

#[tokio::test]
async fn server_changes_only_the_ca_bundle_of_its_webhook_configuration() {
    let plane = deployed().await;
    let configurations = |client: Client| -> Api<DynamicObject> {
        Api::all_with(client, &ApiResource::erase::<MutatingWebhookConfiguration>(&()))
    };
    let server = configurations(plane.client_with(&plane.token(NAMESPACE, SERVER).await));
    let admin = configurations(plane.client());
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let put = async |who: &Api<DynamicObject>, path: &str, value: &Option<Value>| {
        let now = admin.get("clusterip-policy").await.unwrap();
        let mut changed = serde_json::to_value(now).unwrap();
        let (parent, key) = path.rsplit_once('/').unwrap();
        let parent = changed.pointer_mut(parent).unwrap();
        match (parent, value) {
            (Value::Object(parent), Some(value)) => drop(parent.insert(key.to_owned(), value.clone())),
            (Value::Object(parent), None) => drop(parent.remove(key)),
            (Value::Array(parent), Some(value)) => parent.push(value.clone()),
            (Value::Array(parent), None) => drop(parent.remove(key.parse().unwrap())),
            (parent, _) => panic!("{path}: {parent}"),
        }
        outcome(who.replace("clusterip-policy", &dry_run, &serde_json::from_value(changed).unwrap()).await)
    };
    eventually("the policy to be in force", async || {
        (put(&server, "/webhooks/0/timeoutSeconds", &Some(json!(30))).await == "refused").then_some(())
    })
    .await;
    let mut seen = Vec::new();
    for Change { name, path, value, expected } in changes() {
        seen.push(call(name, put(&server, path, &value).await, expected));
        // An administrator may write the same configuration, so it is valid.
        seen.push(call(format!("{name}, by an administrator"), put(&admin, path, &value).await, "allowed"));
    }
    assert_calls(seen);
}
