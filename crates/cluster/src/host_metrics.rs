//! The metrics of a process that follows a cluster and its settings, and of one that evaluates the policy.

use crate::label_values;
use crate::metrics::{Component, Counters, Number, begin_at_zero, scrape_lock};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// The upper bounds of the histogram buckets in seconds: from half a millisecond to what the API server waits
/// for a webhook.
pub const LATENCIES: [f64; 13] = [0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

type Label<T> = [(&'static str, T); 1];

#[derive(Clone, Default)]
pub struct ClusterMetrics {
    /// Is set to 1 again if the latest version is in use again, after other versions were refused.
    pub valid: Gauge,
    settings: Labelled<Label<String>, Gauge>,
    versions: Counters<&'static str>,
    synced: Labelled<Label<String>, Gauge>,
    watch_errors: Counters<String>,
    left_out: Counters<String>,
    pub services_left_out: Gauge,
    /// When its watches began to fail, or now if none fails.
    pub last_contact: Number,
}

impl ClusterMetrics {
    /// The latest version, or an older version with changed ranges.
    pub fn settings_in_use(&self, hash: &str, latest: bool) {
        let _lock = scrape_lock();
        self.settings.clear();
        self.settings.get_or_create(&[("hash", hash.to_owned())]).set(1);
        self.valid.set(i64::from(latest));
        if latest {
            self.versions.get_or_create(&[("result", "accepted")]).inc();
        }
    }

    /// The previous version stays in use.
    pub fn settings_refused(&self) {
        let _lock = scrape_lock();
        self.valid.set(0);
        self.versions.get_or_create(&[("result", "refused")]).inc();
    }

    pub fn store_synced(&self, kind: &str, synced: bool) {
        self.synced.get_or_create(&[("kind", kind.to_owned())]).set(i64::from(synced));
    }

    pub fn watch_error(&self, kind: &str) {
        self.watch_errors.get_or_create(&[("kind", kind.to_owned())]).inc();
    }

    pub fn left_out(&self, kind: &str) {
        self.left_out.get_or_create(&[("kind", kind.to_owned())]).inc();
    }
}

impl Component for ClusterMetrics {
    fn register(&self, registry: &mut Registry) {
        let Self { valid, settings, versions, synced, watch_errors, left_out, services_left_out, last_contact } =
            self.clone();
        begin_at_zero(&versions, "result", &["accepted", "refused"]);
        let about =
            "Whether the latest version of the settings is in use; 0: it was refused, and an older one is in use";
        registry.register("settings_valid", about, valid);
        registry.register("settings_info", "The hash of the settings in use; always 1", settings);
        registry.register("settings_versions", "Versions of the settings that were accepted or refused", versions);
        registry.register("store_synced", "Whether the objects of this kind are in sync", synced);
        registry.register("watch_errors", "Failed watches; they are restarted", watch_errors);
        let about = "Objects that were left out, because the objects of their namespace take too much memory";
        registry.register("objects_left_out", about, left_out);
        let about = "Services that are left out now: they are not moved, and don't count as misplaced";
        registry.register("services_left_out", about, services_left_out);
        let about = "When the API server last answered; 0: never";
        registry.register_with_unit("api_server_last_contact_timestamp", about, Unit::Seconds, last_contact);
    }
}

#[derive(Clone)]
pub struct EvaluationMetrics {
    /// With an answer or without.
    pub duration: Histogram,
    pub errors: Counter,
}

impl Default for EvaluationMetrics {
    fn default() -> Self {
        Self { duration: Histogram::new(LATENCIES), errors: Counter::default() }
    }
}

impl Component for EvaluationMetrics {
    fn register(&self, registry: &mut Registry) {
        let Self { duration, errors } = self.clone();
        registry.register_with_unit("evaluation_duration", "Policy evaluation time", Unit::Seconds, duration);
        let about = "Evaluations without a decision: a panic, which is a defect of this program";
        registry.register("evaluation_errors", about, errors);
    }
}

label_values! {
    ClaimResult {
        Claimed = "claimed",
        /// The address is claimed. The claim of another replica, which did not use it or was for the same Service, was taken
        /// over.
        TakenOver = "taken_over",
        /// Another replica was faster.
        Taken = "taken",
        /// The API server did not say whether the address is claimed.
        Failed = "failed",
    }
}

#[derive(Clone, Default)]
pub struct ClaimMetrics {
    pub claims: Counters<ClaimResult>,
}

impl Component for ClaimMetrics {
    fn register(&self, registry: &mut Registry) {
        begin_at_zero(&self.claims, "result", ClaimResult::ALL);
        let about = "Attempts to claim an address among several replicas, by result; none with `--claims memory`";
        registry.register("claims", about, self.claims.clone());
    }
}
