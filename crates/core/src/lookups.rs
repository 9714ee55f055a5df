//! The port to the cluster: which look-ups a decision makes, and how a look-up can fail.

use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use crate::address::Span;
use crate::label_selector::Labels;
use crate::settings::Lookups;
use crate::workload::{Workload, WorkloadKind};

/// The look-ups of a decision. The host carries them out; they only read.
///
/// Every method returns a [`LookupError`] if the host can't answer. An object that does not exist is not an error.
pub trait Cluster {
    /// The objects of a kind in `namespace` whose Pod labels `selects` accepts, in any order. `lookups` selects how
    /// they are queried; it must not change the result.
    fn workloads(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        lookups: Lookups,
        selects: &dyn Fn(&Labels) -> bool,
    ) -> Result<Vec<Workload>, LookupError>;

    /// The labels and annotations of a Namespace; `None` if it does not exist.
    fn namespace(&self, name: &str) -> Result<Option<NamespaceMeta>, LookupError>;

    /// The labels of a Node; `None` if it does not exist.
    fn node_labels(&self, name: &str) -> Result<Option<Labels>, LookupError>;

    /// The node selector of a RuntimeClass (`scheduling.nodeSelector`), empty if it has none; `None` if the
    /// RuntimeClass does not exist.
    fn runtime_class_nodes(&self, name: &str) -> Result<Option<Labels>, LookupError>;

    /// Calls `visit` with the namespace and name of each Service and each of its cluster IPs, in any order. An address
    /// may be visited more than once.
    fn service_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError>;

    /// Addresses that other Services have, as far as the host sent them with the request; `None` if it sent none. An
    /// address that is missing here may be in use all the same.
    fn known_used(&self) -> Option<&[Span]> {
        None
    }

    /// Calls `visit` with the namespace and name of each Service and each external address that it has or claims, in
    /// any order. An address may be visited more than once. Included are the addresses in its record, its
    /// [`claims`](crate::external::claim::claims), and those in `status.loadBalancer.ingress`.
    fn external_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError>;

    /// Calls `visit` with the name of each Node and each of its pod CIDRs, in any order. A CIDR may be visited more
    /// than once.
    fn node_blocks(&self, visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError>;

    /// Whether an `IPAddress` object of this address exists, by a consistent read. A host that knows of other addresses
    /// in use (in flight, or part of a move in progress) answers [`IpAddressLookup::Taken`] for them.
    fn ip_address(&self, address: IpAddr) -> Result<IpAddressLookup, LookupError>;
}

/// A cluster without objects, for examples and tests: every address is free.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmptyCluster;

impl Cluster for EmptyCluster {
    fn workloads(
        &self,
        _: &WorkloadKind,
        _: &str,
        _: Lookups,
        _: &dyn Fn(&Labels) -> bool,
    ) -> Result<Vec<Workload>, LookupError> {
        Ok(Vec::new())
    }

    fn namespace(&self, _: &str) -> Result<Option<NamespaceMeta>, LookupError> {
        Ok(None)
    }

    fn node_labels(&self, _: &str) -> Result<Option<Labels>, LookupError> {
        Ok(None)
    }

    fn runtime_class_nodes(&self, _: &str) -> Result<Option<Labels>, LookupError> {
        Ok(None)
    }

    fn service_addresses(&self, _: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        Ok(())
    }

    fn external_addresses(&self, _: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        Ok(())
    }

    fn node_blocks(&self, _: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError> {
        Ok(())
    }

    fn ip_address(&self, _: IpAddr) -> Result<IpAddressLookup, LookupError> {
        Ok(IpAddressLookup::Free)
    }
}

/// The metadata of a Namespace that affects its Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceMeta {
    /// `metadata.labels`
    pub labels: Labels,
    /// `metadata.annotations`
    pub annotations: Labels,
}

/// The result of looking up an `IPAddress` object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpAddressLookup {
    /// The object exists, so the address is taken.
    Taken,
    /// The object does not exist, so the address is free.
    Free,
    /// The cluster does not have this API (before Kubernetes 1.33), so only the Services tell which addresses are used.
    NoSuchApi,
}

/// A failed look-up. The request that needed it is denied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LookupError {
    /// The policy or its host lacks the permission to read this kind.
    #[error("no permission to read {resource}: {detail}")]
    NotGranted {
        /// The kind, with its API version.
        resource: String,
        /// The error text of the host.
        detail: String,
    },
    /// The cluster does not have this kind.
    #[error("the cluster has no {resource}: {detail}")]
    NoSuchApi {
        /// The kind, with its API version.
        resource: String,
        /// The error text of the host.
        detail: String,
    },
    /// The host's answer does not have the expected form.
    #[error("the host's answer about {resource} can't be read: {detail}")]
    Malformed {
        /// The kind, with its API version.
        resource: String,
        /// The mistake, and its path.
        detail: String,
    },
    /// Any other failure.
    #[error("looking up {resource} failed: {detail}")]
    Failed {
        /// The kind, with its API version.
        resource: String,
        /// The error text of the host.
        detail: String,
    },
}

impl LookupError {
    /// The remedy, for the reader of the error.
    pub fn remedy(&self) -> String {
        // Only workloads can be left out by a setting.
        let drop_it = |resource: &str| {
            let is_workload = WorkloadKind::parse(resource.strip_prefix("v1/").unwrap_or(resource)).is_some();
            if is_workload { ", or remove the kind from services.evidence.kinds" } else { "" }
        };
        match self {
            Self::NotGranted { resource, .. } => {
                format!("grant the policy and its host read access{}", drop_it(resource))
            }
            Self::NoSuchApi { resource, .. } => format!("install the API{}", drop_it(resource)),
            Self::Malformed { .. } => "report it with the host's version".to_owned(),
            Self::Failed { .. } => "try again; if it still fails, see the log of the host".to_owned(),
        }
    }
}
