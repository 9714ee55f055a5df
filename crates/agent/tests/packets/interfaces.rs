//! Which interface is used, and what is wrong with it.

use crate::cases::holder;
use crate::network::{Network, until};

pub fn interface_is_found_by_name_or_default_route() {
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

pub fn missing_or_down_interface_is_reported() {
    let network = Network::new(2);
    let node = &network.nodes[0];
    let mut inside = holder(&network, 0);
    let down = "error: interface eth0 or its link is down: it transmits no frames";
    let hold = "hold 10.0.9.100 600000";
    inside.expect(hold, "renewed");
    node.namespace.ip("link set eth0 down");
    inside.expect(hold, down);
    node.namespace.ip("link set eth0 up");
    until("eth0 to be up", || inside.ask(hold), |answer| answer == "renewed");
    network.unplug(0);
    until("eth0 to be down", || inside.ask(hold), |answer| answer == down);
    network.plug_in(0);
    until("eth0 to be up", || inside.ask(hold), |answer| answer == "renewed");
    // The new interface counts as another one.
    let gone = "error: interface eth0 does not exist: name one of those that `ip link` lists";
    network.plug_anew(0);
    for command in [hold, "announce 10.0.9.100"] {
        inside.expect(command, gone);
    }
    // The address was deleted together with the interface.
    inside.expect("release 10.0.9.100", "released");
    inside.expect("find eth0", "eth0");
    inside.expect("held", "[]");
    until("eth0 to be up", || inside.ask(hold), |answer| answer == "added");
}

pub fn lenient_arp_is_detected() {
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
