//! Asks the policy whether a Service may have the external addresses that it has recorded.
//!
//! If the Service was created, or an address was recorded by hand, while no webhook was registered, the policy has not
//! checked the addresses yet.

use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_core::annotations::{FOREIGN_ANNOTATIONS, RECORD_ANNOTATION, in_record, recorded_addresses};
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

    /// Why a Service may not have the addresses of pools that it has recorded; `None` if it may. The addresses of other
    /// Services are not taken into account.
    pub fn refusal(&self, snapshot: &Arc<RwLock<Snapshot>>, service: &StoredService) -> Option<String> {
        let mut recorded = recorded_addresses(service.record());
        let mut object = bare(&service.value(), &[], &[RECORD_ANNOTATION]);
        // If one of two lies in no pool any more, the Service keeps the other one.
        if recorded.len() > 1 {
            recorded.retain(|address| self.0.external.pool_of(*address).is_some());
            object["metadata"]["annotations"][RECORD_ANNOTATION] = in_record(&recorded).into();
        }
        let decision = self.decide(snapshot, &object);
        if let Some(denial) = decision.denial() {
            return Some(denial.message.clone());
        }
        // A Service of two families may have an address of one, because the pool was full for the other.
        let takes = |given: &[IpAddr]| recorded.iter().any(|address| !given.contains(address));
        let takes_any = decision.external.is_some_and(|external| external.changes() && takes(&external.addresses));
        takes_any.then(|| "the policy would give it other addresses".to_owned())
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn service_may_keep_what_the_policy_would_give_it() {
        let document = json!({"external": {"pools": [{"name": "lan", "cidrs": ["10.0.9.0/24", "fd00:9::/120"],
            "exclude": ["10.0.9.20"], "match": {"serviceSelector": {"matchLabels": {"app": "web"}}}}]}});
        let policy = ExternalPolicy::new(&Settings::from_value(&document).unwrap().external);
        let snapshot = Arc::default();
        let refusal = |app: &str, families: &[&str], record: &str| {
            let service = json!({
                "metadata": {"namespace": "shop", "name": "web", "labels": {"app": app},
                    "annotations": {RECORD_ANNOTATION: record}},
                "spec": {"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external", "ipFamilies": families},
            });
            policy.refusal(&snapshot, &StoredService::read(&service))
        };
        let both = ["IPv4", "IPv6"];
        for (families, record) in [
            (&both[..], "10.0.9.9,fd00:9::9"),
            (&both, "10.0.9.9"),
            (&both, "fd00:9::9"),
            (&both, "10.0.9.9,fd00:8::9"),
            (&both[..1], "10.0.9.9"),
        ] {
            assert_eq!(refusal("web", families, record), None, "{families:?}: {record}");
            assert!(refusal("other", families, record).is_some(), "{families:?}: {record}, of another Service");
        }
        for (families, record) in [(&both[..], "10.0.9.20"), (&both, "10.0.9.20,fd00:9::9"), (&both[..1], "fd00:9::9")]
        {
            assert!(refusal("web", families, record).is_some(), "{families:?}: {record}");
        }
    }
}
