//! The settings document of the user, read and checked.

mod external;
mod nodes;
mod pools;
mod reader;
mod service_ranges;
mod services;

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;
use thiserror::Error;

pub use self::external::{ExternalPool, ExternalSettings};
pub use self::nodes::{BlockSize, NodeMatch, NodePool, NodeSettings, Withheld};
use self::pools::PoolPaths;
use self::reader::Reader;
pub use self::reader::{is_dns_label, parse_cidr};
pub use self::service_ranges::{DnsAddress, UnusableRange};
pub use self::services::{default_pools, is_outside_service_ranges, with_ranges_of_cluster};
use crate::address::{Candidates, Family, Order, Range, WithheldSpan};
use crate::json::Located;
use crate::label_selector::{LabelSelector, Labels};
use crate::service_key::ServiceKey;
use crate::workload::WorkloadKind;

/// The settings of the policy: a document with any of the sections `services`, `nodes` and `external`.
///
/// An empty document `{}` selects the Service pools of the K2s distribution, see [`default_pools`]. A document with
/// `nodes` or `external` has Service pools only if `services` lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `services.pools`, in the order in which they are tried; empty if the settings concern only Nodes or external
    /// addresses.
    pub pools: Vec<Pool>,
    /// `services.evidence.kinds`: the workload kinds to look up, in this order.
    pub kinds: Vec<WorkloadKind>,
    pub lookups: Lookups,
    /// `services.assumeOS`: the operating system to assume if there is no other evidence, in lower case.
    pub assume_os: String,
    pub order: Order,
    pub explicit: Explicit,
    pub when_full: WhenFull,
    pub unmatched: Unmatched,
    /// `services.annotateReason`: whether a new Service gets the annotation
    /// [`REASON_ANNOTATION`](crate::annotations::REASON_ANNOTATION).
    pub annotate_reason: bool,
    pub exempt_namespaces: Vec<String>,
    /// `services.serviceCIDRs`: the Service ranges of the cluster, the primary one first.
    pub service_cidrs: Vec<IpNet>,
    /// `services.unusableServiceCIDRs`: the parts of these ranges from which the API server allocates no addresses at
    /// the moment.
    pub unusable_service_cidrs: Vec<UnusableRange>,
    pub nodes: NodeSettings,
    pub external: ExternalSettings,
}

/// A pool of cluster IPs, and the Services it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    pub name: String,
    /// The ranges, without host bits. They overlap neither each other nor those of another pool.
    pub cidrs: Vec<IpNet>,
    /// How many addresses at the start of each range, counted from its network address, are kept for addresses set by
    /// hand.
    pub reserved: u64,
    /// Further ranges and addresses that are never handed out.
    pub exclude: Vec<IpNet>,
    /// Whether the static band of each range (KEP-3070) is used only after all other addresses.
    pub bands: bool,
    pub matches: Match,
    /// Addresses of the ranges that are kept for one Service each: no address twice, and for each Service at most one
    /// of each family.
    pub reservations: Vec<Reservation>,
    /// What happens if the pool is full; `None` if the settings say it for all pools.
    pub when_full: Option<WhenFull>,
}

/// An address that is kept for one Service, whether that Service exists or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub address: IpAddr,
    pub service: ServiceKey,
}

/// The Services that a pool is for. Every condition that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The labels that the nodes of the Service's Pods must have. `match.os` is one of them.
    pub node_labels: Labels,
    pub scope: AdmissionScope,
}

/// The Services that may have addresses of a pool, regardless of nodes. Every condition that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionScope {
    /// The names of the allowed namespaces; empty allows all.
    pub namespaces: Vec<String>,
    pub namespace_selector: LabelSelector,
    pub service_selector: LabelSelector,
}

/// How workloads are looked up. This changes the cost of an answer, never the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookups {
    /// One list of the whole cluster for each kind.
    #[default]
    Cluster,
    /// One list of the Service's namespace for each kind.
    Namespace,
}

/// What to do about an address or pod CIDR that was set by hand and is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Explicit {
    /// Accept it without a check.
    Allow,
    #[default]
    Warn,
    Deny,
}

/// What to do about a Service whose pool has no free address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    #[default]
    Deny,
    /// Let Kubernetes pick any address, and add a warning.
    Unmanaged,
}

/// What to do about a Service that no pool matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// Let Kubernetes pick any address, also one of a pool, and add a warning. The default, except with
    /// [`Explicit::Deny`].
    #[default]
    Unmanaged,
    /// Give it an address of the Service ranges that no pool contains. The default with [`Explicit::Deny`].
    Outside,
    Deny,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Invalid {
    /// The mistakes of single values first, then those between pools.
    pub mistakes: Vec<Mistake>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: {reason}")]
pub struct Mistake {
    /// The path, such as `services.pools[1].cidrs[0]`.
    pub path: String,
    pub reason: String,
}

impl Settings {
    /// Reads and checks a settings document. `null` counts as `{}`.
    pub fn from_value(document: &Value) -> Result<Self, Invalid> {
        let (settings, paths, mut mistakes) = read(document);
        mistakes.extend(services::mistakes(&settings, &paths.services));
        mistakes.extend(nodes::mistakes(&settings, &paths.nodes));
        mistakes.extend(external::mistakes(&settings, &paths.external));
        if mistakes.is_empty() { Ok(settings) } else { Err(Invalid { mistakes }) }
    }

    /// Settings that are allowed but probably not intended.
    pub fn warnings(&self) -> Vec<Mistake> {
        let mut warnings = services::warnings(self);
        warnings.extend(nodes::warnings(self));
        warnings
    }

    /// The address of the Service `default/kubernetes`: the first one of the primary Service range. `None` if the
    /// settings name no Service range.
    pub fn kubernetes_address(&self) -> Option<IpAddr> {
        let primary = self.service_cidrs.first()?;
        crate::address::Blocks::addresses(*primary).address(1)
    }

    pub fn cluster_has(&self, family: Family) -> bool {
        self.service_cidrs.iter().any(|cidr| Family::of(cidr.addr()) == family)
    }

    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    pub fn pool_of(&self, address: IpAddr) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.contains(address))
    }

    /// The addresses of the Service ranges that no pool contains, as a pool without a name. As in Kubernetes, the
    /// static band of each range is used last.
    pub fn outside_of_pools(&self) -> Pool {
        let mut exclude = Vec::new();
        self.pools.iter().for_each(|pool| exclude.extend_from_slice(&pool.cidrs));
        Pool { cidrs: self.service_cidrs.clone(), exclude, bands: true, ..Pool::default() }
    }

    /// The addresses of `family` that `pool` may hand out to every Service: those of its ranges without `reserved`,
    /// `exclude`, `reservations`, the address of `default/kubernetes`, and the ranges that are unusable at the moment.
    pub fn candidates(&self, pool: &Pool, family: Family) -> Candidates {
        let cidrs: Vec<IpNet> = pool.cidrs_of(family).collect();
        self.candidates_in(pool, &cidrs, &self.unusable_service_cidrs)
    }

    /// Like [`Self::candidates`], for these ranges of the pool, with `unusable` as the unusable ranges.
    fn candidates_in(&self, pool: &Pool, cidrs: &[IpNet], unusable: &[UnusableRange]) -> Candidates {
        let mut exclude = self.excluded_from(pool);
        exclude.extend(unusable.iter().map(|range| range.cidr));
        let for_services = pool.reserved_addresses();
        let range =
            |&cidr: &IpNet| Range { cidr, reserved: pool.reserved, exclude: &exclude, for_services: &for_services };
        let ranges: Vec<Range<'_>> = cidrs.iter().map(range).collect();
        Candidates::new(&ranges, pool.bands)
    }

    /// The parts of `cidr`, a range of `pool`, that are not handed out to every Service, in ascending order.
    ///
    /// [`Self::candidates`] leaves out the same addresses. It also leaves out ranges that are unusable at the moment;
    /// those are not in the list, because they come back without a change of the settings.
    pub fn withheld_spans(&self, pool: &Pool, cidr: IpNet) -> Vec<WithheldSpan> {
        let (exclude, for_services) = (self.excluded_from(pool), pool.reserved_addresses());
        Range { cidr, reserved: pool.reserved, exclude: &exclude, for_services: &for_services }.withheld_spans()
    }

    /// `exclude` of a pool, and the address of `default/kubernetes`.
    fn excluded_from(&self, pool: &Pool) -> Vec<IpNet> {
        let mut excluded = pool.exclude.clone();
        excluded.extend(self.kubernetes_address().map(IpNet::from));
        excluded
    }
}

impl Pool {
    pub fn cidrs_of(&self, family: Family) -> impl Iterator<Item = IpNet> {
        self.cidrs.iter().copied().filter(move |cidr| Family::of(cidr.addr()) == family)
    }

    pub fn has(&self, family: Family) -> bool {
        self.cidrs_of(family).next().is_some()
    }

    /// Whether one of the ranges contains the address. Reserved and excluded addresses count too.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.cidrs.iter().any(|cidr| cidr.contains(&address))
    }

    pub(crate) fn reserved_address(&self, family: Family, namespace: &str, name: &str) -> Option<IpAddr> {
        let fits = |reservation: &&Reservation| {
            Family::of(reservation.address) == family && reservation.is_for(namespace, name)
        };
        self.reservations.iter().find(fits).map(|reservation| reservation.address)
    }

    pub fn reservation(&self, address: IpAddr) -> Option<&Reservation> {
        self.reservations.iter().find(|reservation| reservation.address == address)
    }

    fn reserved_addresses(&self) -> Vec<IpAddr> {
        self.reservations.iter().map(|reservation| reservation.address).collect()
    }

    pub fn ranges(&self, family: Family) -> String {
        self.cidrs_of(family).map(|cidr| cidr.to_string()).collect::<Vec<_>>().join(", ")
    }
}

impl Reservation {
    pub fn is_for(&self, namespace: &str, name: &str) -> bool {
        self.service.namespace == namespace && self.service.name == name
    }
}

impl Default for Settings {
    fn default() -> Self {
        read(&Value::Null).0
    }
}

/// Reads the valid values, and lists the mistakes. If there are mistakes, the settings are incomplete: an invalid value
/// is left out or has its default.
fn read(document: &Value) -> (Settings, AllPaths, Vec<Mistake>) {
    let mut reader = Reader::default();
    let mut paths = AllPaths::default();
    let mut settings = Settings {
        pools: Vec::new(),
        kinds: WorkloadKind::known(),
        lookups: Lookups::default(),
        assume_os: "linux".into(),
        order: Order::default(),
        explicit: Explicit::default(),
        when_full: WhenFull::default(),
        unmatched: Unmatched::default(),
        annotate_reason: false,
        exempt_namespaces: vec!["kube-system".into()],
        service_cidrs: Vec::new(),
        unusable_service_cidrs: Vec::new(),
        nodes: NodeSettings::default(),
        external: ExternalSettings::default(),
    };
    if let Some(fields) = reader.fields(&Located::new(document, ""), &["services", "nodes", "external"]) {
        let others = fields.get("nodes").or(fields.get("external")).is_some();
        let absent = Located::new(&Value::Null, "services");
        paths.services = reader.services(fields.get("services").unwrap_or(&absent), &mut settings, others);
        if let Some(nodes) = fields.get("nodes") {
            paths.nodes = reader.nodes(nodes, &mut settings.nodes);
        }
        if let Some(external) = fields.get("external") {
            paths.external = reader.external(external, &mut settings.external);
        }
    }
    (settings, paths, reader.mistakes)
}

/// The paths of all pools in the document, one entry for each pool.
#[derive(Debug, Default)]
struct AllPaths {
    services: Vec<PoolPaths>,
    nodes: Vec<PoolPaths>,
    external: Vec<PoolPaths>,
}
