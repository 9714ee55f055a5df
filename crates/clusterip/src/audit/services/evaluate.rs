//! Asks the policy about every Service.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{available_parallelism, scope};

use clusterip_core::answer::Outcome;
use clusterip_core::service_key::ServiceKey;
use clusterip_host::cluster::lookups::snapshot::Snapshot;
use clusterip_host::live_settings::LiveSettings;
use clusterip_host::object::Packed;
use clusterip_host::policy::module::{Module, ModuleError, Series};
use clusterip_moves::seamless::temporary::looks_temporary;
use serde_json::Value;
use thiserror::Error;

use crate::audit::audit_lookups::{AuditLookups, Free};
use crate::service_placement::{Placement, Skip, as_if_created, skip_reason};

/// The error of the policy for a Service or Node.
#[derive(Debug, Error)]
#[error("{subject}: {error}")]
pub struct EvaluateError {
    /// The kind and name of the object.
    pub subject: String,
    /// The error of the policy.
    pub error: ModuleError,
}

impl EvaluateError {
    /// The error for the Service with this namespace and name.
    pub fn of_service(namespace: &str, name: &str, error: ModuleError) -> Self {
        Self { subject: format!("Service {namespace}/{name}"), error }
    }
}

/// The policy's answer about a Service.
#[derive(Clone, Debug)]
pub enum Evaluation {
    /// The policy is not asked about this Service.
    Skipped(Skip),
    /// The pool that the Service belongs to, and where its addresses lie.
    Placed(Box<Placement>),
}

impl Evaluation {
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

/// A Service, and the policy's answer about it.
#[derive(Clone, Debug)]
pub struct EvaluatedService {
    /// Namespace and name of the Service.
    pub id: ServiceKey,
    /// The Service.
    pub service: Packed,
    /// The policy's answer about the Service.
    pub evaluation: Arc<Evaluation>,
}

/// Earlier answers of the policy, by namespace and name of the Service.
pub(in crate::audit) type ServiceCache = HashMap<ServiceKey, CachedEvaluation>;

pub(in crate::audit) struct CachedEvaluation {
    service: Packed,
    revision: (u64, u64),
    evaluation: Arc<Evaluation>,
}

/// A Service as it was when the audit began.
pub(in crate::audit) struct ListedService {
    /// Namespace and name of the Service.
    pub(in crate::audit) id: ServiceKey,
    pub(in crate::audit) service: Packed,
    /// The revision of the objects in the Service's namespace.
    pub(in crate::audit) revision: (u64, u64),
}

/// All Services, ordered by namespace and name. A later evaluation is at least as new as the returned revision.
pub(in crate::audit) fn listed(snapshot: &RwLock<Snapshot>) -> Vec<ListedService> {
    let snapshot = Snapshot::read(snapshot);
    let service = |id: ServiceKey| {
        let service = snapshot.packed("v1", "Service", &id.namespace, &id.name)?.clone();
        let revision = snapshot.revision(&id.namespace);
        Some(ListedService { id, service, revision })
    };
    snapshot.services(None).into_iter().filter_map(service).collect()
}

/// Evaluates every Service, ordered by namespace and name. An answer in `cache` is used again if the
/// Service and its revision have not changed.
///
/// # Errors
/// [`EvaluateError`] for the first Service that the policy can't evaluate.
pub(in crate::audit) fn all(
    module: &Module,
    settings: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    cache: &mut ServiceCache,
) -> Result<Vec<EvaluatedService>, EvaluateError> {
    let services = listed(snapshot);
    let mut before = std::mem::take(cache);
    let mut evaluations: Vec<Option<Arc<Evaluation>>> = services
        .iter()
        .map(|ListedService { id, service, revision }| {
            let cached = before.remove(id)?;
            (cached.revision == *revision && cached.service == *service).then_some(cached.evaluation)
        })
        .collect();

    let missing: Vec<usize> = (0..services.len()).filter(|index| evaluations[*index].is_none()).collect();
    let threads = available_parallelism().map_or(1, NonZero::get);
    let failed: Mutex<Option<(usize, EvaluateError)>> = Mutex::default();
    let found: Mutex<Vec<(usize, Evaluation)>> = Mutex::default();
    scope(|scope| {
        for chunk in missing.chunks(missing.len().div_ceil(threads).max(1)) {
            let (services, failed, found) = (&services, &failed, &found);
            scope.spawn(move || {
                let mut own = Vec::with_capacity(chunk.len());
                let mut series = module.series();
                for &index in chunk {
                    let ListedService { id: ServiceKey { namespace, name }, service, .. } = &services[index];
                    match one(&mut series, settings, snapshot, &service.value()) {
                        Ok(evaluation) => own.push((index, evaluation)),
                        Err(error) => {
                            let error = EvaluateError::of_service(namespace, name, error);
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
    for (index, evaluation) in found.into_inner().unwrap_or_else(PoisonError::into_inner) {
        evaluations[index] = Some(Arc::new(evaluation));
    }
    let evaluated =
        services.into_iter().zip(evaluations).filter_map(|(ListedService { id, service, revision }, evaluation)| {
            let evaluation = evaluation?;
            let cached = CachedEvaluation { service: service.clone(), revision, evaluation: Arc::clone(&evaluation) };
            cache.insert(id.clone(), cached);
            Some(EvaluatedService { id, service, evaluation })
        });
    Ok(evaluated.collect())
}

/// Evaluates one Service, with all addresses counted as free.
///
/// # Errors
/// If the policy fails.
pub fn one(
    series: &mut Series<'_>,
    settings: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    service: &Value,
) -> Result<Evaluation, ModuleError> {
    // A temporary Service ends with its move, and one of them has an address of another pool until then.
    if looks_temporary(service) {
        return Ok(Evaluation::Skipped(Skip::Unmanaged));
    }
    if let Some(skip) = skip_reason(&settings.settings, service) {
        return Ok(Evaluation::Skipped(skip));
    }
    let lookups = Arc::new(AuditLookups::new(snapshot, &settings.settings, service, Free::All));
    let answer = series.validate(&as_if_created(service), &settings.document, lookups)?;
    Ok(Evaluation::Placed(Box::new(Placement::of(&settings.settings, service, &answer))))
}
