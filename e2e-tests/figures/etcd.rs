//! Writes objects directly to etcd, in the format of the API server. For each Service that it creates, the API server
//! of Kubernetes 1.36 counts all `IPAddress` objects twice (`createIPAddress` in
//! `pkg/registry/core/service/ipallocator`). Therefore it would need many hours to create 100,000 Services.

use std::net::Ipv4Addr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use kube::{Client, Config};
use serde_json::{Value, json};

use super::bench::Bench;
use super::manifests::{name, service};

/// The number of objects that a transaction writes. etcd accepts 128.
const OBJECTS_PER_TRANSACTION: usize = 100;
/// The API server is idle if it uses less than a tenth of a processor during this time.
const IDLE_PERIOD: Duration = Duration::from_secs(5);
/// The number of periods within which the API server must become idle: 20 minutes.
const MAX_PERIODS: usize = 240;

/// Writes Services with their addresses, and the `IPAddress` objects of these. Each has a namespace, a number and an
/// address.
pub async fn write_services(bench: &Bench, services: impl Iterator<Item = (String, usize, Ipv4Addr)> + Clone) {
    let ip_address = |(namespace, number, address): (String, usize, Ipv4Addr)| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IPAddress",
            "metadata": {
                "name": address,
                "labels": {
                    "ipaddress.kubernetes.io/ip-family": "IPv4",
                    "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
                },
            },
            "spec": {"parentRef": {"resource": "services", "namespace": namespace, "name": name(number)}},
        })
    };
    let placed = |(namespace, number, address): (String, usize, Ipv4Addr)| {
        let mut service = service(&namespace, number);
        service["spec"]["clusterIP"] = json!(address);
        service["spec"]["clusterIPs"] = json!([address]);
        service["spec"]["ipFamilies"] = json!(["IPv4"]);
        service["spec"]["ipFamilyPolicy"] = "SingleStack".into();
        service
    };
    write_objects(bench, "ipaddresses", services.clone().map(ip_address)).await;
    write_objects(bench, "services/specs", services.map(placed)).await;
}

/// Writes objects of a resource, which `path` names below `/registry`, such as `services/specs`.
pub async fn write_objects(bench: &Bench, path: &str, objects: impl Iterator<Item = Value>) {
    let client = Client::try_from(Config::new(bench.plane().etcd().parse().unwrap())).unwrap();
    let mut objects = objects.enumerate().peekable();
    while objects.peek().is_some() {
        let puts: Vec<Value> =
            objects.by_ref().take(OBJECTS_PER_TRANSACTION).map(|(nth, object)| put(path, nth, object)).collect();
        let request = Request::post("/v3/kv/txn").body(json!({"success": puts}).to_string().into_bytes()).unwrap();
        let answer: Value = client.request(request).await.unwrap();
        assert_eq!(answer["succeeded"], true, "{answer}");
    }
}

/// The operation that writes an object with what the API server adds to a new object.
fn put(path: &str, nth: usize, mut object: Value) -> Value {
    let metadata = &mut object["metadata"];
    // The UIDs of a resource begin with the same digits, which no other resource has.
    let resource = path.bytes().fold(0_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    metadata["uid"] = format!("{resource:08x}-0000-4000-8000-{nth:012}").into();
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    let name = metadata["name"].as_str().unwrap();
    let key = match metadata["namespace"].as_str() {
        Some(namespace) => format!("/registry/{path}/{namespace}/{name}"),
        None => format!("/registry/{path}/{name}"),
    };
    json!({"requestPut": {"key": STANDARD.encode(key), "value": STANDARD.encode(object.to_string())}})
}

/// Waits until the API server has processed what was written.
pub async fn wait_until_idle(bench: &Bench) {
    let mut before = 0.0;
    for _ in 0..MAX_PERIODS {
        let request = Request::get("/metrics").body(Vec::new()).unwrap();
        let metrics = bench.client().request_text(request).await.unwrap();
        let value = metrics.lines().find_map(|line| line.strip_prefix("process_cpu_seconds_total "));
        let now: f64 = value.unwrap().parse().unwrap();
        if now - before < IDLE_PERIOD.as_secs_f64() / 10.0 {
            return;
        }
        before = now;
        tokio::time::sleep(IDLE_PERIOD).await;
    }
    panic!("the API server does not become idle");
}
