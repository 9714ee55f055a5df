//! The policy on a live cluster: the module, the settings in force, the watched stores and the ledger.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use clusterip_core::answer::Answer;
use serde_json::Value;
use tokio::sync::watch;

use crate::cluster::claims::Claims;
use crate::cluster::ledger::Ledger;
use crate::cluster::lookups::{Lookups, Subject};
use crate::cluster::snapshot::map;
use crate::cluster::stores::Stores;
use crate::live_settings::LiveSettings;
use crate::metrics::Metrics;
use crate::policy::module::{Module, ModuleError};

/// Evaluates requests. Cheap to clone.
#[derive(Clone)]
pub struct Evaluator {
    module: Arc<Module>,
    settings: watch::Receiver<Arc<LiveSettings>>,
    stores: Stores,
    ledger: Ledger,
    claims: Option<Claims>,
    metrics: Arc<Metrics>,
}

/// An answer, and what was held for it: let go when this goes, but for what is settled.
pub struct Evaluation {
    /// The policy's answer.
    pub answer: Answer,
    /// The settings that it was made by.
    pub settings: Arc<LiveSettings>,
    lookups: Arc<Lookups>,
}

impl Evaluator {
    /// Evaluates with `module`, by the settings in force at the moment of each request.
    pub fn new(
        module: Arc<Module>,
        settings: watch::Receiver<Arc<LiveSettings>>,
        stores: Stores,
        ledger: Ledger,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { module, settings, stores, ledger, claims: None, metrics }
    }

    /// The same, with claims: one of several replicas.
    pub fn claiming(self, claims: Claims) -> Self {
        Self { claims: Some(claims), ..self }
    }

    /// The same, without claims: what it holds, no other replica knows of.
    pub fn unclaimed(&self) -> Self {
        Self { claims: None, ..self.clone() }
    }

    /// Whether the policy chose this address for the Service of this namespace and name, here or in another
    /// replica. Where there are several, the API server may have to be asked.
    pub fn is_ours(&self, address: IpAddr, namespace: &str, name: &str) -> bool {
        let claimed = || self.claims.as_ref().is_some_and(|claims| claims.is_claimed_for(address, namespace, name));
        self.ledger.is_ours(address, namespace, name) || claimed()
    }

    /// The policy.
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

    /// The addresses in flight.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Evaluates a request. It blocks for as long as the policy takes.
    ///
    /// # Errors
    /// [`ModuleError`] where the policy does not answer: nothing is held then.
    pub fn evaluate(&self, request: &Value, subject: &Subject) -> Result<Evaluation, ModuleError> {
        let settings = self.settings();
        let selector = request.get("object").map(|object| map(object, &["spec", "selector"])).unwrap_or_default();
        let lookups = Arc::new(Lookups::new(&self.stores, &self.ledger, self.claims.as_ref(), subject, selector));
        let begin = Instant::now();
        let answer = self.module.validate(request, &settings.document, lookups.clone());
        self.metrics.evaluation(begin.elapsed());
        let answer = answer.inspect_err(|_| self.metrics.evaluation_error())?;
        Ok(Evaluation { answer, settings, lookups })
    }
}

impl Evaluation {
    /// Keeps these addresses held until they are seen, and lets go of all others.
    pub fn settle(self, used: &[IpAddr]) {
        self.lookups.settle(used);
    }
}
