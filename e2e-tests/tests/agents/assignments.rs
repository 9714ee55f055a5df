//! The addresses that agents hold follow their assignments, and the Leases follow the addresses.

use std::sync::Arc;

use clusterip_failover::assignments::Protocol;
use clusterip_failover::claims::HolderClaim;
use kube::api::ListParams;

use super::support::{Agents, NODES, address, assigned};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{MAX_WAIT, eventually};
use crate::support::fake_network::{Change, Event};

#[tokio::test]
async fn held_addresses_follow_the_assignments() {
    let plane = ControlPlane::shared().await;
    let mut agents = Agents::new(&plane, "agent-follows", assigned(4, &["node-1"])).await;
    for node in ["node-1", "node-2"] {
        agents.start(node, || plane.client());
    }
    agents.held_by(MAX_WAIT, &["node-1"]).await;

    // The ports of an address change.
    agents.assign(|all| all.get_mut(&address(0)).unwrap().ports = [(Protocol::Udp, 53)].into());
    eventually("other ports", async || {
        let change = Change::Ports([(Protocol::Udp, 53)].into());
        let event = Event { address: address(0), node: "node-1".to_owned(), change };
        agents.network.log().contains(&event).then_some(())
    })
    .await;

    // An address may be on another node.
    agents.assign(|all| all.get_mut(&address(1)).unwrap().nodes = Arc::new(["node-2".to_owned()].into()));
    eventually("another node", async || (agents.network.holders().get(&address(1))? == "node-2").then_some(())).await;
    agents.held_by(MAX_WAIT, &["node-1", "node-2"]).await;

    // An address may be on no node, or is not assigned any more.
    agents.assign(|all| all.get_mut(&address(2)).unwrap().nodes = Arc::default());
    agents.assign(|all| drop(all.remove(&address(3))));
    eventually("two addresses to be released", async || (agents.network.holders().len() == 2).then_some(())).await;
    eventually("the claim to be deleted", async || {
        agents.leases.get_opt(&HolderClaim::lease_name(address(3))).await.unwrap().is_none().then_some(())
    })
    .await;
    let claims = agents.claims().await;
    assert_eq!(claims, [(address(0), "node-1".to_owned()), (address(1), "node-2".to_owned())].into());
    agents.network.assert_no_conflicts();
}

#[tokio::test]
async fn agents_recreate_deleted_leases() {
    let plane = ControlPlane::shared().await;
    let mut agents = Agents::new(&plane, "agent-deleted", assigned(6, &NODES)).await;
    for node in NODES {
        agents.start(node, || plane.client());
    }
    let held = agents.held_by(MAX_WAIT, &NODES).await;
    agents.leases.delete_collection(&<_>::default(), &ListParams::default()).await.unwrap();
    eventually("all Leases", async || (agents.all().await.len() == 9).then_some(())).await;
    assert_eq!(agents.held_by(MAX_WAIT, &NODES).await, held);
}
