//! A control plane with the policies, the users of the tests, and the results of their requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::shared::Shared;
use kube::Client;
use kube::api::DynamicObject;
use serde_json::json;

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::service_webhook_rules::MOVING;

pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
pub const NAMESPACE: &str = "clusterip-policy";
pub const SERVER: &str = "clusterip";
pub const AGENTS: &str = "clusterip-policy-agents";

/// The text that identifies a refusal of a policy.
const BY_POLICY: &str = ".clusterip-policy.io' denied request";

/// A control plane with `deploy/external`. No server answers at the Service of its webhooks.
pub async fn deployed() -> Arc<ControlPlane> {
    static DEPLOYED: Shared<ControlPlane> = Shared::new();
    DEPLOYED
        .get(async || {
            let plane = ControlPlane::start(Options { audit: false, ..Options::default() });
            plane.install_pools().await;
            plane.kubectl(&["apply", "-k", &format!("{ROOT}/deploy/external")]).await.ok();
            plane
        })
        .await
}

/// A client of a user with the permissions of the role `edit` in this namespace that matter here.
pub async fn editor(plane: &ControlPlane, namespace: &str) -> Client {
    let mallory = plane.service_account(namespace, "mallory").await;
    let rules = json!([
        {"apiGroups": ["", "apps"], "resources": ["services", "deployments", "pods"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"]},
        {"apiGroups": ["apps"], "resources": ["controllerrevisions"], "verbs": ["get", "list", "watch"]},
    ]);
    plane.grant(&mallory, Some(namespace), rules).await;
    plane.client_as(&mallory)
}

/// `allowed`, `refused` by a policy, or another error.
pub fn outcome<T>(result: Result<T, kube::Error>) -> String {
    match result {
        Ok(_) => "allowed".to_owned(),
        Err(kube::Error::Api(status)) if status.message.contains(BY_POLICY) => "refused".to_owned(),
        Err(error) => error.to_string(),
    }
}

pub fn marked(mut service: DynamicObject, marker: Option<&str>) -> DynamicObject {
    service.metadata.annotations = marker.map(|marker| BTreeMap::from([(MOVING.to_owned(), marker.to_owned())]));
    service
}
