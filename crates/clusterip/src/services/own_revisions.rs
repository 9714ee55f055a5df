//! The `ControllerRevision` objects in the server's namespace: records of moves, requests for moves, and the settings
//! in use.

use clusterip_cluster::api_error::if_found;
use clusterip_cluster::list_pages::visit_pages;
use clusterip_core::annotations::MOVE_OBJECT_LABEL;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PartialObjectMeta};
use kube::{Client, Error as KubeError};
use serde::Serialize;
use serde_json::json;

pub fn api(client: &Client, namespace: &str) -> Api<ControllerRevision> {
    Api::namespaced(client.clone(), namespace)
}

/// An object with this name and data. `label` is its value of [`MOVE_OBJECT_LABEL`].
pub fn object(name: &str, label: &str, data: &impl Serialize) -> ControllerRevision {
    let labels = [(MOVE_OBJECT_LABEL, label), ("app.kubernetes.io/name", "clusterip")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
    ControllerRevision { metadata, revision: Some(0), data: RawExtension(json!(data)) }
}

/// What `read` returns for the metadata of the objects with this value of [`MOVE_OBJECT_LABEL`]. In other namespaces,
/// tenants may write such objects, and make them large: they are read page by page, and not kept.
pub async fn list<T>(
    api: &Api<ControllerRevision>,
    label: &str,
    read: impl Fn(PartialObjectMeta<ControllerRevision>) -> Option<T>,
) -> Result<Vec<T>, KubeError> {
    let mut all = Vec::new();
    let parameters = ListParams::default().labels(&format!("{MOVE_OBJECT_LABEL}={label}"));
    let list = |page| async move { api.list_metadata(&page).await };
    visit_pages(parameters, list, |object| all.extend(read(object))).await?;
    Ok(all)
}

pub async fn delete(api: &Api<ControllerRevision>, name: &str) -> Result<(), KubeError> {
    if_found(api.delete(name, &DeleteParams::default()).await.map(drop))
}
