//! What an agent reports about itself: its health, its metrics, and the permissions that it lacks.

use std::time::Duration;

use super::held_address::HeldAddress;
use crate::agent_cluster::{AgentCluster, BEGIN, within};

pub fn agent_reports_its_health_and_metrics() {
    let held = HeldAddress::new();
    let cluster = &held.cluster;
    for index in 0..3 {
        let ready = || cluster.get(index, "/readyz").filter(|answer| answer.0 == 200);
        assert_eq!(within(BEGIN, "an agent that is ready", ready), (200, "ready\n".to_owned()));
        assert_eq!(cluster.get(index, "/healthz"), Some((200, "ok\n".to_owned())));
    }
    // The first announcement, and three repetitions.
    within(BEGIN, "all announcements", || {
        let measured = cluster.measured(Some(held.holder), "clusterip_agent_announcements_total");
        (measured == ["clusterip_agent_announcements_total 4"]).then_some(())
    });
    let expected = [
        "clusterip_agent_held_addresses 1",
        "clusterip_agent_network_failures_total{step=\"announce\"} 0",
        "clusterip_agent_network_failures_total{step=\"hold\"} 0",
        "clusterip_agent_network_failures_total{step=\"release\"} 0",
    ];
    let mut measured = cluster.measured(Some(held.holder), "clusterip_agent_held");
    measured.extend(cluster.measured(Some(held.holder), "clusterip_agent_network_failures"));
    assert_eq!(measured, expected);
    // An agent has no metrics of a server.
    assert_eq!(cluster.measured(Some(held.holder), "clusterip_moves"), Vec::<String>::new());
    assert_eq!(cluster.measured(Some(held.holder), "clusterip_agent_alive"), ["clusterip_agent_alive 1"]);
    // Over the network of the clients, because the link to the API server is cut.
    let mut client = cluster.network.client.inside();
    cluster.cut(held.holder, true);
    let mut ask = |path: &str| client.ask(&format!("http 10.0.9.{} 9634 {path}", held.holder + 1));
    within(Duration::from_secs(40), "an agent that is not ready", || {
        (ask("/readyz") == "HTTP/1.1 503 Service Unavailable").then_some(())
    });
    assert_eq!(ask("/healthz"), "HTTP/1.1 200 OK");
}

pub fn agent_without_its_node_or_pools_says_so() {
    let cluster = AgentCluster::new();
    within(BEGIN, "an agent that is ready", || cluster.get(0, "/readyz").filter(|answer| answer.0 == 200));
    cluster.delete_node(0);
    let (_, reason) =
        within(BEGIN, "an agent that is not ready", || cluster.get(0, "/readyz").filter(|answer| answer.0 == 503));
    let expected =
        format!("there is no Node {:?}: --node must be the name of the Node that the agent runs on\n", cluster.name(0));
    assert_eq!(reason, expected);
    cluster.write_settings("{}");
    within(BEGIN, "an agent that says that it holds nothing", || {
        let said = "the settings have no pools of external addresses: there is nothing to hold";
        cluster.log().iter().any(|line| line.contains(said)).then_some(())
    });
}

pub fn agent_lists_missing_permissions() {
    let cluster = AgentCluster::new();
    let (code, said) = cluster.run_without_rights(0);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("lacks permissions; these rules grant what is missing:"), "{said}");
    assert!(said.contains("resources: [\"leases\"], verbs: [\"get\", \"list\", \"watch\", \"create\""), "{said}");
}
