//! What the user wrote, checked.

mod check_external;
mod check_nodes;
mod check_pools;
mod check_services;
mod dns_address;
mod external;
mod nodes;
mod read;
mod read_external;
mod read_nodes;
mod read_services;
mod reader;
mod unusable;

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;
use thiserror::Error;

pub use self::dns_address::DnsAddress;
pub use self::external::{ExternalPool, ExternalSettings};
pub use self::nodes::{BlockSize, NodeMatch, NodePool, NodeSettings, Withheld};
pub use self::unusable::UnusableRange;
use crate::address::{Candidates, Family, Order, Range};
use crate::label_selector::{LabelSelector, Labels};
use crate::pod_spec::OS_LABEL;
use crate::workload::WorkloadKind;

/// The settings of the policy: a document with `services`, `nodes` and `external`, or some of them.
///
/// `{}` stands for the Service pools of the K2s distribution; see [`Settings::default`]. Beside `nodes` or
/// `external` they have to be written to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `services.pools`, in the order in which they are tried; none where the settings are about something
    /// else alone.
    pub pools: Vec<Pool>,
    /// `services.evidence.kinds`: which workloads are asked, in this order.
    pub kinds: Vec<WorkloadKind>,
    /// `services.evidence.lookups`
    pub lookups: Lookups,
    /// `services.assumeOS`: the operating system where nothing names one, in lower case.
    pub assume_os: String,
    /// `services.order`
    pub order: Order,
    /// `services.explicit`
    pub explicit: Explicit,
    /// `services.whenFull`
    pub when_full: WhenFull,
    /// `services.exemptNamespaces`
    pub exempt_namespaces: Vec<String>,
    /// `services.serviceCIDRs`: the cluster's own ranges, the primary one first.
    pub service_cidrs: Vec<IpNet>,
    /// `services.unusableServiceCIDRs`: the parts of these ranges that the API server gives no address of now.
    pub unusable_service_cidrs: Vec<UnusableRange>,
    /// `nodes`
    pub nodes: NodeSettings,
    /// `external`
    pub external: ExternalSettings,
}

/// A pool of addresses and the Services it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Unique, a DNS label.
    pub name: String,
    /// Its ranges, without host bits; they overlap neither each other nor another pool's.
    pub cidrs: Vec<IpNet>,
    /// How many addresses of each range, counted from its network address, are kept for addresses set
    /// by hand.
    pub reserved: u64,
    /// What else is never handed out.
    pub exclude: Vec<IpNet>,
    /// Whether the static band of KEP-3070 is used last.
    pub bands: bool,
    /// Which Services it is for.
    pub matches: Match,
}

/// Which Services a pool is for: every condition that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Labels of the nodes on which the Service's Pods will run (`match.os` is one of them).
    pub node_labels: Labels,
    /// What does not depend on nodes.
    pub fence: Fence,
}

/// Which Services may have addresses of a pool, whatever nodes they are on: every condition that is given
/// must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// Namespaces by name; none: any.
    pub namespaces: Vec<String>,
    /// The labels of the namespace.
    pub namespace_selector: LabelSelector,
    /// The labels of the Service.
    pub service_selector: LabelSelector,
}

/// How workloads are looked up. It can't change an answer, only its price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookups {
    /// One list of the whole cluster for each kind.
    #[default]
    Cluster,
    /// One list of the Service's namespace for each kind.
    Namespace,
}

/// What happens to an address set by hand that lies in the wrong pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Explicit {
    /// It is not looked at.
    Allow,
    /// It is accepted, with a warning.
    #[default]
    Warn,
    /// It is denied.
    Deny,
}

/// What happens to a Service whose pool has no free address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is denied.
    #[default]
    Deny,
    /// Kubernetes picks an address, from anywhere, and there is a warning.
    Unmanaged,
}

/// Every mistake of a settings document.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Invalid {
    /// What concerns one value alone first, then how the pools go together.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{mistake}")?;
        }
        Ok(())
    }
}

/// A mistake, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: {reason}")]
pub struct Mistake {
    /// Such as `services.pools[1].cidrs[0]`.
    pub path: String,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl Settings {
    /// Reads and checks a settings document. `null` counts as `{}`.
    ///
    /// # Errors
    /// [`Invalid`] with every mistake, not just the first.
    pub fn from_value(document: &Value) -> Result<Self, Invalid> {
        let (settings, origins, mut mistakes) = read::settings(document);
        mistakes.extend(check_services::mistakes(&settings, &origins.services));
        mistakes.extend(check_nodes::mistakes(&settings, &origins.nodes));
        mistakes.extend(check_external::mistakes(&settings, &origins.external));
        if mistakes.is_empty() { Ok(settings) } else { Err(Invalid { mistakes }) }
    }

    /// What is allowed, but probably not meant.
    pub fn warnings(&self) -> Vec<Mistake> {
        let mut warnings = check_services::warnings(self);
        warnings.extend(check_nodes::warnings(self));
        warnings
    }

    /// The address of `default/kubernetes`: the first one of the primary Service range, where known.
    pub fn kubernetes_address(&self) -> Option<IpAddr> {
        let primary = self.service_cidrs.first()?;
        crate::address::Blocks::addresses(*primary).address(1)
    }

    /// Whether the cluster is known to have Service ranges of this family.
    pub fn cluster_has(&self, family: Family) -> bool {
        self.service_cidrs.iter().any(|cidr| Family::of(cidr.addr()) == family)
    }

    /// The pool of this name.
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// The pool that `address` lies in.
    pub fn pool_of(&self, address: IpAddr) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.contains(address))
    }

    /// The addresses of `family` that `pool` may hand out: without `reserved`, `exclude`, the address of
    /// `default/kubernetes`, and the ranges that the API server gives no address of now.
    pub fn candidates(&self, pool: &Pool, family: Family) -> Candidates {
        self.candidates_without(pool, family, self.unusable_service_cidrs.iter().map(|range| range.cidr))
    }

    /// The same, where the API server gives addresses of every range but of these.
    fn candidates_without(&self, pool: &Pool, family: Family, unusable: impl Iterator<Item = IpNet>) -> Candidates {
        let mut exclude = pool.exclude.clone();
        exclude.extend(self.kubernetes_address().map(IpNet::from));
        exclude.extend(unusable);
        let ranges: Vec<Range<'_>> =
            pool.cidrs_of(family).map(|cidr| Range { cidr, reserved: pool.reserved, exclude: &exclude }).collect();
        Candidates::new(&ranges, pool.bands)
    }
}

impl Pool {
    /// Its ranges of one family.
    pub fn cidrs_of(&self, family: Family) -> impl Iterator<Item = IpNet> {
        self.cidrs.iter().copied().filter(move |cidr| Family::of(cidr.addr()) == family)
    }

    /// Whether it has a range of this family.
    pub fn has(&self, family: Family) -> bool {
        self.cidrs_of(family).next().is_some()
    }

    /// Whether an address lies in one of its ranges, handed out or not.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.cidrs.iter().any(|cidr| cidr.contains(&address))
    }

    /// Its ranges of one family, in words.
    pub fn ranges(&self, family: Family) -> String {
        self.cidrs_of(family).map(|cidr| cidr.to_string()).collect::<Vec<_>>().join(", ")
    }
}

impl Default for Settings {
    /// The pools of the K2s distribution: 172.21.0.0/24 for Linux, 172.21.1.0/24 for Windows, the first
    /// 50 addresses of each kept for addresses set by hand.
    fn default() -> Self {
        let pool = |os: &str, third| {
            let mut matches = Match::default();
            matches.node_labels.insert(OS_LABEL.into(), os.into());
            let cidrs = vec![IpNet::new_assert([172, 21, third, 0].into(), 24)];
            Pool { name: os.into(), cidrs, reserved: 50, matches, ..Pool::default() }
        };
        Self {
            pools: vec![pool("windows", 1), pool("linux", 0)],
            kinds: WorkloadKind::known(),
            lookups: Lookups::default(),
            assume_os: "linux".into(),
            order: Order::default(),
            explicit: Explicit::default(),
            when_full: WhenFull::default(),
            exempt_namespaces: vec!["kube-system".into()],
            service_cidrs: Vec::new(),
            unusable_service_cidrs: Vec::new(),
            nodes: NodeSettings::default(),
            external: ExternalSettings::default(),
        }
    }
}
