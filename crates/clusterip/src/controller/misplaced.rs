//! Which Services are misplaced, and what is to be done about each.
//!
//! The policy is asked, as if the Service were created now without an address. What it answers is its
//! pool, and an address of it.

use std::net::IpAddr;
use std::sync::PoisonError;

use clusterip_core::address::Family;
use clusterip_core::answer::Outcome;
use clusterip_core::evidence::{ASSUMPTION, Report};
use clusterip_core::pod_spec::OS_LABEL;
use clusterip_core::service::MOVING_ANNOTATION;
use clusterip_core::settings::{Pool, Settings};
use serde_json::Value;

use super::endpoints;
use super::journal::Journal;
use super::step::MOVING_NAME;
use crate::cluster::ledger::Owner;
use crate::cluster::lookups::Subject;
use crate::cluster::object::{name, namespace, text};
use crate::cluster::snapshot::addresses;
use crate::evaluator::{Evaluation, Evaluator};
use crate::metrics::Misplaced as Reason;
use crate::policy::module::ModuleError;
use crate::policy::service_request::ServiceRequest;

/// The annotation of a Service that says when it may move: `never`, or `now`.
pub const MOVE_ANNOTATION: &str = "clusterip-policy/move";

/// What may be moved beside what can't be reached anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Any at all, but for those that ask for it.
    pub any: bool,
    /// Services with ready endpoints that work where they are.
    pub ready: bool,
    /// Services of type `LoadBalancer`.
    pub load_balancers: bool,
}

/// What a look at a Service tells.
pub enum Finding {
    /// It is where it belongs, or none of our business.
    InPlace,
    /// No pool is for it, and its address lies in some.
    Squats {
        /// Which.
        pools: Vec<String>,
    },
    /// A move of it has begun, and is to be finished.
    HalfMoved,
    /// It belongs elsewhere.
    Misplaced(Box<Misplaced>),
}

/// A Service that belongs elsewhere.
pub struct Misplaced {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its addresses.
    pub from: Vec<IpAddr>,
    /// The pools that they lie in; none for an address outside of all pools.
    pub lies_in: Vec<String>,
    /// The pool that it belongs to.
    pub pool: String,
    /// Why: the evidence in words.
    pub evidence: String,
    /// Whether the move was asked for with the annotation.
    pub asked_for: bool,
    /// Where it goes, or why not.
    pub verdict: Verdict,
}

/// What is done about a misplaced Service.
pub enum Verdict {
    /// It moves to these addresses, the primary first. They are held until it is settled.
    Move {
        /// All its addresses then: one that stays is among them.
        to: Vec<IpAddr>,
        /// Holds them.
        evaluation: Box<Evaluation>,
    },
    /// What it was, somebody has taken.
    Taken,
    /// It stays.
    Report {
        /// The reason.
        reason: Reason,
        /// More about it.
        detail: String,
    },
}

impl Misplaced {
    /// Why it moves, for Events and logs.
    pub fn why(&self) -> String {
        let from =
            if self.lies_in.is_empty() { "no pool".to_owned() } else { format!("pool {}", self.lies_in.join(", ")) };
        format!("it lies in {from}, and belongs to pool {}: {}", self.pool, self.evidence)
    }
}

/// Looks at a Service as the stores show it.
///
/// # Errors
/// Where the policy does not answer.
pub fn look(evaluator: &Evaluator, service: &Value, allowed: Allowed) -> Result<Finding, ModuleError> {
    let settings = evaluator.settings();
    let settings = &settings.settings;
    let half_moved = !text(service, &["metadata", "annotations", MOVING_ANNOTATION]).is_empty()
        || text(service, &["spec", "externalName"]) == MOVING_NAME;
    if half_moved {
        return Ok(Finding::HalfMoved);
    }
    let (namespace, name) = (namespace(service), name(service));
    let from = addresses(service);
    let foreign = from.is_empty()
        || text(service, &["spec", "type"]) == "ExternalName"
        || (namespace, name) == ("default", "kubernetes")
        || settings.exempt_namespaces.iter().any(|exempt| exempt == namespace)
        || service.pointer("/metadata/deletionTimestamp").is_some();
    if foreign {
        return Ok(Finding::InPlace);
    }
    let subject = Subject { owner: Owner::new(namespace, name, ""), own: from.clone(), dry_run: false };
    let evaluation = evaluator.evaluate(&as_if_created(service), &subject)?;
    let Some(audit) = evaluation.answer.audit() else { return Ok(Finding::InPlace) };
    let lies_in: Vec<&Pool> = pools_of(settings, &from);
    let names = |pools: &[&Pool]| pools.iter().map(|pool| pool.name.clone()).collect::<Vec<_>>();
    let Some(pool) = audit.pool.as_deref().and_then(|name| settings.pool(name)) else {
        let squats = audit.outcome == Outcome::Left && !lies_in.is_empty();
        return Ok(if squats { Finding::Squats { pools: names(&lies_in) } } else { Finding::InPlace });
    };
    if from.iter().all(|address| fits(pool, *address)) {
        return Ok(Finding::InPlace);
    }
    let evidence = audit.evidence.clone().unwrap_or_default();
    // What is assumed is the OS: it counts only where a pool up to this one asks for it.
    let before = settings.pools.iter().take_while(|other| other.name != pool.name);
    let by_os = before.chain([pool]).any(|pool| pool.matches.node_labels.contains_key(OS_LABEL));
    let assumed = by_os && evidence.source.split(", ").any(|source| source == ASSUMPTION);
    if assumed && !lies_in.is_empty() {
        // Only a Service in no pool at all moves on a mere assumption.
        return Ok(Finding::InPlace);
    }
    let wish = text(service, &["metadata", "annotations", MOVE_ANNOTATION]);
    let asked_for = wish == "now";
    let report = |reason, detail: String| Verdict::Report { reason, detail };
    let disturbed = {
        let snapshot = evaluator.stores().snapshot().read().unwrap_or_else(PoisonError::into_inner);
        endpoints::disturbed(&snapshot, namespace, name, &lies_in)
    };
    let verdict = if !allowed.any && !asked_for {
        report(Reason::Never, "nothing is moved here".to_owned())
    } else if wish == "never" {
        report(Reason::Never, format!("annotation {MOVE_ANNOTATION}: never"))
    } else if text(service, &["spec", "type"]) == "LoadBalancer" && !allowed.load_balancers && !asked_for {
        report(Reason::LoadBalancer, "type LoadBalancer: a cloud might take its load balancer down".to_owned())
    } else if disturbed > 0 && !allowed.ready && !asked_for {
        report(Reason::ReadyEndpoints, format!("{disturbed} ready endpoints can be reached where it is"))
    } else if audit.outcome == Outcome::Allocated {
        let new = evaluation.answer.mutated_object.as_ref().map(addresses).unwrap_or_default();
        Verdict::Move { to: merge(pool, &from, &new), evaluation: Box::new(evaluation) }
    } else {
        report(Reason::PoolFull, audit.reason.clone().unwrap_or_default())
    };
    Ok(Finding::Misplaced(Box::new(Misplaced {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: text(service, &["metadata", "uid"]).to_owned(),
        lies_in: names(&lies_in),
        from,
        pool: pool.name.clone(),
        evidence: in_words(&evidence),
        asked_for,
        verdict,
    })))
}

/// Another target for a Service that is on the move.
pub fn another(evaluator: &Evaluator, service: &Value) -> Option<(Vec<IpAddr>, Evaluation)> {
    let service = &as_it_was(service);
    let (pool, from, evaluation) = ask(evaluator, service)?;
    let new = evaluation.answer.mutated_object.as_ref().map(addresses)?;
    Some((merge(&pool, &from, &new), evaluation))
}

/// Whether the policy would let a Service that is on the move have these addresses.
pub fn may_have(evaluator: &Evaluator, service: &Value, addresses: &[IpAddr]) -> bool {
    ask(evaluator, &as_it_was(service)).is_some_and(|(pool, ..)| addresses.iter().all(|address| fits(&pool, *address)))
}

/// The pool of a Service, its addresses, and what else was answered.
fn ask(evaluator: &Evaluator, service: &Value) -> Option<(Pool, Vec<IpAddr>, Evaluation)> {
    let from = addresses(service);
    let owner = Owner::new(namespace(service), name(service), "");
    let subject = Subject { owner, own: from.clone(), dry_run: false };
    let evaluation = evaluator.evaluate(&as_if_created(service), &subject).ok()?;
    let named = evaluation.answer.audit()?.pool?;
    let pool = evaluation.settings.settings.pool(&named)?.clone();
    Some((pool, from, evaluation))
}

/// A Service as it was before its move began, with what was changed in it since.
fn as_it_was(service: &Value) -> Value {
    let Ok(Some(journal)) = Journal::of(service) else { return service.clone() };
    let mut spec = journal.spec;
    if let Some(selector) = service.pointer("/spec/selector") {
        spec.insert("selector".to_owned(), selector.clone());
    }
    let mut was = service.clone();
    was["spec"] = spec.into();
    was
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

/// Whether an address may stay where it is: it lies in the pool, or the pool has nothing of its family.
fn fits(pool: &Pool, address: IpAddr) -> bool {
    !pool.has(Family::of(address)) || pool.contains(address)
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

/// The addresses after a move: of each family the one that stays, or the new one.
fn merge(pool: &Pool, from: &[IpAddr], new: &[IpAddr]) -> Vec<IpAddr> {
    let target = |address: &IpAddr| {
        let of_family = new.iter().find(|new| new.is_ipv4() == address.is_ipv4());
        of_family.filter(|_| !fits(pool, *address)).copied().unwrap_or(*address)
    };
    from.iter().map(target).collect()
}

/// A request to create the Service now, without an address.
fn as_if_created(service: &Value) -> Value {
    let mut object = service.clone();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        for field in ["clusterIP", "clusterIPs", "externalName"] {
            spec.remove(field);
        }
        // On the move it is one, and is not meant to be.
        spec.retain(|field, value| field != "type" || *value != "ExternalName");
    }
    let uid = text(service, &["metadata", "uid"]);
    ServiceRequest { uid, username: "clusterip", object: &object, old: None, dry_run: false }.to_value()
}
