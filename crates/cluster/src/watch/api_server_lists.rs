//! Reads the objects of a running cluster.

use crate::api_error::{failed, if_found};
use crate::connect::ClusterArguments;
use crate::list_pages::visit_pages;
use anyhow::Context;
use clusterip_core::settings::Settings;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::kinds::{self, Kind};
use crate::snapshot::service_ranges::ServiceRanges;
use crate::watch::partial_object::PartialObject;

/// Lists all objects that a decision may ask about, with the fields that are used. A kind that the cluster does not have
/// has no objects.
pub async fn objects(client: &Client, settings: &Settings) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for kind in kinds::asked(settings) {
        objects.extend(list(client, &kind).await?);
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

/// All objects of a kind, with the fields that are used; none if the cluster does not have the kind.
pub async fn list(client: &Client, kind: &Kind) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    each(client, kind, &mut |object| objects.push(object)).await?;
    Ok(objects)
}

/// The Service ranges of the cluster; none if it has no ServiceCIDRs, as before Kubernetes 1.33.
pub async fn service_ranges(client: &Client) -> anyhow::Result<ServiceRanges> {
    let kind = ("networking.k8s.io/v1".to_owned(), "ServiceCIDR".to_owned());
    Ok(ServiceRanges::of(list(client, &kind).await?))
}

/// Calls `visit` with all objects of a kind, page by page; with none if the cluster does not have the kind.
pub async fn each(client: &Client, kind: &Kind, visit: &mut (dyn FnMut(Value) + Send)) -> anyhow::Result<()> {
    let (api_version, name) = kind;
    let failed = |error: kube::Error| failed(format!("listing {api_version}/{name} failed"), &error);
    let Some(resource) = kinds::resource(client, kind).await.map_err(failed)? else { return Ok(()) };
    let api = &Api::all_with(client.clone(), &resource);
    let visit = |object: PartialObject| object.value(kind).into_iter().for_each(&mut *visit);
    let visited = visit_pages(ListParams::default(), |page| async move { api.list(&page).await }, visit).await;
    if_found(visited).map_err(failed)
}
