//! Moves that the next leader finishes after a tenant has made the policy refuse the half-moved Service, and Services that
//! no pool matches.

use std::net::IpAddr;

use clusterip::services::mover::Mover;
use serde_json::{Value, json};

use super::support::{LINUX, LOST, MOVING, SETTINGS, Scene, Tenant};
use crate::support::eventually::eventually_within;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{These, is_step, order, stored};
use crate::support::webhook_cluster::{addresses, annotated, service, within};

/// Almost all addresses that the API server picks lie in the pool of another team.
const WIDE_BLUE: &str = "172.21.8.0/24, 172.21.32.0/19, 172.21.64.0/18, 172.21.128.0/17";
/// The ranges of all pools then.
const POOLS: [&str; 7] = [
    "172.21.0.0/24",
    "172.21.1.0/24",
    "172.21.8.0/24",
    "172.21.9.0/26",
    "172.21.32.0/19",
    "172.21.64.0/18",
    "172.21.128.0/17",
];

struct Row {
    name: &'static str,
    /// What the tenant writes to the half-moved Service.
    annotations: Value,
    /// Whether another Service takes the old address.
    is_taken: bool,
    /// The reason of the Event at the end.
    expected: &'static str,
}

#[tokio::test]
async fn move_that_the_policy_refuses_and_unmatched_services_get_no_address_of_another_pool() {
    let nope = || json!({"clusterip-policy/pool": "nope"});
    let row = |name, annotations, is_taken, expected| Row { name, annotations, is_taken, expected };
    let rows = [
        row("unknown-pool", nope(), false, "AddressKept"),
        row("pool-of-others", json!({"clusterip-policy/pool": "blue"}), false, "AddressKept"),
        row("no-pool", json!({"clusterip-policy/os": "foo"}), false, "AddressMoved"),
        row("taken-0", nope(), true, "AddressMovedElsewhere"),
        row("taken-1", nope(), true, "AddressMovedElsewhere"),
        row("taken-2", nope(), true, "AddressMovedElsewhere"),
    ];
    let mut scene = Scene::start().await;
    let proxy = Proxy::start(&scene.plane).await;
    let Tenant { client, namespace, .. } = scene.tenant("resumed").await;
    let mut services = Vec::new();
    for Row { name, .. } in &rows {
        let linux = annotated(name, json!({"clusterip-policy/os": "linux"}), json!({}));
        services.push(scene.create(&client, &namespace, &linux, "").await.unwrap());
    }
    assert_eq!(scene.server.take().unwrap().terminate().await, 0);
    let tenant = Tenant { scene: &scene, client: client.clone(), namespace: namespace.clone() };
    for (nth, (Row { name, annotations, is_taken, .. }, before)) in rows.iter().zip(&services).enumerate() {
        // The former leader ends in the middle of the move.
        let to = IpAddr::from([172, 21, 1, 100 + nth as u8]);
        let gate = proxy.on(is_step(&namespace, name, "assign"), Fault::PauseBefore);
        let (leader, ordered) = (Mover::new(proxy.client(), "clusterip-policy"), order(before, &[to]));
        let task = tokio::spawn(async move { leader.start(&ordered, None, &These(vec![])).await });
        gate.arrived().await;
        task.abort();
        gate.discard();
        tenant.annotates(name, annotations.clone()).await.unwrap();
        if *is_taken {
            let taker = service(name, json!({"clusterIP": addresses(before)[0]}));
            scene.create(&scene.admin(), "kube-system", &taker, "").await.unwrap();
        }
    }
    scene.serve(&SETTINGS.replacen("172.21.8.0/24", WIDE_BLUE, 1)).await;
    for (Row { name, expected, .. }, before) in rows.iter().zip(&services) {
        let after = eventually_within(LOST, &format!("the end of the move of {name}"), async || {
            let now = stored(&scene.admin(), &namespace, name).await?;
            let has_ended = now["spec"]["type"] == "ClusterIP" && now["metadata"]["annotations"][MOVING].is_null();
            has_ended.then_some(now)
        })
        .await;
        let [address] = addresses(&after)[..] else { panic!("{name}: {after}") };
        let is_kept = address == addresses(before)[0];
        assert_eq!(is_kept, *expected == "AddressKept", "{name}: {address}");
        assert!(is_kept || !POOLS.iter().any(|pool| within(address, pool)), "{name} has {address} of a pool");
        scene.wait_for_event(&namespace, name, expected).await;
    }
    no_pool_matches(&Tenant { scene: &scene, client, namespace }).await;
}

/// Services that no pool matches, because their annotation names an operating system without a pool. If the API server
/// picked their addresses, almost all of these would lie in the wide pool.
async fn no_pool_matches(tenant: &Tenant<'_>) {
    const CREATES: usize = 20;
    let create = async |name: &str, os: &str| {
        tenant.creates(&annotated(name, json!({"clusterip-policy/os": os}), json!({}))).await
    };
    for nth in 0..CREATES {
        let created = create(&format!("unmatched-{nth}"), &format!("foo-{}", nth % 7)).await;
        let address = addresses(&created)[0];
        assert!(!POOLS.iter().any(|pool| within(address, pool)), "unmatched-{nth} has {address} of a pool");
    }
    // A Service that a pool admitted, and does not admit any more, leaves the pool.
    let linux = create("leaves", "linux").await;
    assert!(within(addresses(&linux)[0], LINUX), "{linux}");
    tenant.annotates("leaves", json!({"clusterip-policy/os": "foo"})).await.unwrap();
    eventually_within(LOST, "the Service to move outside of all pools", async || {
        let now = stored(&tenant.scene.admin(), &tenant.namespace, "leaves").await.unwrap();
        let address = addresses(&now).first().copied()?;
        (!POOLS.iter().any(|pool| within(address, pool))).then_some(())
    })
    .await;
}
