//! The test cases.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::network::{Inside, Network, until};

/// All test cases by name.
pub const CASES: &[(&str, fn())] = &[
    ("only_open_ports_are_reached", only_open_ports_are_reached),
    ("ports_are_checked_before_destination_nat", ports_are_checked_before_destination_nat),
    ("open_connections_outlive_their_port", open_connections_outlive_their_port),
    ("no_packet_passes_during_a_replacement", no_packet_passes_during_a_replacement),
    ("other_tables_are_left_alone", other_tables_are_left_alone),
    ("neighbours_learn_of_a_takeover", neighbours_learn_of_a_takeover),
    ("address_is_removed_when_its_lifetime_ends", address_is_removed_when_its_lifetime_ends),
    ("addresses_of_other_programs_are_left_alone", addresses_of_other_programs_are_left_alone),
    ("held_address_is_never_the_source_of_a_connection", held_address_is_never_the_source_of_a_connection),
    ("interface_is_found_by_name_or_default_route", interface_is_found_by_name_or_default_route),
    ("missing_or_down_interface_is_reported", missing_or_down_interface_is_reported),
    ("errors_name_the_cause", errors_name_the_cause),
    ("missing_capabilities_are_named", missing_capabilities_are_named),
    ("lenient_arp_is_detected", lenient_arp_is_detected),
];

/// An address of each family, for tests that do the same for both.
const HELD: [&str; 2] = ["10.0.9.100", "fd00:9::100"];
const OWN: [&str; 2] = ["10.0.9.1", "fd00:9::1"];

/// Starts a process on a node that holds the addresses on eth0 for ten minutes.
fn holder(network: &Network, node: usize) -> Inside {
    let mut holder = network.nodes[node].inside();
    holder.expect("find eth0", "eth0");
    for address in HELD {
        holder.expect(&format!("hold {address} 600000"), "added");
    }
    holder
}

fn only_open_ports_are_reached() {
    let network = Network::new(2);
    let mut node = holder(&network, 0);
    let mut client = network.client.inside();
    for port in ["80", "81"] {
        node.expect(&format!("listen {port}"), "listening");
    }
    node.expect("firewall 10.0.9.100=tcp/80,udp/80 fd00:9::100=tcp/80,udp/80", "replaced");
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
    // For a held address without ports all ports are closed; for an address that is not held all stay open.
    node.expect("firewall 10.0.9.100=", "replaced");
    client.expect("tcp 10.0.9.100 80 1", "TimedOut");
    client.expect("tcp fd00:9::100 81 20", "answered");
    node.expect("firewall", "replaced");
    client.expect("tcp 10.0.9.100 81 20", "answered");
}

fn ports_are_checked_before_destination_nat() {
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
    node.expect("firewall 10.0.9.100=tcp/80 fd00:9::100=tcp/80", "replaced");
    for held in HELD {
        client.expect(&format!("tcp {held} 80 20"), "answered");
        client.expect("again", "answered");
        client.expect(&format!("tcp {held} 81 1"), "TimedOut");
        client.expect(&format!("tcp {held} 8080 1"), "TimedOut");
    }
}

fn open_connections_outlive_their_port() {
    let network = Network::new(2);
    let mut node = holder(&network, 0);
    let mut client = network.client.inside();
    node.expect("listen 80", "listening");
    for held in HELD {
        node.expect(&format!("firewall {held}=tcp/80"), "replaced");
        client.expect(&format!("tcp {held} 80 20"), "answered");
        node.expect(&format!("firewall {held}=tcp/81"), "replaced");
        client.expect("again", "answered");
        let mut other = network.client.inside();
        other.expect(&format!("tcp {held} 80 1"), "TimedOut");
        node.expect(&format!("firewall {held}=tcp/80"), "replaced");
        client.expect("again", "answered");
    }
}

fn no_packet_passes_during_a_replacement() {
    let network = Network::new(2);
    let mut node = holder(&network, 0);
    let mut client = network.client.inside();
    for port in ["80", "81"] {
        node.expect(&format!("listen {port}"), "listening");
    }
    let state = "firewall 10.0.9.100=udp/80 fd00:9::100=udp/80";
    node.expect(state, "replaced");
    for held in HELD {
        let count = |node: &mut Inside| node.ask("received 80").parse::<u64>().unwrap();
        let before = count(&mut node);
        client.expect(&format!("flood {held} 81 80"), "flooding");
        until("datagrams of the flood", || count(&mut node), |count| *count > before);
        for _ in 0..50 {
            node.expect(state, "replaced");
        }
        // The flood went on during all replacements.
        let after = count(&mut node);
        until("more datagrams of the flood", || count(&mut node), |count| *count > after);
        client.expect("calm", "calm");
        node.expect("received 81", "0");
    }
}

/// The output of `nft` for a table with several ports, no ports, and both families.
const TABLE: &str = "\
table inet clusterip_external {
	set held4 {
		type ipv4_addr
		elements = { 10.0.9.100, 10.0.9.101 }
	}

	set open4 {
		type ipv4_addr . inet_proto . inet_service
		elements = { 10.0.9.100 . sctp . 36412, 10.0.9.100 . tcp . 443, 10.0.9.100 . tcp . 80, 10.0.9.100 . udp . 53 }
	}

	set held6 {
		type ipv6_addr
		elements = { fd00:9::100 }
	}

	set open6 {
		type ipv6_addr . inet_proto . inet_service
		elements = { fd00:9::100 . tcp . 80 }
	}

	chain held {
		ct state established,related accept
		icmp type { destination-unreachable, echo-request, time-exceeded, parameter-problem } accept
		icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem, echo-request, nd-neighbor-solicit, nd-neighbor-advert } accept
		ip daddr . meta l4proto . th dport @open4 accept
		ip6 daddr . meta l4proto . th dport @open6 accept
		drop
	}

	chain prerouting {
		type filter hook prerouting priority -150; policy accept;
		ip daddr @held4 jump held
		ip6 daddr @held6 jump held
	}
}
";

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

fn other_tables_are_left_alone() {
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
    let one = "firewall 10.0.9.100=udp/53,tcp/443,sctp/36412,tcp/80 10.0.9.101= fd00:9::100=tcp/80";
    for round in ["created", "replaced by the same"] {
        node.expect(one, "replaced");
        assert_eq!(ruleset(), format!("{before}{TABLE}"), "{round}");
    }
    node.expect("firewall 10.0.9.102=tcp/80", "replaced");
    let elements = nft(&["list", "set", "inet", "clusterip_external", "held4"]);
    assert!(elements.contains("elements = { 10.0.9.102 }"), "{elements}");
    // The table of an earlier process, with a rule that somebody added.
    nft(&["add", "rule", "inet", "clusterip_external", "held", "accept"]);
    let mut node = network.nodes[0].inside();
    node.expect(one, "replaced");
    assert_eq!(ruleset(), format!("{before}{TABLE}"), "after an earlier process");
    node.expect("firewall", "replaced");
    assert_eq!(ruleset(), before, "nothing is held");
    node.expect(one, "replaced");
    node.expect("remove", "removed");
    assert_eq!(ruleset(), before, "removed");
}

fn neighbours_learn_of_a_takeover() {
    let network = Network::new(2);
    let mut client = network.client.inside();
    let mut nodes = [network.nodes[0].inside(), network.nodes[1].inside()];
    for node in &mut nodes {
        node.expect("find eth0", "eth0");
        node.expect("listen 80", "listening");
    }
    // Nodes of a cluster forward. The neighbours see a difference for IPv6 only.
    network.nodes[1].namespace.set("net/ipv6/conf/eth0/forwarding", "1");
    let router = format!("{} router", network.nodes[1].hardware());
    let entries = [[network.nodes[0].hardware(), network.nodes[1].hardware()], [network.nodes[0].hardware(), router]];
    for (held, entries) in HELD.into_iter().zip(entries) {
        nodes[0].expect(&format!("hold {held} 600000"), "added");
        for (from, to) in [(0, 1), (1, 0)] {
            client.expect(&format!("tcp {held} 80 20"), "answered");
            client.expect("close", "closed");
            let entry = || network.client.neighbour(held);
            assert_eq!(entry().as_ref(), Some(&entries[from]), "{held}");
            nodes[from].expect(&format!("release {held}"), "released");
            nodes[to].expect(&format!("hold {held} 600000"), "added");
            assert_eq!(entry().as_ref(), Some(&entries[from]), "{held}: not announced yet");
            nodes[to].expect(&format!("announce {held}"), "announced");
            until("the entry of the other node", entry, |entry| entry.as_ref() == Some(&entries[to]));
            client.expect(&format!("tcp {held} 80 20"), "answered");
        }
    }
}

fn address_is_removed_when_its_lifetime_ends() {
    let network = Network::new(2);
    let node = &network.nodes[0];
    let before = node.addresses();
    let mut holder = node.inside();
    holder.expect("find eth0", "eth0");
    for held in HELD {
        holder.expect(&format!("hold {held} 5999"), "added");
    }
    let with = node.addresses();
    assert_eq!(
        with,
        [
            "inet 10.0.9.1/24 scope global eth0",
            "inet 10.0.9.100/32 metric 6515056 scope global deprecated dynamic eth0:cip",
            "inet6 fd00:9::100/128 metric 6515056 scope global nodad deprecated dynamic noprefixroute",
            "inet6 fd00:9::1/64 scope global nodad",
        ]
    );
    // Renewed for longer than one lifetime.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        for held in HELD {
            holder.expect(&format!("hold {held} 5999"), "renewed");
        }
        sleep(Duration::from_millis(200));
    }
    assert_eq!(node.addresses(), with);
    holder.kill();
    assert_eq!(node.addresses(), with, "killing the process must not remove the addresses");
    until("the addresses to be gone", || node.addresses(), |addresses| *addresses == before);
}

fn addresses_of_other_programs_are_left_alone() {
    let network = Network::new(2);
    let node = &network.nodes[0];
    // Addresses of other programs, as similar to ours as possible.
    let others = [
        "address add 10.0.9.150/32 dev eth0 label eth0:cip valid_lft 500 preferred_lft 0",
        "address add fd00:9::150/128 dev eth0 nodad noprefixroute valid_lft 500 preferred_lft 0",
        "address add 10.0.9.151/24 dev eth0",
    ];
    for other in others {
        node.namespace.ip(other);
    }
    let before = node.addresses();
    holder(&network, 0).kill();
    let with = node.addresses();
    assert_ne!(with, before);

    let mut next = node.inside();
    next.expect("find eth0", "eth0");
    next.expect("held", "[10.0.9.100, fd00:9::100]");
    for other in ["10.0.9.150", "fd00:9::150", "10.0.9.151", "10.0.9.1", "fd00:9::1"] {
        next.expect(
            &format!("hold {other} 600000"),
            &format!(
                "error: another program has added {other} to interface eth0: \
                 remove it, or exclude it from the pool"
            ),
        );
        next.expect(&format!("release {other}"), "released");
    }
    assert_eq!(node.addresses(), with);
    next.expect("hold 10.0.9.100 600000", "renewed");
    for held in HELD {
        // The second time, the address is absent.
        next.expect(&format!("release {held}"), "released");
        next.expect(&format!("release {held}"), "released");
    }
    assert_eq!(node.addresses(), before);
    next.expect("held", "[]");
}

fn held_address_is_never_the_source_of_a_connection() {
    let network = Network::new(2);
    let node = &network.nodes[0];
    // fd00:9::1ff is closer to fd00:9::100 than to fd00:9::1, so by default fd00:9::100 would be the source.
    let sources = || {
        ["10.0.9.101", "fd00:9::1ff"].map(|to| {
            let route = node.namespace.ip(&format!("route get {to}"));
            let mut words = route.split_whitespace().skip_while(|word| *word != "src").skip(1);
            words.next().unwrap().to_owned()
        })
    };
    assert_eq!(sources(), OWN);
    let _holder = holder(&network, 0);
    assert_eq!(sources(), OWN);
}

fn interface_is_found_by_name_or_default_route() {
    let network = Network::new(2);
    let node = &network.nodes[0];
    let mut inside = node.inside();
    let none = "error: the main routing table has no default route for IPv4 or IPv6: name the interface";
    inside.expect("find", none);
    node.namespace.ip("link add enx001122334455 type veth peer name other");
    node.namespace.ip("link set enx001122334455 up");
    node.namespace.ip("link set other up");
    struct Case {
        name: &'static str,
        route: &'static str,
        found: &'static str,
    }
    let cases = [
        Case { name: "in another table", route: "route add default via 10.0.9.200 table 7", found: none },
        Case { name: "unreachable", route: "route add unreachable default metric 4000", found: none },
        Case { name: "only for IPv6", route: "-6 route add default via fd00:9::200", found: "eth0" },
        Case {
            name: "for IPv4 before IPv6",
            route: "route add default dev enx001122334455 metric 300",
            found: "enx001122334455",
        },
        Case { name: "with a lower metric", route: "route add default via 10.0.9.200 metric 200", found: "eth0" },
        Case {
            name: "with several hops",
            route: "route add default metric 100 nexthop dev other nexthop dev eth0",
            found: "other",
        },
        Case { name: "without a metric", route: "route add default via 10.0.9.200", found: "eth0" },
    ];
    for Case { name, route, found } in cases {
        node.namespace.ip(route);
        assert_eq!(inside.ask("find"), found, "{name}");
    }
    // With this name, the label does not fit.
    inside.expect("find enx001122334455", "enx001122334455");
    inside.expect("hold 10.0.9.100 600000", "added");
    inside.expect("held", "[10.0.9.100]");
    inside.expect("release 10.0.9.100", "released");
    inside.expect("held", "[]");
}

fn missing_or_down_interface_is_reported() {
    let network = Network::new(2);
    let node = &network.nodes[0];
    let mut inside = holder(&network, 0);
    let down = "error: interface eth0 or its link is down: it transmits no frames";
    inside.expect("up", "up");
    node.namespace.ip("link set eth0 down");
    inside.expect("up", down);
    node.namespace.ip("link set eth0 up");
    until("eth0 to be up", || inside.ask("up"), |answer| answer == "up");
    network.unplug(0);
    until("eth0 to be down", || inside.ask("up"), |answer| answer == down);
    network.plug_in(0);
    until("eth0 to be up", || inside.ask("up"), |answer| answer == "up");
    // The new interface counts as another one.
    let gone = "error: interface eth0 does not exist: name one of those that `ip link` lists";
    network.plug_anew(0);
    for command in ["up", "hold 10.0.9.100 600000", "announce 10.0.9.100"] {
        inside.expect(command, gone);
    }
    // The address was deleted together with the interface.
    inside.expect("release 10.0.9.100", "released");
    inside.expect("find eth0", "eth0");
    inside.expect("held", "[]");
    inside.expect("hold 10.0.9.100 600000", "added");
    until("eth0 to be up", || inside.ask("up"), |answer| answer == "up");
}

fn errors_name_the_cause() {
    let network = Network::new(2);
    let node = &network.nodes[0];
    let mut inside = node.inside();
    node.namespace.ip("link add gone type veth peer name other");
    let absent = |name: &str| format!("error: interface {name} does not exist: name one of those that `ip link` lists");
    let unheld = |address: &str| format!("error: can't hold {address}: it is not the address of a single host");
    let lifetime =
        |valid: &str| format!("error: can't hold 10.0.9.100 for {valid}: a lifetime is between 1 second and 136 years");
    let rows = [
        ("find eth9", absent("eth9")),
        ("find longer-than-any-interface", absent("longer-than-any-interface")),
        ("find ", absent("\"\"")),
        (
            "find lo",
            "error: interface lo is not an Ethernet interface, so addresses can't be announced on it: name another"
                .to_owned(),
        ),
        ("find eth0", "eth0".to_owned()),
        ("hold 0.0.0.0 9000", unheld("0.0.0.0")),
        ("hold 127.0.0.2 9000", unheld("127.0.0.2")),
        ("hold 224.0.0.9 9000", unheld("224.0.0.9")),
        ("hold 255.255.255.255 9000", unheld("255.255.255.255")),
        ("hold :: 9000", unheld("::")),
        ("hold ff02::9 9000", unheld("ff02::9")),
        ("hold 10.0.9.100 0", lifetime("0ns")),
        ("hold 10.0.9.100 999", lifetime("999ms")),
        ("hold 10.0.9.100 4294967295000", lifetime("4294967295s")),
        ("held", "[]".to_owned()),
    ];
    for (command, answer) in rows {
        inside.expect(command, &answer);
    }
    node.namespace.set("net/ipv6/conf/eth0/disable_ipv6", "1");
    inside.expect(
        "hold fd00:9::100 9000",
        "error: can't add fd00:9::100 to interface eth0: IPv6 is disabled there, \
         see net.ipv6.conf.eth0.disable_ipv6",
    );
    node.namespace.ip("link set eth0 down");
    inside.expect(
        "announce 10.0.9.100",
        "error: can't announce 10.0.9.100 on interface eth0: Network is down (os error 100)",
    );
    inside.expect("find gone", "gone");
    node.namespace.ip("link delete gone");
    for command in ["hold 10.0.9.100 9000", "announce 10.0.9.100"] {
        inside.expect(command, &absent("gone"));
    }
    // A new interface with the same name counts as another one.
    node.namespace.ip("link add gone type veth peer name other");
    inside.expect("hold 10.0.9.100 9000", &absent("gone"));
    inside.expect("find gone", "gone");
    inside.expect("hold 10.0.9.100 9000", "added");
}

fn missing_capabilities_are_named() {
    let network = Network::new(2);
    let _holder = holder(&network, 0);
    struct Case {
        name: &'static str,
        /// A program that removes the capability or the tool, and starts this program.
        starter: &'static [&'static str],
        /// Commands and the expected answers.
        commands: &'static [(&'static str, &'static str)],
    }
    let cases = [
        Case {
            name: "no CAP_NET_ADMIN",
            starter: &["setpriv", "--bounding-set=-net_admin"],
            commands: &[
                ("find eth0", "eth0"),
                ("held", "[10.0.9.100, fd00:9::100]"),
                (
                    "hold 10.0.9.100 9000",
                    "error: can't add 10.0.9.100 to interface eth0: \
                     Operation not permitted (os error 1): CAP_NET_ADMIN is needed",
                ),
                (
                    "hold fd00:9::100 9000",
                    "error: can't add fd00:9::100 to interface eth0: \
                     Operation not permitted (os error 1): CAP_NET_ADMIN is needed",
                ),
                (
                    "release 10.0.9.100",
                    "error: can't remove 10.0.9.100 from interface eth0: \
                     Operation not permitted (os error 1): CAP_NET_ADMIN is needed",
                ),
                ("announce 10.0.9.100", "announced"),
                (
                    "firewall 10.0.9.100=tcp/80",
                    "error: can't replace table inet clusterip_external: \
                     nft: netlink: Error: cache initialization failed: Operation not permitted: CAP_NET_ADMIN is needed",
                ),
            ],
        },
        Case {
            name: "no CAP_NET_RAW",
            starter: &["setpriv", "--bounding-set=-net_raw"],
            commands: &[
                ("find eth0", "eth0"),
                ("hold 10.0.9.100 600000", "renewed"),
                (
                    "announce 10.0.9.100",
                    "error: can't open a packet socket: \
                     Operation not permitted (os error 1): CAP_NET_RAW is needed",
                ),
                ("firewall 10.0.9.100=tcp/80", "replaced"),
            ],
        },
        Case {
            name: "no nft",
            starter: &["env", "PATH=/nowhere"],
            commands: &[(
                "remove",
                "error: can't remove table inet clusterip_external: \
                 the program nft is missing: install the package nftables",
            )],
        },
    ];
    for Case { name, starter, commands } in cases {
        let mut inside = network.nodes[0].inside_as(starter);
        for (command, answer) in commands {
            assert_eq!(inside.ask(command), *answer, "{name}: {command}");
        }
    }
}

fn lenient_arp_is_detected() {
    let network = Network::new(2);
    let node = &network.nodes[0].namespace;
    let mut inside = network.nodes[0].inside();
    inside.expect("lenient-arp", "strict enough");
    node.ip("link add kube-ipvs0 type veth peer name other");
    inside.expect(
        "lenient-arp",
        "kube-proxy runs in IPVS mode without strictARP (arp_ignore is 0, at least 1 is needed; arp_announce is 0, \
         2 is needed): every node answers ARP for every external address. \
         Set ipvs.strictARP in kube-proxy's configuration",
    );
    node.set("net/ipv4/conf/all/arp_ignore", "1");
    node.set("net/ipv4/conf/all/arp_announce", "2");
    inside.expect("lenient-arp", "strict enough");
}
