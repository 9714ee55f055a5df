//! Services that are almost too large to move, and that all move at once.

use std::time::Instant;

use axum::http::Method;
use futures::future::join_all;
use serde_json::{Map, Value, json};

use super::support::{Scene, Tenant, WINDOWS};
use crate::support::eventually::{MAX_WAIT, eventually_within};
use crate::support::move_helpers::{path, stored};
use crate::support::process_usage::{memory, peak_memory};
use crate::support::webhook_cluster::{addresses, annotated, within};

/// The Services of one namespace, of all kinds.
const EACH: usize = 16;

/// Many small texts, by their names.
fn texts(count: usize) -> Map<String, Value> {
    (0..count).map(|nth| (format!("text-{nth:04}"), "".into())).collect()
}

/// Chains of owned fields, each with so many levels of this key.
fn chains(count: usize, levels: usize, key: &str) -> Map<String, Value> {
    let chain = (0..levels).fold(json!({}), |inner, _| json!({key: inner}));
    (0..count).map(|nth| (format!("f:{nth:04}"), chain.clone())).collect()
}

impl Tenant<'_> {
    /// Creates a Service of about 250 kB, most of which are annotations, labels, ports, or owners of fields.
    async fn creates_large(&self, nth: usize) -> String {
        let name = format!("large-{nth}");
        let mut service = annotated(&name, json!({"clusterip-policy/os": "linux"}), json!({}));
        match nth % 4 {
            0 => service["metadata"]["annotations"].as_object_mut().unwrap().append(&mut texts(8000)),
            1 => service["metadata"]["labels"] = texts(8000).into(),
            2 => {
                let port = |number: usize| json!({"name": format!("p{number}"), "port": number});
                service["spec"]["ports"] = (1..=1400).map(port).collect();
            }
            _ => {}
        }
        let mut service = self.creates(&service).await;
        if nth % 4 == 3 {
            // Almost as many maps as a Service that moves may have, or three times as many.
            let owned = match nth {
                EACH.. => chains(280, 90, "f:a"),
                _ if nth % 8 == 3 => chains(88, 90, "f:some-field-of-an-owner"),
                _ => chains(7900, 1, "f:a-field"),
            };
            let fields = json!({"f:metadata": {"f:annotations": owned}});
            service["metadata"]["managedFields"] = json!([{"manager": "mallory", "operation": "Update",
                "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields}]);
            service = self.request(Method::PUT, &path(&self.namespace, &name), &service).await.unwrap();
        }
        let bytes = service.to_string().len();
        assert!((190_000..=256 << 10).contains(&bytes), "Service {nth} has {bytes} bytes");
        name
    }

    /// Makes Services misplaced, all at once.
    async fn makes_misplaced(&self, names: &[String]) {
        let windows = json!({"clusterip-policy/os": "windows"});
        join_all(names.iter().map(async |name| drop(self.annotates(name, windows.clone()).await.unwrap()))).await;
    }

    async fn wait_for_moves(&self, names: &[String]) {
        for name in names {
            eventually_within(4 * MAX_WAIT, "a large Service to move", async || {
                let now = stored(&self.scene.admin(), &self.namespace, name).await?;
                addresses(&now).first().is_some_and(|address| within(*address, WINDOWS)).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test]
async fn large_services_move_with_little_memory_and_delay_no_others() {
    /// A server has 384 MiB.
    const MOST: f64 = 150.0;
    let scene = Scene::start().await;
    let neighbour = scene.plane.namespace("neighbour").await;
    let usual = scene.pace(&neighbour, "before").await;
    let mut tenants = Vec::new();
    for name in ["mallory", "minnie"] {
        let (tenant, mut names) = (scene.tenant(name).await, Vec::new());
        for nth in 0..EACH {
            names.push(tenant.creates_large(nth).await);
        }
        let heavy = tenant.creates_large(EACH + 3).await;
        tenants.push((tenant, names, heavy));
    }
    let pid = scene.server.as_ref().unwrap().pid();
    let (before, begin) = (memory(pid), Instant::now());
    join_all(tenants.iter().map(|(tenant, _, heavy)| tenant.makes_misplaced(std::slice::from_ref(heavy)))).await;
    join_all(tenants.iter().map(|(tenant, names, _)| tenant.makes_misplaced(names))).await;
    let pace = scene.pace(&neighbour, "after").await;
    join_all(tenants.iter().map(|(tenant, names, _)| tenant.wait_for_moves(names))).await;
    let (peak, all) = (peak_memory(pid), begin.elapsed());
    eprintln!("a neighbour: {pace:?}, before {usual:?}; {peak} MB, before {before} MB; all moved in {all:?}");
    pace.is_at_most_delayed(usual);
    assert!(peak - before < MOST, "{peak} MB, {before} MB before");
    for (tenant, _, heavy) in &tenants {
        let stays = stored(&scene.admin(), &tenant.namespace, heavy).await.unwrap();
        assert!(!within(addresses(&stays)[0], WINDOWS), "{heavy} moved");
    }
}
