//! The load during a fault: it creates Services and their Deployments, as clients do, and counts the results.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use kube::Client;
use serde_json::{Value, json};

use crate::support::cluster::Place;
use crate::support::eventually::MAX_WAIT;
use crate::support::move_helpers::addresses;
use crate::support::replicas::Replicas;

/// The time limit of one attempt to create a Service, after which it is repeated.
pub const ATTEMPT: Duration = Duration::from_secs(20);
const AT_ONCE: usize = 60;
pub const REPLICAS: usize = 3;

/// A Service of the load.
#[derive(Clone)]
pub struct Planned {
    pub name: String,
    pub os: &'static str,
    /// Whether its Deployment is created later, so that the Service has to move.
    pub late: bool,
    pub replica: usize,
}

pub fn plan(count: usize) -> Vec<Planned> {
    let one = |number: usize| Planned {
        name: format!("web-{number:03}"),
        os: ["linux", "windows"][number / 2 % 2],
        late: number % 4 == 2,
        replica: number % REPLICAS,
    };
    (0..count).map(one).collect()
}

/// The results of a load.
#[derive(Debug, Default)]
pub struct Tally {
    pub tried: usize,
    pub created: usize,
    /// Attempts that reached no replica.
    pub no_replica: usize,
    /// Attempts that the API server could not carry out.
    pub no_server: usize,
    /// Attempts that the API server refused because another Service has the address. It never accepts an address twice,
    /// so these attempts show that an address was handed out twice.
    pub duplicates: usize,
    /// Attempts that failed for other reasons, by reason.
    pub failed: BTreeMap<String, usize>,
    /// The begin of each successful attempt, and the address.
    pub placed: Vec<(Instant, IpAddr)>,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.tried += other.tried;
        self.created += other.created;
        self.no_replica += other.no_replica;
        self.no_server += other.no_server;
        self.duplicates += other.duplicates;
        self.placed.extend(other.placed);
        for (why, count) in other.failed {
            *self.failed.entry(why).or_default() += count;
        }
    }
}

/// Why an attempt failed.
enum Failure {
    Exists,
    NoReplica,
    NoServer,
    Duplicate,
    Other(String),
}

fn failure(error: &kube::Error) -> Failure {
    let kube::Error::Api(status) = error else { return Failure::NoServer };
    let message = status.message.as_str();
    let has = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if status.code == 409 && has(&["already exists"]) {
        Failure::Exists
    } else if has(&["provided IP is already allocated"]) {
        Failure::Duplicate
    } else if has(&["failed calling webhook"]) {
        Failure::NoReplica
    } else if has(&["does not match the current range"]) {
        // An API server that has just started has not read its ServiceCIDRs yet.
        Failure::NoServer
    } else if has(&[
        "code = Unavailable",
        "etcdserver:",
        "can't be claimed:",
        "connection refused",
        "context deadline exceeded",
        "etcd",
    ]) || (matches!(status.code, 429 | 503 | 504) && !has(&["denied the request"]))
    {
        Failure::NoServer
    } else {
        // Without names, so that the same reason is counted together.
        let general = message.split_inclusive([' ', '"', '/']).filter(|word| !word.contains("web-"));
        Failure::Other(general.collect::<String>().chars().take(160).collect())
    }
}

/// Creates all Services, with retries, as clients do. The first attempts are spread over the time `over`.
pub async fn load(client: &Client, namespace: &str, planned: &[Planned], over: Duration) -> Tally {
    let tally = Mutex::new(Tally { tried: planned.len(), ..Tally::default() });
    let place = Place { client: client.clone(), namespace: namespace.to_owned() };
    let begin = tokio::time::Instant::now();
    let create = async |(nth, one): (usize, &Planned)| {
        tokio::time::sleep_until(begin + over * nth as u32 / planned.len() as u32).await;
        let planned = one;
        let os = (!planned.late).then_some(planned.os);
        let service = serde_json::to_vec(&Replicas::service(planned.replica, &planned.name, os)).unwrap();
        let deadline = Instant::now() + 2 * MAX_WAIT;
        while Instant::now() < deadline {
            let request = axum::http::Request::post(format!("/api/v1/namespaces/{namespace}/services"));
            let request = request.header("content-type", "application/json").body(service.clone()).unwrap();
            let begin = Instant::now();
            let made = tokio::time::timeout(ATTEMPT, client.request::<Value>(request)).await;
            let failed = match &made {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(failure(error)),
                Err(_) => Some(Failure::NoServer),
            };
            {
                let mut tally = tally.lock().unwrap();
                if let Ok(Ok(service)) = &made {
                    tally.placed.extend(addresses(service).into_iter().map(|address| (begin, address)));
                }
                match failed {
                    None | Some(Failure::Exists) => {
                        tally.created += 1;
                        break;
                    }
                    Some(Failure::NoReplica) => tally.no_replica += 1,
                    Some(Failure::NoServer) => tally.no_server += 1,
                    Some(Failure::Duplicate) => tally.duplicates += 1,
                    Some(Failure::Other(why)) => *tally.failed.entry(why).or_default() += 1,
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if planned.late {
            deploy(&place, planned).await;
        }
    };
    stream::iter(planned.iter().enumerate().map(create)).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    tally.into_inner().unwrap()
}

/// Creates the Deployment of a Service, with retries.
async fn deploy(place: &Place, planned: &Planned) {
    let spec = json!({"nodeSelector": {"kubernetes.io/os": planned.os},
        "containers": [{"name": "web", "image": "example.com/web"}]});
    let labels = json!({"app": planned.name});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": planned.name}, "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}});
    let body = serde_json::to_vec(&deployment).unwrap();
    let deadline = Instant::now() + 2 * MAX_WAIT;
    while Instant::now() < deadline {
        let path = format!("/apis/apps/v1/namespaces/{}/deployments", place.namespace);
        let request = axum::http::Request::post(path).header("content-type", "application/json").body(body.clone());
        match tokio::time::timeout(ATTEMPT, place.client.request::<Value>(request.unwrap())).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) if matches!(failure(&error), Failure::Exists) => return,
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
