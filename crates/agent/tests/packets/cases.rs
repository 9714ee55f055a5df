//! All test cases, and what several of them need.

use crate::network::{Host, Inside, Network};
use crate::{addresses, firewall, interfaces, node_errors};

/// All test cases by name.
pub const CASES: &[(&str, fn())] = &[
    ("only_open_ports_are_reached", firewall::only_open_ports_are_reached),
    ("ports_are_checked_before_destination_nat", firewall::ports_are_checked_before_destination_nat),
    ("open_connections_outlive_their_port", firewall::open_connections_outlive_their_port),
    ("no_packet_passes_while_the_table_is_written", firewall::no_packet_passes_while_the_table_is_written),
    ("processes_of_the_node_are_not_reached", firewall::processes_of_the_node_are_not_reached),
    ("other_tables_are_left_alone", firewall::other_tables_are_left_alone),
    ("neighbours_learn_of_a_takeover", addresses::neighbours_learn_of_a_takeover),
    ("address_is_removed_when_its_lifetime_ends", addresses::address_is_removed_when_its_lifetime_ends),
    (
        "many_addresses_are_held_and_released_beside_many_others",
        addresses::many_addresses_are_held_and_released_beside_many_others,
    ),
    ("addresses_of_other_programs_are_left_alone", addresses::addresses_of_other_programs_are_left_alone),
    ("held_address_is_never_the_source_of_a_connection", addresses::held_address_is_never_the_source_of_a_connection),
    ("interface_is_found_by_name_or_default_route", interfaces::interface_is_found_by_name_or_default_route),
    ("missing_or_down_interface_is_reported", interfaces::missing_or_down_interface_is_reported),
    ("errors_name_the_cause", node_errors::errors_name_the_cause),
    ("missing_capabilities_are_named", node_errors::missing_capabilities_are_named),
    ("lenient_arp_is_detected", interfaces::lenient_arp_is_detected),
];

/// An address of each family, for tests that do the same for both.
pub const HELD: [&str; 2] = ["10.0.9.100", "fd00:9::100"];

/// The own addresses of the first node.
pub const OWN: [&str; 2] = ["10.0.9.1", "fd00:9::1"];

/// Translates packets of clients to the held addresses, and packets of the node to their port 80, as kube-proxy does, with
/// the node itself as the Pod.
pub fn proxy(node: &Host) {
    for (family, held, own) in [("ip", HELD[0], OWN[0]), ("ip6", HELD[1], OWN[1])] {
        let translation = format!(
            "table {family} proxy {{ \
             chain clients {{ type nat hook prerouting priority dstnat; \
             {family} daddr {held} meta l4proto {{ tcp, udp }} dnat to {own}; }}; \
             chain node {{ type nat hook output priority -100; {family} daddr {held} tcp dport 80 dnat to {own}; }}; }}"
        );
        node.namespace.exec(&["nft", &translation]);
    }
}

/// Starts a process on a node that holds the addresses on eth0 for ten minutes.
pub fn holder(network: &Network, node: usize) -> Inside {
    let mut holder = network.nodes[node].inside();
    holder.expect("find eth0", "eth0");
    for address in HELD {
        holder.expect(&format!("hold {address} 600000"), "added");
    }
    holder
}
