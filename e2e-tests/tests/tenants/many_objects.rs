//! What the server does about one namespace with many objects that have many labels.

use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::support::{MALLORY, SETTINGS, Scene, Tenant, WINDOWS};
use crate::support::eventually::eventually;
use crate::support::process_usage::{memory, peak_memory, processor_time};
use crate::support::webhook_cluster::{addresses, on, service, within};
use crate::support::workloads::{KINDS, fill, fill_with_inert_workloads, labels};

/// How many requests of a tenant run at once.
const PARALLEL: usize = 32;

impl Tenant<'_> {
    /// Creates a workload with this number, which no other one has, and waits until the server has seen it.
    async fn is_seen(&self, number: usize) {
        let last = number.to_string();
        fill(
            &self.client,
            &self.namespace,
            number..number + 1,
            &[0],
            &json!({"app": "web", "last": last}),
            &on("windows"),
        )
        .await;
        let last = service("last", json!({"selector": {"last": last}}));
        eventually("the server to have seen all objects", async || {
            let created = self.scene.create(&self.client, &self.namespace, &last, "?dryRun=All").await.unwrap();
            within(addresses(&created)[0], WINDOWS).then_some(())
        })
        .await;
    }

    /// The processor time of the server for each of many creates of this Service in parallel, without effect.
    async fn costs(&self, service: &Value) -> Duration {
        const CREATES: u32 = 160;
        let pid = self.scene.server.as_ref().unwrap().pid();
        let begin = processor_time(pid);
        let create = async |_| {
            self.scene.create(&self.client, &self.namespace, service, "?dryRun=All").await.unwrap();
        };
        stream::iter((0..CREATES).map(create)).buffer_unordered(PARALLEL).collect::<Vec<()>>().await;
        (processor_time(pid) - begin) / CREATES
    }
}

/// Workloads of all kinds, of which none is evidence, and which all have to be read.
#[tokio::test]
async fn evaluation_with_many_workloads_costs_at_most_ten_ordinary_ones() {
    const MOST: u32 = 10;
    let scene = Scene::start().await;
    let ordinary = scene.tenant("ordinary").await;
    let usual = ordinary.costs(&service("web", json!({}))).await;
    let mallory = scene.tenant(MALLORY).await;
    let long = labels(60);
    let all: Vec<usize> = (0..KINDS).collect();
    fill_with_inert_workloads(&mallory.client, &mallory.namespace).await;
    let values: Vec<String> = (0..250).map(|number| format!("v{number}")).collect();
    let required =
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": values}]}]});
    let affinity = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}});
    fill(&mallory.client, &mallory.namespace, 192..384, &all, &json!({"app": "web", "wide": "no"}), &affinity).await;
    mallory.is_seen(384).await;
    let mut almost = long.clone();
    almost["0"] = json!("nobody");
    let rows = [
        ("one label", json!({"app": "web"})),
        ("all labels", long),
        ("all labels, and one that no workload has", almost),
        ("workloads with long affinity", json!({"wide": "no"})),
    ];
    let mut wrong = Vec::new();
    for (name, selector) in rows {
        let took = mallory.costs(&service("web", json!({"selector": selector}))).await;
        eprintln!("{name}: {took:?}, an ordinary Service {usual:?}");
        if took > MOST * usual {
            wrong.push(format!("{name}: {took:?}, an ordinary Service {usual:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Small objects with many small labels. A server with 384 MiB was killed by 30,800 of them, and again when it started.
#[tokio::test]
async fn memory_of_the_server_grows_by_at_most_six_kibibytes_for_each_small_object() {
    const OBJECTS: usize = 4000;
    /// Two or three are usual. On a busy machine, more pages of the list are in memory at once.
    const MOST: f64 = 6144.0;
    let mut scene = Scene::on_its_own();
    scene.begin().await;
    let mallory = scene.tenant(MALLORY).await;
    mallory.is_seen(OBJECTS).await;
    let pid = scene.server.as_ref().unwrap().pid();
    let before = memory(pid);
    // ReplicaSets, Jobs and Pods.
    fill(&mallory.client, &mallory.namespace, 0..OBJECTS, &[3, 5, 7], &labels(8), &json!({})).await;
    mallory.is_seen(OBJECTS + 1).await;
    let each = (memory(pid) - before) * 1e6 / OBJECTS as f64;
    eprintln!("{each} bytes for each object");
    assert!(each < MOST, "{each} bytes for each object");

    scene.server.take();
    scene.serve(SETTINGS).await;
    let server = scene.server.as_mut().unwrap();
    server.ready().await;
    let peak = peak_memory(server.pid());
    eprintln!("{peak} MB when the server starts, {before} MB before");
    assert!(
        (peak - before) * 1e6 < MOST * OBJECTS as f64 + 64e6,
        "{peak} MB when the server starts, {before} MB before"
    );
}
