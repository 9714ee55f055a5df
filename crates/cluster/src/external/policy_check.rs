//! Asks the policy whether a Service may have the external addresses that it has recorded.
//!
//! If the Service was created, or an address was recorded by hand, while no webhook was registered, the policy has not
//! checked the addresses yet.

use std::sync::{Arc, RwLock};

use clusterip_core::annotations::{FOREIGN_ANNOTATIONS, RECORD_ANNOTATION};
use clusterip_core::settings::{ExternalSettings, Settings};
use clusterip_core::{Decision, InUse, decide_service};
use serde_json::{Map, Value, json};

use crate::lookups::stored_cluster::StoredCluster;
use crate::snapshot::{Snapshot, StoredService};

/// The settings for external addresses alone: the other addresses of a Service are decided about elsewhere.
pub struct ExternalPolicy(Settings);

impl ExternalPolicy {
    pub fn new(settings: &ExternalSettings) -> Self {
        Self(Settings { pools: Vec::new(), external: settings.clone(), ..Settings::default() })
    }

    /// Why a Service may not have the addresses that it has recorded; `None` if it may. The addresses of other Services
    /// are not taken into account.
    pub fn refusal(&self, snapshot: &Arc<RwLock<Snapshot>>, service: &StoredService) -> Option<String> {
        let decision = self.decide(snapshot, &bare(&service.value(), &[], &[RECORD_ANNOTATION]));
        if let Some(denial) = decision.denial() {
            return Some(denial.message.clone());
        }
        let changes = decision.external.is_some_and(|external| external.changes());
        changes.then(|| "the policy would give it other addresses".to_owned())
    }

    /// Why a Service may not claim the addresses that it claims besides its record; `None` if it may. The addresses of
    /// other Services are not taken into account.
    pub fn claim_refusal(&self, snapshot: &Arc<RwLock<Snapshot>>, service: &StoredService) -> Option<String> {
        let object = bare(&service.value(), &["externalIPs", "loadBalancerIP"], &FOREIGN_ANNOTATIONS);
        self.decide(snapshot, &object).denial().map(|denial| denial.message.clone())
    }

    fn decide(&self, snapshot: &Arc<RwLock<Snapshot>>, object: &Value) -> Decision {
        let in_use = InUse { blocks: None, external: Some(&|_| None) };
        decide_service("external", object, None, &self.0, in_use, &StoredCluster::new(snapshot, object))
    }
}

/// Reduces a Service to the fields on which the policy's decision depends, plus these fields of its `spec` and these
/// annotations.
fn bare(service: &Value, fields: &[&str], annotations: &[&str]) -> Value {
    let of = |path: &str, keys: &[&str]| -> Map<String, Value> {
        let fields = service.pointer(path).and_then(Value::as_object).into_iter().flatten();
        let kept = fields.filter(|(key, _)| keys.contains(&key.as_str()));
        kept.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let mut metadata = of("/metadata", &["namespace", "name", "labels"]);
    metadata.insert("annotations".to_owned(), of("/metadata/annotations", annotations).into());
    const SPEC: [&str; 6] = ["type", "loadBalancerClass", "ipFamilies", "ipFamilyPolicy", "clusterIP", "clusterIPs"];
    let spec = of("/spec", &[&SPEC, fields].concat());
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
}
