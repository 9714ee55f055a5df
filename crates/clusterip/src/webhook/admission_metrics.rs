//! The metrics of admission.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clusterip_cluster::host_metrics::LATENCIES;
use clusterip_cluster::label_values;
use clusterip_cluster::metrics::{Component, Number, register_version};
use clusterip_core::Verdict;
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
    AdmissionResult {
        Allocated = "allocated",
        Unchanged = "unchanged",
        Denied = "denied",
        Error = "error",
        /// The request was not reviewed: too many of its namespace waited, or they took too long.
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

#[derive(Clone)]
pub struct AdmissionMetrics {
    admissions: Labelled<[(&'static str, String); 3], Counter>,
    duration: Histogram,
    pub repeated_creates: Counter,
    /// When the certificate that is served expires, in seconds since 1970.
    pub certificate_expiry: Number,
    has_answered: Arc<AtomicBool>,
}

impl Default for AdmissionMetrics {
    fn default() -> Self {
        let duration = Histogram::new(LATENCIES);
        Self {
            duration,
            admissions: <_>::default(),
            repeated_creates: <_>::default(),
            certificate_expiry: <_>::default(),
            has_answered: <_>::default(),
        }
    }
}

fn labels(kind: ResourceKind, decision: AdmissionResult, pool: &str) -> [(&'static str, String); 3] {
    [("kind", kind.as_str().to_owned()), ("decision", decision.as_str().to_owned()), ("pool", pool.to_owned())]
}

impl AdmissionMetrics {
    pub fn answered(&self, kind: ResourceKind, decision: AdmissionResult, pool: Option<&str>, took: Duration) {
        self.admissions.get_or_create(&labels(kind, decision, pool.unwrap_or_default())).inc();
        self.duration.observe(took.as_secs_f64());
        self.has_answered.store(true, Ordering::Release);
    }

    pub fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Acquire)
    }

    /// Creates the counters of a pool with zero: Prometheus sees only an increase from a value that it has scraped.
    pub fn begin_pool(&self, kind: ResourceKind, decisions: &[AdmissionResult], pool: &str) {
        for &decision in decisions {
            drop(self.admissions.get_or_create(&labels(kind, decision, pool)));
        }
    }
}

impl Component for AdmissionMetrics {
    fn register(&self, registry: &mut Registry) {
        let Self { admissions, duration, repeated_creates, certificate_expiry, .. } = self.clone();
        register_version(registry, "build_info", "The version of the server; always 1");
        self.begin_pool(ResourceKind::Service, AdmissionResult::ALL, "");
        let about = "Admission requests by kind, decision and pool; the pool is empty if the decision did not need one";
        registry.register("admissions", about, admissions);
        let about = "Time from an admission request to its answer";
        registry.register_with_unit("admission_duration", about, Unit::Seconds, duration);
        let about = "Creates of a Service that was given another address in the last 65 s, which no Service shows: the \
                     create before it was refused, or is in progress";
        registry.register("repeated_creates", about, repeated_creates);
        let about = "When the served certificate expires; 0: there is none";
        registry.register_with_unit("certificate_expiry_timestamp", about, Unit::Seconds, certificate_expiry);
    }
}
