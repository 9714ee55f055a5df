//! Faults in a cluster, and what must hold during and after each of them, as a table. The tests inject small faults.
//! With `CHAOS` (`make chaos`) the faults have full size, and time limits apply.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::Method;
use clusterip::controller::step::MOVING_NAME;
use clusterip::webhook::authority::SECRET;
use clusterip::webhook::issuer::{AUTHORITY_LIFE, Authority};
use clusterip_core::service::MOVING_ANNOTATION;
use futures::stream::{self, StreamExt as _};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::{Value, json};

use crate::missing;
use crate::support::bad_client;
use crate::support::cluster::Place;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::{PATIENCE, eventually};
use crate::support::move_helpers::{addresses, path, send};
use crate::support::process_usage::peak_memory;
use crate::support::program;
use crate::support::replicas::{Kind, REPLICA, Replicas};

const REPLICAS: usize = 3;
const AT_ONCE: usize = 60;
/// The time limit of one attempt to create a Service, after which it is repeated.
const ATTEMPT: Duration = Duration::from_secs(20);
/// The paths of libfaketime in Debian.
const FAKETIME: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1"];

/// The maximum memory of a replica in MB of 1,000,000 bytes: two thirds of the limit of its Pod (`deploy/webhook`).
const MEMORY: f64 = 268.0;

fn settings(windows: &str, more: &str) -> String {
    format!(
        "{{services: {{pools: [{{name: windows, cidrs: [{windows}], match: {{os: windows}}}}, {more}\
         {{name: linux, cidrs: [{LINUX}], match: {{os: linux}}}}]}}}}"
    )
}

const WINDOWS: &str = "172.21.16.0/20";
const LINUX: &str = "172.21.32.0/20";

/// The Windows pool after it was shrunk, and a pool that was added for some of the other Services.
const SHRUNK: &str = "172.21.16.0/24";
const ADDED: &str = "172.21.48.0/20";

/// The pools in use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pools {
    First,
    /// One pool was added, and one was shrunk.
    Changed,
}

impl Pools {
    fn of(self, address: IpAddr) -> &'static str {
        let within = |range: &str| range.parse::<ipnet::IpNet>().unwrap().contains(&address);
        let ranges: &[(&str, &str)] = match self {
            Self::First => &[(WINDOWS, "windows"), (LINUX, "linux")],
            Self::Changed => &[(SHRUNK, "windows"), (ADDED, "added"), (LINUX, "linux")],
        };
        ranges.iter().find(|(range, _)| within(range)).map_or("no pool", |(_, pool)| pool)
    }

    fn wanted(self, planned: &Planned) -> &'static str {
        match (self, planned.os, planned.replica) {
            (Self::Changed, "linux", 2) => "added",
            _ => planned.os,
        }
    }
}

/// A Service of the load.
#[derive(Clone)]
struct Planned {
    name: String,
    os: &'static str,
    /// Whether its Deployment is created later, so that the Service has to move.
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

/// The results of a load.
#[derive(Debug, Default)]
struct Tally {
    tried: usize,
    created: usize,
    /// Attempts that reached no replica.
    no_replica: usize,
    /// Attempts that the API server could not carry out.
    no_server: usize,
    /// Attempts that the API server refused because another Service has the address. It never accepts an address twice,
    /// so these attempts show that an address was handed out twice.
    duplicates: usize,
    /// Attempts that failed for other reasons, by reason.
    failed: BTreeMap<String, usize>,
    /// The begin of each successful attempt, and the address.
    placed: Vec<(Instant, IpAddr)>,
}

impl Tally {
    fn add(&mut self, other: Self) {
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
    } else if has(&["etcdserver:", "can't be claimed:", "connection refused", "context deadline exceeded", "etcd"])
        || (matches!(status.code, 429 | 503 | 504) && !has(&["denied the request"]))
    {
        Failure::NoServer
    } else {
        // Without names, so that the same reason is counted together.
        let general = message.split_inclusive([' ', '"', '/']).filter(|word| !word.contains("web-"));
        Failure::Other(general.collect::<String>().chars().take(160).collect())
    }
}

/// Creates all Services, with retries, as clients do. The first attempts are spread over the time `over`.
async fn load(client: &Client, namespace: &str, planned: &[Planned], over: Duration) -> Tally {
    let tally = Mutex::new(Tally { tried: planned.len(), ..Tally::default() });
    let place = Place { client: client.clone(), namespace: namespace.to_owned() };
    let begin = tokio::time::Instant::now();
    let create = async |(nth, one): (usize, &Planned)| {
        tokio::time::sleep_until(begin + over * nth as u32 / planned.len() as u32).await;
        let planned = one;
        let os = (!planned.late).then_some(planned.os);
        let service = serde_json::to_vec(&Replicas::service(planned.replica, &planned.name, os)).unwrap();
        let deadline = Instant::now() + 2 * PATIENCE;
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

/// The state of the Services of a load.
#[derive(Debug, Default, PartialEq, Eq)]
struct State {
    lost: usize,
    half_moved: usize,
    astray: usize,
}

async fn state(client: &Client, namespace: &str, planned: &[Planned], pools: Pools) -> Option<State> {
    let request = axum::http::Request::get("/api/v1/services").body(Vec::new()).unwrap();
    let list = tokio::time::timeout(ATTEMPT, client.request::<Value>(request)).await.ok()?.ok()?;
    let all = list["items"].as_array().unwrap();
    let mut state = State::default();
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
        } else if addresses(service).first().is_none_or(|address| pools.of(*address) != pools.wanted(planned)) {
            state.astray += 1;
        }
    }
    Some(state)
}

/// Waits until no Service is half moved or outside of its pool, or until the time limit.
async fn settled(client: &Client, namespace: &str, planned: &[Planned], pools: Pools) -> State {
    let deadline = Instant::now() + 2 * PATIENCE;
    loop {
        let found = state(client, namespace, planned, pools).await;
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
    /// The seconds from the end of the fault until all Services were in their pools, and the limit.
    seconds: f64,
    most: Option<f64>,
    /// Whether the API server may be unavailable.
    away: bool,
    /// Whether a replica must be reachable all the time.
    reached: bool,
    /// Other violations.
    wrong: Vec<String>,
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
        say(
            tally.duplicates > 0,
            format!("{} times another Service had the address that was handed out", tally.duplicates),
        );
        for (why, count) in &tally.failed {
            say(true, format!("{count} times: {why}"));
        }
        say(!self.away && tally.no_server > 0, format!("the API server failed {} times", tally.no_server));
        say(self.reached && tally.no_replica > 0, format!("no replica was reached {} times", tally.no_replica));
        for what in &self.wrong {
            say(true, what.clone());
        }
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
            tally.duplicates,
            state.lost,
            state.half_moved,
            state.astray
        )
        .unwrap();
    }
    table
}

/// The cluster and the load of a fault.
struct Scene {
    plane: &'static ControlPlane,
    replicas: Replicas<'static>,
    namespace: String,
    planned: Vec<Planned>,
    client: Client,
}

impl Scene {
    async fn new(plane: &'static ControlPlane, count: usize, policy: &str, kinds: Vec<Kind>) -> Self {
        Self::with(Replicas::start(plane, &settings(WINDOWS, ""), policy, kinds).await, count).await
    }

    async fn with(replicas: Replicas<'static>, count: usize) -> Self {
        let plane = replicas.plane;
        let namespace = plane.namespace("load").await;
        Self { plane, replicas, namespace, planned: plan(count), client: plane.client() }
    }

    async fn row(self, fault: impl Into<String>, tally: Tally, since: Instant) -> Row {
        self.row_in(Pools::First, fault, tally, since).await
    }

    async fn row_in(self, pools: Pools, fault: impl Into<String>, tally: Tally, since: Instant) -> Row {
        let state = settled(&self.client, &self.namespace, &self.planned, pools).await;
        let seconds = since.elapsed().as_secs_f64();
        for planned in &self.planned {
            send(&self.client, Method::DELETE, &path(&self.namespace, &planned.name), None).await;
        }
        Row { fault: fault.into(), tally, state, seconds, most: None, away: false, reached: false, wrong: Vec::new() }
    }
}

async fn replicas_are_killed(plane: &'static ControlPlane, count: usize, over: Duration) -> Row {
    let mut scene = Scene::new(plane, count, "Fail", vec![Kind::usual(); REPLICAS]).await;
    let done = AtomicBool::new(false);
    let (client, namespace, planned) = (scene.client.clone(), scene.namespace.clone(), scene.planned.clone());
    let loaded = async {
        let tally = load(&client, &namespace, &planned, over).await;
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
    // The load begins before the fault and ends after it.
    let over = Duration::from_secs(seconds + 3);
    let (tally, back) = tokio::join!(load(&client, &namespace, &planned, over), fault);
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
    let (tally, now) = (load(&scene.client, &scene.namespace, &scene.planned, Duration::ZERO).await, Instant::now());
    Some(scene.row("clock of one replica 1 h off", tally, now).await)
}

async fn the_webhook_is_away(plane: &'static ControlPlane, count: usize) -> Row {
    let mut scene = Scene::new(plane, count, "Ignore", vec![Kind::usual(); REPLICAS]).await;
    for nth in 0..REPLICAS {
        scene.replicas.kill(nth);
    }
    let tally = load(&scene.client, &scene.namespace, &scene.planned, Duration::ZERO).await;
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

/// A TLS handshake of a client that trusts these certificates.
async fn handshake(port: u16, trusted: &str) -> Result<(), String> {
    let roots = reqwest::Certificate::from_pem_bundle(trusted.as_bytes()).map_err(|error| error.to_string())?;
    let client = reqwest::Client::builder().tls_certs_only(roots).timeout(ATTEMPT).build().unwrap();
    let answered = client.get(format!("https://127.0.0.1:{port}/healthz")).send().await;
    answered.map(drop).map_err(|error| format!("{:?}", std::error::Error::source(&error)))
}

/// An authority that has been trusted long enough to sign in this many seconds.
fn successor(begin: Timestamp, seconds: i64) -> Authority {
    Authority::generate(begin - SignedDuration::from_hours(24) + SignedDuration::from_secs(seconds)).unwrap()
}

/// An authority that expires in this many seconds.
fn mortal(begin: Timestamp, seconds: i64) -> Authority {
    Authority::generate(begin - AUTHORITY_LIFE + SignedDuration::from_secs(seconds)).unwrap()
}

async fn certificates_are_renewed(plane: &'static ControlPlane, count: usize, full: bool) -> Row {
    // The certificate expires with its authority, and is renewed at two thirds of its life.
    let (end, signs) = if full { (90, 75) } else { (3600, 12) };
    let (namespace, begin) = (plane.namespace("host").await, Timestamp::now());
    let (old, new) = (mortal(begin, end), successor(begin, signs));
    let data = json!({"ca.crt": old.certificate(), "ca.key": old.key().pem(),
        "next.crt": new.certificate(), "next.key": new.key().pem()});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": data});
    let secrets = format!("/api/v1/namespaces/{namespace}/secrets");
    send(&plane.client(), Method::POST, &secrets, Some(&secret)).await.unwrap();
    let kinds = vec![Kind::usual(); REPLICAS];
    let scene =
        Scene::with(Replicas::start_in(plane, namespace, &settings(WINDOWS, ""), "Fail", kinds).await, count).await;
    let (replicas, done) = (&scene.replicas, AtomicBool::new(false));
    let left = (begin + SignedDuration::from_secs(signs + 2)).duration_since(Timestamp::now());
    let left = left.max(SignedDuration::from_secs(2));
    let loaded = async {
        let tally = load(&scene.client, &scene.namespace, &scene.planned, left.unsigned_abs()).await;
        // A client that trusts only the new authority shows that all replicas have a certificate of it.
        for nth in 0..REPLICAS {
            let port = replicas.host(nth).port();
            let signed = async || handshake(port, new.certificate()).await.ok();
            eventually("a certificate of the new authority", signed).await;
        }
        done.store(true, Ordering::Release);
        tally
    };
    // Handshakes with the bundle that the API server trusts, as it would do for a new connection.
    let shaken = async {
        let (mut made, mut failed) = (0, BTreeMap::<String, usize>::new());
        while !done.load(Ordering::Acquire) {
            let trusted = replicas.trusted().await;
            for nth in 0..REPLICAS {
                made += 1;
                if let Err(error) = handshake(replicas.host(nth).port(), &trusted).await {
                    *failed.entry(error).or_default() += 1;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        (made, failed)
    };
    let (tally, (made, failed)) = tokio::join!(loaded, shaken);
    let logs = (0..REPLICAS).flat_map(|nth| replicas.host(nth).log());
    let renewed = logs.filter(|line| line.contains("the server's certificate was renewed")).count();
    let mut wrong: Vec<String> =
        failed.iter().map(|(why, count)| format!("{count} of {made} handshakes failed: {why}")).collect();
    // At full size, each replica first renews its certificate with the old authority.
    let least = if full { 2 * REPLICAS } else { REPLICAS };
    if renewed < least {
        wrong.push(format!("{renewed} certificates were renewed, not {least}"));
    }
    let fault = format!("new certificates ({renewed}), and a new authority ({made} handshakes)");
    let row = scene.row(fault, tally, Instant::now()).await;
    Row { reached: true, wrong, ..row }
}

/// The settings in use, if all replicas use the same.
async fn in_force(replicas: &Replicas<'_>) -> Option<String> {
    let mut hashes = BTreeSet::new();
    for nth in 0..REPLICAS {
        let (_, metrics) = replicas.host(nth).get("/metrics").await?;
        let line = metrics.lines().find(|line| line.starts_with("clusterip_settings_info{"))?;
        hashes.insert(line.to_owned());
    }
    hashes.pop_first().filter(|_| hashes.is_empty())
}

async fn settings_are_changed(plane: &'static ControlPlane, count: usize, over: Duration) -> Row {
    let scene = Scene::new(plane, count, "Fail", vec![Kind::usual(); REPLICAS]).await;
    let Scene { replicas, client, namespace, planned, .. } = &scene;
    let before = in_force(replicas).await.unwrap();
    let added = format!(
        "{{name: added, cidrs: [{ADDED}], match: {{os: linux, serviceSelector: {{matchLabels: {{{REPLICA}: \"2\"}}}}}}}}, "
    );
    let (first, later) = planned.split_at(count * 2 / 3);
    let change = async {
        tokio::time::sleep(over * 3 / 4).await;
        for nth in 0..REPLICAS {
            replicas.change_settings_of(nth, &settings(SHRUNK, &added));
        }
        let agree = async || in_force(replicas).await.filter(|now| *now != before);
        eventually("the new settings to be in force", agree).await;
        Instant::now()
    };
    let (mut tally, since) = tokio::join!(load(client, namespace, first, over), change);
    tally.add(load(client, namespace, later, Duration::ZERO).await);
    let outside = |(begin, address): &&(Instant, IpAddr)| *begin >= since && Pools::Changed.of(*address) == "no pool";
    let outside = tally.placed.iter().filter(outside).count();
    let mut wrong = Vec::new();
    if outside > 0 {
        wrong.push(format!("{outside} new addresses lie outside of the new pools"));
    }
    if !tally.placed.iter().any(|(begin, _)| *begin >= since) {
        wrong.push("nothing was created after the change".to_owned());
    }
    // A change for so many Services waits for an administrator. A Service that has just moved is not moved again for a
    // minute.
    let line = "clusterip_misplaced_services{reason=\"brake\"}";
    let deadline = Instant::now() + 2 * PATIENCE;
    let (mut astray, mut told);
    loop {
        astray = state(client, namespace, planned, Pools::Changed).await.map_or(0, |state| state.astray);
        told = replicas.metric(line).await as usize;
        if (astray == told && astray > 0) || Instant::now() >= deadline {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    if astray != told || astray == 0 {
        wrong.push(format!("{told} are reported, and {astray} outside of their pool"));
    }
    let begin = Instant::now();
    let mut command = std::process::Command::new(program());
    command.args(["move", "--yes", "--namespace", namespace, "--server-namespace", &replicas.namespace]);
    command.arg("--kubeconfig").arg(plane.kubeconfig());
    command.arg("--settings").arg(replicas.host(0).folder().join("settings.yaml"));
    let moved = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&moved.stdout);
    let end = format!("moved {astray} of {astray}, 0 stay");
    if !moved.status.success() || said.lines().last() != Some(end.as_str()) {
        wrong.push(format!("clusterip move: {}: {:?}, not {end}", moved.status, said.lines().last()));
    }
    let fault = format!("settings changed: a pool added, one shrunk ({told} reported, and moved by `clusterip move`)");
    let row = scene.row_in(Pools::Changed, fault, tally, begin).await;
    Row { reached: true, wrong, ..row }
}

async fn a_client_is_bad(plane: &'static ControlPlane, count: usize, requests: usize, stays: Duration) -> Row {
    let scene = Scene::new(plane, count, "Fail", vec![Kind::usual(); REPLICAS]).await;
    let (port, pid) = (scene.replicas.host(0).port(), scene.replicas.host(0).pid());
    let trusted = scene.replicas.trusted().await;
    let (before, done) = (peak_memory(pid), AtomicBool::new(false));
    let bad = async {
        let taken = bad_client::send(port, &trusted, requests, stays).await;
        done.store(true, Ordering::Release);
        taken
    };
    // Creates each Service once, and then more of them until the bad requests end.
    let good = async {
        let mut tally = load(&scene.client, &scene.namespace, &scene.planned, Duration::ZERO).await;
        let mut more = 0;
        while !done.load(Ordering::Acquire) {
            more += 1;
            let planned = Planned { name: format!("more-{more}"), os: "linux", late: false, replica: 0 };
            tally.add(load(&scene.client, &scene.namespace, std::slice::from_ref(&planned), Duration::ZERO).await);
            send(&scene.client, Method::DELETE, &path(&scene.namespace, &planned.name), None).await;
        }
        tally
    };
    let (taken, tally) = tokio::join!(bad, good);
    let after = peak_memory(pid);
    let mut wrong: Vec<String> = taken.into_iter().map(|what| format!("taken for a good one: {what}")).collect();
    if after > MEMORY {
        wrong.push(format!("{after:.0} MB of memory, not {MEMORY}"));
    }
    let fault = format!("{requests} bad requests to one replica (memory {before:.0} MB before, {after:.0} MB at most)");
    let row = scene.row(fault, tally, Instant::now()).await;
    Row { reached: true, wrong, ..row }
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
        // At full size, the load runs as fast as possible.
        let over = if full { Duration::ZERO } else { Duration::from_secs(3) };
        rows.push(replicas_are_killed(plane, count(600), over).await);
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
            None => missing::skip("faketime", "a wrong clock needs libfaketime: sudo apt-get install faketime"),
        }
    }
    if wanted("webhook") {
        rows.push(the_webhook_is_away(plane, count(150)).await);
    }
    if wanted("certificates") {
        rows.push(certificates_are_renewed(plane, count(300), full).await);
    }
    if wanted("settings") {
        // With fewer than twenty Services the brake would not apply.
        let (count, over) = if full { (300, 10) } else { (90, 4) };
        rows.push(settings_are_changed(plane, count, Duration::from_secs(over)).await);
    }
    if wanted("bad") {
        let (requests, stays) = if full { (10_000, 1000) } else { (500, 200) };
        rows.push(a_client_is_bad(plane, count(300), requests, Duration::from_millis(stays)).await);
    }
    println!("{}", table(&rows));
    let missed: Vec<String> = rows.iter().flat_map(|row| row.missed(full)).collect();
    assert_eq!(missed, [""; 0]);
}
