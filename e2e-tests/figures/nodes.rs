//! Many Nodes are created at once, and get their blocks from the controller manager of Kubernetes or from `clusterip
//! serve`, in turns.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::watcher::{Config, Event, watcher};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::bench::{Bench, PARALLEL};
use super::support::eventually::eventually;
use super::support::node_ipam_controller::NodeIpam;
use super::support::pod_cidr_cluster::{SERVICE_RANGES, settings, twice};
use super::support::serve_process::{Server, ServerBuilder};
use super::table::{Bound, Table, ratios};
use crate::support::process_usage::{peak_memory, processor_time};

const NODES: usize = 2_000;
const PATH: &str = "/api/v1/nodes";
/// Twice as many /24 blocks as Nodes.
const RANGE: &str = "10.64.0.0/12";

/// The measurements of a turn.
struct Turn {
    /// The time from the first create until the last Node has a block.
    seconds: f64,
    /// The part of this time until the last Node is created.
    created: f64,
    twice: usize,
    without: usize,
    /// The maximum memory in MB.
    peak: f64,
    /// The processor time in seconds.
    processor: f64,
}

/// The measurements of each round.
pub struct Nodes {
    theirs: Vec<Turn>,
    ours: Vec<Turn>,
    /// With a leader that is killed halfway.
    killed: Turn,
}

/// Measures in turns; in every second round, the order is reversed.
pub async fn measure(bench: &Bench, rounds: usize) -> Nodes {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for way in [round % 2, (round + 1) % 2] {
            if way == 0 {
                let limits = ["--kube-api-qps=1000", "--kube-api-burst=1000", "--node-cidr-mask-size=24"];
                let manager = NodeIpam::allocating(bench.plane(), RANGE, SERVICE_RANGES, &limits.map(str::to_owned));
                theirs.push(turn(bench, manager.pid(), async |_| {}).await);
            } else {
                let server = serve(bench).await;
                ours.push(turn(bench, server.pid(), async |_| {}).await);
            }
        }
    }
    let mut first = serve(bench).await;
    let second = serve(bench).await;
    let killed = turn(bench, second.pid(), async |mut given: watch::Receiver<usize>| {
        given.wait_for(|given| *given >= NODES / 2).await.unwrap();
        first.kill();
    })
    .await;
    drop(second);
    Nodes { theirs, ours, killed }
}

async fn serve(bench: &Bench) -> Server {
    let pools = json!({"pools": [{"name": "all", "cidrs": [RANGE]}]});
    ServerBuilder::new(bench.plane()).settings(&settings(&pools)).args(&["--no-webhook"]).start().await
}

/// A Node with the labels that a kubelet sets.
fn node(index: usize) -> Value {
    let name = format!("node-{index:04}");
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {
            "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "large",
            "topology.kubernetes.io/region": "here", "topology.kubernetes.io/zone": "here-1",
        }},
    })
}

/// Creates all Nodes, and deletes them again. `meanwhile` gets the number of Nodes with blocks.
async fn turn<M: Future<Output = ()>>(
    bench: &Bench,
    pid: u32,
    meanwhile: impl FnOnce(watch::Receiver<usize>) -> M,
) -> Turn {
    // The allocator is running.
    bench.create(PATH, &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "probe"}})).await.unwrap();
    eventually("a first Node to have a block", async || {
        blocks(bench).await.values().any(|blocks| !blocks.is_empty()).then_some(())
    })
    .await;
    clear(bench).await;
    let before = processor_time(pid);
    let given = watch::Sender::new(0);
    let counting = tokio::spawn(count(bench.client().clone(), given.clone()));
    let begin = Instant::now();
    let mut all = given.subscribe();
    let creating = async {
        bench.create_all(PATH, (0..NODES).map(node), PARALLEL).await.into_iter().for_each(|answered| {
            answered.created.unwrap();
        });
        begin.elapsed()
    };
    let waiting = async {
        let _ = tokio::time::timeout(Duration::from_secs(120), all.wait_for(|given| *given == NODES)).await;
        begin.elapsed()
    };
    let (created, took, ()) = tokio::join!(creating, waiting, meanwhile(given.subscribe()));
    counting.abort();
    let all = blocks(bench).await;
    let turn = Turn {
        seconds: took.as_secs_f64(),
        created: created.as_secs_f64(),
        twice: twice(&all).len(),
        without: all.values().filter(|blocks| blocks.is_empty()).count(),
        peak: peak_memory(pid),
        processor: (processor_time(pid) - before).as_secs_f64(),
    };
    clear(bench).await;
    turn
}

/// Watches the Nodes, and publishes how many have blocks.
async fn count(client: kube::Client, given: watch::Sender<usize>) {
    let mut events = std::pin::pin!(watcher(Api::<Node>::all(client), Config::default()));
    let mut with = std::collections::BTreeSet::new();
    while let Some(event) = events.next().await {
        if let Ok(Event::Apply(node) | Event::InitApply(node)) = event
            && node.spec.is_some_and(|spec| spec.pod_cidr.is_some())
            && with.insert(node.metadata.name)
        {
            given.send_replace(with.len());
        }
    }
}

async fn blocks(bench: &Bench) -> BTreeMap<String, Vec<String>> {
    let list = bench.get(PATH).await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let blocks = |node: &Value| node["spec"]["podCIDRs"].as_array().into_iter().flatten().map(text).collect();
    list["items"].as_array().unwrap().iter().map(|node| (text(&node["metadata"]["name"]), blocks(node))).collect()
}

/// Deletes all Nodes. The allocator sees this before the next Node is created.
async fn clear(bench: &Bench) {
    bench.clear(PATH).await;
    eventually("all Nodes to be gone", async || blocks(bench).await.is_empty().then_some(())).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
}

impl Nodes {
    /// Prints the times, and whether all Nodes got distinct blocks.
    pub fn rows(&self, table: &mut Table) {
        let theirs = |figure: fn(&Turn) -> f64| self.theirs.iter().map(figure).collect::<Vec<_>>();
        let ours = |figure: fn(&Turn) -> f64| self.ours.iter().map(figure).collect::<Vec<_>>();
        let wrong = |count: fn(&Turn) -> usize| self.ours.iter().chain([&self.killed]).map(count).sum::<usize>() as f64;
        let (theirs_took, ours_took) = (theirs(|turn| turn.seconds), ours(|turn| turn.seconds));
        let ratio = ratios(&ours_took, &theirs_took);
        let created: fn(&Turn) -> f64 = |turn| turn.created;
        let processor: fn(&Turn) -> f64 = |turn| turn.processor;
        table.total("blocks that two Nodes have", wrong(|turn| turn.twice), "", Bound::Exactly(0.0));
        table.total("Nodes without a block", wrong(|turn| turn.without), "", Bound::Exactly(0.0));
        table.rounds("until all are there and have a block, controller manager", &theirs_took, "s", Bound::None);
        table.rounds("until all are there and have a block, clusterip", &ours_took, "s", Bound::None);
        table.rounds("ratio of the times", &ratio, "", Bound::AtMost(1.0));
        table.rounds("until all are there, beside the controller manager", &theirs(created), "s", Bound::None);
        table.rounds("until all are there, beside clusterip", &ours(created), "s", Bound::None);
        table.rounds("processor time, controller manager", &theirs(processor), "s", Bound::None);
        table.rounds("processor time, clusterip", &ours(processor), "s", Bound::None);
        table.rounds("peak memory (VmHWM), controller manager", &theirs(|turn| turn.peak), "MB", Bound::None);
        table.rounds("peak memory (VmHWM), clusterip", &ours(|turn| turn.peak), "MB", Bound::AtMost(100.0));
        table.total("leader killed halfway: until all have a block", self.killed.seconds, "s", Bound::None);
    }
}
