//! The messages about impossible requests, and about missing capabilities and programs.

use crate::cases::holder;
use crate::network::Network;

pub fn errors_name_the_cause() {
    let network = Network::new(2);
    let node = &network.nodes[0];
    let mut inside = node.inside();
    node.namespace.ip("link add gone type veth peer name other");
    let absent = |name: &str| format!("error: interface {name} does not exist: name one of those that `ip link` lists");
    let unheld = |address: &str| format!("error: can't hold {address}: it is not the address of a single host");
    let lifetime =
        |left: u64| format!("error: can't hold 10.0.9.100 for {left} s: a lifetime is between 1 second and 136 years");
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
        ("hold 10.0.9.100 0", lifetime(0)),
        ("hold 10.0.9.100 999", lifetime(0)),
        ("hold 10.0.9.100 4294967297000", lifetime(4_294_967_296)),
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
    for name in ["gone", "other"] {
        node.namespace.ip(&format!("link set {name} up"));
    }
    inside.expect("hold 10.0.9.100 9000", "added");
}

pub fn missing_capabilities_are_named() {
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
                    "error: can't write table inet clusterip_external: \
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
                ("firewall 10.0.9.100=tcp/80", "written"),
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
