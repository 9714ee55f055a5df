//! Asks the policy for the external addresses of a Service, and records its answer.

use clusterip_cluster::api_error::error_message;
use clusterip_cluster::background;
use clusterip_cluster::object::{service_path, text};
use clusterip_cluster::policy::service_request::ServiceRequest;
use clusterip_cluster::reservations::subject_addresses::Subject;
use clusterip_core::annotations::{RECORD_ANNOTATION, in_record};
use clusterip_core::service_key::ServiceKey;
use clusterip_failover::leases::owner::Owner;
use http::Request;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{AGAIN, Controller, Term, object_reference, record};
use crate::external::external_metrics::AssignmentResult;
use crate::leader::event_recorder::{CONTROLLER, EventContent, publish_event};

/// Why a Service gets no address. `uid` is the UID of the Service if the policy refused the address.
struct Without {
    uid: Option<String>,
    reason: String,
    result: AssignmentResult,
}

impl Controller {
    /// Asks the policy for the addresses of a Service, and records them.
    pub(super) async fn assign(&self, service: &Value, term: &mut Term) {
        let id = ServiceKey::of(service);
        let Without { uid, reason, result } = match self.decide(&id).await {
            Ok(result) => {
                if let Some(result) = result {
                    self.metrics.assigned(result);
                }
                term.waiting.remove(&id);
                return;
            }
            Err(without) => without,
        };
        let before = term.waiting.insert(id.clone(), (Instant::now() + AGAIN, reason.clone()));
        let said = before.is_some_and(|(_, before)| before == reason);
        if !said || result == AssignmentResult::Failed {
            self.metrics.assigned(result);
        }
        if said {
            return;
        }
        tracing::warn!(namespace = id.namespace, name = id.name, reason, "no external address");
        if let Some(uid) = uid {
            self.report_unavailable(&id, &uid, reason).await;
        }
    }

    async fn report_unavailable(&self, id: &ServiceKey, uid: &str, note: String) {
        let content = EventContent { uid, warning: true, reason: "ExternalAddressNotAvailable", note };
        publish_event(&self.client, object_reference(id, uid), "Assign", content).await;
    }

    /// Asks the policy, and writes the record according to its answer. Returns the result, or `None` if there was
    /// nothing to do.
    async fn decide(&self, id: &ServiceKey) -> Result<Option<AssignmentResult>, Without> {
        let failed = |reason: String| Without { uid: None, reason, result: AssignmentResult::Failed };
        let path = service_path(&id.namespace, &id.name);
        let request = Request::get(&path).body(Vec::new()).map_err(|error| failed(error.to_string()))?;
        let service: Value = match self.client.request(request).await {
            Ok(service) => service,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(error) => return Err(failed(error_message(&error))),
        };
        let (evaluator, owner) = (self.evaluator.clone(), Owner::new(&id.namespace, &id.name, ""));
        let object = service.clone();
        let evaluated = background::run_long(move || {
            let request = ServiceRequest {
                uid: "external",
                username: CONTROLLER,
                object: &object,
                old: Some(&object),
                dry_run: false,
            };
            evaluator.evaluate(&request.to_value(), &Subject { owner, own: Vec::new(), dry_run: false })
        });
        let evaluation = evaluated.await.map_err(|error| failed(error.to_string()))?;
        let evaluation = evaluation.map_err(|error| failed(error.to_string()))?;
        let uid = text(&service, &["metadata", "uid"]).to_owned();
        let decision = &evaluation.decision;
        let warnings = decision.cut_warnings().join("; ");
        let changed = decision.external.as_ref().filter(|external| external.changes());
        let after = changed.map(|external| in_record(&external.addresses)).filter(|after| *after != record(&service));
        let Some(after) = after else {
            if !record(&service).is_empty() {
                return Ok(None);
            }
            let message = decision.denial().map(|denial| denial.message.clone());
            let reason = message.or(Some(warnings).filter(|warnings| !warnings.is_empty()));
            let reason = reason.unwrap_or_else(|| "the policy gives it no external address".to_owned());
            return Err(Without { uid: Some(uid), reason, result: AssignmentResult::Refused });
        };
        let version = text(&service, &["metadata", "resourceVersion"]);
        let value = if after.is_empty() { Value::Null } else { after.clone().into() };
        let annotations = json!({RECORD_ANNOTATION: value});
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version, "annotations": annotations}});
        // Commit before the watch can deliver the Service with these addresses. Until an evaluation is committed, its
        // addresses stay reserved even if the watch delivers a Service that has them. If that Service were deleted
        // soon, they would stay reserved for a long time without an owner.
        evaluation.commit(&[]);
        match self.patch(&path, &patch).await {
            Ok(_) => {
                tracing::info!(
                    namespace = id.namespace,
                    name = id.name,
                    addresses = after,
                    "external addresses recorded"
                );
                if !warnings.is_empty() {
                    // The Service does not get all that it asks for. Admission would have shown these warnings to its
                    // author.
                    tracing::warn!(
                        namespace = id.namespace,
                        name = id.name,
                        warnings,
                        "the Service does not get everything that it asks for"
                    );
                    self.report_unavailable(id, &uid, warnings).await;
                }
                // A record that was removed is not counted as given.
                Ok((!after.is_empty()).then_some(AssignmentResult::Assigned))
            }
            // Another program changed the Service meanwhile. The watch delivers that change next.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Some(AssignmentResult::Conflict)),
            Err(error) => Err(failed(error_message(&error))),
        }
    }
}
