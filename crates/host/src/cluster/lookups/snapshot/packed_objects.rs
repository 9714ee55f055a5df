//! Reads packed objects of a snapshot, so that they are parsed after the snapshot is unlocked.

use clusterip_core::label_selector::Labels;
use clusterip_core::workload::WorkloadKind;

use super::{Kind, Snapshot};
use crate::object::{self, Packed};

impl Snapshot {
    /// Whether the cluster has a kind, as far as is known.
    pub fn has_api(&self, api_version: &str, kind: &str) -> bool {
        !self.absent.contains(&Kind::new(api_version, kind))
    }

    /// Workloads of a kind in a namespace: all that a list for a Service with this selector contains, and some whose
    /// Pods have only a part of its labels. `None` if such a list fails.
    pub fn may_be_selected(&self, kind: &WorkloadKind, namespace: &str, selector: &Labels) -> Option<Vec<Packed>> {
        if !self.has_api(&kind.api_version, &kind.kind) || !object::is_namespaced(&kind.kind) {
            return None;
        }
        let Some(objects) = self.kinds.get(&Kind::new(&kind.api_version, &kind.kind)) else { return Some(Vec::new()) };
        Some(objects.with_rarest_label(namespace, selector).into_iter().map(|object| object.whole.clone()).collect())
    }

    /// All objects of a kind, ordered by namespace and name.
    pub fn packed_all(&self, api_version: &str, kind: &str) -> Vec<Packed> {
        let objects = self.kinds.get(&Kind::new(api_version, kind)).into_iter();
        objects.flat_map(|objects| objects.by_name.values()).map(|object| object.whole.clone()).collect()
    }
}
