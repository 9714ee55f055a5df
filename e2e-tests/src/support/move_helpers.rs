//! The shared dual-stack control plane of the tests of moves, and their requests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use axum::http::{Method, Request};
use clusterip::services::mover::targets::Targets;
use clusterip::services::mover::{Limits, MoveOrder, Mover};
use clusterip_core::address::Family;
use clusterip_core::annotations::{MOVING_ANNOTATION, MOVING_NAME};
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::outcome::{Outcome, Size, Unmoved};
use kube::Client;
use serde_json::{Value, json};

pub use super::control_plane::request;
use super::control_plane::{ControlPlane, Options};
use super::eventually::eventually;
use super::fault_proxy::Seen;
use super::shared::Shared;

/// The shared control plane, with a controller manager, which sees every step of a move.
pub async fn plane() -> Arc<ControlPlane> {
    static PLANE: Shared<ControlPlane> = Shared::new();
    PLANE.get(async || ControlPlane::start(Options { controller_manager: true, ..Options::dual_stack() })).await
}

/// An unused address of each family, in the static band, where the API server does not pick addresses.
pub fn fresh() -> [IpAddr; 2] {
    static NEXT: AtomicU16 = AtomicU16::new(2);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(next < 255, "the static band is used up");
    [Ipv4Addr::new(172, 21, 0, next as u8).into(), Ipv6Addr::new(0xfd00, 0x21, 0, 0, 0, 0, 0, next).into()]
}

/// A fixed list of targets, in order. A recorded target is accepted if it is in the list.
pub struct These(pub Vec<Vec<IpAddr>>);

impl Targets for These {
    async fn another(&self, refused: &[IpAddr]) -> Option<Vec<IpAddr>> {
        self.0.iter().find(|target| target.iter().all(|address| !refused.contains(address))).cloned()
    }

    async fn fits(&self, addresses: &[IpAddr]) -> bool {
        self.0.iter().any(|target| target == addresses)
    }

    async fn last_resort(&self, _: &[Family]) -> Option<Vec<IpAddr>> {
        Some(Vec::new())
    }

    async fn check_update(&self, _: &Value, _: &Value) -> Result<(), String> {
        Ok(())
    }

    fn is_reachable(&self, _: &[Value]) -> bool {
        true
    }

    async fn may_show(&self, _: &Value, _: &[IpAddr]) -> bool {
        true
    }
}

/// The namespace for the records of moves.
pub const RECORDS: &str = "default";

/// A mover.
pub fn mover(client: Client) -> Mover {
    Mover::new(client, RECORDS)
}

/// A mover with these limits.
pub fn mover_with(client: Client, limits: Limits) -> Mover {
    let mut mover = mover(client);
    mover.limits = limits;
    mover
}

/// Resumes the recorded move of this Service.
pub async fn resume(mover: &Mover, service: &Value, targets: &These) -> Outcome {
    match mover.records.get(service["metadata"]["uid"].as_str().unwrap(), Size::Large).await.unwrap() {
        Some(journal) => mover.resume(&journal, targets).await.unwrap(),
        None => Outcome::Unmoved(Unmoved::NotMoving),
    }
}

/// Whether there is a record of a move of this Service.
pub async fn is_recorded(client: &Client, service: &Value) -> bool {
    let uid = service["metadata"]["uid"].as_str().unwrap();
    mover(client.clone()).records.get(uid, Size::Large).await.unwrap().is_some()
}

/// An order to move this Service.
pub fn order(service: &Value, addresses: &[IpAddr]) -> MoveOrder {
    MoveOrder {
        id: ServiceKey::of(service),
        uid: service["metadata"]["uid"].as_str().unwrap().to_owned(),
        addresses: addresses.to_vec(),
        why: "its Pods run on windows".to_owned(),
        reason: None,
        load_balancers: true,
        seamless: None,
        interrupts: true,
    }
}

/// The addresses of a Service, the primary first. A headless Service has none.
pub fn addresses(service: &Value) -> Vec<IpAddr> {
    let list = service["spec"]["clusterIPs"].as_array().into_iter().flatten();
    list.filter_map(|address| address.as_str()?.parse().ok()).collect()
}

/// The Events about an object, the oldest first.
pub async fn events(client: &Client, namespace: &str, object: &str) -> Vec<Value> {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let mut list = send(client, Method::GET, &path, None).await.unwrap();
    let mut events = std::mem::take(list["items"].as_array_mut().unwrap());
    events.retain(|event| event["regarding"]["name"] == object);
    events.sort_by_key(|event| event["eventTime"].as_str().unwrap_or_default().to_owned());
    events
}

/// Sends a JSON request; `None` if the answer is 404.
pub async fn send(client: &Client, method: Method, path: &str, body: Option<&Value>) -> Option<Value> {
    match client.request(request(method, path, body.unwrap_or(&Value::Null))).await {
        Ok(value) => Some(value),
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => panic!("{path}: {error}"),
    }
}

/// Sends the request of `kubectl apply --server-side` with this field manager.
pub async fn apply_server_side(
    client: &Client,
    path: &str,
    manager: &str,
    force: bool,
    object: &Value,
) -> kube::Result<Value> {
    let request = Request::patch(format!("{path}?fieldManager={manager}&force={force}"));
    let request = request.header("content-type", "application/apply-patch+yaml");
    client.request(request.body(serde_json::to_vec(object).unwrap()).unwrap()).await
}

/// Sends a JSON request: the answer, or the message of the API server.
pub async fn tries(client: &Client, method: Method, path: &str, body: &Value) -> Result<Value, String> {
    client.request(request(method, path, body)).await.map_err(|error| message(&error))
}

/// The message of the API server, or the error of the client.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// The path of the Services of a namespace.
pub fn services(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/services")
}

/// The path of a Service.
pub fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/services/{name}")
}

/// The stored Service.
pub async fn stored(client: &Client, namespace: &str, name: &str) -> Option<Value> {
    send(client, Method::GET, &path(namespace, name), None).await
}

/// Waits until the cache of the API server has this version of a Service, or a later one.
pub async fn cached(client: &Client, service: &Value) {
    let version = |service: &Value| service["metadata"]["resourceVersion"].as_str()?.parse::<u64>().ok();
    let text = |field| service["metadata"][field].as_str().unwrap();
    let path = format!("{}?resourceVersion=0", path(text("namespace"), text("name")));
    eventually("the cache of the API server", async || {
        let found = send(client, Method::GET, &path, None).await?;
        (version(&found) >= version(service)).then_some(())
    })
    .await;
}

/// The JSON of an object whose managed fields have these fields of its spec.
pub fn with_managed_fields(object: &Value, fields: &[u8]) -> Vec<u8> {
    let mut object = object.clone();
    object["metadata"]["managedFields"] = "FIELDS".into();
    let text = object.to_string();
    let (before, after) = text.split_once("\"FIELDS\"").unwrap();
    let manager = br#"[{"manager": "m", "operation": "Update", "apiVersion": "v1", "time": "2026-11-24T10:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": "#;
    [before.as_bytes(), manager, fields, b"}}]", after.as_bytes()].concat()
}

/// Fields that are nested deeper than most readers of JSON read.
pub fn deep_fields() -> Vec<u8> {
    ["{\"f:a\":".repeat(200), "{}".to_owned(), "}".repeat(200)].concat().into_bytes()
}

/// The addresses of the Services of a namespace, each with the name of its Service, as the API server has allocated them.
/// Before Kubernetes 1.33, only the Services show them.
pub async fn allocated(client: &Client, namespace: &str) -> Vec<(IpAddr, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let Some(list) = send(client, Method::GET, "/apis/networking.k8s.io/v1/ipaddresses", None).await else {
        let list = send(client, Method::GET, &services(namespace), None).await.unwrap();
        let with_address = |service: &Value| Some((*addresses(service).first()?, text(&service["metadata"]["name"])));
        return list["items"].as_array().unwrap().iter().filter_map(with_address).collect();
    };
    let items = list["items"].as_array().unwrap().iter();
    let own = items.filter(|item| item["spec"]["parentRef"]["namespace"] == namespace);
    own.map(|item| (text(&item["metadata"]["name"]).parse().unwrap(), text(&item["spec"]["parentRef"]["name"])))
        .collect()
}

/// Sends a merge patch for a Service.
pub async fn patch(client: &Client, namespace: &str, name: &str, patch: Value) -> Value {
    send(client, Method::PATCH, &path(namespace, name), Some(&patch)).await.unwrap()
}

/// Creates a Service with this spec. The API server picks the address if the spec has none.
pub async fn create(client: &Client, namespace: &str, name: &str, spec: Value) -> Value {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    send(client, Method::POST, &format!("/api/v1/namespaces/{namespace}/services?fieldManager=author"), Some(&service))
        .await
        .unwrap()
}

/// Deletes a Service, and waits until its addresses are free.
pub async fn delete(client: &Client, namespace: &str, name: &str) {
    let Some(service) = stored(client, namespace, name).await else { return };
    send(client, Method::DELETE, &path(namespace, name), None).await;
    for address in addresses(&service) {
        free(client, address).await;
    }
}

/// Waits until no Service has this address.
pub async fn free(client: &Client, address: IpAddr) {
    let path = format!("/apis/networking.k8s.io/v1/ipaddresses/{address}");
    eventually(&format!("{address} to be free"), async || {
        send(client, Method::GET, &path, None).await.is_none().then_some(())
    })
    .await;
}

/// The Service without its addresses and its resource version.
pub fn but_addresses(service: &Value) -> Value {
    let mut service = service.clone();
    service["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    for field in ["clusterIP", "clusterIPs"] {
        service["spec"].as_object_mut().unwrap().remove(field);
    }
    service
}

/// The step of a move that this request makes, if it makes one.
pub fn step(seen: &Seen) -> Option<&'static str> {
    if seen.method != Method::PUT || !seen.path.contains("/services/") {
        return None;
    }
    if seen.path.ends_with("/status") {
        return Some("status");
    }
    let Some(marker) = seen.body["metadata"]["annotations"][MOVING_ANNOTATION].as_str() else { return Some("cleanup") };
    let marker: Value = serde_json::from_str(marker).unwrap();
    let both = marker["from"].as_array().is_some_and(|from| from.len() == 2);
    let single = both && seen.body["spec"]["clusterIPs"].as_array().is_some_and(|list| list.len() == 1);
    let released = seen.body["spec"]["externalName"] == MOVING_NAME
        || single && seen.body["spec"]["ipFamilyPolicy"] == "SingleStack";
    Some(match released {
        true if seen.is_dry_run() => "try",
        true => "release",
        false => "assign",
    })
}

/// Matches requests that make this step of a move of the Service.
pub fn is_step(namespace: &str, name: &str, of: &'static str) -> impl Fn(&Seen) -> bool + Send + Sync + 'static {
    let path = path(namespace, name);
    move |seen| step(seen) == Some(of) && seen.path.trim_end_matches("/status") == path
}
