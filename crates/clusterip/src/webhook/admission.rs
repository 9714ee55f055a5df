//! Reads an `AdmissionReview`, reviews its request with the policy and the ledger, and writes the answer.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Error, bail};
use axum::http::StatusCode;
use clusterip_cluster::admission_review::{self, AdmissionResponse, cut_list};
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::http::server::ErrorResponse;
use clusterip_cluster::lookups::stored_cluster::Subject;
use clusterip_cluster::object::{blocks_of, text};
use clusterip_cluster::panics;
use clusterip_cluster::watch::stores::MAX_STALENESS;
use clusterip_core::annotations::{REASON_ANNOTATION, cut};
use clusterip_core::json::{describe, quote};
use clusterip_core::service::{addresses, is_set_by_hand, named_addresses};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Explicit;
use clusterip_core::{Decision, Response, Verdict};
use clusterip_failover::claims::Owner;
use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::service_placement::{fits, noted_reason};
use crate::text::joined;
use crate::webhook::admission_metrics::{AdmissionMetrics, AdmissionResult, ResourceKind};

pub trait Reviewer: Send + Sync + 'static {
    /// The response to the `request` of an `AdmissionReview`, which has the fields that decisions use. It may block for as
    /// long as one evaluation may take.
    fn review(&self, request: &Value) -> AdmissionResponse;

    /// The response to a request that could not be read completely, or whose review did not begin, did not end in time,
    /// or panicked. `request` may have only the fields that say what it is about. This call does not block.
    fn unreviewed(&self, request: &Value, code: u16, reason: &str) -> AdmissionResponse {
        AdmissionResponse::refused(request, code, reason.to_owned())
    }

    /// The reason why nothing can be reviewed yet. Until then, the `failurePolicy` of the webhook decides.
    fn not_begun(&self) -> Option<String> {
        None
    }
}

pub const BUSY: u16 = 429;

/// What happens to a request that the policy has not answered. A Node is allowed in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnError {
    /// Deny the request, so that no Service gets an address of the wrong pool
    #[default]
    Deny,
    /// Allow it unchanged, with a warning: Kubernetes picks an address, and the controller moves the Service
    Allow,
}

/// The decision, and the object as it changes the request's; `None` if it does not change.
type Reviewed = (Decision, Option<Value>);

pub struct Admission {
    evaluator: Evaluator,
    metrics: AdmissionMetrics,
    on_error: OnError,
}

impl Admission {
    pub fn new(evaluator: Evaluator, metrics: AdmissionMetrics, on_error: OnError) -> Self {
        Self { evaluator, metrics, on_error }
    }

    fn decide(&self, request: &Value) -> anyhow::Result<Reviewed> {
        if let Some(message) = wrong_name(request) {
            return Ok((Decision::denied(422, message), None));
        }
        if let Some(since) = self.evaluator.stores().stale_since()
            && since.elapsed() > MAX_STALENESS
        {
            bail!("the cluster could not be watched for {} s", since.elapsed().as_secs());
        }
        let object = request.get("object").unwrap_or(&Value::Null);
        let owner = owner(request);
        if resource_kind(request) == ResourceKind::Node {
            return Ok((self.decide_about_node(request, owner)?, None));
        }
        if let Some((list, most)) = cut_list(request) {
            let message = format!("request.{list} has {most} or more items");
            return Ok((Decision::denied(422, message), None));
        }
        let given = named_addresses(object);
        let is_chosen = |address: &IpAddr| self.evaluator.is_given_to(*address, &owner.service);
        let dry_run = request.get("dryRun").and_then(Value::as_bool).unwrap_or_default();
        let subject = Subject { owner: owner.clone(), own: Vec::new(), dry_run };
        // The request has addresses that this webhook gave: another webhook changed the Service afterwards, and the API
        // server calls this webhook again. An update is decided as a whole, because its fields may not mean what they
        // say: the API server completes them first.
        let is_create = request.get("operation").is_some_and(|operation| operation == "CREATE");
        if is_create && !given.is_empty() && given.iter().all(is_chosen) {
            return self.review_again(request, &given, Subject { own: given.clone(), ..subject });
        }
        if self.is_given_by_reservation(request, &owner.service) {
            return self.review_reserved(request, &subject);
        }
        let evaluation = self.evaluator.evaluate(request, &subject)?;
        let decision = evaluation.decision.clone();
        let allocated = decision.allocated().unwrap_or_default();
        let is_repeated = || self.evaluator.ledger().has_given_others(&owner.service, allocated);
        if is_create && !dry_run && !allocated.is_empty() && is_repeated() {
            self.metrics.repeated_creates.inc();
        }
        evaluation.commit(allocated);
        if decision.denial().is_none() && !dry_run {
            decision.chosen.iter().for_each(|address| self.evaluator.reserve_chosen_by_hand(*address, &owner));
        }
        let changed = decision.changed(object);
        Ok((decision, changed))
    }

    /// Decides about a Node, without changing it: the API server does not refuse a block that two Nodes have, and it
    /// calls webhooks in parallel, so only the controller hands out blocks. A Node is refused only if the settings say
    /// `nodes.explicit: deny` and the policy itself refuses it, because a cluster must get its Nodes.
    fn decide_about_node(&self, request: &Value, owner: Owner) -> anyhow::Result<Decision> {
        let subject = Subject { owner, own: Vec::new(), dry_run: true };
        let mut evaluator = self.evaluator.clone();
        evaluator.claims = None;
        let evaluation = evaluator.evaluate(request, &subject)?;
        match &evaluation.decision.verdict {
            // A Node that can't be read is refused, whatever the settings say.
            Verdict::Denied(denial) if evaluation.settings.settings.nodes.explicit != Explicit::Deny => {
                Err(Error::msg(denial.message.clone()))
            }
            _ => Ok(evaluation.decision.clone()),
        }
    }

    /// Whether a Service that is new, or that leaves `type: ExternalName`, has addresses from the policy of
    /// `deploy/reservations`: they are reserved for the Service, and no manager owns them.
    fn is_given_by_reservation(&self, request: &Value, service: &ServiceKey) -> bool {
        let (given, live) = (request.get("object").map(addresses).unwrap_or_default(), self.evaluator.settings());
        let settings = &live.settings;
        let is_reserved = |address: &IpAddr| {
            let reservation = settings.pool_of(*address).and_then(|pool| pool.reservation(*address));
            reservation.is_some_and(|reservation| reservation.service == *service)
        };
        let had = request.get("oldObject").filter(|old| !old.is_null()).map(|old| text(old, &["spec", "type"]));
        !given.is_empty()
            && given.iter().all(is_reserved)
            && had.is_none_or(|had| had == "ExternalName")
            && settings.exemption(&service.namespace, &service.name).is_none()
            && request.get("object").and_then(is_set_by_hand) == Some(false)
    }

    /// Decides about a Service with addresses that the API server took from a reservation as if it had none: only this
    /// decision knows which pool the Service belongs to.
    fn review_reserved(&self, request: &Value, subject: &Subject) -> anyhow::Result<Reviewed> {
        let mut without = without_addresses(request);
        let evaluation = self.evaluator.evaluate(&without, subject)?;
        let decision = evaluation.decision.clone();
        evaluation.commit(decision.allocated().unwrap_or_default());
        let mut object = match decision.allocated() {
            Some(_) => request["object"].clone(),
            None => without["object"].take(),
        };
        decision.carry_out(&mut object);
        let changed = decision.denial().is_none().then_some(object);
        Ok((decision, changed))
    }

    /// Decides again about a Service with addresses of this webhook, which it keeps if its pool is still the same.
    fn review_again(&self, request: &Value, given: &[IpAddr], subject: Subject) -> anyhow::Result<Reviewed> {
        let mut without = without_addresses(request);
        let evaluate = |subject: &Subject| self.evaluator.evaluate(&without, subject);
        let exists = self.evaluator.stores().service(&subject.owner.service).is_some();
        // Usually the Service keeps its addresses. This finds it out without reserving or claiming other ClusterIPs.
        let look = evaluate(&Subject { dry_run: true, ..subject.clone() })?;
        let decision = look.decision.clone();
        let settings = &look.settings.settings;
        let pool = decision.pool.as_deref().and_then(|name| settings.pool(name));
        // Without a pool, the addresses belong outside of all pools.
        let fits = decision.allocated().is_some_and(|addresses| addresses.len() == given.len())
            && pool.is_some() == decision.pool.is_some()
            && given.iter().all(|address| fits(settings, pool, *address));
        // The external addresses stay reserved, also for the evaluation that follows if the Service gets others.
        look.commit(&[]);
        if fits {
            let object = &request["object"];
            let external = decision.external.as_ref().filter(|external| external.changes());
            // The author may have copied the address from an earlier request, and written a reason of its own.
            let has_other_note = |note: &&str| !note.is_empty() && noted_reason(object) != Some(*note);
            let note = decision.note.as_deref().filter(has_other_note);
            let mut changed = (external.is_some() || note.is_some()).then(|| object.clone());
            if let (Some(object), Some(note)) = (&mut changed, note) {
                object["metadata"]["annotations"][REASON_ANNOTATION] = note.into();
            }
            if let (Some(object), Some(external)) = (&mut changed, external) {
                external.carry_out(object);
            }
            return Ok((decision, changed));
        }
        let evaluation = evaluate(&subject)?;
        let decision = evaluation.decision.clone();
        // If no pool selects the Service any more, the addresses are taken back.
        let mut object = without["object"].take();
        decision.carry_out(&mut object);
        let changed = decision.denial().is_none().then_some(object);
        let used = decision.allocated().unwrap_or_default();
        evaluation.commit(used);
        // A Service with this name that exists may be moving to the addresses that it would release.
        if !subject.dry_run && !exists {
            let gone: Vec<IpAddr> = given.iter().filter(|address| !used.contains(address)).copied().collect();
            self.evaluator.ledger().release(&gone, &subject.owner);
        }
        Ok((decision, changed))
    }

    /// Logs that there is no decision, and answers as [`OnError`] says, a refusal with this code.
    fn undecided(&self, kind: ResourceKind, request: &Value, code: u16, reason: &str) -> AdmissionResponse {
        let Logged { namespace, name, operation, dry_run } = Logged::of(kind, request);
        let kind_name = kind.as_str();
        let (namespace, name) = (namespace.as_deref(), name.as_ref());
        tracing::error!(kind = kind_name, namespace, name, operation, dry_run, reason, "no decision");
        let message = format!("clusterip-policy could not decide: {reason}");
        match self.on_error {
            OnError::Deny if kind != ResourceKind::Node => AdmissionResponse::refused(request, code, message),
            _ => AdmissionResponse { warnings: Some(vec![message]), ..AdmissionResponse::allowed(request) },
        }
    }
}

impl Reviewer for Admission {
    fn not_begun(&self) -> Option<String> {
        // With an incomplete cache the policy could hand out an address that is in use.
        (!self.evaluator.stores().begun()).then(|| "the cluster is being listed".to_owned())
    }

    fn review(&self, request: &Value) -> AdmissionResponse {
        let begin = Instant::now();
        let kind = resource_kind(request);
        let (response, result, pool) = match self.decide(request) {
            Ok((decision, changed)) => {
                log(kind, request, &decision);
                let unwritten =
                    |error| AdmissionResponse::refused(request, 500, format!("the patch can't be written: {error}"));
                let (result, pool) = ((&decision.verdict).into(), decision.pool.clone());
                let response = AdmissionResponse::new(request, Response::with_object(decision, changed));
                (response.unwrap_or_else(unwritten), result, pool)
            }
            Err(error) => (self.undecided(kind, request, 500, &error.to_string()), AdmissionResult::Error, None),
        };
        self.metrics.answered(kind, result, pool.as_deref(), begin.elapsed());
        response
    }

    fn unreviewed(&self, request: &Value, code: u16, reason: &str) -> AdmissionResponse {
        let kind = resource_kind(request);
        let response = self.undecided(kind, request, code, reason);
        let result = if code == BUSY { AdmissionResult::Refused } else { AdmissionResult::Error };
        self.metrics.answered(kind, result, None, Duration::ZERO);
        response
    }
}

/// The request, with a Service that names no ClusterIP.
fn without_addresses(request: &Value) -> Value {
    let mut without = request.clone();
    if let Some(spec) = without.pointer_mut("/object/spec").and_then(Value::as_object_mut) {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    without
}

/// Kubernetes has no longer names.
const MAX_NAME: usize = 253;

/// What is wrong with a name. The API server checks names after its webhooks, and the ledger and the log keep them.
/// Messages name a Service without quotes, so a blank would make a part of its name read as a part of the message.
fn wrong_name(request: &Value) -> Option<String> {
    const NAMES: [&[&str]; 6] = [
        &["uid"],
        &["namespace"],
        &["name"],
        &["object", "metadata", "namespace"],
        &["object", "metadata", "name"],
        &["object", "metadata", "generateName"],
    ];
    let is_wrong = |path: &&[&str]| text(request, path).len() > MAX_NAME || text(request, path).contains(' ');
    let path = NAMES.into_iter().find(is_wrong)?;
    let name = quote(text(request, path));
    Some(format!("request.{}: {name} has more than {MAX_NAME} bytes, or a blank", path.join(".")))
}

fn resource_kind(request: &Value) -> ResourceKind {
    let kind = |field: &str| request.get("kind").and_then(|kind| kind.get(field)).and_then(Value::as_str);
    match (kind("group").unwrap_or_default(), kind("kind")) {
        ("", Some("Service")) => ResourceKind::Service,
        ("", Some("Node")) => ResourceKind::Node,
        _ => ResourceKind::Other,
    }
}

fn owner(request: &Value) -> Owner {
    Owner::new(named(request, "namespace"), named(request, "name"), text(request, &["uid"]))
}

/// The `name` or `namespace` of a request, otherwise that of its object, as `Request::read` finds them.
fn named<'r>(request: &'r Value, field: &str) -> &'r str {
    match text(request, &[field]) {
        "" => text(request, &["object", "metadata", field]),
        given => given,
    }
}

struct Logged<'r> {
    namespace: Option<Cow<'r, str>>,
    name: Cow<'r, str>,
    operation: &'r str,
    dry_run: bool,
}

impl<'r> Logged<'r> {
    fn of(kind: ResourceKind, request: &'r Value) -> Self {
        let short = |text| cut(text, MAX_NAME + 1);
        let generated = || format!("{}…", short(text(request, &["object", "metadata", "generateName"])));
        let name = short(named(request, "name"));
        Self {
            namespace: (kind != ResourceKind::Node).then(|| short(named(request, "namespace"))),
            name: if name.is_empty() { generated().into() } else { name },
            operation: text(request, &["operation"]),
            dry_run: request.get("dryRun").and_then(Value::as_bool).unwrap_or_default(),
        }
    }
}

fn log(kind: ResourceKind, request: &Value, decision: &Decision) {
    let Logged { namespace, name, operation, dry_run } = Logged::of(kind, request);
    let (namespace, name) = (namespace.as_deref(), name.as_ref());
    // For a Node, the blocks that others have set are logged; for a Service, the addresses that it gets.
    let is_node = kind == ResourceKind::Node;
    let object = request.get("object").unwrap_or(&Value::Null);
    let podcidrs = is_node.then(|| joined(blocks_of(object), ","));
    // An address that the policy leaves as it is, such as one set by hand, is that of the request.
    let clusterip = joined(decision.allocated().map_or_else(|| addresses(object), <[IpAddr]>::to_vec), ",");
    let clusterip = (!is_node && !clusterip.is_empty()).then_some(clusterip);
    let external = decision.external.as_ref();
    let external = external.map(|external| joined(&external.addresses, ",")).filter(|text| !text.is_empty());
    tracing::info!(
        kind = kind.as_str(),
        namespace,
        name,
        operation,
        dry_run,
        decision = decision.verdict.name(),
        pool = decision.pool.as_deref(),
        evidence = decision.evidence.as_ref().map(|evidence| evidence.source.as_str()),
        clusterip,
        external,
        podcidrs,
        reason = decision.verdict.reason(),
        warnings = (is_node && !decision.warnings.is_empty()).then(|| decision.cut_warnings().join("; ")),
        "decision"
    );
}

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answered {
    api_version: &'static str,
    kind: &'static str,
    response: AdmissionResponse,
}

/// The answer to an `AdmissionReview`, both as JSON. If the review panics, only this request is answered without one.
pub fn answer(reviewer: &dyn Reviewer, body: &[u8]) -> Result<Vec<u8>, ErrorResponse> {
    let not_json = |error| unreadable(format!("the body is not JSON: {error}"));
    let mut review = admission_review::read(body).map_err(not_json)?;
    expect_text(&review, "apiVersion", API_VERSION)?;
    expect_text(&review, "kind", KIND)?;
    let request = match review.get_mut("request") {
        Some(request @ Value::Object(_)) => request.take(),
        other => return Err(missing("request", other.as_deref(), "an object")),
    };
    let uid = match request.get("uid") {
        Some(Value::String(uid)) if !uid.is_empty() => uid.clone(),
        other => return Err(missing("request.uid", other, "a string")),
    };
    let mut response = panics::catch(|| reviewer.review(&request)).unwrap_or_else(|cause| {
        reviewer.unreviewed(&request, 500, &format!("the review panicked: {cause}; see the log of clusterip"))
    });
    response.uid = uid;
    written(response)
}

/// The answer to an `AdmissionReview` of which only the first `part` was read. Without it, the `failurePolicy` would
/// decide, and a client could bypass the policy with a request that is too large. `None` if the part does not say what
/// the request is about: API servers write these fields first.
pub(crate) fn answer_unread(reviewer: &dyn Reviewer, part: &[u8], code: u16, reason: &str) -> Option<Vec<u8>> {
    let request = identity(part);
    let uid = request.get("uid").and_then(Value::as_str).filter(|uid| !uid.is_empty())?.to_owned();
    request.get("kind")?;
    let mut response = reviewer.unreviewed(&Value::Object(request), code, reason);
    response.uid = uid;
    written(response).ok()
}

/// The namespace of a request; empty for an object of the cluster, `None` if the first `part` does not say it: API
/// servers write the namespace before the operation, and the name before both.
pub fn namespace_of(part: &[u8]) -> Option<String> {
    let identity = identity(part);
    let namespace = identity.get("namespace").or_else(|| identity.get("operation").map(|_| &Value::Null))?;
    Some(namespace.as_str().unwrap_or_default().to_owned())
}

fn identity(part: &[u8]) -> Map<String, Value> {
    let mut request = Map::new();
    let mut reader = serde_json::Deserializer::from_slice(part);
    // This usually ends with an error, because the rest of the body is missing.
    let _ = Identity { in_request: false, found: &mut request }.deserialize(&mut reader);
    request
}

fn written(response: AdmissionResponse) -> Result<Vec<u8>, ErrorResponse> {
    let answered = Answered { api_version: API_VERSION, kind: KIND, response };
    serde_json::to_vec(&answered).map_err(|error| ErrorResponse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

struct Identity<'f> {
    in_request: bool,
    found: &'f mut Map<String, Value>,
}

impl<'de> DeserializeSeed<'de> for Identity<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Identity<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an AdmissionReview")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        const FIELDS: [&str; 6] = ["uid", "kind", "namespace", "name", "operation", "dryRun"];
        while let Some(key) = map.next_key::<String>()? {
            if !self.in_request && key == "request" {
                map.next_value_seed(Identity { in_request: true, found: &mut *self.found })?;
            } else if self.in_request && FIELDS.contains(&key.as_str()) {
                let value = map.next_value()?;
                self.found.insert(key, value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

fn expect_text(review: &Value, field: &str, expected: &str) -> Result<(), ErrorResponse> {
    let found = review.get(field);
    if found.and_then(Value::as_str) == Some(expected) { Ok(()) } else { Err(missing(field, found, expected)) }
}

/// The error about a field. Bodies come from anywhere and messages are logged, so only the start of a text is shown.
fn missing(field: &str, found: Option<&Value>, expected: &str) -> ErrorResponse {
    let found = found.map_or_else(|| "missing".to_owned(), describe);
    unreadable(format!("{field} is {found}, expected {expected}"))
}

fn unreadable(why: String) -> ErrorResponse {
    ErrorResponse(StatusCode::BAD_REQUEST, why)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_cluster::kinds::State;
    use clusterip_core::request::Request;
    use clusterip_core::service_key::ServiceKey;
    use serde_json::json;

    use super::*;
    use crate::server_metrics::ServerMetrics;
    use crate::services::test_support::{client, evaluator};

    #[tokio::test]
    async fn nothing_is_decided_if_the_cluster_could_not_be_watched_for_five_minutes() {
        let request = json!({
            "uid": "u", "operation": "CREATE", "kind": {"version": "v1", "kind": "Service"},
            "namespace": "shop", "name": "web", "object": {},
        });
        for (kind, seconds, is_decided) in [("Service", 290, true), ("Service", 301, false), ("Pod", 301, true)] {
            let pools = json!([{"name": "all", "cidrs": ["10.1.0.0/16"]}]);
            let evaluator = evaluator(client(), json!({ "pools": pools }), &["10.0.0.0/8"]);
            let since = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
            let failing = State::Failing { since, reason: String::new(), usable: true };
            evaluator.stores().states().insert(("v1".to_owned(), kind.to_owned()), failing);
            let admission = Admission::new(evaluator, ServerMetrics::new().admission, OnError::Deny);
            let refusal = admission.decide(&request).err().map(|error| error.to_string());
            let expected = (!is_decided).then(|| format!("the cluster could not be watched for {seconds} s"));
            assert_eq!(refusal, expected, "{kind}, {seconds} s");
        }
    }

    #[test]
    fn an_owner_has_the_name_that_the_core_reads() {
        struct Case {
            name: &'static str,
            of_request: Value,
            of_object: Value,
        }
        let cases = [
            Case { name: "only the request", of_request: json!("request"), of_object: json!(null) },
            Case { name: "only the object", of_request: json!(null), of_object: json!("object") },
            Case { name: "an empty one in the request", of_request: json!(""), of_object: json!("object") },
            Case { name: "two", of_request: json!("request"), of_object: json!("object") },
            Case { name: "none", of_request: json!(null), of_object: json!(null) },
        ];
        for Case { name, of_request, of_object } in cases {
            let request = json!({
                "uid": "u", "operation": "CREATE", "kind": {"version": "v1", "kind": "Service"},
                "namespace": of_request, "name": of_request,
                "object": {"metadata": {"namespace": of_object, "name": of_object}},
            });
            let read = Request::read(&request).unwrap();
            assert_eq!(owner(&request).service, ServiceKey::new(read.namespace, read.name), "{name}");
        }
    }
}
