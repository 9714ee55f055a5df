//! Pools belong to administrators: a user with the role `edit` in a namespace has no access to them.

use axum::http::Method;
use kube::Client;
use serde_json::{Value, json};

use super::support::{apply, path, policy};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::move_helpers;
use crate::support::pools::pool;
use crate::support::webhook_cluster::service;

/// The status code of the answer to a request; 200 for every success. Without a body, `body` is null.
async fn status_code(client: &Client, method: Method, path: &str, body: &Value) -> u16 {
    match client.request::<Value>(move_helpers::request(method, path, body)).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{path}: {error}"),
    }
}

/// `plane` has `deploy/api` and a controller manager, which gives the role `edit` its rules. Creates pools, one of which
/// is for all Services.
pub async fn user_with_the_role_edit_in_a_namespace_has_no_access_to_pools(plane: &ControlPlane) {
    let namespace = plane.namespace("mallory").await;
    let user = format!("--user={namespace}");
    let binding = ["create", "rolebinding", "edit", "--clusterrole=edit", &user, "--namespace", &namespace];
    plane.kubectl(&binding).await.ok();
    let mallory = plane.client_as(&namespace);
    let services = format!("/api/v1/namespaces/{namespace}/services?dryRun=All");
    eventually("the permissions of the user", async || {
        (status_code(&mallory, Method::POST, &services, &service("web", json!({}))).await == 200).then_some(())
    })
    .await;

    let objects = [
        pool("ServicePool", "one", json!({"cidrs": ["172.21.8.0/24"]})),
        pool("ExternalPool", "one", json!({"cidrs": ["192.0.2.0/24"]})),
        pool("NodeBlockPool", "one", json!({"cidrs": ["10.244.0.0/16"]})),
        policy(plane, json!({})),
    ];
    let mut wrong = Vec::new();
    for object in &objects {
        apply(plane, object).await;
        let kind = object["kind"].as_str().unwrap();
        let one = path(kind, object["metadata"]["name"].as_str().unwrap());
        let status = format!("{one}/status");
        let (one, status) = (one.as_str(), status.as_str());
        let (all, _) = one.rsplit_once('/').unwrap();
        let change = json!({"metadata": {"labels": {"owner": "mallory"}}});
        let conditions = json!({"status": {"conditions": []}});
        let requests = [
            (Method::GET, all, &Value::Null),
            (Method::GET, one, &Value::Null),
            (Method::POST, all, object),
            (Method::PATCH, one, &change),
            (Method::DELETE, one, &Value::Null),
            (Method::DELETE, all, &Value::Null),
            (Method::GET, status, &Value::Null),
            (Method::PATCH, status, &conditions),
        ];
        for (method, path, body) in requests {
            let code = status_code(&mallory, method.clone(), path, body).await;
            if code != 403 {
                wrong.push(format!("{method} {path}: {code}"));
            }
        }
        // The administrator finds the object as it was.
        let found = move_helpers::send(&plane.client(), Method::GET, one, None).await.unwrap();
        assert_eq!(found["metadata"]["labels"]["owner"], Value::Null, "{found}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
