//! What all reports of an audit show: the kind, object and severity of a finding, and the pools as rows.

use std::collections::HashSet;

use anstyle::Style;
use clap::ValueEnum;
use clusterip_cluster::harmless_text::harmless;
use clusterip_cluster::style;
use clusterip_core::address::{Blocks, Occupancy};
use clusterip_core::decision::Report;

use crate::audit::model::{Audit, BlockRange, Finding, Kind, Pool, State};
use crate::text::joined;
use crate::usage::Usage;

/// The kind and the name of what a finding is about, such as `Service` and `shop/web`. The settings have no name.
pub fn subject(finding: &Finding) -> (&str, String) {
    let Finding { namespace, name, node, webhook_configuration, object, pool, .. } = finding;
    let object = object.as_ref().and_then(|object| object.split_once(' '));
    match (namespace, name, node, object, pool, webhook_configuration) {
        (Some(namespace), Some(name), ..) => ("Service", format!("{namespace}/{name}")),
        (_, _, Some(node), ..) => ("Node", node.clone()),
        (_, _, _, Some((kind, name)), ..) => (kind, name.to_owned()),
        (.., Some(pool), _) => (Sort::of(finding.kind).name(), pool.clone()),
        (.., Some(name)) => ("MutatingWebhookConfiguration", name.clone()),
        _ => ("settings", String::new()),
    }
}

/// Such as `os=windows, arch=amd64 (Deployment shop/web)`. Without labels, what else the pool was chosen by.
pub(super) fn evidence(report: &Report, key: impl Fn(&str) -> String) -> String {
    if report.labels.is_empty() {
        return report.source.clone();
    }
    let labels = report.labels.iter().map(|(name, value)| format!("{}={value}", key(name)));
    format!("{} ({})", joined(labels, ", "), report.source)
}

/// Such as `service/shop/web`.
pub fn resource(finding: &Finding) -> String {
    let (kind, name) = subject(finding);
    let separator = if name.is_empty() { "" } else { "/" };
    format!("{}{separator}{name}", kind.to_lowercase())
}

/// That of warnings if something works, but needs attention; otherwise that of errors.
pub fn colour(kind: Kind) -> Style {
    match kind {
        Kind::ByHand | Kind::Unmatched | Kind::MixedNodes | Kind::LowestOrder | Kind::OverKubernetes => style::WARNING,
        Kind::OverDns | Kind::OtherWebhook | Kind::WrongNodePool | Kind::OutsideNodePool => style::WARNING,
        Kind::ForeignExternal | Kind::WrongIngress | Kind::IdleClaim => style::WARNING,
        _ => style::ERROR,
    }
}

/// The name of a value on the command line, such as `half-moved`.
pub fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

pub fn kind_help(kind: Kind) -> String {
    kind.to_possible_value().and_then(|value| Some(value.get_help()?.to_string())).unwrap_or_default()
}

/// The kinds that this audit looked for: those of Nodes and of external addresses only if the settings have such pools.
pub fn examined(audit: &Audit) -> impl Iterator<Item = Kind> {
    let looked_for = |kind: &Kind| [true, audit.nodes.is_some(), audit.external.is_some()][Sort::of(*kind) as usize];
    Kind::value_variants().iter().copied().filter(looked_for)
}

/// The message of a finding without the object, which the columns of a report name; a message about a pool is complete.
pub fn problem(finding: &Finding) -> &str {
    let (kind, name) = subject(finding);
    let subject = format!("{kind} {name}: ");
    let is_object = kind.starts_with(char::is_uppercase);
    finding.message.strip_prefix(&subject).filter(|_| is_object).unwrap_or(&finding.message)
}

pub fn places(finding: &Finding) -> Vec<String> {
    let blocks = finding.blocks.iter().map(ToString::to_string);
    blocks.chain(finding.addresses.iter().map(ToString::to_string)).collect()
}

/// The pool that the Service or Node of a finding belongs to; `None` if `pool` is that of an address, or has the problem.
pub fn belongs_to(finding: &Finding) -> Option<&str> {
    let of_service = [Kind::Misplaced, Kind::ByHand, Kind::NoPool, Kind::Denied, Kind::MixedNodes];
    let of_node = finding.node.is_some() && finding.kind != Kind::IdleClaim;
    finding.pool.as_deref().filter(|_| of_node || of_service.contains(&finding.kind))
}

/// A line for each object that a finding is about, such as `service/shop/web`, in the order of the first findings.
pub fn names(audit: &Audit) -> String {
    let mut printed: HashSet<String> = HashSet::new();
    let names = audit.findings.iter().map(|finding| harmless(&resource(finding)) + "\n");
    names.filter(|name| printed.insert(name.clone())).collect()
}

/// The sorts of pools. Pools of different sorts may have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Services,
    Nodes,
    External,
}

impl Sort {
    pub const ALL: [Self; 3] = [Self::Services, Self::Nodes, Self::External];

    /// The sort of pool that findings of a kind are about. The kinds are in the order of the sorts.
    fn of(kind: Kind) -> Self {
        match kind {
            _ if kind < Kind::SharedBlock => Self::Services,
            _ if kind < Kind::SharedExternal => Self::Nodes,
            _ => Self::External,
        }
    }

    pub fn name(self) -> &'static str {
        ["pool", "node-pool", "external-pool"][self as usize]
    }

    pub fn title(self) -> &'static str {
        ["Pools", "Pools of Nodes", "Pools of external addresses"][self as usize]
    }

    /// Whether the ranges are divided into blocks. A block is never in flight.
    pub fn has_blocks(self) -> bool {
        self == Self::Nodes
    }

    pub(super) fn columns(self) -> Vec<Column> {
        match self {
            Self::Services => vec![USABLE, USED, IN_FLIGHT, FREE, withheld("Reserved"), USED_ANYWAY],
            Self::Nodes => vec![USABLE, USED, FREE, withheld("Withheld"), USED_ANYWAY],
            Self::External => vec![USABLE, USED, HELD, IN_FLIGHT, FREE, withheld("Excluded"), USED_ANYWAY],
        }
    }

    /// The ranges of each pool, in the order of the settings; `None` if the settings have no such pools.
    pub(super) fn pools(self, audit: &Audit) -> Option<Vec<(&str, Vec<RangeRow>)>> {
        let row = |range, block_length, usage, misplaced| RangeRow { range, block_length, usage, misplaced };
        Some(match self {
            Self::Services => rows(&audit.pools, |range| {
                let misplaced = range.addresses.iter().filter(|address| address.state == State::Misplaced);
                row(range.cidr.to_string(), None, range.counts, misplaced.count() as u128)
            }),
            Self::Nodes => rows(&audit.nodes.as_ref()?.pools, |range| {
                row(range.cidr.to_string(), Some(range.block_length), range.counts, misplaced_blocks(range))
            }),
            Self::External => rows(&audit.external.as_ref()?.pools, |range| {
                let misplaced = range.addresses.iter().filter(|address| address.state == State::Misplaced);
                row(range.range.clone(), None, range.counts, misplaced.count() as u128)
            }),
        })
    }
}

#[derive(Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// The number of a range; `None` if it is unknown.
    pub(super) count: fn(&Usage) -> Option<u128>,
    pub(super) zero: Style,
}

const PLAIN: Style = Style::new();
const USABLE: Column = Column { title: "Usable", count: |usage| Some(usage.usable), zero: PLAIN };
const USED: Column = Column { title: "Used", count: |usage| Some(usage.used), zero: PLAIN };
pub(super) const HELD: Column = Column { title: "Held", count: |usage| usage.held, zero: PLAIN };
const IN_FLIGHT: Column = Column { title: "In flight", count: |usage| Some(usage.in_flight), zero: style::FAINT };
const FREE: Column = Column { title: "Free", count: |usage| Some(usage.free), zero: style::ERROR };
const USED_ANYWAY: Column = Column { title: "Used anyway", count: |usage| Some(usage.used_anyway), zero: style::FAINT };

const fn withheld(title: &'static str) -> Column {
    Column { title, count: |usage| Some(usage.withheld), zero: style::FAINT }
}

pub(super) struct RangeRow {
    pub(super) range: String,
    pub(super) block_length: Option<u8>,
    pub(super) usage: Usage,
    pub(super) misplaced: u128,
}

fn rows<R>(pools: &[Pool<R>], row: impl Fn(&R) -> RangeRow) -> Vec<(&str, Vec<RangeRow>)> {
    pools.iter().map(|pool| (pool.name.as_str(), pool.ranges.iter().map(&row).collect())).collect()
}

/// The blocks, of the range's own length, that misplaced ones overlap: several Nodes may have the same block.
fn misplaced_blocks(range: &BlockRange) -> u128 {
    let Ok(blocks) = Blocks::new(range.cidr, range.block_length) else { return 0 };
    let mut found = Occupancy::default();
    let misplaced = range.blocks.iter().filter(|block| block.state == State::Misplaced);
    misplaced.filter_map(|block| blocks.indices(block.block)).for_each(|indices| found.insert(indices));
    found.len()
}
