//! Reviews admission requests with the policy and the ledger.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use clusterip_core::annotations::REASON_ANNOTATION;
use clusterip_core::answer::{Answer, Audit, Outcome};
use clusterip_core::external::External;
use clusterip_core::settings::Settings;
use clusterip_host::cluster::lookups::snapshot::addresses;
use clusterip_host::cluster::lookups::watched_lookups::Subject;
use clusterip_host::evaluator::Evaluator;
use clusterip_host::object::{blocks_of, text};
use clusterip_host::policy::response::AdmissionResponse;
use clusterip_leases::owner::Owner;
use serde_json::Value;

use super::no_decision::NoDecision;
use super::node_review;
use super::review::{Reviewer, resource_kind};
use crate::joined::joined;
use crate::service_placement::{fits, noted_reason};
use crate::webhook::admission_metrics::{AdmissionMetrics, Decision, ResourceKind};

/// How old the cached state of the cluster may be. After this long without contact to the API server, requests are
/// answered as `--on-error` says. Objects that others created meanwhile are unknown here; the API server refuses an
/// address that is already allocated, so the worst result is a refused request.
pub const MAX_STALENESS: Duration = Duration::from_secs(300);

/// What happens to a request that the policy has not answered. A Node is allowed in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnError {
    /// Deny the request, so that no Service gets an address of the wrong pool
    #[default]
    Deny,
    /// Allow it unchanged, with a warning: Kubernetes picks an address, and the controller moves the Service
    Allow,
}

/// Reviews requests by the policy.
pub struct Admission {
    evaluator: Evaluator,
    metrics: AdmissionMetrics,
    on_error: OnError,
}

impl Admission {
    /// A reviewer that uses this evaluator.
    pub fn new(evaluator: Evaluator, metrics: AdmissionMetrics, on_error: OnError) -> Self {
        Self { evaluator, metrics, on_error }
    }

    fn answer(&self, request: &Value) -> Result<Answer, NoDecision> {
        if let Some(since) = self.evaluator.stores().stale_since()
            && since.elapsed() > MAX_STALENESS
        {
            return Err(NoDecision::Stale(since.elapsed()));
        }
        let object = request.get("object").unwrap_or(&Value::Null);
        let owner = owner(request, object);
        if resource_kind(request) == ResourceKind::Node {
            return node_review::review(&self.evaluator, request, owner);
        }
        let (namespace, name) = owner.id();
        let given = addresses(object);
        let is_chosen = |address: &IpAddr| self.evaluator.is_chosen_for(*address, namespace, name);
        let dry_run = request.get("dryRun").and_then(Value::as_bool).unwrap_or_default();
        let subject = Subject { owner: owner.clone(), own: Vec::new(), dry_run };
        // The request has addresses that this webhook gave: another webhook changed the Service afterwards, and the API
        // server calls this webhook again.
        let answer = if !given.is_empty() && previous_addresses(request).is_empty() && given.iter().all(is_chosen) {
            self.review_again(request, &given, Subject { own: given.clone(), ..subject })?
        } else {
            let evaluation = self.evaluator.evaluate(request, &subject)?;
            let answer = evaluation.answer.clone();
            let used = answer.mutated_object.as_ref().map(addresses).unwrap_or_default();
            evaluation.commit(&used);
            if answer.outcome() == Outcome::Unchanged && !dry_run {
                let new = given.into_iter().filter(|address| !previous_addresses(request).contains(address));
                new.for_each(|address| self.evaluator.reserve_chosen_by_hand(address, &owner));
            }
            answer
        };
        Ok(answer)
    }

    /// Decides again about a Service that has addresses given by this webhook. The Service keeps them if its pool is
    /// still the same, and gets others if the fields that select the pool have changed.
    fn review_again(&self, request: &Value, given: &[IpAddr], subject: Subject) -> Result<Answer, NoDecision> {
        let mut without = request.clone();
        if let Some(spec) = without.pointer_mut("/object/spec").and_then(Value::as_object_mut) {
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
        }
        let evaluate = |subject: &Subject| self.evaluator.evaluate(&without, subject);
        // Usually the Service keeps its addresses. A dry run finds that out without reserving or claiming others.
        let dry_run = subject.dry_run;
        let look = evaluate(&Subject { dry_run: true, ..subject.clone() })?;
        let count = look.answer.mutated_object.as_ref().map(|object| addresses(object).len());
        let audit = look.answer.audit();
        let fits = count == Some(given.len())
            && audit.as_ref().is_some_and(|audit| lies_in_pool(&look.settings.settings, audit, given));
        if fits {
            let external = audit.and_then(|audit| audit.external).filter(External::changes);
            let object = request.get("object");
            // The author may have copied the address from an earlier request, and written a reason of its own.
            let reason = look.answer.mutated_object.as_ref().and_then(noted_reason);
            let reason = reason.filter(|reason| object.and_then(noted_reason) != Some(*reason));
            let mut mutated_object = object.filter(|_| external.is_some() || reason.is_some()).cloned();
            if let (Some(object), Some(reason)) = (&mut mutated_object, reason) {
                object["metadata"]["annotations"][REASON_ANNOTATION] = reason.into();
            }
            if let (Some(object), Some(external)) = (&mut mutated_object, external) {
                external.carry_out(object);
            }
            return Ok(Answer { mutated_object, ..look.answer.clone() });
        }
        let evaluation = evaluate(&subject)?;
        let mut answer = evaluation.answer.clone();
        if answer.mutated_object.is_none() && answer.accepted {
            // No pool selects the Service any more: the addresses are taken back.
            answer.mutated_object = without.get("object").cloned();
        }
        let used = answer.mutated_object.as_ref().map(addresses).unwrap_or_default();
        evaluation.commit(&used);
        if !dry_run {
            let gone: Vec<IpAddr> = given.iter().filter(|address| !used.contains(address)).copied().collect();
            self.evaluator.ledger().release(&gone);
        }
        Ok(answer)
    }

    fn on_error(&self, kind: ResourceKind, reason: &str) -> Answer {
        let message = format!("clusterip-policy could not decide: {reason}");
        match self.on_error {
            _ if kind == ResourceKind::Node => node_review::undecided(message),
            OnError::Deny => Answer { accepted: false, message: Some(message), code: Some(500), ..Answer::default() },
            OnError::Allow => Answer { accepted: true, warnings: Some(vec![message]), ..Answer::default() },
        }
    }
}

impl Reviewer for Admission {
    fn not_begun(&self) -> Option<String> {
        // With an incomplete cache the policy could hand out an address that is in use.
        (!self.evaluator.stores().complete()).then(|| "the cluster is being listed".to_owned())
    }

    fn review(&self, request: &Value) -> AdmissionResponse {
        let begin = Instant::now();
        let kind = resource_kind(request);
        let (answer, failed) = match self.answer(request) {
            Ok(answer) => (answer, false),
            Err(error) => (self.on_error(kind, &error.to_string()), true),
        };
        log(kind, request, &answer, failed);
        let audit = answer.audit();
        let decision = match &audit {
            Some(audit) => Decision::from(audit.outcome),
            None if failed => Decision::Error,
            None if answer.accepted => Decision::Unchanged,
            None => Decision::Denied,
        };
        self.metrics.answered(kind, decision, audit.and_then(|audit| audit.pool).as_deref(), begin.elapsed());
        respond(request, answer)
    }

    fn review_unread(&self, request: &Value, code: u16, reason: &str) -> AdmissionResponse {
        let kind = resource_kind(request);
        let mut answer = self.on_error(kind, reason);
        answer.code = answer.code.map(|_| code);
        log(kind, request, &answer, true);
        self.metrics.answered(kind, Decision::Error, None, Duration::ZERO);
        respond(request, answer)
    }
}

fn respond(request: &Value, answer: Answer) -> AdmissionResponse {
    match AdmissionResponse::new(request, answer) {
        Ok(response) => response,
        Err(error) => AdmissionResponse::refused(request, 500, format!("the patch can't be written: {error}")),
    }
}

/// The owner of addresses that the object of a request gets.
fn owner(request: &Value, object: &Value) -> Owner {
    let namespace = text(request, &["namespace"]);
    let name = match text(object, &["metadata", "name"]) {
        "" => text(request, &["name"]),
        name => name,
    };
    Owner::new(namespace, name, text(request, &["uid"]))
}

/// The addresses that the object had before the request. An `ExternalName` Service has no addresses, even if its fields
/// still show some.
fn previous_addresses(request: &Value) -> Vec<IpAddr> {
    let old = request.get("oldObject").filter(|old| text(old, &["spec", "type"]) != "ExternalName");
    old.map(addresses).unwrap_or_default()
}

/// Whether the addresses are in the pool that an answer names, or outside of all pools if it names none.
fn lies_in_pool(settings: &Settings, audit: &Audit, addresses: &[IpAddr]) -> bool {
    let pool = audit.pool.as_deref().and_then(|name| settings.pool(name));
    let has_place = pool.is_some() || (audit.pool.is_none() && audit.outcome == Outcome::Allocated);
    has_place && addresses.iter().all(|address| fits(settings, pool, *address))
}

/// Logs one line for each decision.
fn log(kind: ResourceKind, request: &Value, answer: &Answer, failed: bool) {
    let object = request.get("object").unwrap_or(&Value::Null);
    let generated = text(object, &["metadata", "generateName"]);
    let (namespace, name) = (text(request, &["namespace"]), text(request, &["name"]));
    let name = if name.is_empty() { format!("{generated}…") } else { name.to_owned() };
    // A Node has no namespace.
    let namespace = (kind != ResourceKind::Node).then_some(namespace);
    let audit = answer.audit();
    let decision =
        audit.as_ref().map_or(if answer.accepted { "unchanged" } else { "denied" }, |audit| audit.outcome.name());
    let pool = audit.as_ref().and_then(|audit| audit.pool.as_deref());
    let evidence = audit.as_ref().and_then(|audit| audit.evidence.as_ref()).map(|evidence| evidence.source.as_str());
    let reason = answer.message.as_deref().or(audit.as_ref().and_then(|audit| audit.reason.as_deref()));
    let operation = text(request, &["operation"]);
    let dry_run = request.get("dryRun").and_then(Value::as_bool).unwrap_or_default();
    let kind_name = kind.as_str();
    if failed {
        let reason = reason.or(answer.warnings.as_ref().and_then(|warnings| warnings.first()).map(String::as_str));
        tracing::error!(kind = kind_name, namespace, name, operation, dry_run, reason, "no decision");
        return;
    }
    // For a Node, the blocks that others have set are logged; for a Service, the addresses that it gets.
    let is_node = kind == ResourceKind::Node;
    let podcidrs = is_node.then(|| joined(blocks_of(object), ","));
    let warnings = answer.warnings.as_ref().filter(|_| is_node).map(|warnings| warnings.join("; "));
    // An address that the policy leaves as it is, such as one set by hand, is that of the request.
    let clusterip = joined(addresses(answer.mutated_object.as_ref().unwrap_or(object)), ",");
    let clusterip = (!is_node && !clusterip.is_empty()).then_some(clusterip);
    let external = audit.as_ref().and_then(|audit| audit.external.as_ref());
    let external = external.map(|external| joined(&external.addresses, ",")).filter(|text| !text.is_empty());
    tracing::info!(
        kind = kind_name,
        namespace,
        name,
        operation,
        dry_run,
        decision,
        pool,
        evidence,
        clusterip,
        external,
        podcidrs,
        reason,
        warnings,
        "decision"
    );
}
