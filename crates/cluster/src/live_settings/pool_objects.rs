//! Reads and watches the objects of the API `clusterip-policy.io`, and translates them into the settings document.

use std::collections::BTreeSet;
use std::time::Duration;

use clusterip_api::{Compilation, InUse, Kind, Objects, compile, in_use_before};
use clusterip_core::settings::with_ranges_of_cluster;
use futures::FutureExt as _;
use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::{Api, DynamicObject, ListParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Error as KubeError};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use crate::api_error::{error_chain, if_found};
use crate::host_metrics::ClusterMetrics;
use crate::list_pages::visit_pages;
use crate::object::items;
use crate::repeated_failures::warn_of_watch;
use crate::snapshot::service_ranges::{ServiceCidr, ServiceRanges};
use crate::watch::stores::watch_config;

/// Several objects are often applied together. The settings are compiled when no object has changed for this time, so
/// that no version with only some of these objects is put into use.
const QUIET: Duration = Duration::from_millis(100);
/// Objects that change all the time are compiled at least this often.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// All objects of this API, sorted by kind and name. Each has only the parts that matter to the settings. The status of
/// the error is 404 if the definitions of the custom resources are not installed.
pub async fn list(client: &Client) -> Result<Vec<Value>, KubeError> {
    let mut objects = Vec::new();
    for kind in Kind::ALL {
        let api = &api(client, kind);
        let list = |page| async move { api.list(&page).await };
        visit_pages(ListParams::default(), list, |object| objects.push(reduced(kind, &object))).await?;
    }
    Ok(objects)
}

/// As [`list`]; none if the definitions of the custom resources are not installed.
pub async fn list_if_defined(client: &Client) -> Result<Vec<Value>, KubeError> {
    if_found(list(client).await)
}

/// What a server compiles from the objects of this API in a cluster; `None` if there are none.
pub async fn compile_cluster(client: &Client) -> Result<Option<Compilation>, KubeError> {
    let objects = list_if_defined(client).await?;
    if objects.is_empty() {
        return Ok(None);
    }
    let ranges = service_ranges(client).await?;
    Ok(Some(compiled(&objects, &ranges, None)))
}

/// The Service ranges of the cluster; none before Kubernetes 1.33, which has no ServiceCIDRs.
pub(super) async fn service_ranges(client: &Client) -> Result<ServiceRanges, KubeError> {
    let listed = Api::<ServiceCIDR>::all(client.clone()).list(&ListParams::default()).await;
    let found = if_found(listed.map(|listed| listed.items))?;
    let objects = found.iter().map(|object| ServiceCidr::read(&json!(object)));
    Ok(ServiceRanges::of_service_cidrs(objects))
}

pub(super) fn versions(client: &Client, metrics: &ClusterMetrics) -> BoxStream<'static, Vec<Value>> {
    let (client, metrics) = (client.clone(), metrics.clone());
    let (mut events, mut stores) = (SelectAll::new(), Vec::new());
    for kind in Kind::ALL {
        let writer = Writer::new(kind.api_resource());
        stores.push((kind, writer.as_reader()));
        let watch = watcher(api(&client, kind), watch_config()).default_backoff().reflect(writer);
        events.push(watch.map(move |event| (kind, event)).boxed());
    }
    let watch = ObjectWatch { client, metrics, events, stores, missing: BTreeSet::new(), last: None };
    stream::unfold(watch, async |mut watch| Some((watch.next().await?, watch))).boxed()
}

fn api(client: &Client, kind: Kind) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &kind.api_resource())
}

/// Whether the definition of a kind is installed; true if the API server does not say. The error of a watch does not
/// tell, because the API server answers a watch of an unknown kind with a text.
async fn is_defined(client: &Client, kind: Kind) -> bool {
    let listed = api(client, kind).list(&ListParams::default().limit(1)).await;
    !matches!(listed, Err(KubeError::Api(status)) if status.code == 404)
}

type WatchEvent = (Kind, Result<Event<DynamicObject>, watcher::Error>);

struct ObjectWatch {
    client: Client,
    metrics: ClusterMetrics,
    events: SelectAll<BoxStream<'static, WatchEvent>>,
    stores: Vec<(Kind, Store<DynamicObject>)>,
    /// The kinds whose definitions were deleted while this process watches their objects.
    missing: BTreeSet<Kind>,
    last: Option<Vec<Value>>,
}

impl ObjectWatch {
    /// The next version of the objects; `None` if all watches ended, which they never do.
    async fn next(&mut self) -> Option<Vec<Value>> {
        loop {
            let event = self.events.next().await?;
            self.see(event).await;
            let end = Instant::now() + MAX_DELAY;
            while let Ok(Some(event)) = timeout_at(end.min(Instant::now() + QUIET), self.events.next()).await {
                self.see(event).await;
                if Instant::now() >= end {
                    break;
                }
            }
            if self.stores.iter().any(|(_, store)| store.wait_until_ready().now_or_never().is_none()) {
                continue;
            }
            let objects = self.objects();
            if self.last.replace(objects.clone()).as_ref() != Some(&objects) {
                return Some(objects);
            }
        }
    }

    async fn see(&mut self, (kind, event): WatchEvent) {
        match event {
            // `Event::Init` is also sent before a list that fails.
            Ok(Event::InitDone | Event::Apply(_)) => {
                self.missing.remove(&kind);
            }
            Ok(_) => {}
            Err(error) => {
                self.metrics.watch_error(kind.as_str());
                if is_defined(&self.client, kind).await {
                    let resource = kind.api_resource();
                    warn_of_watch(&(resource.api_version, resource.kind), &error_chain(&error));
                } else if self.missing.insert(kind) && self.missing.len() == 1 {
                    tracing::warn!(
                        kind = kind.as_str(),
                        "the definition of this resource was deleted, and its objects with it: install the definitions \
                         again with kubectl apply -k deploy/api"
                    );
                }
            }
        }
    }

    /// All objects as [`list`] returns them.
    fn objects(&self) -> Vec<Value> {
        let mut objects = Vec::new();
        for (kind, store) in &self.stores {
            let mut found = store.state();
            found.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
            objects.extend(found.iter().map(|object| reduced(*kind, object)));
        }
        objects
    }
}

/// The parts of an object that matter to the settings, without the numbers in its status, which change all the time.
fn reduced(kind: Kind, object: &DynamicObject) -> Value {
    let resource = kind.api_resource();
    let metadata = &object.metadata;
    let metadata = json!({"name": metadata.name, "uid": metadata.uid, "generation": metadata.generation});
    let status = object.data.get("status").and_then(Value::as_object).into_iter().flatten();
    let kept = ["observedGeneration", "inUse", "ranges"];
    let kept = status.filter(|(field, _)| kept.contains(&field.as_str()));
    let mut status: Map<String, Value> = kept.map(|(field, value)| (field.clone(), value.clone())).collect();
    let conditions = items(&object.data, "/status/conditions");
    let part = |condition: &Value| json!({"type": condition.get("type"), "status": condition.get("status")});
    status.insert("conditions".to_owned(), conditions.map(part).collect());
    json!({
        "apiVersion": resource.api_version,
        "kind": kind.as_str(),
        "metadata": metadata,
        "spec": object.data.get("spec"),
        "status": status,
    })
}

/// `in_use` are the parts of the compilation before, if this process has made one.
pub(super) fn compiled(objects: &[Value], ranges: &ServiceRanges, in_use: Option<&InUse>) -> Compilation {
    let objects = Objects {
        objects: objects.to_vec(),
        service_cidrs: ranges.labelled.clone(),
        cluster_ranges: ranges.all.clone(),
    };
    let mut compiled =
        in_use.map_or_else(|| compile(&objects, &in_use_before(&objects)), |in_use| compile(&objects, in_use));
    if !objects.cluster_ranges.is_empty() {
        let states = compiled.states.values_mut();
        states.for_each(|state| state.message = with_ranges_of_cluster(&state.message));
    }
    compiled
}
