//! Asks the policy for the external addresses of one Service, as admission does, and records the answer.

use std::sync::Arc;

use clusterip_cluster::api_error::error_message;
use clusterip_cluster::background;
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::lookups::stored_cluster::Subject;
use clusterip_cluster::object::service_path;
use clusterip_cluster::snapshot::StoredService;
use clusterip_cluster::watch::partial_object::PartialObject;
use clusterip_core::annotations::{RECORD_ANNOTATION, in_record};
use clusterip_core::decision::External;
use clusterip_core::external::Announcement;
use clusterip_core::request::{Change, Request as CoreRequest};
use clusterip_core::service::Service;
use clusterip_core::service_key::ServiceKey;
use clusterip_failover::claims::Owner;
use http::Request;
use kube::Client;
use serde_json::{Map, Value, json};

use super::external_metrics::AssignmentResult;
use super::waiting::{Answer, WaitsFor};
use crate::leader::event_recorder::{CONTROLLER, EventContent, EventQueue};
use crate::services::mover::records::UnfinishedMoves;

#[derive(Clone)]
pub(crate) struct Assigner {
    pub(crate) evaluator: Evaluator,
    pub(crate) client: Client,
    pub(crate) events: EventQueue,
    pub(crate) moves: UnfinishedMoves,
}

pub(super) struct Asked {
    pub answer: Answer,
    /// Why the Service gets no address; empty if it does.
    pub reason: String,
    /// The UID of the Service if the policy refused the address.
    pub uid: Option<String>,
}

impl Asked {
    fn done(answer: Answer) -> Self {
        Self { answer, reason: String::new(), uid: None }
    }

    /// The result to count; `None` if there was nothing to do.
    pub fn result(&self) -> Option<AssignmentResult> {
        match &self.answer {
            Answer::Settled => None,
            Answer::Assigned => Some(AssignmentResult::Assigned),
            Answer::Changed => Some(AssignmentResult::Conflict),
            Answer::Waits(WaitsFor::ApiServer { .. }) => Some(AssignmentResult::Failed),
            Answer::Waits(_) => Some(AssignmentResult::Refused),
        }
    }
}

impl Assigner {
    pub(super) async fn ask(&self, id: &ServiceKey) -> Asked {
        self.decide(id).await.unwrap_or_else(|reason| {
            let answer = Answer::Waits(WaitsFor::ApiServer { namespace: id.namespace.clone() });
            Asked { answer, reason, uid: None }
        })
    }

    async fn decide(&self, id: &ServiceKey) -> Result<Asked, String> {
        let path = service_path(&id.namespace, &id.name);
        let request = Request::get(&path).body(Vec::new()).map_err(|error| error.to_string())?;
        // With all its fields, a Service that a tenant has made large would take dozens of megabytes.
        let service: PartialObject = match self.client.request(request).await {
            Ok(service) => service,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Asked::done(Answer::Settled)),
            Err(error) => return Err(error_message(&error)),
        };
        let version = service.metadata.resource_version.clone();
        let service = Arc::new(stored(service).ok_or("the Service has no name")?);
        let (evaluator, asked) = (self.evaluator.clone(), Arc::clone(&service));
        let evaluated = background::run(&id.namespace, move || {
            let ServiceKey { namespace, name } = asked.key();
            let subject = Subject { owner: Owner::new(namespace, name, ""), own: Vec::new(), dry_run: false };
            let update = |object: Service| Change { old: Some(object.clone()), object };
            let request = |change| CoreRequest::of_change(&asked.uid(), namespace, change);
            evaluator.evaluate_read(|| asked.in_request(|_| true).map(update).map(request), &subject)
        });
        let evaluation = evaluated.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let (uid, record) = (service.uid().into_owned(), service.record());
        let decision = evaluation.decision.clone();
        let warnings = decision.cut_warnings().join("; ");
        let external = decision.external.as_ref();
        let changed = external.filter(|external| external.changes());
        let changes = |external: &&External| {
            in_record(&external.addresses) != record || external.announcement != Announcement::default()
        };
        let Some(External { addresses, announcement, .. }) = changed.filter(changes) else {
            if !record.is_empty() {
                return Ok(Asked::done(Answer::Settled));
            }
            let message = decision.denial().map(|denial| denial.message.clone());
            let reason = message.or(Some(warnings).filter(|warnings| !warnings.is_empty()));
            let reason = reason.unwrap_or_else(|| "the policy gives it no external address".to_owned());
            let waits_for = match external.and_then(|external| external.pool.clone()) {
                Some(pool) => {
                    let families = service.in_request(|_| true).map(|asked| format!("{:?}", asked.families));
                    WaitsFor::Address { pool, families: families.unwrap_or_default() }
                }
                None => WaitsFor::Pool { namespace: id.namespace.clone() },
            };
            return Ok(Asked { answer: Answer::Waits(waits_for), reason, uid: Some(uid) });
        };
        let after = in_record(addresses);
        if after.is_empty() && self.moves.due(&uid).is_some() {
            // A move that has begun meanwhile gives the Service its type back, but not its record.
            return Ok(Asked::done(Answer::Settled));
        }
        let value = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
        let announced = announcement.annotations.iter().map(|(key, text)| ((*key).to_owned(), value(text)));
        let annotations: Map<String, Value> =
            announced.chain([(RECORD_ANNOTATION.to_owned(), value(&after))]).collect();
        let mut body = json!({"metadata": {"uid": uid, "resourceVersion": version, "annotations": annotations}});
        if announcement.clears_field {
            body["spec"] = json!({"loadBalancerIP": null});
        }
        // Commit before the watch can deliver the Service with these addresses. Otherwise they stay reserved, and if
        // the Service is deleted soon, they do so for a long time without an owner.
        evaluation.commit_written(self.evaluator.ledger());
        let written = match patch(&self.client, &path, &body).await {
            Ok(written) => stored(written),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                return Ok(Asked::done(Answer::Changed));
            }
            Err(error) => return Err(error_message(&error)),
        };
        let text = |key: &str| written.as_ref().and_then(|written| written.annotation(key)).unwrap_or_default();
        let recorded = text(RECORD_ANNOTATION);
        let is_unannounced = announcement.annotations.iter().any(|(key, announced)| text(key) != announced);
        if is_lost(record, &after, recorded) || recorded == after && is_unannounced {
            let reason = "the record was not written: another webhook, or a replica with other settings, changed it";
            return Err(format!("{reason}; it is tried again"));
        }
        if recorded != after {
            return Ok(Asked::done(Answer::Settled));
        }
        let ServiceKey { namespace, name } = id;
        tracing::info!(namespace, name, addresses = after, "external addresses recorded");
        if !warnings.is_empty() {
            // Admission would have shown these warnings to the author of the Service.
            tracing::warn!(namespace, name, warnings, "the Service does not get everything that it asks for");
            self.report_unavailable(id, &uid, warnings);
        }
        // A record that was removed is not counted as given.
        let is_new = !after.is_empty() && after != record;
        Ok(Asked::done(if is_new { Answer::Assigned } else { Answer::Settled }))
    }

    pub(super) fn report_unavailable(&self, ServiceKey { namespace, name }: &ServiceKey, uid: &str, note: String) {
        let content = EventContent { uid, warning: true, reason: "ExternalAddressNotAvailable", note };
        self.events.tell(("v1", "Service"), (Some(namespace), name), "Assign", content);
    }
}

/// `None` if the Service has no name.
fn stored(service: PartialObject) -> Option<StoredService> {
    Some(StoredService::read(&service.value(&("v1".to_owned(), "Service".to_owned()))?))
}

/// Whether the change of a record `before` to `after` was lost, because a webhook made it `recorded`. A replica that does
/// not see the pools yet removes a new record, and one with other pools puts the old one back. If a webhook made it
/// another record, the watch shows a Service that has changed.
fn is_lost(before: &str, after: &str, recorded: &str) -> bool {
    recorded != after && (recorded == before || recorded.is_empty() || after.is_empty())
}

/// Sends a JSON patch, if `patch` is a list of operations, otherwise a merge patch.
pub(super) async fn patch(client: &Client, path: &str, patch: &Value) -> Result<PartialObject, kube::Error> {
    let kind = if patch.is_array() { "json-patch" } else { "merge-patch" };
    let request = Request::patch(format!("{path}?fieldManager={CONTROLLER}"))
        .header("content-type", format!("application/{kind}+json"))
        .body(patch.to_string().into_bytes())
        .map_err(kube::Error::HttpError)?;
    client.request(request).await
}

#[cfg(test)]
mod tests {
    use super::is_lost;

    #[test]
    fn change_that_a_webhook_undoes_is_lost() {
        let (old, new, other) = ("192.0.2.1", "192.0.2.2", "192.0.2.3");
        for (before, after, recorded, expected) in [
            ("", new, new, false),
            ("", new, "", true),
            ("", new, other, false),
            (old, new, new, false),
            (old, new, old, true),
            (old, new, "", true),
            (old, new, other, false),
            (old, "", "", false),
            (old, "", old, true),
            (old, "", other, true),
        ] {
            assert_eq!(is_lost(before, after, recorded), expected, "{before:?} to {after:?}: {recorded:?}");
        }
    }
}
