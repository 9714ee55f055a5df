//! Filters the packets to the addresses that the node holds.
//!
//! The rules are in one table of nftables, which only looks at packets to held addresses, and accepts
//! - packets of established connections, and errors about them,
//! - of ICMP and ICMPv6: echo requests, the errors that a path without state needs, and neighbour discovery (a
//!   neighbour asks the address itself whether it is still there),
//! - packets to the ports that are open for the address, with one rule for each range: before nft 1.1 a set of ranges
//!   would be read back from the kernel in each transaction.
//!
//! It drops all others. It runs before kube-proxy, which translates the address of a Service into that of a Pod in the
//! hook `prerouting` at -100. At -150 connections are tracked already (-200) and packets are reassembled (-400).
//!
//! A packet that still has the held address in the hook `input` was not translated: kube-proxy does not serve its port,
//! or not yet. It would reach a process of the node itself, such as the kubelet, so it is dropped, unless it is a reply
//! to a process that uses the held address. This happens after IPVS has taken its packets (98 and 99 in `input`).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::process::{Output, Stdio};

use anyhow::{Result, anyhow};
use clusterip_failover::assignments::{Port, Protocol};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

pub type PortRange = (Protocol, RangeInclusive<u16>);

/// The ranges of these ports, as few as possible, in ascending order.
pub fn ranges<'p>(ports: impl IntoIterator<Item = &'p Port>) -> Vec<PortRange> {
    let mut ports: Vec<Port> = ports.into_iter().copied().collect();
    ports.sort_unstable();
    let mut ranges: Vec<PortRange> = Vec::new();
    for (protocol, port) in ports {
        match ranges.last_mut() {
            Some((of, range)) if *of == protocol && port <= range.end().saturating_add(1) => {
                *range = *range.start()..=port;
            }
            _ => ranges.push((protocol, port..=port)),
        }
    }
    ranges
}

fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// The table of nftables, of the family inet, that only this process uses.
const TABLE: &str = "clusterip_external";

/// Opens exactly these ports of each address, or for `None`, stops filtering its packets. Other addresses keep their
/// rules. A call that is dropped takes effect as a whole or not at all.
pub async fn write(addresses: &BTreeMap<IpAddr, Option<Vec<PortRange>>>) -> Result<()> {
    apply("write", transaction(addresses)).await
}

pub async fn remove() -> Result<()> {
    // Only an existing table can be deleted, so it is added first.
    apply("remove", format!("add table inet {TABLE}\ndelete table inet {TABLE}\n")).await
}

async fn apply(verb: &'static str, transaction: String) -> Result<()> {
    let failed = |reason: String| anyhow!("can't {verb} table inet {TABLE}: {reason}");
    let output = nft(&transaction).await.map_err(|error| match error.kind() {
        ErrorKind::NotFound => failed("the program nft is missing: install the package nftables".to_owned()),
        _ => failed(format!("nft: {error}")),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    // The lines after the first repeat the command.
    let first = stderr.lines().next().unwrap_or("no error message");
    let remedy = if first.contains("Operation not permitted") { ": CAP_NET_ADMIN is needed" } else { "" };
    Err(failed(format!("nft: {first}{remedy}")))
}

/// The transaction of [`write`]. It has the same result whatever the table contains before: each object is added before
/// it is used or deleted, and a chain is emptied before rules are added.
fn transaction(addresses: &BTreeMap<IpAddr, Option<Vec<PortRange>>>) -> String {
    let mut text = format!("table inet {TABLE} {{\n{OBJECTS}}}\n");
    for chain in ["held", "local", "prerouting", "input"] {
        text += &format!("flush chain inet {TABLE} {chain}\n");
    }
    text += &format!("table inet {TABLE} {{\n{RULES}}}\n");
    for (address, ranges) in addresses {
        let family = if address.is_ipv4() { '4' } else { '6' };
        // A name has no colons.
        let chain = format!("ports-{address}").replace(':', "-");
        let elements =
            [format!("held{family} {{ {address} }}"), format!("ports{family} {{ {address} : jump {chain} }}")];
        text += &format!("add chain inet {TABLE} {chain}\nflush chain inet {TABLE} {chain}\n");
        for (protocol, range) in ranges.iter().flatten() {
            let (name, start, end) = (name(*protocol), range.start(), range.end());
            let ports = if start == end { start.to_string() } else { format!("{start}-{end}") };
            text += &format!("add rule inet {TABLE} {chain} {name} dport {ports} accept\n");
        }
        let verbs: &[&str] = if ranges.is_none() { &["add", "delete"] } else { &["add"] };
        for verb in verbs {
            for element in &elements {
                text += &format!("{verb} element inet {TABLE} {element}\n");
            }
        }
        if ranges.is_none() {
            text += &format!("delete chain inet {TABLE} {chain}\n");
        }
    }
    text
}

/// `held` filters the packets to held addresses before their translation, and `local` those that were not translated.
const OBJECTS: &str = "
    set held4 { type ipv4_addr; }
    set held6 { type ipv6_addr; }
    map ports4 { type ipv4_addr : verdict; }
    map ports6 { type ipv6_addr : verdict; }
    chain held { }
    chain local { }
    chain prerouting { type filter hook prerouting priority -150; policy accept; }
    chain input { type filter hook input priority 150; policy accept; }
";

/// The rules of the chains of [`OBJECTS`]. `nft` would look up names of protocols in /etc/protocols, which a small image
/// does not have: 6 is TCP, 17 is UDP, 132 is SCTP.
const RULES: &str = "
    chain held {
        ct state established,related accept
        icmp type { destination-unreachable, echo-request, time-exceeded, parameter-problem } accept
        icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem, echo-request, \
            nd-neighbor-solicit, nd-neighbor-advert } accept
        ip daddr vmap @ports4
        ip6 daddr vmap @ports6
        drop
    }
    chain local {
        ct direction reply accept
        meta l4proto { 6, 17, 132 } drop
    }
    chain prerouting {
        ip daddr @held4 jump held
        ip6 daddr @held6 jump held
    }
    chain input {
        ip daddr @held4 jump local
        ip6 daddr @held6 jump local
    }
";

async fn nft(transaction: &str) -> io::Result<Output> {
    let mut nft = Command::new("nft");
    nft.args(["-f", "-"]).kill_on_drop(true);
    let mut child = nft.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        match input.write_all(transaction.as_bytes()).await {
            // `nft` has exited already; its output says why.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error),
            _ => drop(input),
        }
    }
    child.wait_with_output().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ports_of_a_protocol_are_one_range() {
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        struct Case {
            name: &'static str,
            ports: Vec<Port>,
            expected: Vec<PortRange>,
        }
        let cases = [
            Case { name: "none", ports: vec![], expected: vec![] },
            Case { name: "one", ports: vec![(tcp, 80)], expected: vec![(tcp, 80..=80)] },
            Case {
                name: "adjacent, in any order, and twice",
                ports: vec![(tcp, 82), (tcp, 80), (tcp, 81), (tcp, 81), (tcp, 84)],
                expected: vec![(tcp, 80..=82), (tcp, 84..=84)],
            },
            Case {
                name: "of two protocols",
                ports: vec![(tcp, 80), (udp, 81), (udp, 80)],
                expected: vec![(tcp, 80..=80), (udp, 80..=81)],
            },
            Case {
                name: "all",
                ports: (1..=u16::MAX).map(|port| (tcp, port)).collect(),
                expected: vec![(tcp, 1..=u16::MAX)],
            },
        ];
        for Case { name, ports, expected } in cases {
            assert_eq!(ranges(&ports), expected, "{name}");
        }
    }
}
