//! Reads the objects of a running cluster.

use std::fmt::Debug;

use crate::api_error::failed;
use crate::connect::ClusterArguments;
use crate::list_pages::visit_pages;
use anyhow::Context;
use clusterip_core::settings::Settings;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::DynamicResourceScope;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::watch::kinds::{self, Kind};
use crate::watch::partial_object::PartialObject;

/// An object of any kind, read completely or in part.
pub trait Listed:
    kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope> + Clone + Debug + DeserializeOwned + Send
{
}

impl<K> Listed for K where
    K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
{
}

/// Lists all objects that a decision may ask about, with the fields that are used. A kind that the cluster does not have
/// has no objects.
pub async fn objects(client: &Client, settings: &Settings) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for kind in kinds::asked(settings) {
        list(client, &kind, &mut objects).await?;
    }
    Ok(objects)
}

/// Connects to the cluster of these arguments, for callers that are not async.
pub fn connect(cluster: &ClusterArguments) -> anyhow::Result<(Runtime, Client)> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.context("the threads for requests to the API server can't be started")?;
    let client = runtime.block_on(async {
        let client = cluster.client().await?;
        match client.apiserver_version().await {
            // A client that is not allowed to read the version has still reached the cluster.
            Ok(_) | Err(kube::Error::Api(_)) => Ok(client),
            Err(error) => Err(failed("the version of the API server can't be read", &error)),
        }
    });
    Ok((runtime, client?))
}

/// Adds all objects of a kind to `objects`, with the fields that are used; none if the cluster does not have the kind.
pub async fn list(client: &Client, kind: &Kind, objects: &mut Vec<Value>) -> anyhow::Result<()> {
    each(client, kind, &mut |object: PartialObject| objects.extend(object.value(kind))).await
}

/// Calls `visit` with all objects of a kind, page by page; with none if the cluster does not have the kind.
pub async fn each<K: Listed>(client: &Client, kind: &Kind, visit: &mut (dyn FnMut(K) + Send)) -> anyhow::Result<()> {
    let (api_version, name) = kind;
    let failed = |error: kube::Error| failed(format!("listing {api_version}/{name} failed"), &error);
    let Some(resource) = kinds::resource(client, kind).await.map_err(failed)? else { return Ok(()) };
    match visit_all(&Api::all_with(client.clone(), &resource), visit).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => done.map_err(failed),
    }
}

/// Adds all objects of `api` to `objects`, page by page.
pub async fn pages(
    api: &Api<DynamicObject>,
    api_version: &str,
    kind: &str,
    objects: &mut Vec<Value>,
) -> Result<(), kube::Error> {
    visit_all(api, &mut |object| objects.push(value(object, api_version, kind))).await
}

async fn visit_all<K: Listed>(api: &Api<K>, visit: &mut (dyn FnMut(K) + Send)) -> Result<(), kube::Error> {
    visit_pages(ListParams::default(), |page| async move { api.list(&page).await }, visit).await
}

/// Adds the object with this name to `objects`, if it exists.
pub async fn one(
    api: &Api<DynamicObject>,
    api_version: &str,
    kind: &str,
    name: &str,
    objects: &mut Vec<Value>,
) -> Result<(), kube::Error> {
    objects.extend(api.get_opt(name).await?.map(|object| value(object, api_version, kind)));
    Ok(())
}

/// Completes API version and kind, which the items of a list lack.
fn value(object: DynamicObject, api_version: &str, kind: &str) -> Value {
    // Serializing can't fail: the keys of an object are strings, and its numbers are finite.
    let mut object = serde_json::to_value(object).unwrap_or_default();
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    object
}
