//! What a Service with an external address gets, and what remains after it is deleted.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::held_address::{HeldAddress, address};
use crate::agent_cluster::{AgentCluster, BEGIN, within};

pub fn client_reaches_only_the_ports_of_the_service() {
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

pub fn address_without_changes_is_held_while_the_firewall_can_not_be_written() {
    let mut held = HeldAddress::new();
    within(BEGIN, "an answer", || held.answers().then_some(()));
    // Some of these addresses are on the same node.
    let others: Vec<IpAddr> = (11..20).map(address).collect();
    let name = |address: &IpAddr| format!("web-{}", address.to_string().replace('.', "-"));
    for other in &others {
        held.cluster.serve(&name(other), *other);
    }
    for other in &others {
        within(BEGIN, "a holder", || held.cluster.holder(*other));
    }
    held.cluster.break_nft();
    for other in &others {
        held.cluster.patch_service(&name(other), &json!({"spec": {"ports": [{"port": 81}]}}));
    }
    // Without renewals the address would be gone by then, and so it would with the failures of the other addresses.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(40) {
        assert_eq!(held.cluster.holder(held.address), Some(held.holder));
        assert!(held.answers());
    }
    // The others are not held with their earlier ports, and nowhere else because `nft` is broken everywhere.
    let failed = |index| held.cluster.measured(Some(index), "clusterip_agent_network_failures_total{step=\"hold\"}");
    assert!((0..3).any(|index| !failed(index)[0].ends_with(" 0")), "{:?}", failed(held.holder));
}

pub fn service_that_kube_proxy_ignores_or_with_many_ports_opens_few() {
    let mut held = HeldAddress::new();
    let (tcp, holder) = (|port: u16| format!("tcp 10.0.9.10 {port} 1"), held.holder);
    within(BEGIN, "an answer", || held.answers().then_some(()));
    let chain = ["nft", "list", "chain", "inet", "clusterip_external", "ports-10.0.9.10"];
    let rules = |held: &HeldAddress| {
        let listed = held.cluster.network.nodes[holder].namespace.exec(&chain);
        listed.lines().filter(|line| line.ends_with(" accept")).count()
    };
    // The ports 80 and 81 are one range, and 100, 102 and so on are 99.
    let ports: Vec<u16> = [80, 81].into_iter().chain((100..298).step_by(2)).collect();
    let ports = ports.iter().map(|port| json!({"name": format!("p{port}"), "port": port}));
    let ports = ports.collect::<Vec<_>>();
    held.cluster.patch_service("web", &json!({"spec": {"ports": ports}}));
    within(BEGIN, "the ports", || (rules(&held) == 64).then_some(()));
    held.client.expect(&tcp(80), "answered");
    held.client.expect(&tcp(81), "answered");
    let log = held.cluster.log();
    assert_eq!(log.iter().filter(|line| line.contains("too many ranges of ports")).count(), 1, "{log:?}");

    for label in ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"] {
        // The label comes after more labels than are read of other objects.
        let more = (0..5000).map(|number| (format!("a{number:04}"), json!("")));
        let labels: serde_json::Map<_, _> = more.chain([(label.to_owned(), json!("none"))]).collect();
        held.cluster.patch_service("web", &json!({"metadata": {"labels": labels}}));
        within(BEGIN, "no port", || (rules(&held) == 0).then_some(()));
        held.client.expect(&tcp(80), "TimedOut");
        held.cluster.patch_service("web", &json!({"metadata": {"labels": {label: null}}}));
        within(BEGIN, "an answer", || held.answers().then_some(()));
    }
    assert_eq!(held.cluster.holder(held.address), Some(holder));
}

/// The record and the status of the Service `web`.
fn shown(cluster: &AgentCluster) -> (Option<String>, Vec<serde_json::Value>) {
    let service = cluster.service("web");
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
    let record = service["metadata"]["annotations"]["clusterip-policy/external-addresses"].as_str().map(str::to_owned);
    (record, ingress)
}

pub fn service_gets_an_address_and_its_status_shows_the_holder() {
    let mut cluster = AgentCluster::new();
    cluster.control();
    cluster.create_service("web", &json!({}));
    let address: IpAddr = within(BEGIN, "an address", || shown(&cluster).0).parse().unwrap();
    let expected = vec![json!({"ip": address, "ipMode": "VIP"})];
    within(BEGIN, "the status with the address", || (shown(&cluster).1 == expected).then_some(()));
    let holder = cluster.holder(address).unwrap();
    let held_by = |index: usize| format!("{address} is held by node -node-{}", index + 1);
    let held_events = |cluster: &AgentCluster| cluster.events("web", "ExternalAddressHeld");
    within(BEGIN, "an event", || (held_events(&cluster) == [held_by(holder)]).then_some(()));
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
    within(BEGIN, "the metrics", || (measured(&cluster) == now).then_some(()));

    // Another agent takes the address over.
    cluster.signal(holder, Signal::SIGTERM);
    assert!(cluster.ended(holder).success());
    let next = within(BEGIN, "another holder", || cluster.holder(address));
    let took = format!("{}, which took it over from node -node-{}", held_by(next), holder + 1);
    within(BEGIN, "another event", || (held_events(&cluster) == [held_by(holder), took.clone()]).then_some(()));
    let takeover = "clusterip_external_takeovers_total 1".to_owned();
    let now = [vec![assigned.clone()], pools(1).to_vec(), vec![takeover.clone()]].concat();
    within(BEGIN, "a takeover", || (measured(&cluster) == now).then_some(()));

    // No agent is left.
    for index in (0..3).filter(|index| ![holder, next].contains(index)).chain([next]) {
        cluster.signal(index, Signal::SIGTERM);
        assert!(cluster.ended(index).success());
    }
    within(BEGIN, "a status without the address", || shown(&cluster).1.is_empty().then_some(()));
    let now = [vec![assigned], pools(0).to_vec(), vec![takeover]].concat();
    within(BEGIN, "metrics without a holder", || (measured(&cluster) == now).then_some(()));
    let unheld = within(Duration::from_secs(75), "an event that no node holds the address", || {
        Some(cluster.events("web", "ExternalAddressNotHeld")).filter(|notes| !notes.is_empty())
    });
    assert!(unheld.len() == 1 && unheld[0].starts_with(&format!("{address} has been held by no node")), "{unheld:?}");
    cluster.start(holder);
    within(BEGIN, "the status with the address again", || (shown(&cluster).1 == expected).then_some(()));
    assert_eq!(shown(&cluster).0, Some(address.to_string()));
    let events = within(BEGIN, "a third event", || Some(held_events(&cluster)).filter(|notes| notes.len() == 3));
    assert!(events[2].starts_with(&held_by(holder)), "{events:?}");
}

pub fn address_of_a_deleted_service_is_free() {
    let mut cluster = AgentCluster::new();
    cluster.control();
    // The controller gives an address that no Service of another cluster has.
    cluster.create_service("web", &json!({}));
    let address: IpAddr = within(BEGIN, "an address", || shown(&cluster).0).parse().unwrap();
    let asks = json!({"clusterip-policy/external-address": address});
    within(BEGIN, "a holder", || cluster.holder(address));
    assert!(cluster.is_claimed(address));
    // A Service that was created without the webhook gets another address, and an Event names the holder of this one.
    cluster.create_service("late", &asks);
    let notes = within(BEGIN, "an event", || {
        Some(cluster.events("late", "ExternalAddressNotAvailable")).filter(|notes| !notes.is_empty())
    });
    assert_eq!(notes, [format!("{address} of pool \"all\" is held by /web: the Service can't have it")]);
    cluster.delete_service("web");
    within(BEGIN, "the address to be released", || cluster.holder(address).is_none().then_some(()));
    within(BEGIN, "its claim to be deleted", || (!cluster.is_claimed(address)).then_some(()));
    cluster.create_service("other", &asks);
    within(BEGIN, "another holder", || cluster.holder(address));
}
