//! The properties that hold in every simulation, and how soon addresses are held again after a failure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use clusterip_failover::heartbeat_state;
use clusterip_failover::timing::Failover;
use proptest::prelude::*;

use super::faults::{Fault, any_fault};
use super::{Happening, NODES, World, address};

const SLOW: [Failover; 3] = [Failover::Within25s; 3];
const FAST: [Failover; 3] = [Failover::Within5s; 3];

/// Also agents that differ, as in a rolling update.
fn any_failovers() -> impl Strategy<Value = [Failover; 3]> {
    prop::array::uniform3(prop::sample::select(vec![Failover::Within25s, Failover::Within5s]))
}

/// A world in which no request is lost or slow by chance. All addresses are held at this time.
fn calm_world(seed: u64, failovers: [Failover; 3], at: u64) -> Result<World, TestCaseError> {
    let mut world = World::new(seed, true, failovers);
    world.run(at);
    prop_assert_eq!(world.missing(), Vec::<IpAddr>::new(), "to begin with");
    Ok(world)
}

proptest! {
    // The seed and the faults of a failure are in its message, so no regression file is kept beside the sources.
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn two_agents_never_hold_the_same_address(
        seed in any::<u64>(),
        failovers in any_failovers(),
        faults in prop::collection::vec((0..90_000_u64, 0..3_usize, any_fault(), 100..45_000_u64), 0..10),
    ) {
        let mut world = World::new(seed, false, failovers);
        for (begin, agent, fault, lasting) in faults {
            world.at(begin, Happening::Begin(agent, fault));
            world.at(begin + lasting, Happening::End(agent, fault));
        }
        world.run(135_000);
        prop_assert_eq!(&world.violations, &Vec::<String>::new());
        // When all faults have ended, all addresses are held again, also those that were left to other nodes twice
        // by then.
        world.run(300_000);
        prop_assert_eq!(&world.violations, &Vec::<String>::new());
        prop_assert_eq!(world.missing(), Vec::<IpAddr>::new());
    }

    /// The others may have another timing: that of the dead agent counts.
    #[test]
    fn addresses_of_a_dead_agent_are_held_again_in_its_time(
        seed in any::<u64>(),
        mut failovers in any_failovers(),
        is_fast in any::<bool>(),
        dead in 0..3_usize,
        at in 20_000..40_000_u64,
    ) {
        failovers[dead] = if is_fast { Failover::Within5s } else { Failover::Within25s };
        let mut world = calm_world(seed, failovers, at)?;
        world.happen(Happening::Begin(dead, Fault::Kill));
        world.run(at + if is_fast { 5_000 } else { 25_000 });
        prop_assert_eq!(world.missing(), Vec::<IpAddr>::new());
        prop_assert_eq!(&world.violations, &Vec::<String>::new());
        // The other agents hold all addresses, each its share.
        let others: Vec<usize> = (0..3).filter(|agent| *agent != dead).collect();
        let loads: Vec<usize> = others.iter().map(|agent| world.kernels[*agent].len()).collect();
        prop_assert_eq!(loads, vec![3, 3]);
    }

    /// Every agent loses the API server twice, each time for less than the time until its second try.
    #[test]
    fn short_outages_of_the_api_server_move_no_address(
        seed in any::<u64>(),
        is_fast in any::<bool>(),
        at in 20_000..40_000_u64,
    ) {
        let (failovers, lasts, pause) = if is_fast { (FAST, 1_000, 3_000) } else { (SLOW, 7_000, 21_000) };
        let mut world = calm_world(seed, failovers, at)?;
        let held = |world: &World| -> Vec<BTreeSet<IpAddr>> {
            world.kernels.iter().map(|kernel| kernel.keys().copied().collect()).collect()
        };
        let holders = |world: &World| {
            NODES.map(|node| {
                let heartbeat = world.store.leases.get(&heartbeat_state::name(node)).cloned();
                heartbeat.and_then(|lease| lease.spec?.holder_identity)
            })
        };
        let before = (held(&world), world.written(), holders(&world));
        for begin in [at, at + pause] {
            for agent in 0..NODES.len() {
                world.at(begin, Happening::Begin(agent, Fault::Cut));
                world.at(begin + lasts, Happening::End(agent, Fault::Cut));
            }
        }
        for now in (at..=at + 2 * pause).step_by(10) {
            world.run(now);
            prop_assert_eq!(world.missing(), Vec::<IpAddr>::new());
            prop_assert_eq!(&held(&world), &before.0);
        }
        prop_assert_eq!((held(&world), world.written(), holders(&world)), before);
        prop_assert_eq!(&world.violations, &Vec::<String>::new());
    }

    #[test]
    fn leases_deleted_by_hand_are_created_again(seed in any::<u64>(), at in 20_000..40_000_u64) {
        let mut world = calm_world(seed, SLOW, at)?;
        let names: Vec<String> = world.store.leases.keys().cloned().collect();
        names.iter().for_each(|name| world.store.delete(name));
        (0..NODES.len()).for_each(|agent| world.deliver(agent));
        world.run(at + 40_000);
        prop_assert_eq!(world.missing(), Vec::<IpAddr>::new());
        prop_assert_eq!(world.store.leases.keys().cloned().collect::<Vec<_>>(), names);
        prop_assert_eq!(&world.violations, &Vec::<String>::new());
    }
}

proptest! {
    // This test simulates minutes.
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 12, ..ProptestConfig::default() })]

    /// An update replaces the agents one after the other by agents with another timing.
    #[test]
    fn agents_with_another_timing_take_the_place_of_earlier_ones(
        seed in any::<u64>(),
        before in any_failovers(),
        after in any_failovers(),
        is_killed in any::<bool>(),
        lasts in 100..25_000_u64,
    ) {
        let mut world = calm_world(seed, before, 20_000)?;
        let fault = if is_killed { Fault::Kill } else { Fault::Stop };
        for (agent, failover) in after.into_iter().enumerate() {
            world.failovers[agent] = failover;
            world.happen(Happening::Begin(agent, fault));
            world.run(world.now + lasts);
            world.happen(Happening::End(agent, fault));
            world.run(world.now + 50_000);
            prop_assert_eq!(world.missing(), Vec::<IpAddr>::new());
            prop_assert_eq!(&world.violations, &Vec::<String>::new());
        }
    }
}

proptest! {
    // These tests simulate a long time.
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2, ..ProptestConfig::default() })]

    #[test]
    fn addresses_that_a_broken_network_cannot_hold_move_once_and_stay(
        seed in any::<u64>(),
        broken in 0..3_usize,
        at in 20_000..40_000_u64,
    ) {
        let mut world = calm_world(seed, SLOW, at)?;
        let before = world.written();
        world.happen(Happening::Begin(broken, Fault::Broken));
        // Long enough for the next renewal, for the failure to be noticed, and for another agent to take the
        // address.
        world.run(at + 25_000);
        prop_assert_eq!(world.missing(), Vec::<IpAddr>::new());
        let after = world.written();
        // Each moved address was given back and claimed once, and stays where it is from then on.
        let moved = after.iter().filter(|(address, count)| **count > before[*address]).count();
        prop_assert_eq!(moved, 2);
        prop_assert!(after.iter().all(|(address, count)| [0, 2].contains(&(count - before[address]))), "{after:?}");
        // Longer than the node stays away from the addresses.
        world.run(at + 200_000);
        prop_assert_eq!(world.written(), after);
        prop_assert_eq!(world.missing(), Vec::<IpAddr>::new());
        prop_assert_eq!(&world.violations, &Vec::<String>::new());
    }

    #[test]
    fn address_that_no_node_can_hold_delays_no_other(seed in any::<u64>(), at in 60_000..90_000_u64) {
        let mut world = World::new(seed, true, SLOW);
        let (good, bad) = (address(0), address(1));
        Arc::make_mut(&mut world.assignments).retain(|address, _| [good, bad].contains(address));
        world.unholdable.insert(bad);
        world.run(at);
        let holder = world.kernels.iter().position(|kernel| kernel.contains_key(&good));
        // The other two nodes hold nothing, and each leaves the bad address to the other.
        world.happen(Happening::Begin(holder.unwrap_or_default(), Fault::Kill));
        world.run(at + 26_000);
        prop_assert_eq!(world.missing(), vec![bad]);
        prop_assert_eq!(&world.violations, &Vec::<String>::new());
    }
}

/// One seed alone, because this simulates more than an hour.
#[test]
fn addresses_that_no_node_can_hold_move_ever_more_rarely() {
    let mut world = World::new(7, true, SLOW);
    world.run(30_000);
    for agent in 0..NODES.len() {
        world.happen(Happening::Begin(agent, Fault::Broken));
    }
    let mut most = Vec::new();
    for part in 1..=3 {
        let before = world.written();
        world.run(30_000 + part * 1_200_000);
        let written = world.written();
        most.push(written.iter().map(|(address, count)| count - before[address]).max().unwrap_or_default());
    }
    // In the end each of three nodes claims the address and gives it back at most once in ten minutes.
    assert!(most[0] <= 36 && most[2] <= 18, "{most:?}");
    for agent in 0..NODES.len() {
        world.happen(Happening::End(agent, Fault::Broken));
    }
    // No node leaves them to the others any longer, although each has failed for so long.
    world.run(30_000 + 3 * 1_200_000 + 330_000);
    assert_eq!(world.missing(), Vec::<IpAddr>::new());
    assert_eq!(&world.violations, &Vec::<String>::new());
}
