//! Starts, changes of the settings, and memory in a large cluster.

use std::time::Instant;

use serde_json::json;

use super::bench::{Bench, deployments};
use super::manifests::{deployment, name, pod};
use super::support::eventually::eventually;
use super::support::serve_process::Server;
use super::surveys::{change, surveys};
use super::table::{Bound, Table};
use crate::support::process_usage::{peak_memory, processor_time};

const NAMESPACE: &str = "others";
const DEPLOYMENTS: usize = 2_000;
const PODS: usize = 5_000;
/// Nothing is compared here, and a start takes long, so there are few rounds.
const ROUNDS: usize = 3;

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
    /// The time from a change of the settings until every Service was examined again.
    changed: f64,
    /// The processor time of that.
    processor_of_change: f64,
}

/// The measurements of each round.
pub struct Large(Vec<Start>);

/// Fills the cluster, and starts a server in it several times.
pub async fn measure(bench: &Bench) -> Large {
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices");
    bench.add(&deployments(NAMESPACE), (0..DEPLOYMENTS).map(|index| deployment(NAMESPACE, index))).await;
    bench.add(&pods, (0..PODS).map(|nth| pod(NAMESPACE, nth % DEPLOYMENTS, nth))).await;
    // Objects that a controller manager would create.
    let slice = |index: usize| {
        let endpoint = |nth: usize| {
            let (node, last) = (nth % 50, nth % 250 + 1);
            let target = format!("{}-6c8f9d7b5-{nth:05}", name(index));
            json!({
                "addresses": [format!("10.244.{node}.{last}")],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": format!("node-{node}"),
                "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": target},
            })
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": NAMESPACE,
                "name": format!("{}-x7k2p", name(index)),
                "labels": {"kubernetes.io/service-name": name(index), "app": name(index)},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}, {"name": "metrics", "port": 9090}],
            "endpoints": (index..PODS).step_by(DEPLOYMENTS).map(endpoint).collect::<Vec<_>>(),
        })
    };
    bench.add(&slices, (0..DEPLOYMENTS).map(slice)).await;
    let mut large = Large(Vec::new());
    for _ in 0..ROUNDS {
        large.0.push(start(bench).await);
    }
    large
}

/// Starts a server, changes its settings when it is at rest, and stops it.
pub async fn start(bench: &Bench) -> Start {
    let begin = Instant::now();
    let mut server = bench.server("memory").spawn();
    let processor = |server: &Server| processor_time(server.pid()).as_secs_f64();
    server.ready().await;
    let ready = begin.elapsed().as_secs_f64();
    eventually("all Services to be examined", async || (surveys(&server) > 0).then_some(())).await;
    let (examined, processor_of_start) = (begin.elapsed().as_secs_f64(), processor(&server));
    bench.wait_until_called(&server).await;
    let (begin, before) = (Instant::now(), processor(&server));
    change(bench, &server).await;
    let (changed, processor_of_change) = (begin.elapsed().as_secs_f64(), processor(&server) - before);
    let peak = peak_memory(server.pid());
    bench.end(server).await;
    Start { peak, ready, examined, processor: processor_of_start, changed, processor_of_change }
}

impl Large {
    /// Prints the figures.
    pub fn rows(&self, table: &mut Table, empty: &Start) {
        let rounds = |figure: fn(&Start) -> f64| self.0.iter().map(figure).collect::<Vec<_>>();
        table.rounds("peak (VmHWM), first lists included", &rounds(|start| start.peak), "MB", Bound::AtMost(150.0));
        table.total("  in an empty cluster", empty.peak, "MB", Bound::None);
        table.rounds("until /readyz answers 200", &rounds(|start| start.ready), "s", Bound::None);
        table.rounds("until every Service was examined", &rounds(|start| start.examined), "s", Bound::None);
        table.rounds("processor time until then", &rounds(|start| start.processor), "s", Bound::None);
        let after = rounds(|start| start.examined - start.ready);
        table.rounds("  from ready until every Service was examined", &after, "s", Bound::AtMost(1.0));
        table.rounds(
            "the same, after a change of the settings",
            &rounds(|start| start.changed),
            "s",
            Bound::AtMost(1.0),
        );
        let processor = rounds(|start| start.processor_of_change);
        table.rounds("  processor time of that", &processor, "s", Bound::None);
    }
}
