//! The port: what a decision may ask of the cluster, and how a look-up can fail.

use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use crate::label_selector::Labels;
use crate::settings::Lookups;
use crate::workload::{Workload, WorkloadKind};

/// The questions that a decision asks. Each is answered by the host; none changes anything.
///
/// Every method fails with a [`LookupError`] where the host can't answer. An object that is not there
/// is no failure.
pub trait Cluster {
    /// The objects of a kind in `namespace` whose Pods' labels `selects` accepts, in any order.
    /// `lookups` says how to ask, never what the answer is.
    fn workloads(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        lookups: Lookups,
        selects: &dyn Fn(&Labels) -> bool,
    ) -> Result<Vec<Workload>, LookupError>;

    /// The labels and annotations of a Namespace.
    fn namespace(&self, name: &str) -> Result<Option<NamespaceMeta>, LookupError>;

    /// The labels of a Node.
    fn node_labels(&self, name: &str) -> Result<Option<Labels>, LookupError>;

    /// The node selector of a RuntimeClass (`scheduling.nodeSelector`), empty where it has none.
    fn runtime_class_nodes(&self, name: &str) -> Result<Option<Labels>, LookupError>;

    /// Calls `visit` with every address that a Service has, in any order and possibly more than once, together
    /// with the Service's namespace and name.
    fn service_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError>;

    /// Calls `visit` with every external address that a Service has or claims, in any order and possibly more
    /// than once, together with the Service's namespace and name: those that it has recorded, its
    /// [`claims`](crate::external::claim::claims), and those in `status.loadBalancer.ingress`.
    fn external_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError>;

    /// Calls `visit` with every pod CIDR that a Node has, in any order and possibly more than once, together
    /// with the Node's name.
    fn node_blocks(&self, visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError>;

    /// Whether an `IPAddress` object of this address exists, by a consistent read. A host that knows of
    /// more that is taken (addresses in flight, those of a move under way) answers that it exists.
    fn ip_address(&self, address: IpAddr) -> Result<IpAddressLookup, LookupError>;
}

/// What a Namespace says about its Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceMeta {
    /// Its labels.
    pub labels: Labels,
    /// Its annotations.
    pub annotations: Labels,
}

/// What the look-up of an `IPAddress` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpAddressLookup {
    /// It exists: the address is taken.
    Taken,
    /// It does not exist: the address is free.
    Free,
    /// The cluster has no such API (before Kubernetes 1.33): Services alone tell.
    NoSuchApi,
}

/// A look-up that failed: the request it was made for is denied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LookupError {
    /// The policy, or the host behind it, may not read this.
    #[error("may not read {resource}: {detail}")]
    NotGranted {
        /// The kind, with its API version.
        resource: String,
        /// The host's own words.
        detail: String,
    },
    /// The cluster does not know this kind.
    #[error("the cluster has no {resource}: {detail}")]
    NoSuchApi {
        /// The kind, with its API version.
        resource: String,
        /// The host's own words.
        detail: String,
    },
    /// The answer is not what it should be.
    #[error("the host's answer about {resource} can't be read: {detail}")]
    Malformed {
        /// The kind, with its API version.
        resource: String,
        /// What is wrong, and where.
        detail: String,
    },
    /// Anything else.
    #[error("looking up {resource} failed: {detail}")]
    Failed {
        /// The kind, with its API version.
        resource: String,
        /// The host's own words.
        detail: String,
    },
}

impl LookupError {
    /// What whoever reads the message can do.
    pub fn way_out(&self) -> String {
        // Only workloads can be done without.
        let drop_it = |resource: &str| {
            let is_workload = WorkloadKind::parse(resource.strip_prefix("v1/").unwrap_or(resource)).is_some();
            if is_workload { ", or take the kind out of services.evidence.kinds" } else { "" }
        };
        match self {
            Self::NotGranted { resource, .. } => {
                format!("grant read access to it, to the policy and to its host{}", drop_it(resource))
            }
            Self::NoSuchApi { resource, .. } => format!("install the API{}", drop_it(resource)),
            Self::Malformed { .. } => "report it with the host's version".to_owned(),
            Self::Failed { .. } => "try again; if it stays, see the log of the host".to_owned(),
        }
    }
}
