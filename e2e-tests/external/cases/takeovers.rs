//! Another agent takes over the addresses of an agent or a node that fails.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::held_address::{HeldAddress, PROBE_TIME, address, assert_one_holder_at_a_time};
use crate::agent_cluster::{AgentCluster, within};
use crate::arp_probe::Probe;

/// The time limit of a takeover from a dead node: its heartbeat is valid for 20 s, and other agents need a moment.
const TAKEOVER: Duration = Duration::from_secs(25);

/// A cluster after this fault of the agent that held the address, the probe, and the node that took the address over.
fn after(fault: impl FnOnce(&AgentCluster, usize), limit: Duration) -> (HeldAddress, Probe, usize) {
    let mut held = HeldAddress::new();
    let probe = held.cluster.probe(&[held.address]);
    sleep(PROBE_TIME);
    let begin = Instant::now();
    fault(&held.cluster, held.holder);
    let next = held.taken_over(begin, limit);
    (held, probe, next)
}

/// Checks that the address stays with its new holder for this time, and never was on two nodes.
fn stays(held: &HeldAddress, probe: Probe, next: usize, time: Duration) {
    sleep(time);
    assert_eq!(held.cluster.holder(held.address), Some(next));
    assert_one_holder_at_a_time(&held.cluster, probe, held.address, &[held.holder, next]);
}

pub fn address_of_a_killed_agent_is_taken_over() {
    let (held, probe, next) = after(|cluster, holder| cluster.signal(holder, Signal::SIGKILL), TAKEOVER);
    stays(&held, probe, next, Duration::ZERO);
}

/// Agents are killed and suspended in turns. `FAILOVERS=20` measures more failovers than a test needs.
pub fn address_is_taken_over_within_5_s_again_and_again() {
    let mut held = HeldAddress::in_cluster(AgentCluster::with_arguments(&["--failover", "5s"]));
    let probe = held.cluster.probe(&[held.address]);
    sleep(PROBE_TIME);
    let (mut holders, mut took) = (vec![held.holder], Vec::new());
    for number in 0..failovers() {
        let dead = held.holder;
        // The faults begin at different times since the last renewal.
        sleep(Duration::from_millis(170 * number % 750));
        let begin = Instant::now();
        let is_killed = number % 2 == 0;
        held.cluster.signal(dead, if is_killed { Signal::SIGKILL } else { Signal::SIGSTOP });
        held.holder = held.taken_over(begin, Duration::from_secs(5));
        took.push(begin.elapsed());
        holders.push(held.holder);
        if is_killed {
            held.cluster.ended(dead);
            held.cluster.start(dead);
        } else {
            held.cluster.signal(dead, Signal::SIGCONT);
        }
        within(Duration::from_secs(20), "the agent to be ready again", || {
            held.cluster.get(dead, "/readyz").filter(|(status, _)| *status == 200)
        });
        // The agent takes no address back.
        assert_eq!(held.cluster.holder(held.address), Some(held.holder));
    }
    assert_one_holder_at_a_time(&held.cluster, probe, held.address, &holders);
    report("failovers", took);
}

fn failovers() -> u64 {
    std::env::var("FAILOVERS").map_or(4, |count| count.parse().unwrap())
}

fn report(what: &str, mut took: Vec<Duration>) {
    took.sort();
    println!("{} {what}: median {:?}, worst {:?}", took.len(), took[took.len() / 2], took[took.len() - 1]);
}

pub fn address_of_a_stopped_agent_is_taken_over_at_once() {
    let stop = |cluster: &AgentCluster, holder| cluster.signal(holder, Signal::SIGTERM);
    let (mut held, probe, next) = after(stop, Duration::from_secs(2));
    assert!(held.cluster.ended(held.holder).success());
    stays(&held, probe, next, Duration::ZERO);
}

pub fn address_of_an_agent_without_api_server_is_taken_over() {
    let cut = |cluster: &AgentCluster, holder| cluster.cut(holder, true);
    let (held, probe, next) = after(cut, TAKEOVER + Duration::from_secs(5));
    // The agent reaches the API server again, and takes nothing back.
    held.cluster.cut(held.holder, false);
    stays(&held, probe, next, Duration::from_secs(10));
}

pub fn address_of_a_suspended_agent_is_taken_over() {
    let (held, probe, next) = after(|cluster, holder| cluster.signal(holder, Signal::SIGSTOP), TAKEOVER);
    sleep(Duration::from_secs(40));
    held.cluster.signal(held.holder, Signal::SIGCONT);
    stays(&held, probe, next, Duration::from_secs(10));
}

pub fn address_of_a_node_without_link_is_taken_over() {
    let mut held = HeldAddress::new();
    let begin = Instant::now();
    // The agent reaches the API server over another link, so its heartbeat continues.
    held.cluster.network.unplug(held.holder);
    let next = held.taken_over(begin, Duration::from_secs(30));
    assert_eq!(held.cluster.get(held.holder, "/readyz"), Some((200, "ready\n".to_owned())));
    let measured = held.cluster.measured(Some(held.holder), "clusterip_agent_given_up");
    assert_eq!(measured, ["clusterip_agent_given_up_addresses_total 1"]);
    // The node is connected again, and takes nothing back.
    held.cluster.network.plug_in(held.holder);
    sleep(Duration::from_secs(10));
    assert_eq!(held.cluster.holder(held.address), Some(next));
    assert!(held.answers());
}

/// `FAILOVERS=20` measures more moves than a test needs.
pub fn address_of_a_service_with_local_traffic_follows_its_endpoint() {
    let mut held = HeldAddress::in_cluster(AgentCluster::new());
    let first = (held.holder + 1) % 3;
    held.cluster.create_endpoint("web", first);
    held.cluster.patch_service("web", &json!({"spec": {"externalTrafficPolicy": "Local"}}));
    let probe = held.cluster.probe(&[held.address]);
    let begin = Instant::now();
    let holder = held.taken_over(begin, Duration::from_secs(10));
    assert_eq!(holder, first);
    held.holder = first;
    let mut took = Vec::new();
    let mut holders = vec![first];
    for _ in 0..failovers() {
        sleep(PROBE_TIME);
        let next = (held.holder + 1) % 3;
        let begin = Instant::now();
        held.cluster.change_endpoint("web", next, true);
        assert_eq!(held.taken_over(begin, Duration::from_secs(5)), next);
        took.push(begin.elapsed());
        held.holder = next;
        holders.push(next);
    }
    report("moves with their endpoint", took);
    sleep(PROBE_TIME);
    let answers = probe.end();
    let hardware = |index: &usize| held.cluster.network.nodes[*index].hardware().replace(':', "-");
    let mut seen: Vec<String> = Vec::new();
    for one in &answers[&held.address] {
        assert_eq!(one.from.len(), 1, "after {} ms: {:?}", one.after, one.from);
        seen.extend(one.from.iter().filter(|from| seen.last() != Some(*from)).cloned().collect::<Vec<_>>());
    }
    // The first answers may be those of the node that held the address before.
    assert!(seen.ends_with(&holders.iter().map(hardware).collect::<Vec<_>>()), "{seen:?}");
    held.cluster.change_endpoint("web", held.holder, false);
    within(Duration::from_secs(5), "no holder", || held.cluster.holder(held.address).is_none().then_some(()));
}

pub fn address_leaves_a_node_that_is_not_ready() {
    let (held, probe, next) = after(|cluster, holder| cluster.ready(holder, false), Duration::from_secs(5));
    // The node is ready again, and takes nothing back.
    held.cluster.ready(held.holder, true);
    stays(&held, probe, next, Duration::from_secs(5));
}

pub fn addresses_are_spread_over_agents_and_redistributed_when_one_dies() {
    const COUNT: u8 = 200;
    let cluster = AgentCluster::new();
    let all: BTreeSet<IpAddr> = (10..10 + COUNT).filter(|last| *last != 200).map(address).collect();
    for address in &all {
        cluster.serve(&format!("web-{}", address.to_string().replace('.', "-")), *address);
    }
    let complete = |held: &[BTreeSet<IpAddr>]| held.iter().map(BTreeSet::len).sum::<usize>() == all.len();
    let before = within(Duration::from_secs(60), "all addresses to be held", || {
        Some(cluster.held()).filter(|held| complete(held))
    });
    let even = all.len() as f64 / 3.0;
    let sizes: Vec<usize> = before.iter().map(BTreeSet::len).collect();
    assert!(sizes.iter().all(|size| (*size as f64 - even).abs() <= 0.2 * even), "{sizes:?}");
    cluster.signal(0, Signal::SIGKILL);
    let after = within(TAKEOVER + Duration::from_secs(10), "the others to hold all", || {
        let held = cluster.held();
        (held[0].is_empty() && complete(&held)).then_some(held)
    });
    assert!((1..3).all(|index| after[index].is_superset(&before[index])), "an agent that lives has lost an address");
    let gained: Vec<usize> = (1..3).map(|index| after[index].len() - before[index].len()).collect();
    let half = before[0].len() as f64 / 2.0;
    assert!(gained.iter().all(|gained| (*gained as f64 - half).abs() <= 0.2 * half + 1.0), "{gained:?} of {half}");
}
