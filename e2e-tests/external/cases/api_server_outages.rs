//! No agent reaches the API server.

use std::thread::sleep;
use std::time::Duration;

use super::held_address::{HeldAddress, PROBE_TIME, assert_one_holder_at_a_time};
use crate::agent_cluster::within;

pub fn short_api_server_outage_moves_no_address() {
    let mut held = HeldAddress::new();
    let probe = held.cluster.probe(&[held.address]);
    for index in 0..3 {
        held.cluster.cut(index, true);
    }
    sleep(Duration::from_secs(8));
    for index in 0..3 {
        held.cluster.cut(index, false);
    }
    sleep(Duration::from_secs(15));
    assert_eq!(held.cluster.holder(held.address), Some(held.holder));
    assert!(held.answers());
    assert_one_holder_at_a_time(&held.cluster, probe, held.address, &[held.holder]);
}

/// Without the API server, no agent knows what the others do, so all of them release their addresses.
pub fn addresses_are_released_in_a_long_api_server_outage() {
    let mut held = HeldAddress::new();
    let probe = held.cluster.probe(&[held.address]);
    sleep(PROBE_TIME);
    for index in 0..3 {
        held.cluster.cut(index, true);
    }
    within(Duration::from_secs(20), "all agents to release the address", || {
        held.cluster.holder(held.address).is_none().then_some(())
    });
    sleep(Duration::from_secs(10));
    assert_eq!(held.cluster.holder(held.address), None);
    for index in 0..3 {
        held.cluster.cut(index, false);
    }
    let next = within(Duration::from_secs(15), "a holder again", || held.cluster.holder(held.address));
    within(Duration::from_secs(5), "an answer", || held.answers().then_some(()));
    assert_one_holder_at_a_time(
        &held.cluster,
        probe,
        held.address,
        &if next == held.holder { vec![next] } else { vec![held.holder, next] },
    );
}
