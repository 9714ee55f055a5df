//! Starts, changes of the settings, and memory in a large cluster.

use std::time::Instant;

use serde_json::{Value, json};

use super::bench::{Bench, NAMESPACES_OF_OTHERS, deployments, namespace_of_other, nth_namespace_of_others, quiet};
use super::manifests::{deployment, name, pod};
use super::support::eventually::eventually;
use super::surveys::{Change, change, surveys};
use super::table::{Bound, Table};
use crate::support::process_usage::{peak_memory, processor_time};

const WORKLOADS: Workloads = Workloads { namespace: namespace_of_other, deployments: 2_000, pods: 5_000 };
/// Nothing is compared here, and a start takes long, so there are few rounds.
const MOST_ROUNDS: usize = 3;

/// The workloads of a cluster. Each Deployment has an EndpointSlice.
pub struct Workloads {
    /// The namespace of the Deployment with this index.
    pub namespace: fn(usize) -> String,
    pub deployments: usize,
    pub pods: usize,
}

/// The cost of a start, and of a change of the settings. Times are in seconds.
pub struct Start {
    /// The maximum memory in MB.
    peak: f64,
    /// The time from the start of the process until `/readyz` answers 200.
    ready: f64,
    /// The time from the start of the process until every Service was examined.
    examined: f64,
    /// The processor time until then.
    processor: f64,
    change: Change,
}

/// The measurements of each round.
pub struct Large(Vec<Start>);

/// The bounds of times, in seconds.
pub struct Bounds {
    /// Until `/readyz` answers 200.
    pub ready: Bound,
    /// From the start of the process until every Service was examined.
    pub examined: Bound,
    /// From `/readyz` until every Service was examined.
    pub examined_after_ready: Bound,
    /// From a change of the settings until every Service was examined again.
    pub changed: Bound,
}

/// Fills the cluster, and starts a server in it several times.
pub async fn measure(bench: &Bench, pairs: usize) -> Large {
    WORKLOADS.create(bench).await;
    rounds(bench, pairs).await
}

/// Starts a server several times.
pub async fn rounds(bench: &Bench, pairs: usize) -> Large {
    let mut large = Large(Vec::new());
    for _ in 0..pairs.min(MOST_ROUNDS) {
        large.0.push(start(bench).await);
    }
    large
}

/// Starts a server, changes its settings when it is at rest, and stops it.
pub async fn start(bench: &Bench) -> Start {
    let begin = Instant::now();
    let mut server = bench.server("memory").spawn();
    server.ready().await;
    let ready = begin.elapsed().as_secs_f64();
    eventually("all Services to be examined", async || (surveys(&server) > 0).then_some(())).await;
    let (examined, processor) = (begin.elapsed().as_secs_f64(), processor_time(server.pid()).as_secs_f64());
    quiet(&server).await;
    let change = change(bench, &server).await;
    let peak = peak_memory(server.pid());
    bench.end(server).await;
    Start { peak, ready, examined, processor, change }
}

impl Workloads {
    /// Creates the workloads beside the other Services, and the objects that a controller manager would create.
    async fn create(&self, bench: &Bench) {
        for nth in 0..NAMESPACES_OF_OTHERS {
            let namespace = nth_namespace_of_others(nth);
            let is_inside = |object: &Value| object["metadata"]["namespace"] == *namespace;
            bench.add(&deployments(&namespace), self.deployments().filter(is_inside)).await;
            bench.add(&format!("/api/v1/namespaces/{namespace}/pods"), self.pods().filter(is_inside)).await;
            let of_slices = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
            bench.add(&of_slices, self.slices().filter(is_inside)).await;
        }
    }

    /// The Deployments.
    pub fn deployments(&self) -> impl Iterator<Item = Value> {
        (0..self.deployments).map(|index| deployment(&(self.namespace)(index), index))
    }

    /// The Pods of the Deployments.
    pub fn pods(&self) -> impl Iterator<Item = Value> {
        (0..self.pods).map(|nth| {
            let index = nth % self.deployments;
            pod(&(self.namespace)(index), index, nth)
        })
    }

    /// The EndpointSlices of the Services of the Deployments.
    pub fn slices(&self) -> impl Iterator<Item = Value> {
        (0..self.deployments).map(|index| self.slice(index))
    }

    /// The EndpointSlice of a Deployment.
    fn slice(&self, index: usize) -> Value {
        let namespace = (self.namespace)(index);
        let endpoint = |nth: usize| {
            let (node, last) = (nth % 50, nth % 250 + 1);
            let target = format!("{}-6c8f9d7b5-{nth:05}", name(index));
            json!({
                "addresses": [format!("10.244.{node}.{last}")],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": format!("node-{node}"),
                "targetRef": {"kind": "Pod", "namespace": namespace, "name": target},
            })
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": namespace,
                "name": format!("{}-x7k2p", name(index)),
                "labels": {"kubernetes.io/service-name": name(index), "app": name(index)},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}, {"name": "metrics", "port": 9090}],
            "endpoints": (index..self.pods).step_by(self.deployments).map(endpoint).collect::<Vec<_>>(),
        })
    }
}

impl Large {
    /// Prints the figures.
    pub fn rows(&self, table: &mut Table, empty: &Start) {
        self.memory(table, Bound::AtMost(150.0));
        table.total("  in an empty cluster", empty.peak, "MB", Bound::None);
        let bounds = Bounds {
            ready: Bound::None,
            examined: Bound::AtMost(1.0),
            examined_after_ready: Bound::None,
            changed: Bound::None,
        };
        self.times(table, &bounds);
    }

    /// Prints the peak of the memory.
    pub fn memory(&self, table: &mut Table, bound: Bound) {
        table.rounds("peak (VmHWM), first lists included", &self.of_each(|start| start.peak), "MB", bound);
    }

    /// Prints how long the server takes until it is ready, until it has examined every Service, and until it has
    /// examined them again after a change of the settings.
    pub fn times(&self, table: &mut Table, bounds: &Bounds) {
        table.rounds("until /readyz answers 200", &self.of_each(|start| start.ready), "s", bounds.ready);
        table.rounds("until every Service was examined", &self.of_each(|start| start.examined), "s", bounds.examined);
        table.rounds("  processor time until then", &self.of_each(|start| start.processor), "s", Bound::None);
        let later = self.of_each(|start| (start.examined - start.ready).max(0.0));
        table.rounds("  longer than until /readyz answers 200", &later, "s", bounds.examined_after_ready);
        let changed = self.of_each(|start| start.change.examined);
        table.rounds("the same, after a change of the settings", &changed, "s", bounds.changed);
        let in_use = self.of_each(|start| start.change.in_use);
        table.rounds("  of it until the settings are in use", &in_use, "s", Bound::None);
    }

    fn of_each(&self, figure: fn(&Start) -> f64) -> Vec<f64> {
        self.0.iter().map(figure).collect()
    }
}
