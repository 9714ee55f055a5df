//! Asks the policy about every Service.

use std::collections::HashMap;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::{Arc, RwLock};
use std::thread::{available_parallelism, scope};

use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_cluster::lookups::stored_cluster::StoredCluster;
use clusterip_cluster::object::Packed;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_core::{InUse, decide_value};
use clusterip_moves::seamless::temporary::looks_temporary;
use serde_json::Value;

use crate::audit::free_addresses::AllAddresses;
use crate::service_placement::{Placement, Skip, as_if_created, skip_reason};

/// Where a Service belongs.
#[derive(Clone, Debug)]
pub enum Evaluation {
    /// No decision is made about this Service.
    Skipped(Skip),
    /// The pool that the Service belongs to, and where its addresses lie.
    Placed(Box<Placement>),
}

impl Evaluation {
    /// Why the Service would be denied if it were created now; `None` if it would not.
    pub fn denial(&self) -> Option<&str> {
        match self {
            Self::Placed(placement) if placement.verdict.is_denied() => placement.verdict.reason(),
            _ => None,
        }
    }
}

/// A Service, and where it belongs.
#[derive(Clone, Debug)]
pub struct EvaluatedService {
    /// Namespace and name of the Service.
    pub id: ServiceKey,
    /// The Service.
    pub service: Packed,
    /// Where the Service belongs.
    pub evaluation: Arc<Evaluation>,
}

/// Earlier decisions, by namespace and name of the Service.
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

/// Evaluates every Service, ordered by namespace and name. A decision in `cache` is used again if the Service and its
/// revision have not changed.
pub(in crate::audit) fn all(
    settings: &LiveSettings,
    snapshot: &RwLock<Snapshot>,
    cache: &mut ServiceCache,
) -> Vec<EvaluatedService> {
    let services = listed(snapshot);
    let before = std::mem::take(cache);
    let evaluate = |listed: &ListedService| {
        let ListedService { id, service, revision } = listed;
        let cached = before.get(id).filter(|cached| cached.revision == *revision && cached.service == *service);
        let one = || Arc::new(one(&settings.settings, snapshot, &service.value()));
        cached.map_or_else(one, |cached| Arc::clone(&cached.evaluation))
    };
    let threads = available_parallelism().map_or(1, NonZero::get);
    let evaluations: Vec<Arc<Evaluation>> = scope(|scope| {
        let chunks = services.chunks(services.len().div_ceil(threads).max(1));
        let evaluated: Vec<_> =
            chunks.map(|chunk| scope.spawn(|| chunk.iter().map(evaluate).collect::<Vec<_>>())).collect();
        // A panic of the core ends the audit.
        let joined = evaluated.into_iter().map(|chunk| chunk.join().unwrap_or_else(|cause| resume_unwind(cause)));
        joined.flatten().collect()
    });
    let evaluated = services.into_iter().zip(evaluations).map(|(listed, evaluation)| {
        let ListedService { id, service, revision } = listed;
        let cached = CachedEvaluation { service: service.clone(), revision, evaluation: Arc::clone(&evaluation) };
        cache.insert(id.clone(), cached);
        EvaluatedService { id, service, evaluation }
    });
    evaluated.collect()
}

/// Evaluates one Service, with all addresses counted as free.
pub fn one(settings: &Settings, snapshot: &RwLock<Snapshot>, service: &Value) -> Evaluation {
    // A temporary Service ends with its move, and one of them has an address of another pool until then.
    if looks_temporary(service) {
        return Evaluation::Skipped(Skip::Unmanaged);
    }
    if let Some(skip) = skip_reason(settings, service) {
        return Evaluation::Skipped(skip);
    }
    let cluster = StoredCluster::new(snapshot, service, &AllAddresses);
    let decision = decide_value(&as_if_created(service), settings, InUse::default(), &cluster);
    Evaluation::Placed(Box::new(Placement::of(settings, service, &decision)))
}
