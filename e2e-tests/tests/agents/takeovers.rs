//! Agents hold addresses in place of an agent that died, stopped, was isolated or was suspended, and only then.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clusterip_failover::heartbeat_state;
use tokio::time::Instant;

use super::support::{Agents, NODES, TAKEOVER, assigned, even, loads, of, without_announcements};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{MAX_WAIT, eventually, eventually_within};
use crate::support::fake_network::Change;
use crate::support::fault_proxy::Proxy;
use crate::support::stalling_connection::StallingConnection;

#[tokio::test]
async fn addresses_are_spread_over_agents_and_redistributed_when_one_dies() {
    let plane = ControlPlane::shared().await;
    let mut agents = Agents::new(&plane, "agent-many", assigned(200, &NODES)).await;
    let proxy = Proxy::start(&plane).await;
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorded = Arc::clone(&requests);
    // The rule records every request and matches none.
    proxy.on(
        move |seen| {
            recorded.lock().unwrap().push(format!("{} {}", seen.method, seen.path.rsplit('/').next().unwrap()));
            false
        },
        crate::support::fault_proxy::Fault::CutBefore,
    );
    for node in NODES {
        agents.start(node, || proxy.client());
    }
    let held = agents.held_by(MAX_WAIT, &NODES).await;
    even(&held, 3);

    // At rest, agents only write heartbeats, for any number of addresses.
    requests.lock().unwrap().clear();
    let versions = agents.versions().await;
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(12)).await;
    let asked = std::mem::take(&mut *requests.lock().unwrap());
    let expected: BTreeSet<String> = NODES.iter().map(|node| format!("PUT {}", heartbeat_state::name(node))).collect();
    assert_eq!(asked.iter().cloned().collect::<BTreeSet<_>>(), expected);
    assert_eq!(agents.versions().await, versions);
    let minute = asked.len() as f64 * 60.0 / begin.elapsed().as_secs_f64();
    println!("200 addresses, 3 agents, at rest: {minute:.0} requests a minute");

    let begin = Instant::now();
    agents.take("node-2").kill();
    let after = agents.held_by(TAKEOVER, &["node-1", "node-3"]).await;
    println!("200 addresses, 3 agents: all held again {:.1} s after one was killed", begin.elapsed().as_secs_f64());
    for node in ["node-1", "node-3"] {
        let kept = of(&held, node);
        assert!(kept.iter().all(|(address, node)| after[address] == *node), "{node} keeps its addresses");
    }
    even(&after, 2);
    assert_eq!(agents.holder_of_heartbeat("node-2").await, "", "another agent has ended the heartbeat of node-2");
}

#[tokio::test]
async fn released_addresses_are_taken_over_at_once() {
    let plane = ControlPlane::shared().await;
    let mut agents = Agents::new(&plane, "agent-stopped", assigned(9, &NODES)).await;
    for node in NODES {
        agents.start(node, || plane.client());
    }
    let held = agents.held_by(MAX_WAIT, &NODES).await;
    even(&held, 3);
    for _ in 0..2 {
        let stopped = agents.take("node-1");
        let begin = Instant::now();
        stopped.stop().await;
        // Its heartbeat would have expired later.
        agents.held_by(Duration::from_secs(10), &["node-2", "node-3"]).await;
        println!("all held again {:.1} s after an agent received SIGTERM", begin.elapsed().as_secs_f64());
        // An agent that restarts need not wait for its former heartbeat to expire.
        agents.start("node-1", || plane.client());
        let identity = eventually("a heartbeat", async || {
            Some(agents.holder_of_heartbeat("node-1").await).filter(|holder| !holder.is_empty())
        });
        assert!(identity.await.starts_with("node-1_agent_"));
    }
    let log = agents.network.log();
    for (index, added) in log.iter().enumerate().filter(|(_, event)| matches!(event.change, Change::Added(_))) {
        let mut next = log[index + 1..].iter().filter(|e| e.address == added.address && e.node == added.node);
        assert_eq!(next.next().map(|event| &event.change), Some(&Change::Announced), "after {added:?}");
    }
}

#[tokio::test]
async fn isolated_agent_releases_addresses_before_another_takes_over() {
    let plane = ControlPlane::shared().await;
    let mut agents = Agents::new(&plane, "agent-cut-off", assigned(6, &NODES)).await;
    let connection = StallingConnection::new(&plane).await;
    agents.start("node-1", || connection.client(&plane));
    for node in ["node-2", "node-3"] {
        agents.start(node, || plane.client());
    }
    let held = agents.held_by(MAX_WAIT, &NODES).await;
    let lost: BTreeSet<IpAddr> = of(&held, "node-1").into_keys().collect();
    assert_eq!(lost.len(), 2);
    let before = agents.network.log().len();
    connection.stall();
    let after = agents.held_by(TAKEOVER, &["node-2", "node-3"]).await;
    let log = agents.network.log().split_off(before);
    for address in &lost {
        let about: Vec<&str> = log
            .iter()
            .filter(|event| event.address == *address && event.change != Change::Announced)
            .map(|event| event.node.as_str())
            .collect();
        assert_eq!(about, ["node-1", after[address].as_str()], "{address} is released before it is added");
    }
    // The agent that is back takes no address from the others.
    connection.resume();
    let back = eventually("a heartbeat of node-1", async || {
        Some(agents.holder_of_heartbeat("node-1").await).filter(|holder| !holder.is_empty())
    });
    back.await;
    agents.assign(|all| all.extend(assigned(8, &NODES)));
    let end = agents.held_by(MAX_WAIT, &NODES).await;
    assert!(after.iter().all(|(address, node)| end[address] == *node), "{after:?} {end:?}");
    assert_eq!(loads(&end)["node-1"], 2, "new addresses go to the agent with the fewest: {end:?}");
}

#[tokio::test]
async fn agent_that_was_suspended_takes_no_address_back() {
    let plane = ControlPlane::shared().await;
    let mut agents = Agents::new(&plane, "agent-paused", assigned(6, &NODES)).await;
    for node in NODES {
        agents.start(node, || plane.client());
    }
    agents.held_by(MAX_WAIT, &NODES).await;
    let former = agents.holder_of_heartbeat("node-1").await;
    let before = agents.network.log().len();
    agents.running["node-1"].pause.suspend();
    let others = ["node-2", "node-3"];
    let all: BTreeSet<IpAddr> = agents.assignments.borrow().keys().copied().collect();
    let after = eventually_within(TAKEOVER, "the other agents to hold all addresses", async || {
        let held = agents.network.holders();
        let good = held.len() == all.len() && held.values().all(|node| others.contains(&node.as_str()));
        good.then_some(held)
    });
    let after = after.await;
    agents.running["node-1"].pause.resume();
    eventually("a new heartbeat of node-1", async || {
        let holder = agents.holder_of_heartbeat("node-1").await;
        (!holder.is_empty() && holder != former).then_some(())
    })
    .await;
    assert_eq!(agents.held_by(MAX_WAIT, &NODES).await, after);
    let log = without_announcements(agents.network.log().split_off(before));
    let changes: Vec<_> = log.into_iter().filter(|event| event.node == "node-1").map(|event| event.change).collect();
    assert_eq!(changes, vec![Change::Released { in_time: false }; 2], "the lifetimes of its addresses had ended");
}
