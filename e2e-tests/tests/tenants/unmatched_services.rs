//! Services that no pool matches, because their annotation names an operating system without a pool.

use axum::http::Method;
use serde_json::json;

use super::support::{BLUE, LINUX, LOST, NARROW, Scene, WINDOWS};
use crate::support::eventually::eventually_within;
use crate::support::move_helpers::{path, stored};
use crate::support::webhook_cluster::{addresses, annotated, within};

const POOLS: [&str; 4] = [LINUX, WINDOWS, BLUE, NARROW];

/// If the API server picked the addresses, some of these would lie in a pool: the pools are a seventieth of the range.
const CREATES: usize = 300;

#[tokio::test]
async fn service_that_no_pool_matches_gets_no_address_of_a_pool() {
    let scene = Scene::shared().await;
    let tenant = scene.tenant("unmatched").await;
    let create = async |name: &str, os: &str| {
        let service = annotated(name, json!({"clusterip-policy/os": os}), json!({}));
        scene.create(&tenant.client, &tenant.namespace, &service, "").await.unwrap()
    };
    for nth in 0..CREATES {
        let name = format!("web-{nth}");
        let created = create(&name, &format!("foo-{}", nth % 7)).await;
        let address = addresses(&created)[0];
        assert!(!POOLS.iter().any(|pool| within(address, pool)), "{name} has {address} of a pool");
        tenant.request(Method::DELETE, &path(&tenant.namespace, &name), &json!({})).await.unwrap();
    }
    // A Service that a pool admitted, and does not admit any more, leaves the pool.
    let linux = create("leaves", "linux").await;
    assert!(within(addresses(&linux)[0], LINUX), "{linux}");
    let foo = json!({"metadata": {"annotations": {"clusterip-policy/os": "foo"}}});
    tenant.request(Method::PATCH, &path(&tenant.namespace, "leaves"), &foo).await.unwrap();
    eventually_within(LOST, "the Service to move outside of all pools", async || {
        let now = stored(&scene.admin(), &tenant.namespace, "leaves").await.unwrap();
        let address = addresses(&now).first().copied()?;
        (!POOLS.iter().any(|pool| within(address, pool))).then_some(())
    })
    .await;
}
