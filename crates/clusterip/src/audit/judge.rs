//! What the policy says of every Service.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{available_parallelism, scope};

use clusterip_core::answer::Outcome;
use serde_json::Value;
use thiserror::Error;

use super::calls::{Calls, Free};
use crate::cluster::object::Packed;
use crate::cluster::snapshot::Snapshot;
use crate::live_settings::LiveSettings;
use crate::placement::{Placement, Unasked, as_if_created, unasked};
use crate::policy::module::{Module, ModuleError};

/// A Service or Node that the policy has no answer for.
#[derive(Debug, Error)]
#[error("{subject}: {error}")]
pub struct JudgeError {
    /// What it is, and its name.
    pub subject: String,
    /// Why.
    pub error: ModuleError,
}

impl JudgeError {
    /// About a Service.
    pub fn of_service(namespace: &str, name: &str, error: ModuleError) -> Self {
        Self { subject: format!("service {namespace}/{name}"), error }
    }
}

/// What is known of a Service.
#[derive(Clone, Debug)]
pub enum Judgement {
    /// Nobody is asked about it.
    Unasked(Unasked),
    /// Where it belongs, and where it lies.
    Placed(Box<Placement>),
}

impl Judgement {
    /// Why the policy would deny the Service if it were created now.
    pub fn denial(&self) -> Option<&str> {
        match self {
            Self::Placed(placement) if placement.outcome == Some(Outcome::Denied) => {
                Some(placement.reason.as_deref().unwrap_or_default())
            }
            _ => None,
        }
    }
}

/// A Service as it is, and what is known of it.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Its namespace and name.
    pub id: (String, String),
    /// It.
    pub service: Packed,
    /// What is known of it.
    pub judgement: Arc<Judgement>,
}

/// What was said of Services before, by namespace and name.
pub(super) type Known = HashMap<(String, String), Said>;

pub(super) struct Said {
    service: Packed,
    revision: (u64, u64),
    judgement: Arc<Judgement>,
}

/// A Service as it was when the audit began.
pub(super) struct Seen {
    /// Its namespace and name.
    pub(super) id: (String, String),
    pub(super) service: Packed,
    /// Of what is known about its namespace.
    pub(super) revision: (u64, u64),
}

/// All Services, in the order of their namespaces and names. What is said of them afterwards is at least as new
/// as their revisions.
pub(super) fn seen(snapshot: &RwLock<Snapshot>) -> Vec<Seen> {
    let snapshot = snapshot.read().unwrap_or_else(PoisonError::into_inner);
    let service = |id: (String, String)| {
        let service = snapshot.packed("v1", "Service", &id.0, &id.1)?.clone();
        let revision = snapshot.revision(&id.0);
        Some(Seen { id, service, revision })
    };
    snapshot.names("v1", "Service", None).into_iter().filter_map(service).collect()
}

/// Judges every Service, in the order of their namespaces and names. What is `known` and still
/// holds is not asked for again.
///
/// # Errors
/// [`JudgeError`] for the first Service that the policy has no answer for.
pub(super) fn all(
    module: &Module,
    settings: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    known: &mut Known,
) -> Result<Vec<Judged>, JudgeError> {
    let services = seen(snapshot);
    let mut before = std::mem::take(known);
    let mut judgements: Vec<Option<Arc<Judgement>>> = services
        .iter()
        .map(|Seen { id, service, revision }| {
            let said = before.remove(id)?;
            (said.revision == *revision && said.service == *service).then_some(said.judgement)
        })
        .collect();

    let missing: Vec<usize> = (0..services.len()).filter(|index| judgements[*index].is_none()).collect();
    let threads = available_parallelism().map_or(1, NonZero::get);
    let failed: Mutex<Option<(usize, JudgeError)>> = Mutex::default();
    let found: Mutex<Vec<(usize, Judgement)>> = Mutex::default();
    scope(|scope| {
        for chunk in missing.chunks(missing.len().div_ceil(threads).max(1)) {
            let (services, failed, found) = (&services, &failed, &found);
            scope.spawn(move || {
                let mut own = Vec::with_capacity(chunk.len());
                for &index in chunk {
                    let Seen { id: (namespace, name), service, .. } = &services[index];
                    match one(module, settings, snapshot, &service.value()) {
                        Ok(judgement) => own.push((index, judgement)),
                        Err(error) => {
                            let error = JudgeError::of_service(namespace, name, error);
                            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                            if failed.as_ref().is_none_or(|(first, _)| index < *first) {
                                *failed = Some((index, error));
                            }
                            return;
                        }
                    }
                }
                found.lock().unwrap_or_else(PoisonError::into_inner).append(&mut own);
            });
        }
    });
    if let Some((_, error)) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    for (index, judgement) in found.into_inner().unwrap_or_else(PoisonError::into_inner) {
        judgements[index] = Some(Arc::new(judgement));
    }
    let judged = services.into_iter().zip(judgements).filter_map(|(Seen { id, service, revision }, judgement)| {
        let judgement = judgement?;
        let said = Said { service: service.clone(), revision, judgement: Arc::clone(&judgement) };
        known.insert(id.clone(), said);
        Some(Judged { id, service, judgement })
    });
    Ok(judged.collect())
}

/// Judges one Service.
///
/// # Errors
/// Where the policy has no answer.
pub fn one(
    module: &Module,
    settings: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    service: &Value,
) -> Result<Judgement, ModuleError> {
    if let Some(unasked) = unasked(&settings.settings, service) {
        return Ok(Judgement::Unasked(unasked));
    }
    let calls = Arc::new(Calls::new(snapshot, service, Free::All));
    let answer = module.validate(&as_if_created(service), &settings.document, calls)?;
    Ok(Judgement::Placed(Box::new(Placement::of(&settings.settings, service, &answer))))
}
