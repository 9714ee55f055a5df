//! What may come in for the addresses that the node holds.
//!
//! One table of nftables, which is replaced as a whole, in one transaction: there is never a moment in which
//! half of it is there, or none. It looks at nothing but packets for held addresses, and lets through
//! - what belongs to a connection that is established already, or is an error about one,
//! - of ICMP and ICMPv6 echo requests, the errors that a path without state needs, and neighbour discovery
//!   (a neighbour asks the address itself whether it is still there),
//! - the ports given for the address.
//!
//! Anything else is dropped. It does so before kube-proxy: that translates an address of a Service into one
//! of a Pod in the hook `prerouting` at the priority of destination NAT, -100, after which nobody can tell
//! for which address and port a packet came. At -150 connections are tracked already (-200), and packets
//! have been reassembled (-400). Hooks behind it see nothing that this one has dropped, whether the packet
//! is for the node or to be forwarded. What the node sends to itself passes, too.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::process::{Output, Stdio};

use nftables::batch::Batch;
use nftables::expr::{CT, Expression, Meta, MetaKey, NamedExpression, Payload, PayloadField, SetItem};
use nftables::schema::{Chain, NfListObject, Nftables, Rule, Set, SetType, SetTypeValue, Table};
use nftables::stmt::{JumpTarget, Match, Operator, Statement};
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook};

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::error::{Error, Result};
use crate::port::Port;

/// Before kube-proxy's destination NAT (-100), after the tracking of connections (-200).
const PRIORITY: i32 = -150;
/// The chain that sees every packet, and the one that those for held addresses go through.
const EVERY_PACKET: &str = "prerouting";
const FOR_HELD: &str = "held";

/// A table of nftables of the family inet that is ours alone.
#[derive(Clone, Debug)]
pub struct Firewall {
    table: String,
}

impl Firewall {
    /// The table with this name, which nobody else may use.
    #[must_use]
    pub fn new(table: impl Into<String>) -> Self {
        Self { table: table.into() }
    }

    /// Lets exactly these ports of these addresses through, whatever the table has been before. Where there
    /// is no address, there is no table. Packets to other addresses are left alone.
    ///
    /// Two calls at the same time may end in any order; one that is dropped happens as a whole, or not.
    ///
    /// # Errors
    /// When `nft` is missing, or refuses.
    pub async fn replace(&self, held: &BTreeMap<IpAddr, BTreeSet<Port>>) -> Result<()> {
        match held.is_empty() {
            true => self.remove().await,
            false => self.apply("replaced", self.ruleset(held)).await,
        }
    }

    /// Removes the table, if it is there.
    ///
    /// # Errors
    /// When `nft` is missing, or refuses.
    pub async fn remove(&self) -> Result<()> {
        self.apply("removed", self.cleared().to_nftables()).await
    }

    async fn apply(&self, verb: &'static str, ruleset: Nftables<'_>) -> Result<()> {
        let failed = |reason| Error::Firewall { table: self.table.clone(), verb, reason };
        let output = nft(&ruleset).await.map_err(|error| match error.kind() {
            ErrorKind::NotFound => failed("the program nft is missing: install the package nftables".to_owned()),
            _ => failed(format!("nft: {error}")),
        })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        // The lines after the first repeat the command.
        let first = said.lines().next().unwrap_or("it does not say why");
        let way_out = if first.contains("Operation not permitted") { ": CAP_NET_ADMIN is needed" } else { "" };
        Err(failed(format!("nft: {first}{way_out}")))
    }

    /// That the table is not there. Only one that is there can be deleted, so it is made first.
    fn cleared(&self) -> Batch<'_> {
        let mut batch = Batch::new();
        batch.add(self.table());
        batch.delete(self.table());
        batch
    }

    /// The transaction that has the table as it is to be.
    fn ruleset(&self, held: &BTreeMap<IpAddr, BTreeSet<Port>>) -> Nftables<'_> {
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
                        .map(|(address, port)| {
                            concatenated([
                                text(address.to_string()),
                                text(port.protocol.to_string()),
                                Expression::Number(port.number.into()),
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

/// Runs `nft`, which takes the ruleset as one transaction. The library runs it, too, but leaves it the
/// standard error of this process.
async fn nft(ruleset: &Nftables<'_>) -> io::Result<Output> {
    let text = serde_json::to_vec(ruleset)?;
    let mut nft = Command::new("nft");
    nft.args(["-j", "-f", "-"]).kill_on_drop(true);
    let mut child = nft.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        match input.write_all(&text).await {
            // It has ended already, and says why.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error),
            _ => drop(input),
        }
    }
    child.wait_with_output().await
}

/// What gets through of ICMP, for every held address.
const ICMP: &[&str] = &["destination-unreachable", "echo-request", "time-exceeded", "parameter-problem"];
/// And of ICMPv6.
const ICMPV6: &[&str] = &[
    "destination-unreachable",
    "packet-too-big",
    "time-exceeded",
    "parameter-problem",
    "echo-request",
    "nd-neighbor-solicit",
    "nd-neighbor-advert",
];

/// What the two families of addresses are called.
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
