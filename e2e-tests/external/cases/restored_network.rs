//! An agent restores its address, its firewall and its interface after they were removed from the node.

use std::time::Duration;

use super::held_address::HeldAddress;
use crate::agent_cluster::{BEGIN, within};

pub fn address_and_firewall_are_restored_after_removal_by_hand() {
    let mut held = HeldAddress::new();
    let (address, node) = (held.address, held.holder);
    within(BEGIN, "an answer", || held.answers().then_some(()));
    let namespace = &held.cluster.network.nodes[node].namespace;
    namespace.ip(&format!("address delete {address}/32 dev eth0"));
    namespace.exec(&["nft", "delete", "table", "inet", "clusterip_external"]);
    // The agent restores the address at one of its next two heartbeats.
    within(Duration::from_secs(15), "the address to be back", || held.cluster.holder(address));
    within(BEGIN, "an answer", || held.answers().then_some(()));
    assert_eq!(held.cluster.holder(address), Some(node));
    within(Duration::from_secs(40), "the firewall to be back", || {
        let closed = held.client.ask(&format!("tcp {address} 81 1")) == "TimedOut";
        closed.then_some(())
    });
    assert!(held.answers());
}

pub fn recreated_interface_is_found_again() {
    let mut held = HeldAddress::new();
    let (address, node) = (held.address, held.holder);
    within(BEGIN, "an answer", || held.answers().then_some(()));
    held.cluster.network.plug_anew(node);
    within(Duration::from_secs(15), "the address to be back", || held.cluster.holder(address));
    within(BEGIN, "an answer", || held.answers().then_some(()));
    assert_eq!(held.cluster.holder(address), Some(node));
    let measured = held.cluster.measured(Some(node), "clusterip_agent_given_up");
    assert_eq!(measured, ["clusterip_agent_given_up_addresses_total 0"]);
}
