//! Evaluates the policy on a live cluster, with the module, the settings in force, the watched stores and the ledger.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use clusterip_core::answer::Answer;
use clusterip_core::settings::{Pool, Settings};
use clusterip_leases::owner::Owner;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;

use crate::cluster::lookups::stored_cluster;
use crate::cluster::lookups::watched_lookups::{ReserveError, Subject, WatchedLookups};
use crate::cluster::reservations::ledger::Ledger;
use crate::cluster::reservations::namespace_share;
use crate::cluster::reservations::replica_claims::{ClaimError, Claims, is_chosen_by_any_replica};
use crate::cluster::watch::stores::Stores;
use crate::external::admission_state;
use crate::host_metrics::EvaluationMetrics;
use crate::live_settings::LiveSettings;
use crate::policy::module::{Module, ModuleError};

/// Evaluates requests with the policy. Cheap to clone.
#[derive(Clone)]
pub struct Evaluator {
    module: Arc<Module>,
    settings: watch::Receiver<Arc<LiveSettings>>,
    stores: Stores,
    ledger: Ledger,
    claims: Option<Claims>,
    metrics: EvaluationMetrics,
}

/// A policy answer, and the addresses that are reserved for it. They are released when this is dropped, except for
/// those that [`Self::commit`] keeps.
pub struct Evaluation {
    /// The policy's answer.
    pub answer: Answer,
    /// The settings that the answer was made with.
    pub settings: Arc<LiveSettings>,
    lookups: Arc<WatchedLookups>,
    /// The external addresses that the answer gives to the Service.
    external: Vec<IpAddr>,
}

/// Why a request can't be evaluated.
#[derive(Debug, Error)]
pub enum EvaluationError {
    /// The policy does not answer.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The policy chose external addresses, and one of them can't be reserved.
    #[error("external addresses can't be reserved: {0}")]
    NotReserved(#[from] ReserveError),
    /// The policy chose external addresses several times, and each time another request was faster.
    #[error("external addresses can't be reserved: other requests took them first, {TRIES} times in a row; try again")]
    TakenByOthers,
}

/// How many times a decision about external addresses is made, if another request is faster each time.
const TRIES: usize = 32;

impl Evaluator {
    /// An evaluator that runs `module` with the settings in force at the moment of each request.
    pub fn new(
        module: Arc<Module>,
        settings: watch::Receiver<Arc<LiveSettings>>,
        stores: Stores,
        ledger: Ledger,
        metrics: EvaluationMetrics,
    ) -> Self {
        Self { module, settings, stores, ledger, claims: None, metrics }
    }

    /// Makes the evaluator claim addresses, as one of several replicas.
    pub fn claiming(self, claims: Claims) -> Self {
        Self { claims: Some(claims), ..self }
    }

    /// The same evaluator without claims. No other replica knows of the addresses that it reserves.
    pub fn unclaimed(&self) -> Self {
        Self { claims: None, ..self.clone() }
    }

    /// Whether any replica chose this address for the Service with this namespace and name.
    pub fn is_chosen_for(&self, address: IpAddr, namespace: &str, name: &str) -> bool {
        is_chosen_by_any_replica(&self.ledger, self.claims.as_ref(), address, (namespace, name))
    }

    /// The module of the policy.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<LiveSettings> {
        Arc::clone(&self.settings.borrow())
    }

    /// The watched stores.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The ledger of addresses in flight.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Reserves an address that the author of a request chose for the Service `owner`, unless the address is reserved
    /// already.
    pub fn reserve_chosen_by_hand(&self, address: IpAddr, owner: &Owner) {
        let settings = self.settings();
        let shares = |address| namespace_share::of(&settings.settings, address);
        let released = self.ledger.reserve_chosen_by_hand(address, owner, &shares);
        if let Some(claims) = &self.claims {
            claims.release(&released);
        }
    }

    /// The pool that the answer to a request would name, if the request creates a Service without an address. `None` if
    /// only [`Self::evaluate`] can tell, which takes many times as long.
    pub fn expected_pool<'s>(&self, request: &Value, settings: &'s Settings) -> Option<&'s Pool> {
        stored_cluster::expected_pool(settings, self.stores.snapshot(), request)
    }

    /// Evaluates a request. Blocks the thread until the policy answers.
    ///
    /// # Errors
    /// [`EvaluationError`] if the policy does not answer, or if the external addresses that it chose can't be reserved.
    /// Then nothing is reserved.
    pub fn evaluate(&self, request: &Value, subject: &Subject) -> Result<Evaluation, EvaluationError> {
        let settings = self.settings();
        let object = request.get("object").unwrap_or(&Value::Null);
        let lookups = WatchedLookups::new(&self.stores, &self.ledger, self.claims.as_ref(), subject, object);
        let lookups = Arc::new(lookups.under(&settings.settings));
        let objects = ["object", "oldObject"].map(|key| request.get(key));
        let begin = Instant::now();
        let answered = if admission_state::concerns(&settings.settings.external, objects) {
            self.evaluate_with_held(request, subject, &settings, &lookups)
        } else {
            let answer = self.module.validate(request, &settings.document, lookups.clone());
            answer.map(|answer| (answer, Vec::new())).map_err(EvaluationError::Module)
        };
        self.metrics.took(begin.elapsed());
        if let Err(EvaluationError::Module(_)) = answered {
            self.metrics.error();
        }
        let (answer, external) = answered?;
        let answer = settings.worded(answer);
        Ok(Evaluation { answer, settings, lookups, external })
    }

    /// Evaluates a request about a Service that may get external addresses. They are reserved for the Service; if
    /// another request was faster, the decision is made again.
    fn evaluate_with_held(
        &self,
        request: &Value,
        subject: &Subject,
        settings: &LiveSettings,
        lookups: &Arc<WatchedLookups>,
    ) -> Result<(Answer, Vec<IpAddr>), EvaluationError> {
        let external = &settings.settings.external;
        for _ in 0..TRIES {
            let held = admission_state::held(external, &self.stores.read_snapshot(), &self.ledger);
            let answer = self.module.evaluate_with_held(request, &settings.document, &held, lookups.clone())?;
            let object = answer.mutated_object.as_ref().or_else(|| request.get("object"));
            let newly_claimed =
                object.map(|object| admission_state::newly_claimed(external, request, object)).unwrap_or_default();
            if !answer.accepted || subject.dry_run {
                return Ok((answer, Vec::new()));
            }
            let mut all = true;
            for address in &newly_claimed {
                all &= lookups.reserve_external(*address, &settings.settings)?;
            }
            if all {
                return Ok((answer, newly_claimed));
            }
            // Another request was faster.
            lookups.release();
        }
        Err(EvaluationError::TakenByOthers)
    }
}

impl Evaluation {
    /// Why the claim of an address failed, if one did: the answer does not show then which addresses are free.
    pub fn failed_claim(&self) -> Option<ClaimError> {
        self.lookups.failed_claim()
    }

    /// Keeps these addresses reserved until they are seen, and releases all others. A namespace that then has reserved
    /// more than its share of a pool loses its oldest reservations there.
    pub fn commit(self, used: &[IpAddr]) {
        self.lookups.commit(&[used, &self.external].concat(), &self.settings.settings);
    }
}
