//! The metrics of admission.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use clusterip_cluster::host_metrics::LATENCIES;
use clusterip_cluster::label_values;
use clusterip_cluster::metrics::{Component, Number, timestamp};
use clusterip_core::Verdict;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

label_values! {
    ResourceKind {
        Service = "Service",
        /// A Node, or a subresource of one.
        Node = "Node",
        /// Any other kind, for which the webhook should not be registered.
        Other = "other",
    }
}

label_values! {
    /// The result of an admission request.
    AdmissionResult {
        /// The object got an address of a pool.
        Allocated = "allocated",
        /// The request was allowed without a change.
        Unchanged = "unchanged",
        Denied = "denied",
        Error = "error",
        /// The request was not reviewed, because too many reviews of its namespace waited, or because they took too long.
        Refused = "refused",
    }
}

impl From<&Verdict> for AdmissionResult {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Allocated(_) | Verdict::Assigned(_) => Self::Allocated,
            Verdict::Unchanged(_) => Self::Unchanged,
            Verdict::Denied(_) => Self::Denied,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AdmissionLabels {
    kind: ResourceKind,
    decision: AdmissionResult,
    pool: Option<String>,
}

#[derive(Clone)]
pub struct AdmissionMetrics {
    admissions: Labelled<AdmissionLabels, Counter>,
    duration: Histogram,
    certificate_expiry: Number,
    has_answered: Arc<AtomicBool>,
}

impl Default for AdmissionMetrics {
    fn default() -> Self {
        Self {
            admissions: Labelled::default(),
            duration: Histogram::new(LATENCIES),
            certificate_expiry: Number::default(),
            has_answered: Arc::default(),
        }
    }
}

impl AdmissionMetrics {
    pub fn answered(&self, kind: ResourceKind, decision: AdmissionResult, pool: Option<&str>, took: Duration) {
        self.admissions.get_or_create(&AdmissionLabels { kind, decision, pool: pool.map(str::to_owned) }).inc();
        self.duration.observe(took.as_secs_f64());
        self.has_answered.store(true, Ordering::Release);
    }

    pub fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Acquire)
    }

    /// Sets the counters of a pool to zero if they have no value yet. Prometheus sees an increase only from a value
    /// that it has scraped before: without a zero, the first denial would be missed.
    pub fn begin_pool(&self, kind: ResourceKind, decisions: &[AdmissionResult], pool: &str) {
        for &decision in decisions {
            drop(self.admissions.get_or_create(&AdmissionLabels { kind, decision, pool: Some(pool.to_owned()) }));
        }
    }

    /// Sets when the certificate that is served expires.
    pub fn certificate_expiry(&self, end: SystemTime) {
        self.certificate_expiry.set(timestamp(end));
    }
}

impl Component for AdmissionMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "admissions",
            "Admission requests by kind, decision and pool; the pool is empty if the decision did not need one",
            self.admissions.clone(),
        );
        registry.register_with_unit(
            "admission_duration",
            "Time from an admission request to its answer",
            Unit::Seconds,
            self.duration.clone(),
        );
        registry.register_with_unit(
            "certificate_expiry_timestamp",
            "When the served certificate expires; 0: there is none",
            Unit::Seconds,
            self.certificate_expiry.clone(),
        );
        for &decision in AdmissionResult::ALL {
            let labels = AdmissionLabels { kind: ResourceKind::Service, decision, pool: None };
            drop(self.admissions.get_or_create(&labels));
        }
    }
}
