//! Where a Service lies, and where it belongs.
//!
//! The policy is asked, as if the Service were created now without an address. What it answers is its
//! pool, and an address of it.

use std::net::IpAddr;

use clusterip_core::address::Family;
use clusterip_core::answer::{Answer, Outcome};
use clusterip_core::evidence::{ASSUMPTION, Report};
use clusterip_core::external::RECORD_ANNOTATION;
use clusterip_core::external::claim::FOREIGN_ANNOTATIONS;
use clusterip_core::pod_spec::OS_LABEL;
use clusterip_core::settings::{Pool, Settings};
use serde_json::Value;

use crate::cluster::object::{name, namespace, text};
use crate::cluster::snapshot::addresses;
use crate::controller::step::looks_half_moved;
use crate::policy::service_request::ServiceRequest;

/// What can be said of a Service without asking the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unasked {
    /// It has no address, or is left alone: exempt, being deleted, `default/kubernetes`.
    Foreign,
    /// It looks as if a move of it has begun, and has not ended.
    HalfMoved,
}

/// How a Service lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Where it belongs.
    InPlace,
    /// In another pool than the one that is assumed for it: it stays, since an assumption may change as
    /// workloads come and go.
    NotWhereAssumed,
    /// No pool is for it, and its address lies in some.
    Squats,
    /// It belongs elsewhere.
    Misplaced,
}

/// Where a Service lies, and where it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// How it lies.
    pub standing: Standing,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The pools that they lie in; none for an address outside of all pools.
    pub lies_in: Vec<String>,
    /// The pool that it belongs to; none where no pool is for it, or the policy says nothing of it.
    pub pool: Option<String>,
    /// Why: the evidence in words; without a pool, what is known of its nodes all the same.
    pub evidence: Option<String>,
    /// Where workloads that it selects want several kinds of nodes: a sentence for each label.
    pub mixed: Vec<String>,
    /// What the policy decides, if it is this policy.
    pub outcome: Option<Outcome>,
    /// What the policy says for itself where it gives none.
    pub reason: Option<String>,
}

/// What can be said of a Service without asking the policy; nothing where it is to be asked.
pub fn unasked(settings: &Settings, service: &Value) -> Option<Unasked> {
    if looks_half_moved(service) {
        return Some(Unasked::HalfMoved);
    }
    let (namespace, name) = (namespace(service), name(service));
    let foreign = addresses(service).is_empty()
        || text(service, &["spec", "type"]) == "ExternalName"
        || (namespace, name) == ("default", "kubernetes")
        || settings.exempt_namespaces.iter().any(|exempt| exempt == namespace)
        || service.pointer("/metadata/deletionTimestamp").is_some();
    foreign.then_some(Unasked::Foreign)
}

/// A request to create the Service now, without an address.
pub fn as_if_created(service: &Value) -> Value {
    let mut object = service.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        // The request is to name no address: then the policy takes the field from its owners.
        metadata.remove("managedFields");
    }
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        // Without its type: on the move it is an ExternalName and is not meant to be, and its external
        // addresses are not asked about.
        for field in ["clusterIP", "clusterIPs", "externalName", "type", "externalIPs", "loadBalancerIP"] {
            spec.remove(field);
        }
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| key != RECORD_ANNOTATION && !FOREIGN_ANNOTATIONS.contains(&key.as_str()));
    }
    let uid = text(service, &["metadata", "uid"]);
    ServiceRequest { uid, username: "clusterip", object: &object, old: None, dry_run: false }.to_value()
}

impl Placement {
    /// Holds the policy's answer to [`as_if_created`] against where the Service lies.
    pub fn of(settings: &Settings, service: &Value, answer: &Answer) -> Self {
        let addresses = addresses(service);
        let lies_in = pools_of(settings, &addresses);
        let audit = answer.audit();
        let pool = audit.as_ref().and_then(|audit| audit.pool.as_deref()).and_then(|name| settings.pool(name));
        let evidence = audit.as_ref().map(|audit| audit.evidence.clone().unwrap_or_default()).unwrap_or_default();
        let outcome = audit.as_ref().map(|audit| audit.outcome);
        let standing = match pool {
            None if outcome == Some(Outcome::Left) && !lies_in.is_empty() => Standing::Squats,
            None => Standing::InPlace,
            Some(pool) if addresses.iter().all(|address| fits(pool, *address)) => Standing::InPlace,
            // Only a Service in no pool at all moves on a mere assumption.
            Some(pool) if !lies_in.is_empty() && is_assumed(settings, pool, &evidence) => Standing::NotWhereAssumed,
            Some(_) => Standing::Misplaced,
        };
        Self {
            standing,
            lies_in: lies_in.into_iter().map(|pool| pool.name.clone()).collect(),
            addresses,
            pool: pool.map(|pool| pool.name.clone()),
            evidence: (pool.is_some() || !evidence.labels.is_empty()).then(|| in_words(&evidence)),
            mixed: evidence.mixed,
            outcome,
            reason: audit.and_then(|audit| audit.reason),
        }
    }
}

/// Whether an address may stay where it is: it lies in the pool, or the pool has nothing of its family.
pub fn fits(pool: &Pool, address: IpAddr) -> bool {
    !pool.has(Family::of(address)) || pool.contains(address)
}

/// What is assumed is the OS: it counts only where a pool up to this one asks for it.
fn is_assumed(settings: &Settings, pool: &Pool, evidence: &Report) -> bool {
    let before = settings.pools.iter().take_while(|other| other.name != pool.name);
    let by_os = before.chain([pool]).any(|pool| pool.matches.node_labels.contains_key(OS_LABEL));
    by_os && evidence.source.split(", ").any(|source| source == ASSUMPTION)
}

fn pools_of<'s>(settings: &'s Settings, addresses: &[IpAddr]) -> Vec<&'s Pool> {
    let mut pools: Vec<&Pool> = Vec::new();
    for pool in addresses.iter().filter_map(|address| settings.pool_of(*address)) {
        if !pools.iter().any(|known| known.name == pool.name) {
            pools.push(pool);
        }
    }
    pools
}

/// `kubernetes.io/os=windows (Deployment shop/web)`
fn in_words(evidence: &Report) -> String {
    let labels: Vec<String> = evidence.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    match (labels.is_empty(), evidence.source.is_empty()) {
        (true, true) => "by its namespace and labels".to_owned(),
        (true, false) => evidence.source.clone(),
        _ => format!("{} ({})", labels.join(", "), evidence.source),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_that_is_not_about_its_cluster_ip_is_asked_of_a_service() {
        let service = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "labels": {"app": "web"}, "annotations": {
                "clusterip-policy/os": "windows",
                "clusterip-policy/external-addresses": "10.0.9.20",
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
        assert_eq!(as_if_created(&service)["object"], bare);
    }
}
