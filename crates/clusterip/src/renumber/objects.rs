//! Reads the objects of any kind.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use clusterip_cluster::api_error::{failed, if_found};
use clusterip_cluster::kinds;
use clusterip_cluster::list_pages::visit_pages;
use clusterip_cluster::object::{items, texts};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use serde_json::{Value, json};

/// The API version and the name of a kind whose plural is regular.
pub type Kind = (&'static str, &'static str);

pub const EVENT: Kind = ("v1", "Event");
pub const NODE: Kind = ("v1", "Node");
pub const POD: Kind = ("v1", "Pod");
pub const SERVICE_POOL: Kind = ("clusterip-policy.io/v1alpha1", "ServicePool");
pub const IP_ADDRESS: Kind = ("networking.k8s.io/v1", "IPAddress");
pub const SERVICE_CIDR: Kind = ("networking.k8s.io/v1", "ServiceCIDR");
pub const SERVICE: Kind = ("v1", "Service");
pub const ENDPOINT_SLICE: Kind = ("discovery.k8s.io/v1", "EndpointSlice");

pub fn resource((api_version, kind): Kind) -> ApiResource {
    kinds::regular(&(api_version.to_owned(), kind.to_owned()))
}

/// The objects of a kind, in one namespace or in all.
pub fn api(client: &Client, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource(kind)),
        None => Api::all_with(client.clone(), &resource(kind)),
    }
}

pub async fn get(client: &Client, kind: Kind, namespace: Option<&str>, name: &str) -> anyhow::Result<Option<Value>> {
    let found = api(client, kind, namespace).get_opt(name).await;
    let found = found.map_err(|error| failed(format!("{} {name} can't be read", kind.1), &error))?;
    Ok(found.map(|found| json!(found)))
}

/// Calls `visit` with each object of a kind that `selected` selects. A cluster without the kind has no such object.
pub async fn for_each(
    client: &Client,
    kind: Kind,
    namespace: Option<&str>,
    selected: ListParams,
    mut visit: impl FnMut(Value),
) -> anyhow::Result<()> {
    let api = &api(client, kind, namespace);
    let list = |page: ListParams| async move { api.list(&page).await };
    let visited = visit_pages(selected, list, |object: DynamicObject| visit(json!(object))).await;
    if_found(visited).map_err(|error| failed(format!("{} objects can't be listed", kind.1), &error))
}

/// The objects of a kind without a namespace, of which a cluster has few.
pub async fn list(client: &Client, kind: Kind) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for_each(client, kind, None, ListParams::default(), |object| objects.push(object)).await?;
    Ok(objects)
}

pub async fn endpoint_slices(client: &Client, namespace: &str, service: &str) -> anyhow::Result<Vec<Value>> {
    let mut slices = Vec::new();
    let selected = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    for_each(client, ENDPOINT_SLICE, Some(namespace), selected, |slice| slices.push(slice)).await?;
    Ok(slices)
}

/// The addresses of the API servers: the endpoints of `default/kubernetes`.
pub async fn api_servers(client: &Client) -> anyhow::Result<Vec<SocketAddr>> {
    let mut servers = Vec::new();
    for slice in endpoint_slices(client, "default", "kubernetes").await? {
        let ports: Vec<u16> =
            items(&slice, "/ports").filter_map(|port| port.get("port")?.as_u64()?.try_into().ok()).collect();
        let addresses = items(&slice, "/endpoints").flat_map(|endpoint| parsed::<IpAddr>(endpoint, "/addresses"));
        servers.extend(addresses.flat_map(|address| ports.iter().map(move |port| SocketAddr::new(address, *port))));
    }
    Ok(servers)
}

pub fn is_being_deleted(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

/// Such as `Pod shop/web` or `Node a`.
pub fn named(kind: &str, namespace: &str, name: &str) -> String {
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}

/// The items of a list that can be parsed.
pub fn parsed<T: FromStr>(object: &Value, path: &str) -> Vec<T> {
    texts(object, path).filter_map(|text| text.parse().ok()).collect()
}
