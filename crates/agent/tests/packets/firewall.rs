//! The firewall of the held addresses.

use crate::cases::{HELD, OWN, holder, proxy};
use crate::network::{Inside, Network, until};

/// The output of `nft` for a table with several ports, no ports, and both families.
const TABLE: &str = include_str!("table.nft");

pub fn only_open_ports_are_reached() {
    let network = Network::new(2);
    let mut node = holder(&network, 0);
    let mut client = network.client.inside();
    proxy(&network.nodes[0]);
    for port in ["80", "81"] {
        node.expect(&format!("listen {port}"), "listening");
    }
    node.expect("firewall 10.0.9.100=tcp/80,udp/80 fd00:9::100=tcp/80,udp/80", "written");
    for (held, own) in HELD.into_iter().zip(OWN) {
        client.expect(&format!("tcp {held} 80 20"), "answered");
        client.expect(&format!("tcp {held} 81 1"), "TimedOut");
        client.expect(&format!("tcp {own} 81 20"), "answered");
        // The rules also apply to processes of the node itself.
        node.expect(&format!("tcp {held} 80 20"), "answered");
        node.expect(&format!("tcp {held} 81 1"), "TimedOut");
    }
    network.client.namespace.set("net/ipv4/ping_group_range", "0 0");
    client.expect("ping 10.0.9.100", "type 0 from 10.0.9.100");
    client.expect("ping fd00:9::100", "type 129 from fd00:9::100");
    for (number, held) in HELD.into_iter().enumerate() {
        // Datagrams keep their order: when the second has arrived, the first is lost.
        client.expect(&format!("udp {held} 81"), "sent");
        client.expect(&format!("udp {held} 80"), "sent");
        until("a datagram", || node.ask("received 80"), |count| count == &(number + 1).to_string());
        node.expect("received 81", "0");
    }
    // For a held address without ports all ports are closed. Other addresses keep theirs.
    node.expect("firewall 10.0.9.100=", "written");
    client.expect("tcp 10.0.9.100 80 1", "TimedOut");
    client.expect("tcp fd00:9::100 80 20", "answered");
    client.expect("tcp fd00:9::100 81 1", "TimedOut");
    // A range, of which the last port is one of the others.
    node.expect("firewall 10.0.9.100=tcp/79,tcp/80,tcp/82", "written");
    client.expect("tcp 10.0.9.100 80 20", "answered");
    client.expect("tcp 10.0.9.100 81 1", "TimedOut");
    // For an address that is not held all stay open.
    node.expect("firewall 10.0.9.100", "written");
    client.expect("tcp 10.0.9.100 81 20", "answered");
    client.expect("tcp fd00:9::100 81 1", "TimedOut");
}

pub fn ports_are_checked_before_destination_nat() {
    let network = Network::new(2);
    let mut node = holder(&network, 0);
    let mut client = network.client.inside();
    // Like kube-proxy, with the node itself as the Pod.
    for (family, held, own) in [("ip", HELD[0], OWN[0]), ("ip6", HELD[1], "[fd00:9::1]")] {
        let translation = format!(
            "table {family} proxy {{ chain services {{ type nat hook prerouting priority dstnat; \
             {family} daddr {held} tcp dport {{ 80, 81 }} dnat to {own}:8080; }}; }}"
        );
        network.nodes[0].namespace.exec(&["nft", &translation]);
    }
    node.expect("listen 8080", "listening");
    node.expect("firewall 10.0.9.100=tcp/80 fd00:9::100=tcp/80", "written");
    for held in HELD {
        client.expect(&format!("tcp {held} 80 20"), "answered");
        client.expect("again", "answered");
        client.expect(&format!("tcp {held} 81 1"), "TimedOut");
        client.expect(&format!("tcp {held} 8080 1"), "TimedOut");
    }
}

pub fn open_connections_outlive_their_port() {
    let network = Network::new(2);
    let mut node = holder(&network, 0);
    let mut client = network.client.inside();
    proxy(&network.nodes[0]);
    node.expect("listen 80", "listening");
    for held in HELD {
        node.expect(&format!("firewall {held}=tcp/80"), "written");
        client.expect(&format!("tcp {held} 80 20"), "answered");
        node.expect(&format!("firewall {held}=tcp/81"), "written");
        client.expect("again", "answered");
        let mut other = network.client.inside();
        other.expect(&format!("tcp {held} 80 1"), "TimedOut");
        node.expect(&format!("firewall {held}=tcp/80"), "written");
        client.expect("again", "answered");
    }
}

pub fn no_packet_passes_while_the_table_is_written() {
    let network = Network::new(2);
    let mut node = holder(&network, 0);
    let mut client = network.client.inside();
    proxy(&network.nodes[0]);
    for port in ["80", "81"] {
        node.expect(&format!("listen {port}"), "listening");
    }
    let state = "firewall 10.0.9.100=udp/80 fd00:9::100=udp/80";
    node.expect(state, "written");
    for held in HELD {
        let count = |node: &mut Inside| node.ask("received 80").parse::<u64>().unwrap();
        let before = count(&mut node);
        client.expect(&format!("flood {held} 81 80"), "flooding");
        until("datagrams of the flood", || count(&mut node), |count| *count > before);
        for _ in 0..50 {
            node.expect(state, "written");
        }
        // The flood went on during all transactions.
        let after = count(&mut node);
        until("more datagrams of the flood", || count(&mut node), |count| *count > after);
        client.expect("calm", "calm");
        node.expect("received 81", "0");
    }
}

pub fn processes_of_the_node_are_not_reached() {
    let network = Network::new(2);
    let mut node = holder(&network, 0);
    let mut client = network.client.inside();
    node.expect("listen 80", "listening");
    client.expect("listen 80", "listening");
    node.expect("firewall 10.0.9.100=tcp/80,udp/80 fd00:9::100=tcp/80,udp/80", "written");
    network.client.namespace.set("net/ipv4/ping_group_range", "0 0");
    for ((held, own), clients) in HELD.into_iter().zip(OWN).zip(["10.0.9.200", "fd00:9::200"]) {
        // No kube-proxy translates the packets of the open port.
        client.expect(&format!("tcp {held} 80 1"), "TimedOut");
        node.expect(&format!("tcp {held} 80 1"), "TimedOut");
        client.expect(&format!("udp {held} 80"), "sent");
        client.expect(&format!("udp {own} 80"), "sent");
        client.expect(&format!("tcp {own} 80 20"), "answered");
        assert!(client.ask(&format!("ping {held}")).ends_with(&format!("from {held}")), "{held}");
        // A process of the node may use the address itself.
        node.expect(&format!("from {held} {clients} 80"), "answered");
        node.expect("again", "answered");
    }
    // Of two datagrams of each family, the one to the held address is lost.
    until("datagrams", || node.ask("received 80"), |count| count == "2");
    proxy(&network.nodes[0]);
    for held in HELD {
        client.expect(&format!("tcp {held} 80 20"), "answered");
    }
}

/// The output of `nft` with the elements of each set sorted on one line, because `nft` prints them in any order.
fn in_order(shown: &str) -> String {
    let mut parts = shown.split("elements = {");
    let mut ordered = parts.next().unwrap().to_owned();
    for part in parts {
        let (elements, rest) = part.split_once('}').unwrap();
        let mut elements: Vec<_> = elements.split(',').map(str::trim).collect();
        elements.sort_unstable();
        ordered += &format!("elements = {{ {} }}{rest}", elements.join(", "));
    }
    ordered
}

pub fn other_tables_are_left_alone() {
    let network = Network::new(2);
    let mut node = network.nodes[0].inside();
    let nft = |arguments: &[&str]| network.nodes[0].namespace.exec(&[&["nft"][..], arguments].concat());
    let ruleset = || in_order(&nft(&["--numeric-priority", "list", "ruleset"]));
    nft(&["table inet other { set held4 { type ipv4_addr; elements = { 10.0.9.100 }; }; }"]);
    nft(&["table ip clusterip_external { chain prerouting { type filter hook prerouting priority -150; }; }"]);
    let before = ruleset();
    // There is nothing to remove.
    node.expect("remove", "removed");
    assert_eq!(ruleset(), before);
    let one = "firewall 10.0.9.100=udp/53,tcp/443,tcp/444,sctp/36412,tcp/80 10.0.9.101= fd00:9::100=tcp/80";
    for round in ["created", "written again"] {
        node.expect(one, "written");
        assert_eq!(ruleset(), format!("{before}{TABLE}"), "{round}");
    }
    // What nft prints can be loaded again.
    let saved = nft(&["list", "table", "inet", "clusterip_external"]);
    nft(&[&format!("delete table inet clusterip_external; {saved}")]);
    assert_eq!(ruleset(), format!("{before}{TABLE}"), "loaded");
    node.expect("firewall 10.0.9.102=tcp/80", "written");
    node.expect("firewall 10.0.9.102 10.0.9.103", "written");
    // Rules of another program are removed.
    nft(&["add", "rule", "inet", "clusterip_external", "held", "accept"]);
    nft(&["add", "rule", "inet", "clusterip_external", "ports-10.0.9.101", "accept"]);
    node.expect(one, "written");
    assert_eq!(ruleset(), format!("{before}{TABLE}"), "another address was opened and closed");
    node.expect("remove", "removed");
    assert_eq!(ruleset(), before, "removed");
}
