//! How an interface holds, announces and releases addresses.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::cases::{HELD, OWN, holder};
use crate::network::{Network, until};

pub fn neighbours_learn_of_a_takeover() {
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

pub fn address_is_removed_when_its_lifetime_ends() {
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

/// The kernel lists the addresses of all interfaces, with IPVS also those of all Services. To list them for each address
/// that is held or released takes minutes here.
pub fn many_addresses_are_held_and_released_beside_many_others() {
    let network = Network::new(1);
    let node = &network.nodes[0];
    let others = "for a in $(seq 0 79); do for b in $(seq 0 249); do echo address add 10.2.$a.$b/32 dev lo; done; done";
    node.namespace.exec(&["sh", "-c", &format!("({others}) | ip -batch -")]);
    let before = node.addresses();
    let mut holder = node.inside();
    holder.expect("find eth0", "eth0");
    let began = Instant::now();
    for _ in 0..2 {
        holder.expect("many hold 1000", r#"["added"]"#);
        holder.expect("many hold 1000", r#"["renewed"]"#);
        assert_eq!(node.addresses().len(), before.len() + 1000);
        holder.expect("many release 1000", r#"["released"]"#);
        assert_eq!(node.addresses(), before);
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

pub fn addresses_of_other_programs_are_left_alone() {
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

pub fn held_address_is_never_the_source_of_a_connection() {
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
