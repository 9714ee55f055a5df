//! The parts of an audit that all reports show: the kind, the object and the severity of a finding, and the pools as
//! rows.

use std::collections::HashSet;
use std::fmt;

use anstyle::Style;
use clap::ValueEnum;
use clusterip_cluster::style;
use clusterip_cluster::terminal::harmless;
use clusterip_core::address::{Blocks, Occupancy};

use crate::audit::model::{Audit, BlockRange, External, Finding, Kind, Nodes, Pool, State};
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
        /// `pool`, `node-pool` or `external-pool`, because pools of different kinds may have the same name.
        sort: &'static str,
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
            (_, _, _, Some(name)) => Self::Pool { sort: sort(finding.kind), name },
            _ => finding.webhook_configuration.as_deref().map_or(Self::Settings, Self::WebhookConfiguration),
        }
    }
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { namespace, name } => write!(f, "service/{namespace}/{name}"),
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Pool { sort, name } => write!(f, "{sort}/{name}"),
            Self::WebhookConfiguration(name) => write!(f, "mutatingwebhookconfiguration/{name}"),
            Self::Object(object) => f.write_str(&object.to_lowercase().replace(' ', "/")),
            Self::Settings => f.write_str("settings"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something does not work, or an address or a block lies in the wrong pool.
    Error,
    /// Something works, but needs attention.
    Warning,
}

impl Severity {
    /// The severity of all findings of a kind.
    pub fn of(kind: Kind) -> Self {
        match kind {
            Kind::HalfMoved | Kind::Misplaced | Kind::NoPool | Kind::Denied | Kind::Full | Kind::OutsideRanges => {
                Self::Error
            }
            Kind::UnusableRange | Kind::NotReady => Self::Error,
            Kind::ByHand | Kind::Unmatched | Kind::MixedNodes | Kind::LowestOrder => Self::Warning,
            Kind::OverKubernetes | Kind::OverDns | Kind::OtherWebhook => Self::Warning,
            Kind::SharedBlock | Kind::WithheldBlock | Kind::NoBlock | Kind::FullNodePool => Self::Error,
            Kind::WrongNodePool | Kind::OutsideNodePool => Self::Warning,
            Kind::SharedExternal | Kind::RefusedExternal | Kind::NotHeld | Kind::NoExternal => Self::Error,
            Kind::FullExternalPool => Self::Error,
            Kind::ForeignExternal | Kind::WrongIngress | Kind::IdleClaim => Self::Warning,
        }
    }

    pub fn style(self) -> Style {
        match self {
            Self::Error => style::ERROR,
            Self::Warning => style::WARNING,
        }
    }
}

/// The name of a kind, such as `half-moved`.
pub fn kind_name(kind: Kind) -> String {
    kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// What findings of a kind are about, as a sentence.
pub fn kind_help(kind: Kind) -> String {
    let value = kind.to_possible_value();
    value.as_ref().and_then(|value| value.get_help()).map(ToString::to_string).unwrap_or_default()
}

/// The kinds that this audit looked for: those of Nodes and of external addresses only if the settings have such pools.
pub fn examined(audit: &Audit) -> impl Iterator<Item = Kind> {
    let looked_for = move |kind: &Kind| match sort(*kind) {
        "node-pool" => audit.nodes.is_some(),
        "external-pool" => audit.external.is_some(),
        _ => true,
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

/// The sort of pool that findings of a kind are about. The kinds are in the order Services, Nodes, external addresses.
fn sort(kind: Kind) -> &'static str {
    if kind < Kind::SharedBlock {
        "pool"
    } else if kind < Kind::SharedExternal {
        "node-pool"
    } else {
        "external-pool"
    }
}

/// A line for each object that a finding is about, such as `service/shop/web`, in the order of the first findings.
pub fn names(audit: &Audit) -> String {
    let mut printed: HashSet<String> = HashSet::new();
    let mut text = String::new();
    for finding in &audit.findings {
        let name = harmless(&Subject::of(finding).to_string());
        if !printed.contains(&name) {
            text.push_str(&name);
            text.push('\n');
            printed.insert(name);
        }
    }
    text
}

pub(super) struct PoolRows<'a> {
    pub(super) name: &'a str,
    pub(super) ranges: Vec<RangeRow>,
}

pub(super) struct RangeRow {
    pub(super) range: String,
    /// Prefix length of the blocks of a range of a pool of Nodes.
    pub(super) block_length: Option<u8>,
    pub(super) usage: Usage,
    /// How many addresses or blocks are misplaced.
    pub(super) misplaced: u128,
}

pub(super) fn of_services(audit: &Audit) -> Vec<PoolRows<'_>> {
    pool_rows(&audit.pools, |range| RangeRow {
        range: range.cidr.to_string(),
        block_length: None,
        usage: range.counts,
        misplaced: misplaced(range.addresses.iter().map(|address| address.state)),
    })
}

pub(super) fn of_nodes(nodes: &Nodes) -> Vec<PoolRows<'_>> {
    pool_rows(&nodes.pools, |range| RangeRow {
        range: range.cidr.to_string(),
        block_length: Some(range.block_length),
        usage: range.counts,
        misplaced: misplaced_blocks(range),
    })
}

pub(super) fn of_external(external: &External) -> Vec<PoolRows<'_>> {
    pool_rows(&external.pools, |range| RangeRow {
        range: range.range.clone(),
        block_length: None,
        usage: range.counts,
        misplaced: misplaced(range.addresses.iter().map(|address| address.state)),
    })
}

fn pool_rows<R>(pools: &[Pool<R>], row: impl Fn(&R) -> RangeRow) -> Vec<PoolRows<'_>> {
    pools.iter().map(|pool| PoolRows { name: &pool.name, ranges: pool.ranges.iter().map(&row).collect() }).collect()
}

fn misplaced(states: impl Iterator<Item = State>) -> u128 {
    states.filter(|state| *state == State::Misplaced).count() as u128
}

/// The number of blocks of the range's own block length of which a misplaced block has addresses: several Nodes may
/// have the same block.
fn misplaced_blocks(range: &BlockRange) -> u128 {
    let Ok(blocks) = Blocks::new(range.cidr, range.block_length) else { return 0 };
    let mut found = Occupancy::default();
    let misplaced = range.blocks.iter().filter(|block| block.state == State::Misplaced);
    misplaced.filter_map(|block| blocks.indices(block.block)).for_each(|indices| found.insert(indices));
    found.len()
}
