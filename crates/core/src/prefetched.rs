//! Answers to look-ups that the host sends with a request, so that the policy does not make these look-ups.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::address::{Span, parse_address};
use crate::json::{Located, TypeMismatch};
use crate::label_selector::Labels;
use crate::lookups::{Cluster, IpAddressLookup, LookupError, NamespaceMeta};
use crate::settings::Lookups;
use crate::workload::{Workload, WorkloadKind};

/// What a host knows before it asks the policy about a Service. It saves look-ups and changes no decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefetched {
    /// The kinds of workloads of which the Service may select objects, each as `apiVersion/kind`. The Service selects
    /// no object of any other kind. `None` if the host does not know.
    pub workload_kinds: Option<Vec<String>>,
    /// Addresses that other Services have, and none that the Service itself has. An address may be missing if its
    /// look-up says that it is taken. `None` if the host does not know.
    pub used: Option<Vec<Span>>,
}

impl Prefetched {
    /// Reads `{"workloadKinds": ["apps/v1/Deployment"], "used": ["10.0.0.1-10.0.0.9", "10.0.0.12"]}`; `null` is a host
    /// that knows nothing.
    ///
    /// # Errors
    /// [`TypeMismatch`] for any other form.
    pub fn read(value: &Value) -> Result<Self, TypeMismatch> {
        let at = Located::new(value, "prefetched");
        let mut read = Self::default();
        if at.get("workloadKinds")?.is_some() {
            read.workload_kinds = Some(at.texts_of("workloadKinds")?.into_iter().map(str::to_owned).collect());
        }
        if let Some(list) = at.get("used")? {
            let mut used = Vec::new();
            for item in list.items()? {
                let text = item.text()?;
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                match (parse_address(first), parse_address(last)) {
                    (Some(first), Some(last)) => used.extend(Span::new(first, last)),
                    _ => return Err(item.mismatch("addresses")),
                }
            }
            read.used = Some(used);
        }
        Ok(read)
    }

    /// The form that [`Self::read`] reads.
    pub fn to_value(&self) -> Value {
        let used = self.used.as_ref().map(|used| used.iter().map(ToString::to_string).collect::<Vec<_>>());
        json!({"workloadKinds": self.workload_kinds, "used": used})
    }
}

/// A cluster of which some answers are known in advance.
pub(crate) struct PrefetchedCluster<'a> {
    pub(crate) cluster: &'a dyn Cluster,
    pub(crate) prefetched: &'a Prefetched,
}

impl Cluster for PrefetchedCluster<'_> {
    fn workloads(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        lookups: Lookups,
        selects: &dyn Fn(&Labels) -> bool,
    ) -> Result<Vec<Workload>, LookupError> {
        match &self.prefetched.workload_kinds {
            Some(kinds) if !kinds.contains(&kind.resource()) => Ok(Vec::new()),
            _ => self.cluster.workloads(kind, namespace, lookups, selects),
        }
    }

    fn namespace(&self, name: &str) -> Result<Option<NamespaceMeta>, LookupError> {
        self.cluster.namespace(name)
    }

    fn node_labels(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        self.cluster.node_labels(name)
    }

    fn runtime_class_nodes(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        self.cluster.runtime_class_nodes(name)
    }

    fn service_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        self.cluster.service_addresses(visit)
    }

    fn known_used(&self) -> Option<&[Span]> {
        self.prefetched.used.as_deref()
    }

    fn external_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        self.cluster.external_addresses(visit)
    }

    fn node_blocks(&self, visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError> {
        self.cluster.node_blocks(visit)
    }

    fn ip_address(&self, address: IpAddr) -> Result<IpAddressLookup, LookupError> {
        self.cluster.ip_address(address)
    }
}
