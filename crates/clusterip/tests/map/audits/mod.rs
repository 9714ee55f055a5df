//! Audits like those of real clusters, built without a cluster.

mod external;
mod nodes;
mod services;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clusterip::audit::model::{Address, Audit, Finding, Kind, Range, Span, State};
use clusterip::usage::Usage;
use clusterip_core::address::Withholding;
pub use external::external;
use ipnet::IpNet;
pub use nodes::nodes;
pub use services::{huge, large, many, small};

/// A text that a page must not interpret as markup.
pub const HOSTILE: &str = "os=linux (Deployment </script><img src=x onerror=\"document.title='broken'\"><!-- <script>)";

/// All audits, by name.
pub fn all() -> Vec<(&'static str, Audit)> {
    vec![
        ("small", small()),
        ("large", large()),
        ("huge", huge()),
        ("many", many()),
        ("nodes", nodes()),
        ("external", external()),
        ("empty", Audit::default()),
    ]
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn numbered(like: IpAddr, number: u128) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from(u32::try_from(number).unwrap()).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}

fn span(first: &str, last: &str, why: Withholding) -> Span {
    Span { first: ip(first), last: ip(last), why }
}

fn used(address: &str, state: State, service: &str, pool: Option<&str>, evidence: &str) -> Address {
    let (namespace, name) = service.split_once('/').unwrap();
    Address {
        address: ip(address),
        state,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        pool: pool.map(str::to_owned),
        evidence: (!evidence.is_empty()).then(|| evidence.to_owned()),
        by_hand: Some(state == State::Used && service.ends_with("-by-hand")),
    }
}

/// A range with its counted numbers.
fn range(cidr: &str, withheld: Vec<Span>, addresses: Vec<Address>) -> Range {
    let cidr: IpNet = cidr.parse().unwrap();
    let bits = u32::from(cidr.max_prefix_len() - cidr.prefix_len());
    let size = |span: &Span| number(span.last) - number(span.first) + 1;
    let is_kept = |address: &&Address| {
        withheld.iter().any(|span| (number(span.first)..=number(span.last)).contains(&number(address.address)))
    };
    let used_anyway = addresses.iter().filter(is_kept).count() as u128;
    let in_flight = addresses.iter().filter(|address| address.state == State::InFlight && !is_kept(address)).count();
    let usable = 2_u128.pow(bits) - withheld.iter().map(size).sum::<u128>();
    let used = addresses.len() as u128 - used_anyway - in_flight as u128;
    let free = usable - used - in_flight as u128;
    let reserved = withheld.iter().filter(|span| span.why == Withholding::ByHand).map(size).sum();
    Range {
        cidr,
        counts: Usage { usable, used, in_flight: in_flight as u128, free, withheld: reserved, used_anyway, held: None },
        withheld,
        addresses,
    }
}

fn finding(kind: Kind, service: Option<&str>, addresses: &[&str], pool: Option<&str>, message: &str) -> Finding {
    let service = service.map(|service| service.split_once('/').unwrap());
    let (message, remedy) = message.split_once("; ").unwrap_or((message, ""));
    Finding {
        kind,
        namespace: service.map(|(namespace, _)| namespace.to_owned()),
        name: service.map(|(_, name)| name.to_owned()),
        node: None,
        webhook_configuration: None,
        object: None,
        blocks: Vec::new(),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        pool: pool.map(str::to_owned),
        evidence: None,
        message: message.to_owned(),
        remedy: remedy.to_owned(),
    }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}
