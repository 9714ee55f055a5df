//! External addresses of Services, as the cluster's objects show them: which Services have recorded which addresses,
//! and which nodes may hold them.

pub mod assignments;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_core::annotations::{FOREIGN_ANNOTATIONS, RECORD_ANNOTATION, in_record, recorded_addresses};
use clusterip_core::external::claim::{self, EXTERNAL_IPS, LOAD_BALANCER_IP, claims};
use clusterip_core::json::TypeMismatch;
use clusterip_core::label_selector::Labels;
use clusterip_core::service::Service;
use clusterip_core::settings::{ExternalSettings, Settings};
use clusterip_core::{Decision, InUse, decide_create};
use prometheus_client::metrics::counter::Counter;

use crate::lookups::stored_cluster::StoredCluster;
use crate::panics;
use crate::snapshot::{Snapshot, StoredService};

/// The field of an address that only the status of a Service contains.
const STATUS: &str = "status.loadBalancer.ingress";

/// The external addresses that a Service has recorded for agents; empty if the Service does not get any.
pub fn recorded(service: &StoredService, settings: &ExternalSettings) -> Vec<IpAddr> {
    if service.is_served(settings) { recorded_addresses(service.record()) } else { Vec::new() }
}

/// The addresses of the pools that a Service has without recording them, each with its field or annotation. `shown` are
/// those of its status.
pub fn claimed(
    service: &Service,
    shown: &BTreeSet<IpAddr>,
    settings: &ExternalSettings,
) -> Vec<(&'static str, IpAddr)> {
    let (is_served, recorded) = (settings.is_ours(service), claim::recorded(service));
    let mut claims = claims(service);
    // A Service that this product serves requests its address with this field, too.
    claims.retain(|(place, _)| !is_served || *place != LOAD_BALANCER_IP);
    // The status of a served Service is written by this product.
    let by_others =
        shown.iter().filter(|_| !is_served).filter(|address| !claims.iter().any(|(_, other)| other == *address));
    let by_others: Vec<_> = by_others.map(|address| (STATUS, *address)).collect();
    claims.extend(by_others);
    claims.retain(|(_, address)| settings.pool_of(*address).is_some() && !recorded.contains(address));
    claims
}

/// Asks the policy whether a Service may have the external addresses that it has recorded. If the Service was created, or
/// an address was recorded by hand, while no webhook was registered, the policy has not checked the addresses yet.
///
/// These are the settings for external addresses alone: the other addresses of a Service are decided about elsewhere.
pub struct ExternalPolicy {
    settings: Settings,
    panics: Counter,
}

/// Why a Service may not have addresses; `None` if it may. The error says that the core panicked: nothing is known then.
pub type Refusal = Result<Option<String>, String>;

impl ExternalPolicy {
    pub fn new(settings: &ExternalSettings) -> Self {
        Self::counting(settings, &Counter::default())
    }

    /// The policy that counts its panics.
    pub fn counting(settings: &ExternalSettings, panics: &Counter) -> Self {
        let settings = Settings { pools: Vec::new(), external: settings.clone(), ..Settings::default() };
        Self { settings, panics: panics.clone() }
    }

    /// Why a Service may not have the addresses of pools that it has recorded. The addresses of other Services are not
    /// taken into account.
    pub fn refusal(&self, snapshot: &Arc<RwLock<Snapshot>>, service: &StoredService) -> Refusal {
        let mut recorded = recorded_addresses(service.record());
        let mut record = None;
        // If one of two lies in no pool any more, the Service keeps the other one.
        if recorded.len() > 1 {
            recorded.retain(|address| self.settings.external.pool_of(*address).is_some());
            record = Some(Labels::from([(RECORD_ANNOTATION.to_owned(), in_record(&recorded))]));
        }
        let decision = self.decide(snapshot, service, || {
            let object = bare(service, &[RECORD_ANNOTATION])?;
            Ok(match record {
                Some(record) => Service { annotations: record.into(), ..object },
                None => object,
            })
        })?;
        if let Some(denial) = decision.denial() {
            return Ok(Some(denial.message.clone()));
        }
        // A Service of two families may have an address of one, because the pool was full for the other.
        let takes = |given: &[IpAddr]| recorded.iter().any(|address| !given.contains(address));
        let takes_any = decision.external.is_some_and(|external| external.changes() && takes(&external.addresses));
        Ok(takes_any.then(|| "the policy would give it other addresses".to_owned()))
    }

    /// Why a Service may not claim the addresses that it claims besides its record. The addresses of other Services are
    /// not taken into account.
    pub fn claim_refusal(&self, snapshot: &Arc<RwLock<Snapshot>>, service: &StoredService) -> Refusal {
        let claims = [&[EXTERNAL_IPS, LOAD_BALANCER_IP][..], &FOREIGN_ANNOTATIONS].concat();
        Ok(self.decide(snapshot, service, || bare(service, &claims))?.denial().map(|denial| denial.message.clone()))
    }

    fn decide(
        &self,
        snapshot: &Arc<RwLock<Snapshot>>,
        service: &StoredService,
        read: impl FnOnce() -> Result<Service, TypeMismatch>,
    ) -> Result<Decision, String> {
        let (key, in_use) = (service.key(), InUse { blocks: None, external: Some(&|_, _| None) });
        let cluster = StoredCluster::of(snapshot, key);
        self.guarded(service, || decide_create("external", &key.namespace, read(), &self.settings, in_use, &cluster))
    }

    /// A panic about one Service must not keep others from getting and holding their addresses.
    fn guarded<T>(&self, service: &StoredService, decide: impl FnOnce() -> T) -> Result<T, String> {
        panics::catch_about(service.key(), decide).inspect_err(|_| _ = self.panics.inc())
    }
}

/// Reduces a Service to the fields on which the policy's decision depends, plus these fields and annotations.
fn bare(service: &StoredService, more: &[&str]) -> Result<Service, TypeMismatch> {
    const ALWAYS: [&str; 8] = [
        "metadata.labels",
        "metadata.annotations",
        "spec.type",
        "spec.loadBalancerClass",
        "spec.ipFamilies",
        "spec.ipFamilyPolicy",
        "spec.clusterIP",
        "spec.clusterIPs",
    ];
    service.in_request(|field| ALWAYS.contains(&field) || more.contains(&field))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn recorded_addresses_are_read_from_served_services_only() {
        let settings = |default| ExternalSettings { default, pools: vec![Default::default()], ..Default::default() };
        let service = |kind: &str, class: Value, record: &str| {
            json!({
                "metadata": {"annotations": {"clusterip-policy/external-addresses": record}},
                "spec": {"type": kind, "loadBalancerClass": class},
            })
        };
        let ours = || json!("clusterip-policy/external");
        let none = Value::Null;
        // Whether the settings include Services without a class.
        for (name, service, default, expected) in [
            ("of our class", service("LoadBalancer", ours(), "10.0.9.10"), false, &["10.0.9.10"][..]),
            ("both families", service("LoadBalancer", ours(), "fd00::9, 10.0.9.10"), false, &["fd00::9", "10.0.9.10"]),
            ("of another class", service("LoadBalancer", json!("other"), "10.0.9.10"), true, &[]),
            ("without a class", service("LoadBalancer", none.clone(), "10.0.9.10"), false, &[]),
            ("without a class, included", service("LoadBalancer", none, "10.0.9.10"), true, &["10.0.9.10"]),
            ("of another type", service("ClusterIP", ours(), "10.0.9.10"), true, &[]),
        ] {
            let expected: Vec<IpAddr> = expected.iter().map(|address| address.parse().unwrap()).collect();
            assert_eq!(recorded(&StoredService::read(&service), &settings(default)), expected, "{name}");
        }
        let without_pools = ExternalSettings::default();
        assert!(!StoredService::read(&service("LoadBalancer", ours(), "")).is_served(&without_pools), "without pools");
    }

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
            policy.refusal(&snapshot, &StoredService::read(&service)).unwrap()
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
