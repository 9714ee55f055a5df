//! Filters the packets to the addresses that the node holds.
//!
//! The rules are in one table of nftables, which is replaced as a whole in one transaction, so the node never has half
//! of it or none. The table only looks at packets to held addresses, and accepts
//! - packets of established connections, and errors about them,
//! - of ICMP and ICMPv6: echo requests, the errors that a path without state needs, and neighbour discovery (a
//!   neighbour asks the address itself whether it is still there),
//! - packets to the ports that are open for the address.
//!
//! It drops all others. It runs before kube-proxy, which translates the address of a Service into that of a Pod in the
//! hook `prerouting` at the priority of destination NAT, -100; after that, the original address and port of a packet
//! are no longer known. At -150 connections are tracked already (-200) and packets are reassembled (-400). Later hooks
//! do not see the packets that are dropped here, whether they are for the node or to be forwarded. The table also sees
//! the packets that the node sends to itself.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::process::{Output, Stdio};
use std::sync::Arc;

use clusterip_failover::assignments::{Port, Protocol};
use nftables::batch::Batch;
use nftables::expr::{CT, Expression, Meta, MetaKey, NamedExpression, Payload, PayloadField, SetItem};
use nftables::schema::{Chain, NfListObject, Nftables, Rule, Set, SetType, SetTypeValue, Table};
use nftables::stmt::{JumpTarget, Match, Operator, Statement};
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook};

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::interface::{Error, Result};

/// Between the tracking of connections (-200) and the destination NAT of kube-proxy (-100).
const PRIORITY: i32 = -150;
/// The chain for all packets, and the chain for packets to held addresses.
const EVERY_PACKET: &str = "prerouting";
const FOR_HELD: &str = "held";

/// The number of the protocol in the header of a packet.
fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

/// A table of nftables of the family inet that only this process uses.
#[derive(Clone, Debug)]
pub struct Firewall {
    table: String,
}

impl Firewall {
    /// A table with this name. No other program may use the name.
    #[must_use]
    pub fn new(table: impl Into<String>) -> Self {
        Self { table: table.into() }
    }

    /// Replaces the table with one that opens exactly these ports of these addresses. If `held` is empty, the table is
    /// removed. Packets to other addresses are not affected.
    ///
    /// Two concurrent calls may take effect in any order. A call that is dropped takes effect as a whole or not at all.
    pub async fn replace(&self, held: &BTreeMap<IpAddr, Arc<[Port]>>) -> Result<()> {
        match held.is_empty() {
            true => self.remove().await,
            false => self.apply("replace", self.ruleset(held)).await,
        }
    }

    /// Removes the table, if it exists.
    pub async fn remove(&self) -> Result<()> {
        self.apply("remove", self.cleared().to_nftables()).await
    }

    async fn apply(&self, verb: &'static str, ruleset: Nftables<'_>) -> Result<()> {
        let failed = |reason: String| Error::other(format!("can't {verb} table inet {}: {reason}", self.table));
        let output = nft(&ruleset).await.map_err(|error| match error.kind() {
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

    /// Removes the table. Only an existing table can be deleted, so it is added first.
    fn cleared(&self) -> Batch<'_> {
        let mut batch = Batch::new();
        batch.add(self.table());
        batch.delete(self.table());
        batch
    }

    /// The transaction that replaces the table.
    fn ruleset(&self, held: &BTreeMap<IpAddr, Arc<[Port]>>) -> Nftables<'_> {
        let mut batch = self.cleared();
        batch.add(self.table());
        let families = [
            Family { ipv4: true, name: "ip", held: "held4", open: "open4", address: SetType::Ipv4Addr },
            Family { ipv4: false, name: "ip6", held: "held6", open: "open6", address: SetType::Ipv6Addr },
        ];
        for family in &families {
            let of_family = || held.iter().filter(|(address, _)| address.is_ipv4() == family.ipv4);
            batch.add(self.set(
                family.held,
                SetTypeValue::Single(family.address),
                of_family().map(|(address, _)| text(address.to_string())).collect(),
            ));
            batch.add(
                self.set(
                    family.open,
                    SetTypeValue::Concatenated(vec![family.address, SetType::InetProto, SetType::InetService].into()),
                    of_family()
                        .flat_map(|(address, ports)| ports.iter().map(move |port| (address, port)))
                        .map(|(address, (protocol, port))| {
                            concatenated([
                                text(address.to_string()),
                                // nft looks up names in /etc/protocols, which a small image does not have.
                                Expression::Number(number(*protocol).into()),
                                Expression::Number((*port).into()),
                            ])
                        })
                        .collect(),
                ),
            );
        }
        batch.add(self.chain(FOR_HELD));
        batch.add(NfListObject::Chain(Chain {
            family: NfFamily::INet,
            table: Cow::Borrowed(&self.table),
            name: EVERY_PACKET.into(),
            _type: Some(NfChainType::Filter),
            hook: Some(NfHook::Prerouting),
            prio: Some(PRIORITY),
            policy: Some(NfChainPolicy::Accept),
            ..Chain::default()
        }));
        for family in &families {
            let to_held = matches(family.destination(), text(format!("@{}", family.held)));
            batch.add(self.rule(EVERY_PACKET, vec![to_held, Statement::Jump(JumpTarget { target: FOR_HELD.into() })]));
        }
        let accept = || Statement::Accept(None);
        let tracked = NamedExpression::CT(CT { key: "state".into(), family: None, dir: None });
        batch.add(self.rule(
            FOR_HELD,
            vec![is_in(Expression::Named(tracked), &["established", "related"], Operator::IN), accept()],
        ));
        for (protocol, types) in [("icmp", ICMP), ("icmpv6", ICMPV6)] {
            let message = is_in(field(protocol, "type"), types, Operator::EQ);
            batch.add(self.rule(FOR_HELD, vec![message, accept()]));
        }
        for family in &families {
            let protocol = Expression::Named(NamedExpression::Meta(Meta { key: MetaKey::L4proto }));
            let asked = concatenated([family.destination(), protocol, field("th", "dport")]);
            batch.add(self.rule(FOR_HELD, vec![matches(asked, text(format!("@{}", family.open))), accept()]));
        }
        batch.add(self.rule(FOR_HELD, vec![Statement::Drop(None)]));
        batch.to_nftables()
    }

    fn table(&self) -> NfListObject<'_> {
        NfListObject::Table(Table { family: NfFamily::INet, name: Cow::Borrowed(&self.table), handle: None })
    }

    fn chain(&self, name: &'static str) -> NfListObject<'_> {
        NfListObject::Chain(Chain {
            family: NfFamily::INet,
            table: Cow::Borrowed(&self.table),
            name: name.into(),
            ..Chain::default()
        })
    }

    fn set(
        &self,
        name: &'static str,
        of: SetTypeValue<'static>,
        elements: Vec<Expression<'static>>,
    ) -> NfListObject<'_> {
        NfListObject::Set(Box::new(Set {
            family: NfFamily::INet,
            table: Cow::Borrowed(&self.table),
            name: name.into(),
            set_type: of,
            elem: (!elements.is_empty()).then(|| elements.into()),
            ..Set::default()
        }))
    }

    fn rule(&self, chain: &'static str, statements: Vec<Statement<'static>>) -> NfListObject<'_> {
        NfListObject::Rule(Rule {
            family: NfFamily::INet,
            table: Cow::Borrowed(&self.table),
            chain: chain.into(),
            expr: statements.into(),
            ..Rule::default()
        })
    }
}

/// Runs `nft`, which applies the ruleset as one transaction. The `nftables` crate can run it too, but then its standard
/// error goes to that of this process.
async fn nft(ruleset: &Nftables<'_>) -> io::Result<Output> {
    let text = serde_json::to_vec(ruleset)?;
    let mut nft = Command::new("nft");
    nft.args(["-j", "-f", "-"]).kill_on_drop(true);
    let mut child = nft.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        match input.write_all(&text).await {
            // `nft` has exited already; its output says why.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error),
            _ => drop(input),
        }
    }
    child.wait_with_output().await
}

/// The ICMP types that are accepted for every held address.
const ICMP: &[&str] = &["destination-unreachable", "echo-request", "time-exceeded", "parameter-problem"];
/// The ICMPv6 types that are accepted for every held address.
const ICMPV6: &[&str] = &[
    "destination-unreachable",
    "packet-too-big",
    "time-exceeded",
    "parameter-problem",
    "echo-request",
    "nd-neighbor-solicit",
    "nd-neighbor-advert",
];

/// The names that the table uses for a family of addresses.
struct Family {
    ipv4: bool,
    name: &'static str,
    held: &'static str,
    open: &'static str,
    address: SetType,
}

impl Family {
    fn destination(&self) -> Expression<'static> {
        field(self.name, "daddr")
    }
}

fn text(text: impl Into<Cow<'static, str>>) -> Expression<'static> {
    Expression::String(text.into())
}

fn field(protocol: &'static str, field: &'static str) -> Expression<'static> {
    let field = PayloadField { protocol: protocol.into(), field: field.into() };
    Expression::Named(NamedExpression::Payload(Payload::PayloadField(field)))
}

fn concatenated(parts: [Expression<'static>; 3]) -> Expression<'static> {
    Expression::Named(NamedExpression::Concat(parts.into()))
}

fn matches(left: Expression<'static>, right: Expression<'static>) -> Statement<'static> {
    Statement::Match(Match { left, right, op: Operator::EQ })
}

fn is_in(left: Expression<'static>, names: &'static [&'static str], op: Operator) -> Statement<'static> {
    let right = match op {
        Operator::IN => Expression::List(names.iter().map(|name| text(*name)).collect()),
        _ => Expression::Named(NamedExpression::Set(names.iter().map(|name| SetItem::Element(text(*name))).collect())),
    };
    Statement::Match(Match { left, right, op })
}
