//! Reads packed objects of a snapshot, so that they are parsed after the snapshot is unlocked.

use std::cell::Cell;
use std::net::IpAddr;

use clusterip_core::address::Span;
use clusterip_core::label_selector::Labels;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::workload::WorkloadKind;
use ipnet::IpNet;

use super::{Kind, Snapshot};
use crate::object::Packed;

impl Snapshot {
    /// Whether the cluster has a kind, as far as is known.
    pub fn has_api(&self, api_version: &str, kind: &str) -> bool {
        !self.absent.contains(&Kind::new(api_version, kind))
    }

    /// Workloads of a kind in a namespace: all that a Service with this selector selects, and some whose Pods have only
    /// a part of its labels; as many as have `left` bytes together. The second value says whether there are more.
    pub fn may_be_selected(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        selector: &Labels,
        left: &Cell<usize>,
    ) -> (Vec<Packed>, bool) {
        let Some(objects) = self.kinds.get(&Kind::new(&kind.api_version, &kind.kind)) else {
            return (Vec::new(), false);
        };
        let (found, is_cut) = objects.with_rarest_label(namespace, selector, left);
        (found.into_iter().map(|object| object.whole.clone()).collect(), is_cut)
    }

    /// Calls `visit` with the namespace, name and address of each Service and each of its addresses, in any order.
    pub fn each_service_address(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) {
        self.addresses.each(visit);
    }

    /// The longer spans of addresses that Services other than `service` have. `own` are the addresses of `service`.
    pub fn used_by_others(&self, service: &ServiceKey, own: &[IpAddr]) -> Vec<Span> {
        self.addresses.used_by_others(service, own)
    }

    /// Calls `visit` with the name of each Node and each of its pod CIDRs that overlaps one of `blocks`, in any order.
    pub fn each_overlapping_block(&self, blocks: &[IpNet], visit: &mut dyn FnMut(&str, IpNet)) {
        self.blocks.each_overlapping(blocks, &mut |block, nodes| nodes.iter().for_each(|node| visit(node, block)));
    }

    /// All objects of a kind, ordered by namespace and name.
    pub fn packed_all(&self, api_version: &str, kind: &str) -> Vec<Packed> {
        let objects = self.kinds.get(&Kind::new(api_version, kind)).into_iter();
        objects.flat_map(|objects| objects.by_name.values()).map(|object| object.whole.clone()).collect()
    }
}
