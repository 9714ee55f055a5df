//! Asks the policy about every Service.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{available_parallelism, scope};

use clusterip_core::answer::Outcome;
use serde_json::Value;
use thiserror::Error;

use super::calls::{Calls, Free};
use crate::cluster::object::Packed;
use crate::cluster::service_key::ServiceKey;
use crate::cluster::snapshot::Snapshot;
use crate::live_settings::LiveSettings;
use crate::policy::module::{Module, ModuleError};
use crate::service_placement::{Placement, Unasked, as_if_created, unasked};

/// The policy failed for a Service or Node.
#[derive(Debug, Error)]
#[error("{subject}: {error}")]
pub struct JudgeError {
    /// The kind and name of the object.
    pub subject: String,
    /// The error of the policy.
    pub error: ModuleError,
}

impl JudgeError {
    /// The error for the Service with this namespace and name.
    pub fn of_service(namespace: &str, name: &str, error: ModuleError) -> Self {
        Self { subject: format!("service {namespace}/{name}"), error }
    }
}

/// What the policy says about a Service.
#[derive(Clone, Debug)]
pub enum Judgement {
    /// The policy is not asked about this Service.
    Unasked(Unasked),
    /// The pool that the Service belongs to, and where its addresses lie.
    Placed(Box<Placement>),
}

impl Judgement {
    /// Why the policy would deny the Service if it were created now; `None` if it would not.
    pub fn denial(&self) -> Option<&str> {
        match self {
            Self::Placed(placement) if placement.outcome == Some(Outcome::Denied) => {
                Some(placement.reason.as_deref().unwrap_or_default())
            }
            _ => None,
        }
    }
}

/// A Service, and what the policy says about it.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Namespace and name of the Service.
    pub id: ServiceKey,
    /// The Service.
    pub service: Packed,
    /// What the policy says about the Service.
    pub judgement: Arc<Judgement>,
}

/// Earlier answers of the policy, by namespace and name of the Service.
pub(super) type Known = HashMap<ServiceKey, Said>;

pub(super) struct Said {
    service: Packed,
    revision: (u64, u64),
    judgement: Arc<Judgement>,
}

/// A Service as it was when the audit began.
pub(super) struct Seen {
    /// Namespace and name of the Service.
    pub(super) id: ServiceKey,
    pub(super) service: Packed,
    /// The revision of the objects in the Service's namespace.
    pub(super) revision: (u64, u64),
}

/// All Services, in the order of their namespaces and names. A judgement that is made afterwards is at least as new
/// as the revision.
pub(super) fn seen(snapshot: &RwLock<Snapshot>) -> Vec<Seen> {
    let snapshot = snapshot.read().unwrap_or_else(PoisonError::into_inner);
    let service = |id: ServiceKey| {
        let service = snapshot.packed("v1", "Service", &id.namespace, &id.name)?.clone();
        let revision = snapshot.revision(&id.namespace);
        Some(Seen { id, service, revision })
    };
    snapshot.services(None).into_iter().filter_map(service).collect()
}

/// Judges every Service, in the order of their namespaces and names. An answer in `known` is used again if the
/// Service and its revision have not changed.
///
/// # Errors
/// [`JudgeError`] for the first Service that the policy can't judge.
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
                    let Seen { id: ServiceKey { namespace, name }, service, .. } = &services[index];
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

/// Judges one Service, with all addresses counted as free.
///
/// # Errors
/// If the policy fails.
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
