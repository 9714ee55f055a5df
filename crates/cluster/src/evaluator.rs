//! Evaluates requests on a live cluster, with the settings in force, the watched stores and the ledger.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use clusterip_core::address::Family;
use clusterip_core::request::Request;
use clusterip_core::services::Picker;
use clusterip_core::{Decision, InUse};
use clusterip_failover::claims::Owner;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;

use crate::external::admission_state;
use crate::host_metrics::EvaluationMetrics;
use crate::live_settings::LiveSettings;
use crate::lookups::stored_cluster::{StoredCluster, Subject};
use crate::panics;
use crate::reservations::ledger::{Ledger, NamespaceShare};
use crate::reservations::replica_claims::{Claims, is_chosen_by_any_replica};
use crate::watch::stores::Stores;

#[derive(Clone)]
pub struct Evaluator {
    settings: watch::Receiver<Arc<LiveSettings>>,
    stores: Stores,
    ledger: Ledger,
    claims: Option<Claims>,
    metrics: EvaluationMetrics,
}

/// A decision, and the addresses that are reserved for it. They are released when this is dropped, except for those
/// that [`Self::commit`] keeps.
pub struct Evaluation {
    pub decision: Decision,
    pub settings: Arc<LiveSettings>,
    cluster: StoredCluster,
    external: Vec<IpAddr>,
}

#[derive(Debug, Error)]
pub enum EvaluationError {
    /// The core panicked: a defect of this program.
    #[error("the decision failed: {0}; see the log of clusterip")]
    Panicked(String),
    /// The decision gives external addresses, and one of them can't be reserved.
    #[error("external addresses can't be reserved: {0}")]
    NotReserved(String),
}

impl Evaluator {
    pub fn new(
        settings: watch::Receiver<Arc<LiveSettings>>,
        stores: Stores,
        ledger: Ledger,
        metrics: EvaluationMetrics,
    ) -> Self {
        Self { settings, stores, ledger, claims: None, metrics }
    }

    pub fn claiming(self, claims: Claims) -> Self {
        Self { claims: Some(claims), ..self }
    }

    /// No other replica knows of the addresses that it reserves.
    pub fn unclaimed(&self) -> Self {
        Self { claims: None, ..self.clone() }
    }

    /// Whether the policy chose this address as the ClusterIP of the Service with this namespace and name.
    pub fn is_chosen_for(&self, address: IpAddr, namespace: &str, name: &str) -> bool {
        self.settings().settings.external.pool_of(address).is_none()
            && is_chosen_by_any_replica(&self.ledger, self.claims.as_ref(), address, (namespace, name))
    }

    pub fn settings(&self) -> Arc<LiveSettings> {
        Arc::clone(&self.settings.borrow())
    }

    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Reserves an address that the author of a request chose for the Service `owner`, unless the address is reserved
    /// already.
    pub fn reserve_chosen_by_hand(&self, address: IpAddr, owner: &Owner) {
        let settings = self.settings();
        let shares = |address| NamespaceShare::of(&settings.settings, address, owner.namespace());
        let released = self.ledger.reserve_chosen_by_hand(address, owner, &shares);
        if let Some(claims) = &self.claims {
            claims.release(&released);
        }
    }

    /// Evaluates a request, without a request to the API server unless an address is claimed. A panic of the core is
    /// counted and logged. After an error, nothing is reserved.
    pub fn evaluate(&self, request: &Value, subject: &Subject) -> Result<Evaluation, EvaluationError> {
        guarded(&self.metrics, &subject.owner, || self.evaluate_unguarded(request, subject))
    }

    /// Reserves a free address of each of these families that no pool contains, as the policy gives them to a Service that
    /// no pool matches. They stay reserved until they are seen. `None` if there are none, or if that is unknown.
    pub fn reserve_outside(&self, families: &[Family], subject: &Subject) -> Option<Vec<IpAddr>> {
        let live = self.settings();
        let (settings, claims) = (&live.settings, self.claims.as_ref());
        let cluster = StoredCluster::reserving(self.stores.snapshot(), subject.clone(), settings, &self.ledger, claims);
        let (namespace, name) = subject.owner.id();
        let (outside, key) = (settings.outside_of_pools(), format!("{namespace}/{name}"));
        let mut picker = Picker::new(&cluster, settings.order, &key, (namespace, name));
        let picked = families.iter().map(|family| picker.pick(&settings.candidates(&outside, *family)));
        let picked = picked.collect::<Result<Option<Vec<IpAddr>>, _>>().ok()??;
        cluster.commit(&picked, settings);
        Some(picked)
    }

    fn evaluate_unguarded(&self, request: &Value, subject: &Subject) -> Result<Evaluation, EvaluationError> {
        let live = self.settings();
        let settings = &live.settings;
        // A subject that must not reserve a ClusterIP may still get external addresses.
        let dry_run = request.get("dryRun").and_then(Value::as_bool).unwrap_or_default();
        let (snapshot, claims) = (self.stores.snapshot(), self.claims.as_ref());
        let cluster = StoredCluster::reserving(snapshot, subject.clone(), settings, &self.ledger, claims);
        let (decision, external) = match Request::read(request) {
            Err(mismatch) => (Decision::unreadable(&mismatch), Vec::new()),
            Ok(request) if admission_state::concerns(&settings.external, &request) => {
                admission_state::decide(&request, settings, &cluster, dry_run).map_err(EvaluationError::NotReserved)?
            }
            Ok(request) => (clusterip_core::decide(&request, settings, InUse::default(), &cluster), Vec::new()),
        };
        Ok(Evaluation { decision: live.worded(decision), settings: live, cluster, external })
    }
}

fn guarded<T>(
    metrics: &EvaluationMetrics,
    owner: &Owner,
    evaluate: impl FnOnce() -> Result<T, EvaluationError>,
) -> Result<T, EvaluationError> {
    let begin = Instant::now();
    let evaluation = panics::catch(evaluate);
    metrics.took(begin.elapsed());
    evaluation.unwrap_or_else(|cause| {
        metrics.error();
        let (namespace, name) = owner.id();
        tracing::error!(namespace, name, cause, "the decision about an object failed");
        Err(EvaluationError::Panicked(cause))
    })
}

impl Evaluation {
    /// Why the claim of an address failed, if one did: the decision does not show then which addresses are free.
    pub fn failed_claim(&self) -> Option<String> {
        self.cluster.failed_claim()
    }

    /// Keeps these addresses reserved until they are seen, and releases all others. A namespace that then has reserved
    /// more than its share of a pool loses its oldest reservations there.
    pub fn commit(self, used: &[IpAddr]) {
        self.cluster.commit(&[used, &self.external].concat(), &self.settings.settings);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use crate::metrics::{Exposition, ScrapeLock};

    use super::*;

    #[test]
    fn a_panic_is_caught_and_counted() {
        struct Case {
            name: &'static str,
            panics: fn() -> Result<(), EvaluationError>,
            message: &'static str,
        }
        let cases = [
            Case { name: "a text", panics: || panic!("on purpose"), message: "on purpose" },
            Case { name: "a formatted text", panics: || panic!("on {}", "purpose"), message: "on purpose" },
            Case { name: "another value", panics: || std::panic::panic_any(7), message: "for an unknown reason" },
        ];
        for Case { name, panics, message } in cases {
            let metrics = EvaluationMetrics::default();
            let mut exposition = Exposition::new(ScrapeLock::default());
            exposition.add(&metrics);
            let found = guarded(&metrics, &Owner::new("shop", "web", ""), panics);
            assert!(matches!(&found, Err(EvaluationError::Panicked(text)) if text == message), "{name}: {found:?}");
            let said = found.unwrap_err().to_string();
            assert_eq!(said, format!("the decision failed: {message}; see the log of clusterip"), "{name}");
            let text = exposition.encode();
            for line in ["clusterip_evaluation_errors_total 1", "clusterip_evaluation_duration_seconds_count 1"] {
                assert!(text.lines().any(|other| other == line), "{name}: {line} is not in\n{text}");
            }
        }
    }
}
