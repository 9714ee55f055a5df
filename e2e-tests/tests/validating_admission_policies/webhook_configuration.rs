//! The server may change only the CA bundle of its webhook configuration.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::support::{NAMESPACE, SERVER, deployed, outcome};
use crate::support::eventually::eventually;
use crate::support::service_webhook_rules::{Call, assert_calls};

/// A change of the webhook configuration, and its result for the account of the server.
struct Change {
    name: &'static str,
    /// A JSON pointer into the configuration.
    path: &'static str,
    /// The new value; `None` removes the field.
    value: Option<Value>,
    expected: &'static str,
}

fn allowed_changes() -> Vec<Change> {
    vec![
        Change {
            name: "its authority",
            path: "/webhooks/0/clientConfig/caBundle",
            value: Some(json!("Y2VydGlmaWNhdGU=")),
            expected: "allowed",
        },
        Change {
            name: "that of another webhook",
            path: "/webhooks/1/clientConfig/caBundle",
            value: Some(json!("Y2VydGlmaWNhdGU=")),
            expected: "allowed",
        },
        Change {
            name: "nothing",
            path: "/webhooks/0/name",
            value: Some(json!("services.clusterip-policy.io")),
            expected: "allowed",
        },
    ]
}

fn refused_changes() -> Vec<Change> {
    let all =
        json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"], "scope": "*"}]);
    let labels = json!({"matchLabels": {"team": "blue"}});
    vec![
        Change {
            name: "a URL",
            path: "/webhooks/0/clientConfig",
            value: Some(json!({"url": "https://192.0.2.1/mutate"})),
            expected: "refused",
        },
        Change {
            name: "another Service",
            path: "/webhooks/0/clientConfig/service/name",
            value: Some(json!("mallory")),
            expected: "refused",
        },
        Change {
            name: "another namespace",
            path: "/webhooks/0/clientConfig/service/namespace",
            value: Some(json!("mallory")),
            expected: "refused",
        },
        Change {
            name: "another path",
            path: "/webhooks/0/clientConfig/service/path",
            value: Some(json!("/other")),
            expected: "refused",
        },
        Change { name: "all resources", path: "/webhooks/0/rules", value: Some(all.clone()), expected: "refused" },
        Change {
            name: "all resources, of the second webhook",
            path: "/webhooks/1/rules",
            value: Some(all),
            expected: "refused",
        },
        Change {
            name: "one more resource",
            path: "/webhooks/0/rules/0/resources/1",
            value: Some(json!("endpoints")),
            expected: "refused",
        },
        Change {
            name: "the failure policy",
            path: "/webhooks/0/failurePolicy",
            value: Some(json!("Fail")),
            expected: "refused",
        },
        Change {
            name: "the match policy",
            path: "/webhooks/0/matchPolicy",
            value: Some(json!("Exact")),
            expected: "refused",
        },
        Change {
            name: "the namespaces",
            path: "/webhooks/0/namespaceSelector",
            value: Some(json!({})),
            expected: "refused",
        },
        Change { name: "the objects", path: "/webhooks/0/objectSelector", value: Some(labels), expected: "refused" },
        Change {
            name: "side effects",
            path: "/webhooks/0/sideEffects",
            value: Some(json!("None")),
            expected: "refused",
        },
        Change { name: "the timeout", path: "/webhooks/0/timeoutSeconds", value: Some(json!(30)), expected: "refused" },
        Change {
            name: "versions",
            path: "/webhooks/0/admissionReviewVersions",
            value: Some(json!(["v1", "v1beta1"])),
            expected: "refused",
        },
        Change {
            name: "reinvocation",
            path: "/webhooks/0/reinvocationPolicy",
            value: Some(json!("Never")),
            expected: "refused",
        },
        Change { name: "conditions", path: "/webhooks/0/matchConditions", value: None, expected: "refused" },
        Change {
            name: "the name of a webhook",
            path: "/webhooks/0/name",
            value: Some(json!("pods.clusterip-policy.io")),
            expected: "refused",
        },
        Change { name: "a webhook less", path: "/webhooks/1", value: None, expected: "refused" },
        Change { name: "a label", path: "/metadata/labels", value: Some(json!({"team": "blue"})), expected: "refused" },
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
    for Change { name, path, value, expected } in allowed_changes().into_iter().chain(refused_changes()) {
        seen.push(Call { request: name.to_owned(), outcome: put(&server, path, &value).await, expected });
        // An administrator may write the same configuration, so it is valid.
        seen.push(Call {
            request: format!("{name}, by an administrator"),
            outcome: put(&admin, path, &value).await,
            expected: "allowed",
        });
    }
    assert_calls(seen);
}
