//! What must hold, whatever fails.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::agent_cluster::{AgentCluster, Answers, BEGIN, Probe, within};
use super::deploy_external;
use super::network::Inside;

/// How long another may take to hold what a dead node held: its heartbeat's 20 s, and its own.
const TAKEOVER: Duration = Duration::from_secs(25);

/// For how long it is asked who answers, before and after.
const SOME: Duration = Duration::from_secs(1);

/// All of them, by name.
pub const CASES: [(&str, fn()); 17] = [
    ("a_service_gets_an_address_and_its_status_shows_whether_it_is_held", controlled),
    ("an_api_server_that_is_away_moves_nothing", away),
    ("an_api_server_that_is_away_for_long", away_for_long),
    ("a_holder_that_is_not_ready", not_ready),
    ("a_client_reaches_an_address_by_its_ports_alone", reached),
    ("a_holder_that_is_killed", killed),
    ("a_holder_that_is_stopped", stopped),
    ("a_holder_that_is_cut_from_the_api_server", cut),
    ("an_agent_that_hangs", hung),
    ("many_addresses_are_spread_and_shared", spread),
    ("what_is_deployed_works_with_exactly_its_rights", deploy_external::works_with_its_rights),
    ("what_is_removed_by_hand_is_put_back", put_back),
    ("an_interface_that_is_made_anew_is_found_again", made_anew),
    ("a_holder_whose_cable_is_pulled", unplugged),
    ("an_agent_tells_how_it_is", told),
    ("an_agent_without_rights_names_them_all", without_rights),
    ("the_address_of_a_service_that_goes_is_free", freed),
];

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 9, last))
}

/// A field with a Service whose address some node holds, and listeners on all nodes.
struct One {
    cluster: AgentCluster,
    address: IpAddr,
    holder: usize,
    client: Inside,
    _listeners: Vec<Inside>,
}

impl One {
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

    /// Waits until another node holds the address and answers there.
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

/// Each question was answered by one node at most, and the address was on these nodes, one after the other.
#[track_caller]
fn one_at_a_time(cluster: &AgentCluster, probe: Probe, address: IpAddr, nodes: &[usize]) {
    // For a while at the end, too.
    sleep(SOME);
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

fn reached() {
    let mut one = One::new();
    let address = one.address;
    within(BEGIN, "an answer", || one.answers().then_some(()));
    one.client.expect(&format!("tcp {address} 81 1"), "TimedOut");
    one.client.expect(&format!("tcp 10.0.9.{} 81 1", one.holder + 1), "answered");
    assert_eq!(
        one.cluster.network.client.neighbour(&address.to_string()),
        Some(one.cluster.network.nodes[one.holder].hardware())
    );
}

fn killed() {
    let mut one = One::new();
    let probe = one.cluster.probe(&[one.address]);
    sleep(SOME);
    let begin = Instant::now();
    one.cluster.signal(one.holder, Signal::SIGKILL);
    let next = one.taken_over(begin, TAKEOVER);
    one_at_a_time(&one.cluster, probe, one.address, &[one.holder, next]);
}

fn stopped() {
    let mut one = One::new();
    let probe = one.cluster.probe(&[one.address]);
    sleep(SOME);
    let begin = Instant::now();
    one.cluster.signal(one.holder, Signal::SIGTERM);
    let next = one.taken_over(begin, Duration::from_secs(2));
    assert!(one.cluster.ended(one.holder).success());
    one_at_a_time(&one.cluster, probe, one.address, &[one.holder, next]);
}

fn cut() {
    let mut one = One::new();
    let probe = one.cluster.probe(&[one.address]);
    sleep(SOME);
    let begin = Instant::now();
    one.cluster.cut(one.holder, true);
    let next = one.taken_over(begin, TAKEOVER + Duration::from_secs(5));
    // It is back, and takes nothing back.
    one.cluster.cut(one.holder, false);
    sleep(Duration::from_secs(10));
    assert_eq!(one.cluster.holder(one.address), Some(next));
    one_at_a_time(&one.cluster, probe, one.address, &[one.holder, next]);
}

fn hung() {
    let mut one = One::new();
    let probe = one.cluster.probe(&[one.address]);
    sleep(SOME);
    let begin = Instant::now();
    one.cluster.signal(one.holder, Signal::SIGSTOP);
    let next = one.taken_over(begin, TAKEOVER);
    sleep(Duration::from_secs(60).saturating_sub(begin.elapsed()));
    one.cluster.signal(one.holder, Signal::SIGCONT);
    sleep(Duration::from_secs(10));
    assert_eq!(one.cluster.holder(one.address), Some(next));
    one_at_a_time(&one.cluster, probe, one.address, &[one.holder, next]);
}

fn spread() {
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

/// What of a Service shows its addresses: the record, and the status.
fn shown(cluster: &AgentCluster) -> (Option<String>, Vec<serde_json::Value>) {
    let service = cluster.service("web");
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
    let record = service["metadata"]["annotations"]["clusterip-policy/external-addresses"].as_str().map(str::to_owned);
    (record, ingress)
}

fn controlled() {
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

    // Another takes it over.
    cluster.signal(holder, Signal::SIGTERM);
    assert!(cluster.ended(holder).success());
    let next = within(BEGIN, "another holder", || cluster.holder(address));
    let took = format!("{}, which took it over from node -node-{}", held_by(next), holder + 1);
    within(BEGIN, "another event", || (told(&cluster) == [held_by(holder), took.clone()]).then_some(()));
    let takeover = "clusterip_external_takeovers_total 1".to_owned();
    let now = [vec![assigned.clone()], pools(1).to_vec(), vec![takeover.clone()]].concat();
    within(BEGIN, "a takeover", || (measured(&cluster) == now).then_some(()));

    // Nobody is left to hold it.
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

fn freed() {
    let mut cluster = AgentCluster::new();
    cluster.control();
    // One that no Service of another field has.
    cluster.create_service("web", &json!({}));
    let address: IpAddr = within(BEGIN, "an address", || shown(&cluster).0).parse().unwrap();
    let wish = json!({"clusterip-policy/external-address": address});
    within(BEGIN, "a holder", || cluster.holder(address));
    assert!(cluster.is_claimed(address));
    // Whom no webhook saw gets another, and is told who has this one.
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

fn put_back() {
    let mut one = One::new();
    let (address, node) = (one.address, one.holder);
    within(BEGIN, "an answer", || one.answers().then_some(()));
    let namespace = &one.cluster.network.nodes[node].namespace;
    namespace.ip(&format!("address delete {address}/32 dev eth0"));
    namespace.exec(&["nft", "delete", "table", "inet", "clusterip_external"]);
    // With the next renewal of the heartbeat, or the one after that.
    within(Duration::from_secs(15), "the address to be back", || one.cluster.holder(address));
    within(BEGIN, "an answer", || one.answers().then_some(()));
    assert_eq!(one.cluster.holder(address), Some(node));
    within(Duration::from_secs(40), "the firewall to be back", || {
        let closed = one.client.ask(&format!("tcp {address} 81 1")) == "TimedOut";
        closed.then_some(())
    });
    assert!(one.answers());
}

fn made_anew() {
    let mut one = One::new();
    let (address, node) = (one.address, one.holder);
    within(BEGIN, "an answer", || one.answers().then_some(()));
    one.cluster.network.plug_anew(node);
    within(Duration::from_secs(15), "the address to be back", || one.cluster.holder(address));
    within(BEGIN, "an answer", || one.answers().then_some(()));
    assert_eq!(one.cluster.holder(address), Some(node));
    let measured = one.cluster.measured(Some(node), "clusterip_agent_given_up");
    assert_eq!(measured, ["clusterip_agent_given_up_addresses_total 0"]);
}

fn unplugged() {
    let mut one = One::new();
    let begin = Instant::now();
    // The way to the API server is another one: its heartbeat goes on.
    one.cluster.network.unplug(one.holder);
    let next = one.taken_over(begin, Duration::from_secs(30));
    assert_eq!(one.cluster.told(one.holder, "/readyz"), Some((200, "ready\n".to_owned())));
    let measured = one.cluster.measured(Some(one.holder), "clusterip_agent_given_up");
    assert_eq!(measured, ["clusterip_agent_given_up_addresses_total 1"]);
    // It is back, and takes nothing back.
    one.cluster.network.plug_in(one.holder);
    sleep(Duration::from_secs(10));
    assert_eq!(one.cluster.holder(one.address), Some(next));
    assert!(one.answers());
}

fn told() {
    let one = One::new();
    let cluster = &one.cluster;
    for index in 0..3 {
        let ready = || cluster.told(index, "/readyz").filter(|told| told.0 == 200);
        assert_eq!(within(BEGIN, "to be ready", ready), (200, "ready\n".to_owned()));
        assert_eq!(cluster.told(index, "/healthz"), Some((200, "ok\n".to_owned())));
    }
    // The first and three more.
    within(BEGIN, "all announcements", || {
        let measured = cluster.measured(Some(one.holder), "clusterip_agent_announcements_total");
        (measured == ["clusterip_agent_announcements_total 4"]).then_some(())
    });
    let expected = [
        "clusterip_agent_held_addresses 1",
        "clusterip_agent_network_failures_total{step=\"announce\"} 0",
        "clusterip_agent_network_failures_total{step=\"hold\"} 0",
        "clusterip_agent_network_failures_total{step=\"release\"} 0",
    ];
    let mut measured = cluster.measured(Some(one.holder), "clusterip_agent_held");
    measured.extend(cluster.measured(Some(one.holder), "clusterip_agent_network_failures"));
    assert_eq!(measured, expected);
    // Nothing of a server is told.
    assert_eq!(cluster.measured(Some(one.holder), "clusterip_moves"), Vec::<String>::new());
    assert_eq!(cluster.measured(Some(one.holder), "clusterip_agent_alive"), ["clusterip_agent_alive 1"]);
    // By another way than the one that is cut.
    let mut client = cluster.network.client.inside();
    cluster.cut(one.holder, true);
    let mut ask = |path: &str| client.ask(&format!("http 10.0.9.{} 9634 {path}", one.holder + 1));
    within(Duration::from_secs(40), "not to be ready", || {
        (ask("/readyz") == "HTTP/1.1 503 Service Unavailable").then_some(())
    });
    assert_eq!(ask("/healthz"), "HTTP/1.1 200 OK");
}

fn without_rights() {
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

fn away() {
    let mut one = One::new();
    let probe = one.cluster.probe(&[one.address]);
    for index in 0..3 {
        one.cluster.cut(index, true);
    }
    sleep(Duration::from_secs(8));
    for index in 0..3 {
        one.cluster.cut(index, false);
    }
    sleep(Duration::from_secs(15));
    assert_eq!(one.cluster.holder(one.address), Some(one.holder));
    assert!(one.answers());
    one_at_a_time(&one.cluster, probe, one.address, &[one.holder]);
}

/// Nobody can know what the others do.
fn away_for_long() {
    let mut one = One::new();
    let probe = one.cluster.probe(&[one.address]);
    sleep(SOME);
    for index in 0..3 {
        one.cluster.cut(index, true);
    }
    within(Duration::from_secs(20), "all to let go", || one.cluster.holder(one.address).is_none().then_some(()));
    sleep(Duration::from_secs(10));
    assert_eq!(one.cluster.holder(one.address), None);
    for index in 0..3 {
        one.cluster.cut(index, false);
    }
    let next = within(Duration::from_secs(15), "a holder again", || one.cluster.holder(one.address));
    within(Duration::from_secs(5), "an answer", || one.answers().then_some(()));
    one_at_a_time(
        &one.cluster,
        probe,
        one.address,
        &if next == one.holder { vec![next] } else { vec![one.holder, next] },
    );
}

fn not_ready() {
    let mut one = One::new();
    let probe = one.cluster.probe(&[one.address]);
    sleep(SOME);
    one.cluster.ready(one.holder, false);
    let next = one.taken_over(Instant::now(), Duration::from_secs(5));
    // It is ready again, and takes nothing back.
    one.cluster.ready(one.holder, true);
    sleep(Duration::from_secs(5));
    one_at_a_time(&one.cluster, probe, one.address, &[one.holder, next]);
}
