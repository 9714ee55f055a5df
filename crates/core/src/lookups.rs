//! The port to the cluster: which look-ups a decision makes, and how a look-up can fail.

use std::cell::OnceCell;
use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use crate::address::Span;
use crate::annotations::AnnotationMap;
use crate::label_selector::Labels;
use crate::settings::Lookups;
use crate::workload::{Workload, WorkloadKind};

/// The look-ups of a decision. The host carries them out. All of them only read, except [`Self::reserve`].
///
/// Every method returns a [`LookupError`] if the host can't answer. An object that does not exist is not an error.
pub trait Cluster {
    /// The objects of a kind in `namespace` whose Pods have all labels of `selector`, which is not empty, in any order.
    /// `lookups` selects how they are queried; it must not change the result.
    fn workloads(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        lookups: Lookups,
        selector: &Labels,
    ) -> Result<Selected, LookupError>;

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

    /// The addresses of `ranges` that no other Service has, if the host knows them without a look-up: the first `most` of
    /// each range, and whether these are all. [`Self::reserve`] may find one of them taken all the same.
    fn free_addresses(&self, _ranges: &[Span], _most: usize) -> Option<(Vec<IpAddr>, bool)> {
        None
    }

    /// Calls `visit` with the namespace and name of each Service and each external address that it has or claims, in
    /// any order. An address may be visited more than once. Included are the addresses in its record, its
    /// [`claims`](crate::external::claim::claims), and those in `status.loadBalancer.ingress`.
    fn external_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError>;

    /// Calls `visit` with the name of each Node and each of its pod CIDRs, in any order. A CIDR may be visited more
    /// than once, and one that overlaps none of `blocks` may be left out.
    fn node_blocks(&self, blocks: &[IpNet], visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError>;

    /// Reserves an address for the Service of the request, if it is free: by a consistent read, no `IPAddress` object
    /// of it exists. A host with a ledger keeps the address for this Service from then on, and answers
    /// [`Reserve::Taken`] for an address that is in flight or part of a move in progress. A host without memory, and a
    /// dry run, only read.
    fn reserve(&self, address: IpAddr) -> Result<Reserve, LookupError>;
}

/// A cluster without objects, for examples and tests: every address is free.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmptyCluster;

impl Cluster for EmptyCluster {
    fn workloads(&self, _: &WorkloadKind, _: &str, _: Lookups, _: &Labels) -> Result<Selected, LookupError> {
        Ok(Selected::default())
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

    fn node_blocks(&self, _: &[IpNet], _: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError> {
        Ok(())
    }

    fn reserve(&self, _: IpAddr) -> Result<Reserve, LookupError> {
        Ok(Reserve::Free)
    }
}

/// The workloads of one kind that a Service selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    pub workloads: Vec<Workload>,
    /// Whether there may be more: a host may bound how much one decision reads. The answer then has a warning.
    pub is_cut: bool,
    /// Whether the host does not keep some workloads of this kind, because the namespace has too many objects. The
    /// answer then has a warning.
    pub is_incomplete: bool,
}

/// The metadata of a Namespace that affects its Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceMeta {
    pub labels: Labels,
    pub annotations: AnnotationMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    Taken,
    /// The address was free, and the host has reserved it for the Service of the request.
    Reserved,
    /// The address is free, or the Service has it already. The host has not reserved it.
    Free,
    /// The cluster does not have this API (before Kubernetes 1.33), so only the Services tell which addresses are used.
    NoSuchApi,
}

/// A failed look-up. The request that needed it is denied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LookupError {
    /// The policy or its host lacks the permission to read this kind.
    #[error("no permission to read {resource}: {detail}")]
    NotGranted { resource: String, detail: String },
    #[error("the cluster has no {resource}: {detail}")]
    NoSuchApi { resource: String, detail: String },
    #[error("the host's answer about {resource} can't be read: {detail}")]
    Malformed { resource: String, detail: String },
    #[error("looking up {resource} failed: {detail}")]
    Failed { resource: String, detail: String },
}

impl LookupError {
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

/// A Namespace that is looked up on first use and then kept.
pub struct LazyNamespace<'c> {
    name: &'c str,
    cluster: &'c dyn Cluster,
    meta: OnceCell<Option<NamespaceMeta>>,
}

impl<'c> LazyNamespace<'c> {
    pub fn new(name: &'c str, cluster: &'c dyn Cluster) -> Self {
        Self { name, cluster, meta: OnceCell::new() }
    }

    pub fn name(&self) -> &'c str {
        self.name
    }

    /// `None` if the Namespace does not exist. After an error, the next call tries again.
    pub fn get(&self) -> Result<Option<&NamespaceMeta>, LookupError> {
        if let Some(meta) = self.meta.get() {
            return Ok(meta.as_ref());
        }
        let meta = self.cluster.namespace(self.name)?;
        Ok(self.meta.get_or_init(|| meta).as_ref())
    }
}
