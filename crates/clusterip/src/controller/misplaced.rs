//! Which Services are misplaced, and what is to be done about each.

use std::net::IpAddr;
use std::sync::PoisonError;

use clusterip_core::settings::Pool;
use serde_json::Value;

use super::endpoints;
use super::journal::Journal;
use crate::cluster::ledger::Owner;
use crate::cluster::lookups::Subject;
use crate::cluster::object::{name, namespace, text};
use crate::cluster::snapshot::addresses;
use crate::evaluator::{Evaluation, Evaluator};
use crate::metrics::Misplaced as Reason;
use crate::placement::{Placement, Standing, Unasked, as_if_created, fits, unasked};
use crate::policy::module::ModuleError;

/// The annotation of a Service that says when it may move: `never`, or `now`.
pub use clusterip_core::annotations::MOVE_ANNOTATION;

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

/// Looks at a Service as the stores show it. An address is held only for one that moves.
///
/// # Errors
/// Where the policy does not answer.
pub fn look(evaluator: &Evaluator, service: &Value, allowed: Allowed) -> Result<Finding, ModuleError> {
    let settings = evaluator.settings();
    let settings = &settings.settings;
    match unasked(settings, service) {
        Some(Unasked::HalfMoved) => return Ok(Finding::HalfMoved),
        Some(Unasked::Foreign) => return Ok(Finding::InPlace),
        None => {}
    }
    let answer = ask(evaluator, service, true)?.answer;
    let placement = Placement::of(settings, service, &answer);
    let pool = match (placement.standing, placement.pool) {
        (Standing::Squats, _) => return Ok(Finding::Squats { pools: placement.lies_in }),
        (Standing::Misplaced, Some(pool)) => pool,
        _ => return Ok(Finding::InPlace),
    };
    let (namespace, name) = (namespace(service), name(service));
    let wish = text(service, &["metadata", "annotations", MOVE_ANNOTATION]);
    let asked_for = wish == "now";
    let report = |reason, detail: String| Verdict::Report { reason, detail };
    let lies_in: Vec<&Pool> = placement.lies_in.iter().filter_map(|name| settings.pool(name)).collect();
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
    } else {
        match targets(evaluator, service)? {
            Ok((to, evaluation)) => Verdict::Move { to, evaluation: Box::new(evaluation) },
            Err(reason) => report(Reason::PoolFull, reason),
        }
    };
    Ok(Finding::Misplaced(Box::new(Misplaced {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: text(service, &["metadata", "uid"]).to_owned(),
        lies_in: placement.lies_in,
        from: placement.addresses,
        pool,
        evidence: placement.evidence.unwrap_or_default(),
        asked_for,
        verdict,
    })))
}

/// Another target for a Service that is on the move.
pub fn another(evaluator: &Evaluator, service: &Value) -> Option<(Vec<IpAddr>, Evaluation)> {
    targets(evaluator, &as_it_was(service)).ok()?.ok()
}

/// Whether the policy would let a Service that is on the move have these addresses.
pub fn may_have(evaluator: &Evaluator, service: &Value, addresses: &[IpAddr]) -> bool {
    let Ok(evaluation) = ask(evaluator, &as_it_was(service), true) else { return false };
    pool_of(&evaluation).is_some_and(|pool| addresses.iter().all(|address| fits(pool, *address)))
}

/// All addresses of a Service after a move, and what holds them; or why its pool has none.
fn targets(evaluator: &Evaluator, service: &Value) -> Result<Result<(Vec<IpAddr>, Evaluation), String>, ModuleError> {
    let evaluation = ask(evaluator, service, false)?;
    let new = evaluation.answer.mutated_object.as_ref().map(addresses);
    Ok(match (pool_of(&evaluation), new) {
        (Some(pool), Some(new)) => Ok((merge(pool, &addresses(service), &new), evaluation)),
        _ => Err(evaluation.answer.audit().and_then(|audit| audit.reason).unwrap_or_default()),
    })
}

/// Asks the policy; a look holds nothing.
fn ask(evaluator: &Evaluator, service: &Value, look: bool) -> Result<Evaluation, ModuleError> {
    let owner = Owner::new(namespace(service), name(service), "");
    let subject = Subject { owner, own: addresses(service), dry_run: look };
    evaluator.evaluate(&as_if_created(service), &subject)
}

fn pool_of(evaluation: &Evaluation) -> Option<&Pool> {
    evaluation.settings.settings.pool(&evaluation.answer.audit()?.pool?)
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

/// The addresses after a move: of each family the one that stays, or the new one.
pub fn merge(pool: &Pool, from: &[IpAddr], new: &[IpAddr]) -> Vec<IpAddr> {
    let target = |address: &IpAddr| {
        let of_family = new.iter().find(|new| new.is_ipv4() == address.is_ipv4());
        of_family.filter(|_| !fits(pool, *address)).copied().unwrap_or(*address)
    };
    from.iter().map(target).collect()
}
