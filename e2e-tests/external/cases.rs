//! The test cases: faults of agents, nodes and the API server.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::agent_cluster::{AgentCluster, Answers, BEGIN, Probe, within};
use super::deploy_external;
use super::network::Inside;

/// The time limit of a takeover from a dead node: its heartbeat is valid for 20 s, and other agents need a moment.
const TAKEOVER: Duration = Duration::from_secs(25);

/// How long the probe runs before and after a fault.
const PROBE_TIME: Duration = Duration::from_secs(1);

/// All test cases by name.
pub const CASES: [(&str, fn()); 17] = [
    (
        "service_gets_an_address_and_its_status_shows_the_holder",
        service_gets_an_address_and_its_status_shows_the_holder,
    ),
    ("short_api_server_outage_moves_no_address", short_api_server_outage_moves_no_address),
    ("addresses_are_released_in_a_long_api_server_outage", addresses_are_released_in_a_long_api_server_outage),
    ("address_leaves_a_node_that_is_not_ready", address_leaves_a_node_that_is_not_ready),
    ("client_reaches_only_the_ports_of_the_service", client_reaches_only_the_ports_of_the_service),
    ("address_of_a_killed_agent_is_taken_over", address_of_a_killed_agent_is_taken_over),
    ("address_of_a_stopped_agent_is_taken_over_at_once", address_of_a_stopped_agent_is_taken_over_at_once),
    ("address_of_an_agent_without_api_server_is_taken_over", address_of_an_agent_without_api_server_is_taken_over),
    ("address_of_a_suspended_agent_is_taken_over", address_of_a_suspended_agent_is_taken_over),
    (
        "addresses_are_spread_over_agents_and_redistributed_when_one_dies",
        addresses_are_spread_over_agents_and_redistributed_when_one_dies,
    ),
    ("deployment_works_with_exactly_its_permissions", deploy_external::deployment_works_with_exactly_its_permissions),
    (
        "address_and_firewall_are_restored_after_removal_by_hand",
        address_and_firewall_are_restored_after_removal_by_hand,
    ),
    ("recreated_interface_is_found_again", recreated_interface_is_found_again),
    ("address_of_a_node_without_link_is_taken_over", address_of_a_node_without_link_is_taken_over),
    ("agent_reports_its_health_and_metrics", agent_reports_its_health_and_metrics),
    ("agent_lists_missing_permissions", agent_lists_missing_permissions),
    ("address_of_a_deleted_service_is_free", address_of_a_deleted_service_is_free),
];

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 9, last))
}

/// A cluster with a Service whose address some node holds, and with listeners on all nodes.
struct HeldAddress {
    cluster: AgentCluster,
    address: IpAddr,
    holder: usize,
    client: Inside,
    _listeners: Vec<Inside>,
}

impl HeldAddress {
    fn new() -> Self {
        let cluster = AgentCluster::new();
        let address = address(10);
        let listeners = cluster.network.nodes.iter().map(|node| {
            let mut inside = node.inside();
            inside.expect("listen 80", "listening");
            inside.expect("listen 81", "listening");
            inside
        });
        let listeners = listeners.collect();
        cluster.serve("web", address);
        let holder = within(BEGIN, "a first holder", || cluster.holder(address));
        let client = cluster.network.client.inside();
        Self { cluster, address, holder, client, _listeners: listeners }
    }

    fn answers(&mut self) -> bool {
        self.client.ask(&format!("tcp {} 80 1", self.address)) == "answered"
    }

    /// Waits until another node holds the address and answers there. Returns this node.
    #[track_caller]
    fn taken_over(&mut self, begin: Instant, limit: Duration) -> usize {
        let (cluster, address, before) = (&self.cluster, self.address, self.holder);
        let left = limit.saturating_sub(begin.elapsed());
        let next = within(left, "another holder", || cluster.holder(address).filter(|next| *next != before));
        let hardware = cluster.network.nodes[next].hardware();
        within(limit.saturating_sub(begin.elapsed()), "an answer of the other holder", || {
            let answered = self.client.ask(&format!("tcp {address} 80 1")) == "answered";
            (answered && self.cluster.network.client.neighbour(&address.to_string()) == Some(hardware.clone()))
                .then_some(())
        });
        next
    }
}

/// Checks that at most one node has answered each ARP request, and that these nodes have answered one after the other.
#[track_caller]
fn assert_one_holder_at_a_time(cluster: &AgentCluster, probe: Probe, address: IpAddr, nodes: &[usize]) {
    // Probe for a while after the fault too.
    sleep(PROBE_TIME);
    let answers = probe.end();
    let mut seen: Vec<String> = Vec::new();
    for Answers { after, from } in &answers[&address] {
        assert_eq!(from.len(), 1, "{address} after {after} ms: {from:?}");
        let from = from.first().unwrap();
        if seen.last() != Some(from) {
            seen.push(from.clone());
        }
    }
    let hardware = |index: &usize| cluster.network.nodes[*index].hardware().replace(':', "-");
    assert_eq!(seen, nodes.iter().map(hardware).collect::<Vec<_>>(), "{address}");
}

fn client_reaches_only_the_ports_of_the_service() {
    let mut held = HeldAddress::new();
    let address = held.address;
    within(BEGIN, "an answer", || held.answers().then_some(()));
    held.client.expect(&format!("tcp {address} 81 1"), "TimedOut");
    held.client.expect(&format!("tcp 10.0.9.{} 81 1", held.holder + 1), "answered");
    assert_eq!(
        held.cluster.network.client.neighbour(&address.to_string()),
        Some(held.cluster.network.nodes[held.holder].hardware())
    );
}

fn address_of_a_killed_agent_is_taken_over() {
    let mut held = HeldAddress::new();
    let probe = held.cluster.probe(&[held.address]);
    sleep(PROBE_TIME);
    let begin = Instant::now();
    held.cluster.signal(held.holder, Signal::SIGKILL);
    let next = held.taken_over(begin, TAKEOVER);
    assert_one_holder_at_a_time(&held.cluster, probe, held.address, &[held.holder, next]);
}

fn address_of_a_stopped_agent_is_taken_over_at_once() {
    let mut held = HeldAddress::new();
    let probe = held.cluster.probe(&[held.address]);
    sleep(PROBE_TIME);
    let begin = Instant::now();
    held.cluster.signal(held.holder, Signal::SIGTERM);
    let next = held.taken_over(begin, Duration::from_secs(2));
    assert!(held.cluster.ended(held.holder).success());
    assert_one_holder_at_a_time(&held.cluster, probe, held.address, &[held.holder, next]);
}

fn address_of_an_agent_without_api_server_is_taken_over() {
    let mut held = HeldAddress::new();
    let probe = held.cluster.probe(&[held.address]);
    sleep(PROBE_TIME);
    let begin = Instant::now();
    held.cluster.cut(held.holder, true);
    let next = held.taken_over(begin, TAKEOVER + Duration::from_secs(5));
    // The agent reaches the API server again, and takes nothing back.
    held.cluster.cut(held.holder, false);
    sleep(Duration::from_secs(10));
    assert_eq!(held.cluster.holder(held.address), Some(next));
    assert_one_holder_at_a_time(&held.cluster, probe, held.address, &[held.holder, next]);
}

fn address_of_a_suspended_agent_is_taken_over() {
    let mut held = HeldAddress::new();
    let probe = held.cluster.probe(&[held.address]);
    sleep(PROBE_TIME);
    let begin = Instant::now();
    held.cluster.signal(held.holder, Signal::SIGSTOP);
    let next = held.taken_over(begin, TAKEOVER);
    sleep(Duration::from_secs(60).saturating_sub(begin.elapsed()));
    held.cluster.signal(held.holder, Signal::SIGCONT);
    sleep(Duration::from_secs(10));
    assert_eq!(held.cluster.holder(held.address), Some(next));
    assert_one_holder_at_a_time(&held.cluster, probe, held.address, &[held.holder, next]);
}

fn addresses_are_spread_over_agents_and_redistributed_when_one_dies() {
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
    assert!((1..3).all(|index| after[index].is_superset(&before[index])), "those who live keep what they have");
    let gained: Vec<usize> = (1..3).map(|index| after[index].len() - before[index].len()).collect();
    let half = before[0].len() as f64 / 2.0;
    assert!(gained.iter().all(|gained| (*gained as f64 - half).abs() <= 0.2 * half + 1.0), "{gained:?} of {half}");
}

/// The record and the status of the Service `web`.
fn shown(cluster: &AgentCluster) -> (Option<String>, Vec<serde_json::Value>) {
    let service = cluster.service("web");
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
    let record = service["metadata"]["annotations"]["clusterip-policy/external-addresses"].as_str().map(str::to_owned);
    (record, ingress)
}

fn service_gets_an_address_and_its_status_shows_the_holder() {
    let mut cluster = AgentCluster::new();
    cluster.control();
    cluster.create_service("web", &json!({}));
    let address: IpAddr = within(BEGIN, "an address", || shown(&cluster).0).parse().unwrap();
    let expected = vec![json!({"ip": address, "ipMode": "VIP"})];
    within(BEGIN, "the status to show it", || (shown(&cluster).1 == expected).then_some(()));
    let holder = cluster.holder(address).unwrap();
    let held_by = |index: usize| format!("{address} is held by node -node-{}", index + 1);
    let told = |cluster: &AgentCluster| cluster.events("web", "ExternalAddressHeld");
    within(BEGIN, "an event", || (told(&cluster) == [held_by(holder)]).then_some(()));
    let measured = |cluster: &AgentCluster| {
        cluster
            .measured(None, "clusterip_external_")
            .into_iter()
            .filter(|line| !line.ends_with(" 0"))
            .collect::<Vec<_>>()
    };
    let pools = |held: u8| {
        let pool = |state: &str, count: u8| {
            format!("clusterip_external_pool_addresses{{pool=\"all\",family=\"IPv4\",state=\"{state}\"}} {count}.0")
        };
        [pool("assigned", 1), pool("held", held), pool("usable", 231)]
    };
    let assigned = "clusterip_external_assignments_total{result=\"assigned\"} 1".to_owned();
    let now = [vec![assigned.clone()], pools(1).to_vec()].concat();
    within(BEGIN, "what is measured", || (measured(&cluster) == now).then_some(()));

    // Another agent takes the address over.
    cluster.signal(holder, Signal::SIGTERM);
    assert!(cluster.ended(holder).success());
    let next = within(BEGIN, "another holder", || cluster.holder(address));
    let took = format!("{}, which took it over from node -node-{}", held_by(next), holder + 1);
    within(BEGIN, "another event", || (told(&cluster) == [held_by(holder), took.clone()]).then_some(()));
    let takeover = "clusterip_external_takeovers_total 1".to_owned();
    let now = [vec![assigned.clone()], pools(1).to_vec(), vec![takeover.clone()]].concat();
    within(BEGIN, "a takeover", || (measured(&cluster) == now).then_some(()));

    // No agent is left.
    for index in (0..3).filter(|index| ![holder, next].contains(index)).chain([next]) {
        cluster.signal(index, Signal::SIGTERM);
        assert!(cluster.ended(index).success());
    }
    within(BEGIN, "the status to show it no more", || shown(&cluster).1.is_empty().then_some(()));
    let now = [vec![assigned], pools(0).to_vec(), vec![takeover]].concat();
    within(BEGIN, "nobody to hold it", || (measured(&cluster) == now).then_some(()));
    let unheld = within(Duration::from_secs(75), "an event that nobody holds it", || {
        Some(cluster.events("web", "ExternalAddressNotHeld")).filter(|notes| !notes.is_empty())
    });
    assert!(unheld.len() == 1 && unheld[0].starts_with(&format!("{address} has been held by no node")), "{unheld:?}");
    cluster.start(holder);
    within(BEGIN, "the status to show it again", || (shown(&cluster).1 == expected).then_some(()));
    assert_eq!(shown(&cluster).0, Some(address.to_string()));
    let events = within(BEGIN, "a third event", || Some(told(&cluster)).filter(|notes| notes.len() == 3));
    assert!(events[2].starts_with(&held_by(holder)), "{events:?}");
}

fn address_of_a_deleted_service_is_free() {
    let mut cluster = AgentCluster::new();
    cluster.control();
    // The controller gives an address that no Service of another cluster has.
    cluster.create_service("web", &json!({}));
    let address: IpAddr = within(BEGIN, "an address", || shown(&cluster).0).parse().unwrap();
    let wish = json!({"clusterip-policy/external-address": address});
    within(BEGIN, "a holder", || cluster.holder(address));
    assert!(cluster.is_claimed(address));
    // A Service that was created without the webhook gets another address, and an Event names the holder of this one.
    cluster.create_service("late", &wish);
    let notes = within(BEGIN, "an event", || {
        Some(cluster.events("late", "ExternalAddressNotAvailable")).filter(|notes| !notes.is_empty())
    });
    assert_eq!(notes, [format!("{address} of pool \"all\" is held by /web: the Service can't have it")]);
    cluster.delete_service("web");
    within(BEGIN, "nobody to hold it", || cluster.holder(address).is_none().then_some(()));
    within(BEGIN, "its claim to go", || (!cluster.is_claimed(address)).then_some(()));
    cluster.create_service("other", &wish);
    within(BEGIN, "another holder", || cluster.holder(address));
}

fn address_and_firewall_are_restored_after_removal_by_hand() {
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

fn recreated_interface_is_found_again() {
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

fn address_of_a_node_without_link_is_taken_over() {
    let mut held = HeldAddress::new();
    let begin = Instant::now();
    // The agent reaches the API server over another link, so its heartbeat continues.
    held.cluster.network.unplug(held.holder);
    let next = held.taken_over(begin, Duration::from_secs(30));
    assert_eq!(held.cluster.told(held.holder, "/readyz"), Some((200, "ready\n".to_owned())));
    let measured = held.cluster.measured(Some(held.holder), "clusterip_agent_given_up");
    assert_eq!(measured, ["clusterip_agent_given_up_addresses_total 1"]);
    // The node is connected again, and takes nothing back.
    held.cluster.network.plug_in(held.holder);
    sleep(Duration::from_secs(10));
    assert_eq!(held.cluster.holder(held.address), Some(next));
    assert!(held.answers());
}

fn agent_reports_its_health_and_metrics() {
    let held = HeldAddress::new();
    let cluster = &held.cluster;
    for index in 0..3 {
        let ready = || cluster.told(index, "/readyz").filter(|told| told.0 == 200);
        assert_eq!(within(BEGIN, "to be ready", ready), (200, "ready\n".to_owned()));
        assert_eq!(cluster.told(index, "/healthz"), Some((200, "ok\n".to_owned())));
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
    within(Duration::from_secs(40), "not to be ready", || {
        (ask("/readyz") == "HTTP/1.1 503 Service Unavailable").then_some(())
    });
    assert_eq!(ask("/healthz"), "HTTP/1.1 200 OK");
}

fn agent_lists_missing_permissions() {
    let cluster = AgentCluster::new();
    let (code, said) = cluster.run_without_rights(0);
    assert_eq!(code, Some(2), "{said}");
    let rules = [
        "lacks permissions; these rules grant what is missing:",
        "in a ClusterRole:",
        "resources: [\"services\"], verbs: [\"list\", \"watch\"]",
        "resources: [\"namespaces\"], verbs: [\"list\", \"watch\"]",
        "resources: [\"nodes\"], verbs: [\"list\", \"watch\"]",
        "resources: [\"leases\"], verbs: [\"get\", \"list\", \"watch\", \"create\", \"update\", \"delete\"]",
        "resources: [\"configmaps\"], resourceNames: [\"clusterip-settings\"], verbs: [\"get\", \"list\", \"watch\"]",
    ];
    let unsaid: Vec<_> = rules.iter().filter(|rule| !said.contains(**rule)).collect();
    assert_eq!(unsaid, Vec::<&&str>::new(), "{said}");
}

fn short_api_server_outage_moves_no_address() {
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
fn addresses_are_released_in_a_long_api_server_outage() {
    let mut held = HeldAddress::new();
    let probe = held.cluster.probe(&[held.address]);
    sleep(PROBE_TIME);
    for index in 0..3 {
        held.cluster.cut(index, true);
    }
    within(Duration::from_secs(20), "all to let go", || held.cluster.holder(held.address).is_none().then_some(()));
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

fn address_leaves_a_node_that_is_not_ready() {
    let mut held = HeldAddress::new();
    let probe = held.cluster.probe(&[held.address]);
    sleep(PROBE_TIME);
    held.cluster.ready(held.holder, false);
    let next = held.taken_over(Instant::now(), Duration::from_secs(5));
    // The node is ready again, and takes nothing back.
    held.cluster.ready(held.holder, true);
    sleep(Duration::from_secs(5));
    assert_one_holder_at_a_time(&held.cluster, probe, held.address, &[held.holder, next]);
}
