//! Where a Service lies, and where it belongs.
//!
//! A decision is made as if the Service were created now without an address. It names the Service's pool and an address
//! of that pool.

use std::net::IpAddr;

use clusterip_cluster::panics;
use clusterip_cluster::snapshot::StoredService;
use clusterip_core::address::Family;
use clusterip_core::annotations::{FOREIGN_ANNOTATIONS, REASON_ANNOTATION, RECORD_ANNOTATION};
use clusterip_core::decision::Report;
use clusterip_core::external::claim::{EXTERNAL_IPS, LOAD_BALANCER_IP};
use clusterip_core::json::TypeMismatch;
use clusterip_core::lookups::{Cluster, LazyNamespace};
use clusterip_core::service::Service;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::first_mismatch;
use clusterip_core::settings::{Pool, Settings, Unmatched};
use clusterip_core::workload::OS_LABEL;
use clusterip_core::{Decision, Verdict};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The Service has no address, or is left alone: it is exempt, or is `default/kubernetes`.
    Unmanaged,
    /// The Service looks as if its move had begun and not ended.
    HalfMoved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    InPlace,
    /// They lie in another pool, which admits the Service, than the one of the operating system that the settings
    /// assume. The Service stays, because its evidence may change as workloads come and go.
    NotWhereAssumed,
    /// No pool is for the Service, but its address lies in a pool: it is misplaced too. The same holds if the pool that
    /// the Service belongs to is unknown, and it lies in a pool that does not admit it.
    Unmatched,
    Misplaced,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub fit: Fit,
    /// The addresses of the Service, primary first.
    pub addresses: Vec<IpAddr>,
    /// The pools that the addresses lie in; empty for addresses outside of all pools.
    pub lies_in: Vec<String>,
    /// Whether the addresses lie in pools, and all these pools admit the Service, by its namespace and its labels. Only
    /// looked up if the Service does not lie in the pool that it belongs to.
    pub is_admitted: bool,
    /// The pool that the Service belongs to; `None` if no pool matches it, or if the policy names none.
    pub pool: Option<String>,
    /// Why the Service belongs there: the evidence, as text. Without a pool, the evidence that was found.
    pub evidence: Option<String>,
    /// A sentence for each label of which the selected workloads want several values.
    pub mixed: Vec<String>,
    /// What would happen to the Service if it were created now.
    pub verdict: Verdict,
}

/// Why the policy is not asked where a Service belongs; `None` if it must be asked.
pub fn skip_reason(settings: &Settings, service: &StoredService) -> Option<Skip> {
    if service.looks_half_moved() {
        return Some(Skip::HalfMoved);
    }
    let ServiceKey { namespace, name } = service.key();
    let unmanaged = service.addresses().is_empty() || settings.exemption(namespace, name).is_some();
    unmanaged.then_some(Skip::Unmanaged)
}

/// The Service as it would be created now, without an address.
pub fn as_if_created(service: &StoredService) -> Result<Service, TypeMismatch> {
    // Without the type, too: a Service that is being moved is an `ExternalName` and is not meant to be one, and the policy
    // is not asked about external addresses.
    const LEFT_OUT: [&str; 6] =
        ["spec.clusterIP", "spec.clusterIPs", "spec.type", EXTERNAL_IPS, LOAD_BALANCER_IP, RECORD_ANNOTATION];
    service.in_request(|field| !LEFT_OUT.contains(&field) && !FOREIGN_ANNOTATIONS.contains(&field))
}

/// A message of the policy about a Service, without the name of the Service at its beginning.
pub fn without_subject<'m>(id: &ServiceKey, message: &'m str) -> &'m str {
    message.strip_prefix(&format!("Service {id}: ")).unwrap_or(message)
}

pub fn noted_reason(service: &Value) -> Option<&str> {
    service.get("metadata")?.get("annotations")?.get(REASON_ANNOTATION)?.as_str()
}

impl Placement {
    /// Compares the decision about [`as_if_created`] with where the Service lies.
    pub fn of(settings: &Settings, service: &StoredService, decision: &Decision, cluster: &dyn Cluster) -> Self {
        let addresses = service.addresses().to_vec();
        let lies_in = pools_of(settings, &addresses);
        let pool = decision.pool.as_deref().and_then(|name| settings.pool(name));
        let is_there = pool.is_some() && addresses.iter().all(|address| fits(settings, pool, *address));
        let is_admitted = !is_there && !lies_in.is_empty() && !excludes_any(&lies_in, service, cluster);
        let evidence = decision.evidence.clone().unwrap_or_default();
        let fit = match pool {
            None if !lies_in.is_empty() && (decision.unmatched || !is_admitted) => Fit::Unmatched,
            None => Fit::InPlace,
            Some(_) if is_there => Fit::InPlace,
            // An operating system that is only assumed moves no Service out of a pool that might be the right one.
            Some(pool) if is_admitted && is_assumed(settings, pool, &evidence) => Fit::NotWhereAssumed,
            Some(_) => Fit::Misplaced,
        };
        Self {
            fit,
            lies_in: lies_in.into_iter().map(|pool| pool.name.clone()).collect(),
            is_admitted,
            addresses,
            pool: pool.map(|pool| pool.name.clone()),
            evidence: match &evidence {
                Report { labels, .. } if pool.is_none() && labels.is_empty() => None,
                Report { labels, source, .. } if labels.is_empty() && source.is_empty() => {
                    Some("by its namespace and labels".to_owned())
                }
                evidence => Some(evidence.describe()),
            },
            mixed: evidence.mixed,
            verdict: decision.verdict.clone(),
        }
    }

    /// Places a Service. After a panic of the core, it is in place and would be denied, and others are placed all the same.
    pub fn guarded(service: &StoredService, place: impl FnOnce() -> Self) -> Self {
        panics::catch_about(service.key(), place).unwrap_or_else(|failure| Self {
            fit: Fit::InPlace,
            lies_in: Vec::new(),
            is_admitted: true,
            addresses: service.addresses().to_vec(),
            pool: None,
            evidence: None,
            mixed: Vec::new(),
            verdict: Decision::denied(500, failure).verdict,
        })
    }

    pub fn why(&self, id: &ServiceKey) -> &str {
        let denial = || self.denial().map(|message| without_subject(id, message));
        self.evidence.as_deref().or_else(denial).unwrap_or("nothing is known of its nodes")
    }

    pub fn denial(&self) -> Option<&str> {
        self.verdict.reason().filter(|_| self.verdict.is_denied())
    }
}

/// Whether an address may stay where it is. If the Service's pool has addresses of its family, it lies in the pool.
/// Otherwise, and for a Service that no pool matches, it lies in no pool; with a pool, this holds only if the settings
/// keep such addresses out of the pools.
pub fn fits(settings: &Settings, pool: Option<&Pool>, address: IpAddr) -> bool {
    match pool {
        Some(pool) if pool.has(Family::of(address)) => pool.contains(address),
        Some(_) if settings.unmatched == Unmatched::Unmanaged => true,
        _ => settings.pool_of(address).is_none(),
    }
}

/// The addresses after a move: for each family the present address if it fits, otherwise the new one.
pub fn merge(settings: &Settings, pool: Option<&Pool>, from: &[IpAddr], new: &[IpAddr]) -> Vec<IpAddr> {
    let target = |address: &IpAddr| {
        let of_family = new.iter().find(|new| new.is_ipv4() == address.is_ipv4());
        of_family.filter(|_| !fits(settings, pool, *address)).copied().unwrap_or(*address)
    };
    from.iter().map(target).collect()
}

/// Whether one of the pools does not admit the Service. What can't be looked up excludes nothing.
fn excludes_any(pools: &[&Pool], service: &StoredService, cluster: &dyn Cluster) -> bool {
    let read = service.in_request(|_| true).unwrap_or_default();
    let namespace = LazyNamespace::new(&service.key().namespace, cluster);
    pools.iter().any(|pool| matches!(first_mismatch(&pool.matches.scope, &read, &namespace), Ok(Some(_))))
}

/// Only the OS is ever assumed, so that counts only if a pool up to this one asks for the OS.
fn is_assumed(settings: &Settings, pool: &Pool, evidence: &Report) -> bool {
    let before = settings.pools.iter().take_while(|other| other.name != pool.name);
    let by_os = before.chain([pool]).any(|pool| pool.matches.node_labels.contains_key(OS_LABEL));
    by_os && evidence.has_assumed_os()
}

fn pools_of<'s>(settings: &'s Settings, addresses: &[IpAddr]) -> Vec<&'s Pool> {
    let mut pools: Vec<&Pool> = addresses.iter().filter_map(|address| settings.pool_of(*address)).collect();
    pools.dedup_by(|one, other| one.name == other.name);
    pools
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use clusterip_cluster::lookups::selectors;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_policy_is_asked_only_about_the_cluster_ip() {
        let service = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "labels": {"app": "web"}, "annotations": {
                "clusterip-policy/os": "windows",
                "clusterip-policy/external-addresses": "10.0.9.20",
                "clusterip-policy/reason": "pool linux: kubernetes.io/os=linux (Deployment shop/web)",
                "metallb.io/loadBalancerIPs": "10.0.9.20",
            }},
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "externalName": "",
                "externalIPs": ["10.0.9.20"], "loadBalancerIP": "10.0.9.20", "selector": {"app": "web"},
            },
        });
        let mut bare = service.clone();
        bare["metadata"]["annotations"] = json!({"clusterip-policy/os": "windows"});
        bare["spec"] = json!({"selector": {"app": "web"}});
        let created = as_if_created(&StoredService::read(&service));
        assert_eq!(created, Service::read(&bare, "request.object"));
    }

    #[test]
    fn service_whose_decision_panics_stays_and_says_why() {
        let service = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"clusterIP": "10.96.0.7"}});
        let placement = Placement::guarded(&StoredService::read(&service), || panic!("on purpose"));
        assert_eq!((placement.fit, placement.denial()), (Fit::InPlace, Some("the decision failed: on purpose")));
        assert_eq!(placement.addresses, ["10.96.0.7".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn service_is_selected_by_labels_that_are_texts() {
        let service = StoredService::read(&json!({"metadata": {"labels": {"app": "web", "a": null, "b": 1}}}));
        for (selector, expected) in [("app=web", true), ("app=db", false), ("a", false), ("!b", true)] {
            assert_eq!(service.is_selected_by(&selectors::labels(selector).unwrap()), expected, "{selector}");
        }
    }
}
