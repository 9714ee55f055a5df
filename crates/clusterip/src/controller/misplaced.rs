//! Which Services are misplaced, and what is to be done about each.

use std::net::IpAddr;
use std::sync::PoisonError;

use clusterip_core::settings::Pool;
use serde_json::Value;
use thiserror::Error;

use super::control_plane_services::{MOVE_OPTION, called_by};
use super::endpoints;
use super::journal::Journal;
use super::requests::Request;
use crate::cluster::ledger::Owner;
use crate::cluster::lookups::Subject;
use crate::cluster::object::{name, namespace, text};
use crate::cluster::snapshot::addresses;
use crate::evaluator::{Evaluation, Evaluator};
use crate::metrics::Misplaced as Reason;
use crate::placement::{Placement, Standing, Unasked, as_if_created, fits, unasked};
use crate::policy::module::ModuleError;
use crate::policy::service_request::ServiceRequest;

/// The annotation of a Service that says when it may move: `never`, or `now`.
pub use clusterip_core::annotations::MOVE_ANNOTATION;

/// What may be moved beside what can't be reached anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Any at all, but for those that an administrator asks for.
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
    /// It looks as if a move of it has begun. Only a record tells whether that is so.
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
    /// Who asked for the move, if anybody did.
    pub asked_by: AskedBy,
    /// Whether it moves, or why not.
    pub verdict: Verdict,
}

/// Who asked for a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBy {
    /// Nobody did: the controller found out.
    Nobody,
    /// The author of the Service, by the annotation [`MOVE_ANNOTATION`]. It skips what protects the Service itself:
    /// its cooldown, and its ready endpoints.
    Author,
    /// An administrator, by a [`Request`] or by `clusterip move`. It skips every brake, too.
    Administrator,
}

/// What is done about a misplaced Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It moves, once [`hold_targets`] holds addresses for it.
    Move,
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

/// Looks at a Service as the stores show it. `request` is what an administrator asks for it. No address is held.
///
/// # Errors
/// Where the policy does not answer.
pub fn look(
    evaluator: &Evaluator,
    service: &Value,
    allowed: Allowed,
    request: Option<&Request>,
) -> Result<Finding, ModuleError> {
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
    let asked_by = match (request, wish) {
        (Some(_), _) => AskedBy::Administrator,
        (None, "now") => AskedBy::Author,
        (None, _) => AskedBy::Nobody,
    };
    let report = |reason, detail: String| Verdict::Report { reason, detail };
    let lies_in: Vec<&Pool> = placement.lies_in.iter().filter_map(|name| settings.pool(name)).collect();
    let disturbed = {
        let snapshot = evaluator.stores().snapshot().read().unwrap_or_else(PoisonError::into_inner);
        endpoints::disturbed(&snapshot, namespace, name, &lies_in)
    };
    let verdict = if !allowed.any && asked_by != AskedBy::Administrator {
        report(Reason::Never, "nothing is moved here".to_owned())
    } else if wish == "never" {
        report(Reason::Never, format!("annotation {MOVE_ANNOTATION}: never"))
    } else if text(service, &["spec", "type"]) == "LoadBalancer" && !allowed.load_balancers {
        report(Reason::LoadBalancer, "type LoadBalancer: a cloud might take its load balancer down".to_owned())
    } else if let Some(detail) = control_plane(evaluator, namespace, name, request) {
        report(Reason::ControlPlane, detail)
    } else if disturbed > 0 && !allowed.ready && asked_by == AskedBy::Nobody {
        report(Reason::ReadyEndpoints, format!("{disturbed} ready endpoints can be reached where it is"))
    } else if answer.mutated_object.is_none() {
        report(Reason::PoolFull, answer.audit().and_then(|audit| audit.reason).unwrap_or_default())
    } else {
        Verdict::Move
    };
    Ok(Finding::Misplaced(Box::new(Misplaced {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: text(service, &["metadata", "uid"]).to_owned(),
        lies_in: placement.lies_in,
        from: placement.addresses,
        pool,
        evidence: placement.evidence.unwrap_or_default(),
        asked_by,
        verdict,
    })))
}

/// Why a Service that the control plane calls stays; nothing for others, and where an administrator asks for it.
fn control_plane(evaluator: &Evaluator, namespace: &str, name: &str, request: Option<&Request>) -> Option<String> {
    if request.is_some_and(|request| request.control_plane) {
        return None;
    }
    match evaluator.stores().control_plane_services().callers(namespace, name) {
        Ok(callers) if callers.is_empty() => None,
        Ok(callers) => Some(format!(
            "{}: the API server could not call it while it moves; `clusterip move {MOVE_OPTION} {namespace}/{name}` moves \
             it",
            called_by(&callers)
        )),
        Err(unknown) => Some(unknown.to_string()),
    }
}

/// Holds addresses for a Service that moves: all its addresses after the move, one that stays among them, and what
/// holds them.
///
/// # Errors
/// [`NoTarget`]
pub fn hold_targets(evaluator: &Evaluator, service: &Value) -> Result<(Vec<IpAddr>, Evaluation), NoTarget> {
    let evaluation = ask(evaluator, service, false).map_err(NoTarget::Unanswered)?;
    let new = evaluation.answer.mutated_object.as_ref().map(addresses);
    match (pool_of(&evaluation), new) {
        (Some(pool), Some(new)) => Ok((merge(pool, &addresses(service), &new), evaluation)),
        _ => Err(NoTarget::Full(evaluation.answer.audit().and_then(|audit| audit.reason).unwrap_or_default())),
    }
}

/// Why there are no addresses for a Service that is to move.
#[derive(Debug, Error)]
pub enum NoTarget {
    /// Its pool has none that is free.
    #[error("{0}")]
    Full(String),
    /// The policy does not answer.
    #[error(transparent)]
    Unanswered(ModuleError),
}

/// Whether the policy would let a Service have these addresses. `service` is as it was before its move.
pub fn may_have(evaluator: &Evaluator, service: &Value, addresses: &[IpAddr]) -> bool {
    let Ok(evaluation) = ask(evaluator, service, true) else { return false };
    pool_of(&evaluation).is_some_and(|pool| addresses.iter().all(|address| fits(pool, *address)))
}

/// Asks the policy about a Service as it would be written, with all its addresses.
///
/// # Errors
/// Why the policy refuses it.
pub fn judge(evaluator: &Evaluator, service: &Value) -> Result<(), String> {
    let uid = text(service, &["metadata", "uid"]);
    let request = ServiceRequest { uid, username: "clusterip", object: service, old: None, dry_run: true }.to_value();
    let owner = Owner::new(namespace(service), name(service), "");
    let subject = Subject { owner, own: addresses(service), dry_run: true };
    let answer = evaluator.evaluate(&request, &subject).map_err(|error| error.to_string())?.answer;
    match answer.accepted {
        true => Ok(()),
        false => Err(answer.message.unwrap_or_else(|| "the policy refuses it".to_owned())),
    }
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

/// A Service as it was before its recorded move began, with the selector that it has now.
pub fn as_it_was(service: &Value, journal: &Journal) -> Value {
    let mut spec = journal.spec.clone();
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
