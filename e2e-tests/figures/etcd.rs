//! Writes objects to etcd, as another API server would do it. For each Service that it creates, the API server of
//! Kubernetes 1.36 counts all `IPAddress` objects twice (`createIPAddress` in `pkg/registry/core/service/ipallocator`).
//! Therefore it would need many hours to create 100,000 Services.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use kube::{Client, Config};
use serde_json::{Value, json};

use super::bench::Bench;

/// The number of objects that are written at a time. etcd accepts 128.
const OBJECTS: usize = 100;
/// The API server is at rest if it uses less than a tenth of a processor during this time.
const LOOK: Duration = Duration::from_secs(5);
const LOOKS: usize = 240;

/// Writes objects of a resource, which `path` names below `/registry`, such as `services/specs`.
pub async fn store(bench: &Bench, path: &str, objects: impl Iterator<Item = Value>) {
    let client = Client::try_from(Config::new(bench.plane().etcd().parse().unwrap())).unwrap();
    let mut objects = objects.enumerate().peekable();
    while objects.peek().is_some() {
        let puts: Vec<Value> = objects.by_ref().take(OBJECTS).map(|(nth, object)| put(path, nth, object)).collect();
        let request = Request::post("/v3/kv/txn").body(json!({"success": puts}).to_string().into_bytes()).unwrap();
        let answer: Value = client.request(request).await.unwrap();
        assert_eq!(answer["succeeded"], true, "{answer}");
    }
}

/// The operation that writes an object with what the API server adds to a new object.
fn put(path: &str, nth: usize, mut object: Value) -> Value {
    let metadata = &mut object["metadata"];
    metadata["uid"] = format!("{:08x}-0000-4000-8000-{nth:012}", path.len()).into();
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    let name = metadata["name"].as_str().unwrap();
    let key = match metadata["namespace"].as_str() {
        Some(namespace) => format!("/registry/{path}/{namespace}/{name}"),
        None => format!("/registry/{path}/{name}"),
    };
    json!({"requestPut": {"key": STANDARD.encode(key), "value": STANDARD.encode(object.to_string())}})
}

/// Waits until the API server has processed what was written.
pub async fn settled(bench: &Bench) {
    let mut before = 0.0;
    for _ in 0..LOOKS {
        let request = Request::get("/metrics").body(Vec::new()).unwrap();
        let metrics = bench.client().request_text(request).await.unwrap();
        let value = metrics.lines().find_map(|line| line.strip_prefix("process_cpu_seconds_total "));
        let now: f64 = value.unwrap().parse().unwrap();
        if now - before < LOOK.as_secs_f64() / 10.0 {
            return;
        }
        before = now;
        tokio::time::sleep(LOOK).await;
    }
    panic!("the API server does not come to rest");
}
