//! What fails in a cluster, and what must hold all the same: a table.
//!
//! The tests make each fault small; `CHAOS` (`make chaos`) in full, and holds it against the bounds that
//! are in seconds, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::Method;
use clusterip::controller::step::MOVING_NAME;
use clusterip_core::service::MOVING_ANNOTATION;
use futures::stream::{self, StreamExt as _};
use kube::Client;
use serde_json::{Value, json};

use crate::support::cluster::Place;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::PATIENCE;
use crate::support::moving::{addresses, path, send};
use crate::support::replicas::{Kind, Replicas};

const REPLICAS: usize = 3;
const AT_ONCE: usize = 60;
/// How long one attempt to create a Service may take: then it is tried again.
const ATTEMPT: Duration = Duration::from_secs(20);
/// Where Debian has the library that lies about the time.
const FAKETIME: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1"];

fn settings(windows: &str, more: &str) -> String {
    format!(
        "{{services: {{pools: [{{name: windows, cidrs: [{windows}], match: {{os: windows}}}}, {more}\
         {{name: linux, cidrs: [172.21.32.0/20], match: {{os: linux}}}}]}}}}"
    )
}

const WINDOWS: &str = "172.21.16.0/20";

fn pool_of(address: IpAddr) -> &'static str {
    let within = |range: &str| range.parse::<ipnet::IpNet>().unwrap().contains(&address);
    if within(WINDOWS) || within("172.21.1.0/24") {
        "windows"
    } else if within("172.21.32.0/20") {
        "linux"
    } else {
        "no pool"
    }
}

/// A Service of the load.
#[derive(Clone)]
struct Planned {
    name: String,
    os: &'static str,
    /// Whether its Deployment comes after it, so that it has to move.
    late: bool,
    replica: usize,
}

fn plan(count: usize) -> Vec<Planned> {
    let one = |number: usize| Planned {
        name: format!("web-{number:03}"),
        os: ["linux", "windows"][number / 2 % 2],
        late: number % 4 == 2,
        replica: number % REPLICAS,
    };
    (0..count).map(one).collect()
}

/// What became of a load.
#[derive(Debug, Default)]
struct Tally {
    tried: usize,
    created: usize,
    /// Attempts that reached no replica.
    no_replica: usize,
    /// Attempts that the API server could not carry out.
    no_server: usize,
    /// Attempts that failed for any other reason.
    failed: BTreeMap<String, usize>,
}

/// Why an attempt failed.
enum Failure {
    Exists,
    NoReplica,
    NoServer,
    Other(String),
}

fn failure(error: &kube::Error) -> Failure {
    let kube::Error::Api(status) = error else { return Failure::NoServer };
    let message = status.message.as_str();
    let has = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if status.code == 409 && has(&["already exists"]) {
        Failure::Exists
    } else if has(&["failed calling webhook"]) {
        Failure::NoReplica
    } else if has(&["etcdserver:", "can't be claimed:", "connection refused", "context deadline exceeded", "etcd"])
        || (matches!(status.code, 429 | 503 | 504) && !has(&["denied the request"]))
    {
        Failure::NoServer
    } else {
        // The same for all: names and addresses are those of one.
        let general = message.split_inclusive([' ', '"', '/']).filter(|word| !word.contains("web-"));
        Failure::Other(general.collect::<String>().chars().take(160).collect())
    }
}

/// Creates all of them, as clients do that try again.
async fn load(client: &Client, namespace: &str, planned: &[Planned]) -> Tally {
    let tally = Mutex::new(Tally { tried: planned.len(), ..Tally::default() });
    let place = Place { client: client.clone(), namespace: namespace.to_owned() };
    let create = async |planned: &Planned| {
        let os = (!planned.late).then_some(planned.os);
        let service = serde_json::to_vec(&Replicas::service(planned.replica, &planned.name, os)).unwrap();
        let deadline = Instant::now() + 2 * PATIENCE;
        while Instant::now() < deadline {
            let request = axum::http::Request::post(format!("/api/v1/namespaces/{namespace}/services"));
            let request = request.header("content-type", "application/json").body(service.clone()).unwrap();
            let made = tokio::time::timeout(ATTEMPT, client.request::<Value>(request)).await;
            let failed = match &made {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(failure(error)),
                Err(_) => Some(Failure::NoServer),
            };
            {
                let mut tally = tally.lock().unwrap();
                match failed {
                    None | Some(Failure::Exists) => {
                        tally.created += 1;
                        break;
                    }
                    Some(Failure::NoReplica) => tally.no_replica += 1,
                    Some(Failure::NoServer) => tally.no_server += 1,
                    Some(Failure::Other(why)) => *tally.failed.entry(why).or_default() += 1,
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if planned.late {
            deploy(&place, planned).await;
        }
    };
    stream::iter(planned.iter().map(create)).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    tally.into_inner().unwrap()
}

/// Says where the Pods of a Service run, if it takes several attempts.
async fn deploy(place: &Place, planned: &Planned) {
    let spec = json!({"nodeSelector": {"kubernetes.io/os": planned.os},
        "containers": [{"name": "web", "image": "example.com/web"}]});
    let labels = json!({"app": planned.name});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": planned.name}, "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}});
    let body = serde_json::to_vec(&deployment).unwrap();
    let deadline = Instant::now() + 2 * PATIENCE;
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

/// How the Services of a load lie.
#[derive(Debug, Default, PartialEq, Eq)]
struct State {
    lost: usize,
    duplicates: usize,
    half_moved: usize,
    astray: usize,
}

async fn state(client: &Client, namespace: &str, planned: &[Planned]) -> Option<State> {
    let request = axum::http::Request::get("/api/v1/services").body(Vec::new()).unwrap();
    let list = tokio::time::timeout(ATTEMPT, client.request::<Value>(request)).await.ok()?.ok()?;
    let all = list["items"].as_array().unwrap();
    let mut state = State::default();
    let mut used = BTreeSet::new();
    for address in all.iter().flat_map(addresses) {
        state.duplicates += usize::from(!used.insert(address));
    }
    let own: BTreeMap<&str, &Value> = all
        .iter()
        .filter(|service| service["metadata"]["namespace"] == namespace)
        .map(|service| (service["metadata"]["name"].as_str().unwrap(), service))
        .collect();
    for planned in planned {
        let Some(service) = own.get(planned.name.as_str()) else {
            state.lost += 1;
            continue;
        };
        let text = service.to_string();
        if text.contains(MOVING_ANNOTATION) || text.contains(MOVING_NAME) {
            state.half_moved += 1;
        } else if addresses(service).first().is_none_or(|address| pool_of(*address) != planned.os) {
            state.astray += 1;
        }
    }
    Some(state)
}

/// Waits until nothing is half moved or astray, or for as long as one can be patient.
async fn settled(client: &Client, namespace: &str, planned: &[Planned]) -> State {
    let deadline = Instant::now() + 2 * PATIENCE;
    loop {
        let found = state(client, namespace, planned).await;
        if let Some(found) =
            found.filter(|found| Instant::now() >= deadline || (found.half_moved, found.astray) == (0, 0))
        {
            return found;
        }
        assert!(Instant::now() < deadline, "the Services can't be listed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A row of the table.
struct Row {
    fault: String,
    tally: Tally,
    state: State,
    /// How many seconds after the end of the fault all was in its place, and how many it may be.
    seconds: f64,
    most: Option<f64>,
    /// Whether the API server may be away.
    away: bool,
}

impl Row {
    fn missed(&self, full: bool) -> Vec<String> {
        let Self { tally, state, .. } = self;
        let mut missed = Vec::new();
        let mut say = |bad: bool, what: String| {
            if bad {
                missed.push(format!("{}: {what}", self.fault));
            }
        };
        say(tally.created != tally.tried, format!("{} of {} were created", tally.created, tally.tried));
        for (why, count) in &tally.failed {
            say(true, format!("{count} times: {why}"));
        }
        say(!self.away && tally.no_server > 0, format!("the API server failed {} times", tally.no_server));
        say(*state != State::default(), format!("{state:?}"));
        if let Some(most) = self.most.filter(|_| full) {
            say(self.seconds > most, format!("{:.1} s until all were in their pools, not {most}", self.seconds));
        }
        missed
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = String::from(
        "| fault | tried | created | no replica reached | API server away | failed | duplicates | lost | half moved | \
         outside their pool | seconds until all are in it |\n| --- |",
    );
    table.push_str(&" ---: |".repeat(10));
    for row in rows {
        let Row { fault, tally, state, seconds, .. } = row;
        let failed: usize = tally.failed.values().sum();
        write!(
            table,
            "\n| {fault} | {} | {} | {} | {} | {failed} | {} | {} | {} | {} | {seconds:.1} |",
            tally.tried,
            tally.created,
            tally.no_replica,
            tally.no_server,
            state.duplicates,
            state.lost,
            state.half_moved,
            state.astray
        )
        .unwrap();
    }
    table
}

/// What a fault happens to.
struct Scene {
    plane: &'static ControlPlane,
    replicas: Replicas<'static>,
    namespace: String,
    planned: Vec<Planned>,
    client: Client,
}

impl Scene {
    async fn new(plane: &'static ControlPlane, count: usize, policy: &str, kinds: Vec<Kind>) -> Self {
        let replicas = Replicas::start(plane, &settings(WINDOWS, ""), policy, kinds).await;
        let namespace = plane.namespace("load").await;
        Self { plane, replicas, namespace, planned: plan(count), client: plane.client() }
    }

    async fn row(self, fault: impl Into<String>, tally: Tally, since: Instant) -> Row {
        let state = settled(&self.client, &self.namespace, &self.planned).await;
        let seconds = since.elapsed().as_secs_f64();
        for planned in &self.planned {
            send(&self.client, Method::DELETE, &path(&self.namespace, &planned.name), None).await;
        }
        Row { fault: fault.into(), tally, state, seconds, most: None, away: false }
    }
}

async fn replicas_are_killed(plane: &'static ControlPlane, count: usize) -> Row {
    let mut scene = Scene::new(plane, count, "Fail", vec![Kind::usual(); REPLICAS]).await;
    let done = AtomicBool::new(false);
    let (client, namespace, planned) = (scene.client.clone(), scene.namespace.clone(), scene.planned.clone());
    let loaded = async {
        let tally = load(&client, &namespace, &planned).await;
        done.store(true, Ordering::Release);
        tally
    };
    let replicas = &mut scene.replicas;
    let killed = async {
        let mut kills = 0;
        while !done.load(Ordering::Acquire) {
            let begin = tokio::time::Instant::now();
            replicas.replace(kills % REPLICAS).await;
            kills += 1;
            tokio::time::sleep_until(begin + Duration::from_secs(1)).await;
        }
        kills
    };
    let (tally, kills) = tokio::join!(loaded, killed);
    scene.row(format!("{REPLICAS} replicas, one killed every second ({kills})"), tally, Instant::now()).await
}

async fn away(plane: &'static ControlPlane, count: usize, what: &str, seconds: u64) -> Row {
    let scene = Scene::new(plane, count, "Fail", vec![Kind::usual(); REPLICAS]).await;
    let (client, namespace, planned) = (scene.client.clone(), scene.namespace.clone(), scene.planned.clone());
    let is_etcd = what == "etcd";
    let fault = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let plane = scene.plane;
        tokio::task::spawn_blocking(move || {
            if is_etcd {
                plane.stop_etcd();
                std::thread::sleep(Duration::from_secs(seconds));
                plane.start_etcd();
            } else {
                plane.stop_api_server();
                std::thread::sleep(Duration::from_secs(seconds));
                plane.start_api_server();
            }
        })
        .await
        .unwrap();
        Instant::now()
    };
    let (tally, back) = tokio::join!(load(&client, &namespace, &planned), fault);
    let row = scene.row(format!("{what} away for {seconds} s"), tally, back).await;
    Row { most: Some(10.0), away: true, ..row }
}

async fn a_clock_is_wrong(plane: &'static ControlPlane, count: usize) -> Option<Row> {
    let library = FAKETIME.iter().find(|library| Path::new(library).exists())?;
    let mut kinds = vec![Kind::usual(); REPLICAS];
    for (name, value) in [("LD_PRELOAD", *library), ("FAKETIME", "+1h"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")] {
        kinds[1].environment.push((name.to_owned(), value.to_owned()));
    }
    let scene = Scene::new(plane, count, "Fail", kinds).await;
    let (tally, now) = (load(&scene.client, &scene.namespace, &scene.planned).await, Instant::now());
    Some(scene.row("clock of one replica 1 h off", tally, now).await)
}

async fn the_webhook_is_away(plane: &'static ControlPlane, count: usize) -> Row {
    let mut scene = Scene::new(plane, count, "Ignore", vec![Kind::usual(); REPLICAS]).await;
    for nth in 0..REPLICAS {
        scene.replicas.kill(nth);
    }
    let tally = load(&scene.client, &scene.namespace, &scene.planned).await;
    for nth in 0..REPLICAS {
        scene.replicas.spawn(nth);
    }
    let begin = Instant::now();
    for nth in 0..REPLICAS {
        scene.replicas.is_ready(nth).await;
    }
    let row = scene.row("webhook away (failurePolicy: Ignore)", tally, begin).await;
    Row { most: Some(30.0), ..row }
}

#[tokio::test(flavor = "multi_thread")]
async fn faults() {
    let full = std::env::var_os("CHAOS").is_some();
    let count = |of: usize| if full { of } else { of / 10 };
    let plane: &'static ControlPlane = Box::leak(Box::new(ControlPlane::start(Options::default())));
    let only = std::env::var("FAULT").unwrap_or_default();
    let wanted = |name: &str| only.is_empty() || only == name;
    let mut rows = Vec::new();
    if wanted("kill") {
        rows.push(replicas_are_killed(plane, count(600)).await);
    }
    if wanted("etcd") {
        rows.push(away(plane, count(300), "etcd", if full { 5 } else { 2 }).await);
    }
    if wanted("apiserver") {
        rows.push(away(plane, count(300), "API server", 1).await);
    }
    if wanted("clock") {
        match a_clock_is_wrong(plane, count(300)).await {
            Some(row) => rows.push(row),
            None => println!("skipped: a wrong clock needs libfaketime: sudo apt-get install faketime"),
        }
    }
    if wanted("webhook") {
        rows.push(the_webhook_is_away(plane, count(150)).await);
    }
    println!("{}", table(&rows));
    let missed: Vec<String> = rows.iter().flat_map(|row| row.missed(full)).collect();
    assert_eq!(missed, [""; 0]);
}
