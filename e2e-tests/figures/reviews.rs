//! Reviews that do not come from the API server.

use serde_json::json;

use super::manifests::service;
use super::support::serve_process::Server;

/// Sends reviews of creates to a server, as dry runs, one after the other and on one connection, while the API server is
/// idle. All must be allowed, or all denied.
pub async fn send_reviews(server: &Server, namespace: &str, count: usize, is_allowed: bool) {
    // Only these reviews are sent, and they are not secret.
    let client = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
    let url = format!("{}/mutate", server.url());
    for index in 0..count {
        let object = service(namespace, index);
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": format!("00000000-0000-0000-0000-{index:012}"), "operation": "CREATE", "dryRun": true,
            "kind": {"group": "", "version": "v1", "kind": "Service"},
            "resource": {"group": "", "version": "v1", "resource": "services"},
            "namespace": namespace, "name": object["metadata"]["name"], "object": object,
        }});
        let answer: serde_json::Value = client.post(&url).json(&review).send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["response"]["allowed"], is_allowed, "{answer}");
    }
}
