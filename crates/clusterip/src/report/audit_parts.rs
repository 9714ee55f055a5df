//! What all reports of an audit show: the kind, object and severity of a finding, and the pools as rows.

use std::collections::HashSet;
use std::fmt;

use anstyle::Style;
use clap::ValueEnum;
use clusterip_cluster::style;
use clusterip_cluster::terminal::harmless;
use clusterip_core::address::{Blocks, Occupancy};

use crate::audit::model::{Audit, BlockRange, Finding, Kind, Pool, State};
use crate::usage::Usage;

/// What a finding is about. Its text is the kind and name of an object, such as `service/shop/web`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'f> {
    Service {
        namespace: &'f str,
        name: &'f str,
    },
    Node(&'f str),
    Pool {
        sort: Sort,
        name: &'f str,
    },
    WebhookConfiguration(&'f str),
    /// A pool object or ClusterIPPolicy, such as `ServicePool windows`.
    Object(&'f str),
    Settings,
}

impl<'f> Subject<'f> {
    pub fn of(finding: &'f Finding) -> Self {
        match (&finding.namespace, &finding.name, &finding.node, &finding.pool) {
            (Some(namespace), Some(name), ..) => Self::Service { namespace, name },
            (_, _, Some(node), _) => Self::Node(node),
            _ if finding.object.is_some() => Self::Object(finding.object.as_deref().unwrap_or_default()),
            (_, _, _, Some(name)) => Self::Pool { sort: Sort::of(finding.kind), name },
            _ => finding.webhook_configuration.as_deref().map_or(Self::Settings, Self::WebhookConfiguration),
        }
    }
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { namespace, name } => write!(f, "service/{namespace}/{name}"),
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Pool { sort, name } => write!(f, "{}/{name}", sort.name()),
            Self::WebhookConfiguration(name) => write!(f, "mutatingwebhookconfiguration/{name}"),
            Self::Object(object) => f.write_str(&object.to_lowercase().replace(' ', "/")),
            Self::Settings => f.write_str("settings"),
        }
    }
}

/// The colour of findings of a kind: that of errors if something does not work, or lies in the wrong pool, and that of
/// warnings if something works, but needs attention.
pub fn colour(kind: Kind) -> Style {
    match kind {
        Kind::HalfMoved | Kind::Misplaced | Kind::NoPool | Kind::Denied | Kind::Full => style::ERROR,
        Kind::OutsideRanges | Kind::UnusableRange | Kind::NotReady => style::ERROR,
        Kind::ByHand | Kind::Unmatched | Kind::MixedNodes | Kind::LowestOrder => style::WARNING,
        Kind::OverKubernetes | Kind::OverDns | Kind::OtherWebhook => style::WARNING,
        Kind::SharedBlock | Kind::WithheldBlock | Kind::NoBlock | Kind::FullNodePool => style::ERROR,
        Kind::WrongNodePool | Kind::OutsideNodePool => style::WARNING,
        Kind::SharedExternal | Kind::RefusedExternal | Kind::NotHeld | Kind::NoExternal => style::ERROR,
        Kind::FullExternalPool => style::ERROR,
        Kind::ForeignExternal | Kind::WrongIngress | Kind::IdleClaim => style::WARNING,
    }
}

/// The name of a value on the command line, such as `half-moved`.
pub fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

pub fn kind_help(kind: Kind) -> String {
    let value = kind.to_possible_value();
    value.as_ref().and_then(|value| value.get_help()).map(ToString::to_string).unwrap_or_default()
}

/// The kinds that this audit looked for: those of Nodes and of external addresses only if the settings have such pools.
pub fn examined(audit: &Audit) -> impl Iterator<Item = Kind> {
    let looked_for = |kind: &Kind| match Sort::of(*kind) {
        Sort::Services => true,
        Sort::Nodes => audit.nodes.is_some(),
        Sort::External => audit.external.is_some(),
    };
    Kind::value_variants().iter().copied().filter(looked_for)
}

/// The message of a finding without the name of its Service, Node or webhook configuration.
pub fn problem(finding: &Finding) -> &str {
    let subject = match Subject::of(finding) {
        Subject::Service { namespace, name } => format!("Service {namespace}/{name}: "),
        Subject::Node(name) => format!("Node {name}: "),
        Subject::WebhookConfiguration(name) => format!("MutatingWebhookConfiguration {name}: "),
        Subject::Object(object) => format!("{object}: "),
        Subject::Pool { .. } | Subject::Settings => String::new(),
    };
    finding.message.strip_prefix(&subject).unwrap_or(&finding.message)
}

pub fn places(finding: &Finding) -> Vec<String> {
    let blocks = finding.blocks.iter().map(ToString::to_string);
    blocks.chain(finding.addresses.iter().map(ToString::to_string)).collect()
}

/// The pool that the Service or Node of a finding belongs to, if the finding is about that.
pub fn belongs_to(finding: &Finding) -> Option<&str> {
    let about_belonging = match finding.kind {
        Kind::Misplaced | Kind::ByHand | Kind::NoPool | Kind::Denied | Kind::MixedNodes => true,
        Kind::SharedBlock | Kind::WrongNodePool | Kind::OutsideNodePool | Kind::WithheldBlock | Kind::NoBlock => true,
        // Findings about pools, and findings whose pool is that of the address.
        _ => false,
    };
    finding.pool.as_deref().filter(|_| about_belonging)
}

/// A line for each object that a finding is about, such as `service/shop/web`, in the order of the first findings.
pub fn names(audit: &Audit) -> String {
    let mut printed: HashSet<String> = HashSet::new();
    let names = audit.findings.iter().map(|finding| harmless(&Subject::of(finding).to_string()) + "\n");
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

    /// The columns of numbers, as a table for people shows them.
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
                let states = range.addresses.iter().map(|address| address.state);
                row(range.cidr.to_string(), None, range.counts, misplaced(states))
            }),
            Self::Nodes => rows(&audit.nodes.as_ref()?.pools, |range| {
                row(range.cidr.to_string(), Some(range.block_length), range.counts, misplaced_blocks(range))
            }),
            Self::External => rows(&audit.external.as_ref()?.pools, |range| {
                let states = range.addresses.iter().map(|address| address.state);
                row(range.range.clone(), None, range.counts, misplaced(states))
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

fn misplaced(states: impl Iterator<Item = State>) -> u128 {
    states.filter(|state| *state == State::Misplaced).count() as u128
}

/// The blocks, of the range's own length, that misplaced ones overlap: several Nodes may have the same block.
fn misplaced_blocks(range: &BlockRange) -> u128 {
    let Ok(blocks) = Blocks::new(range.cidr, range.block_length) else { return 0 };
    let mut found = Occupancy::default();
    let misplaced = range.blocks.iter().filter(|block| block.state == State::Misplaced);
    misplaced.filter_map(|block| blocks.indices(block.block)).for_each(|indices| found.insert(indices));
    found.len()
}
