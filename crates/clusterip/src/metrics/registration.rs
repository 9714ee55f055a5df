//! Names and describes the metrics of a server and of an agent.

use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Unit;

use super::Metrics;
use super::labels::{
    About, AdmissionLabels, ClaimLabels, ClaimResult, Decision, Misplaced, MisplacedLabels, MoveLabels, MoveResult,
    ResultLabels, VersionLabels,
};

impl Metrics {
    pub(super) fn register(&mut self) {
        let build: Labelled<VersionLabels, Gauge> = Labelled::default();
        build.get_or_create(&VersionLabels { version: env!("CARGO_PKG_VERSION") }).set(1);
        self.registry.register("build_info", "The version of the server; always 1", build);
        self.register_settings_and_stores();
        let registry = &mut self.registry;
        registry.register(
            "admissions",
            "Admission requests by kind, decision and pool; the pool is empty if the decision did not need one",
            self.admissions.clone(),
        );
        registry.register_with_unit(
            "admission_duration",
            "Time from an admission request to its answer",
            Unit::Seconds,
            self.admission_duration.clone(),
        );
        registry.register_with_unit(
            "evaluation_duration",
            "Policy evaluation time",
            Unit::Seconds,
            self.evaluation_duration.clone(),
        );
        registry.register(
            "evaluation_errors",
            "Evaluations without an answer: the policy failed or exceeded its limits",
            self.evaluation_errors.clone(),
        );
        registry.register(
            "pool_usable_addresses",
            "Addresses that the pool may hand out, used or not",
            self.usable.clone(),
        );
        registry.register(
            "pool_used_addresses",
            "Addresses of the pool that are in use, including those set by hand in its reserved part",
            self.used.clone(),
        );
        registry.register("pool_free_addresses", "Addresses that the pool can hand out now", self.free.clone());
        registry.register(
            "pool_squatters",
            "Services with an address of the pool that belong elsewhere",
            self.squatters.clone(),
        );
        registry.register(
            "ledger_addresses",
            "Addresses handed out that the cluster does not show yet",
            self.ledger.clone(),
        );
        registry.register(
            "claims",
            "Attempts to claim an address among several replicas, by result; none with `--claims memory`",
            self.claims.clone(),
        );
        registry.register(
            "replicas",
            "Live replicas including this one, by whether they use the same settings as this one",
            self.replicas.clone(),
        );
        registry.register("moves", "Moves of Services to another address, by result", self.moves.clone());
        registry.register(
            "misplaced_services",
            "Services outside of their pool, by whether they are moved or why not",
            self.misplaced.clone(),
        );
        registry.register("leader", "Whether this process moves Services", self.leader.clone());
        registry.register_with_unit(
            "certificate_expiry_timestamp",
            "When the served certificate expires; 0: there is none",
            Unit::Seconds,
            self.certificate_expiry.clone(),
        );
        self.nodes.register(registry);
        self.external.register(registry);
    }

    /// Registers the metrics of every process that watches a cluster and its settings.
    pub(super) fn register_settings_and_stores(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "settings_valid",
            "Whether the latest version of the settings is in use; 0: it was refused, and an older one is in use",
            self.settings_valid.clone(),
        );
        registry.register("settings_info", "The hash of the settings in use; always 1", self.settings.clone());
        registry.register(
            "settings_versions",
            "Versions of the settings that were accepted or refused",
            self.settings_versions.clone(),
        );
        registry.register("store_synced", "Whether the objects of this kind are in sync", self.synced.clone());
        registry.register("watch_errors", "Failed watches; they are restarted", self.watch_errors.clone());
        registry.register_with_unit(
            "api_server_last_contact_timestamp",
            "When the API server last answered; 0: never",
            Unit::Seconds,
            self.last_contact.clone(),
        );
    }

    /// Sets counters to zero: a rate or an alert needs a value before the first event.
    pub(super) fn begin_at_zero(&self) {
        for &result in MoveResult::ALL {
            drop(self.moves.get_or_create(&MoveLabels { result }));
        }
        for &reason in Misplaced::ALL {
            drop(self.misplaced.get_or_create(&MisplacedLabels { reason }));
        }
        for &result in ClaimResult::ALL {
            drop(self.claims.get_or_create(&ClaimLabels { result }));
        }
        self.replicas(1, 0);
        for result in ["accepted", "refused"] {
            drop(self.settings_versions.get_or_create(&ResultLabels { result }));
        }
        for &decision in Decision::ALL {
            drop(self.admissions.get_or_create(&AdmissionLabels { kind: About::Service, decision, pool: None }));
        }
    }
}
