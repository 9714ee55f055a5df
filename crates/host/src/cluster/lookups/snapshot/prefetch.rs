//! What a snapshot tells the policy with a request, so that the policy does not look it up.

use std::net::IpAddr;

use clusterip_core::address::Order;
use clusterip_core::label_selector::Labels;
use clusterip_core::prefetched::Prefetched;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{Lookups, Settings};
use clusterip_core::workload::WorkloadKind;

use super::{Kind, Snapshot, addresses};
use crate::object;

impl Snapshot {
    /// The answers to look-ups that the policy makes under these settings for a Service with this selector.
    pub(super) fn prefetched(&self, settings: &Settings, service: &ServiceKey, selector: &Labels) -> Prefetched {
        // Look-ups of the whole cluster read all objects, and fail if one of them can't be read.
        let by_namespace = settings.lookups == Lookups::Namespace && !selector.is_empty();
        let selected = |kind: &&WorkloadKind| self.may_select(kind, &service.namespace, selector);
        let kinds = || settings.kinds.iter().filter(selected).map(WorkloadKind::resource).collect();
        let own = || -> Vec<IpAddr> {
            let service = self.get("v1", "Service", &service.namespace, &service.name);
            service.map(|service| addresses(&service)).unwrap_or_default()
        };
        Prefetched {
            workload_kinds: by_namespace.then(kinds),
            used: (settings.order == Order::Lowest).then(|| self.addresses.used_by_others(service, &own())),
        }
    }

    /// Whether a list of this kind in a namespace may fail, or may contain workloads with all labels of `selector`.
    fn may_select(&self, kind: &WorkloadKind, namespace: &str, selector: &Labels) -> bool {
        let listed = Kind::new(&kind.api_version, &kind.kind);
        if self.absent.contains(&listed) || !object::is_namespaced(&kind.kind) {
            return true;
        }
        let index = self.kinds.get(&listed).and_then(|objects| objects.by_label.get(namespace));
        let is_known = |(key, value): (&String, &String)| {
            index.is_some_and(|index| index.contains_key(&(key.clone(), value.clone())))
        };
        selector.iter().all(is_known)
    }
}
