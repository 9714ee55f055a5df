//! The metrics for Prometheus.
//!
//! Dashboards and alerts rely on the names: docs/metrics.md lists them, and a test compares that list with what is
//! exposed.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use clusterip_core::address::Family;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub mod agent_metrics;
pub mod external_metrics;
mod labels;
pub mod node_metrics;

use self::agent_metrics::{AgentMetrics, Renewal, Step};
use self::external_metrics::{ExternalFill, ExternalMetrics, Given};
pub use self::labels::{About, ClaimResult, Decision, Misplaced, MoveResult};
use self::labels::{
    AdmissionLabels, ClaimLabels, HashLabels, KindLabels, MisplacedLabels, MoveLabels, PoolFamilyLabels, PoolLabels,
    ReplicaLabels, ResultLabels, VersionLabels,
};
use self::node_metrics::{Assignment, BlockFill, Misplaced as MisplacedNodes, NodeMetrics};

/// The media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The upper bounds of the histogram buckets in seconds: from half a millisecond, which an evaluation takes, to what
/// the API server waits for a webhook.
const LATENCIES: [f64; 13] = [0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// The usage of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolFill {
    /// The name of the pool.
    pub pool: String,
    /// The usage by family; families without a range are missing.
    pub families: Vec<FamilyFill>,
    /// How many Services have an address of the pool but belong elsewhere.
    pub squatters: u64,
}

/// The usage of a pool's ranges of one family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FamilyFill {
    /// The address family.
    pub family: Family,
    /// How many addresses the pool may hand out, used or not.
    pub usable: u128,
    /// How many addresses are in use, including those set by hand in the reserved part.
    pub used: u128,
    /// How many addresses the pool can hand out now.
    pub free: u128,
}

type Number = Gauge<f64, AtomicU64>;

/// All metrics of a process.
///
/// Every method can be called from any thread, and none of them blocks for long.
pub struct Metrics {
    registry: Registry,
    /// Locked while several related values change, so that no scrape sees only some of the changes.
    together: Mutex<()>,
    admissions: Labelled<AdmissionLabels, Counter>,
    admission_duration: Histogram,
    evaluation_duration: Histogram,
    evaluation_errors: Counter,
    usable: Labelled<PoolFamilyLabels, Number>,
    used: Labelled<PoolFamilyLabels, Number>,
    free: Labelled<PoolFamilyLabels, Number>,
    squatters: Labelled<PoolLabels, Gauge>,
    ledger: Gauge,
    claims: Labelled<ClaimLabels, Counter>,
    replicas: Labelled<ReplicaLabels, Gauge>,
    moves: Labelled<MoveLabels, Counter>,
    misplaced: Labelled<MisplacedLabels, Gauge>,
    settings_valid: Gauge,
    settings: Labelled<HashLabels, Gauge>,
    settings_versions: Labelled<ResultLabels, Counter>,
    leader: Gauge,
    synced: Labelled<KindLabels, Gauge>,
    watch_errors: Labelled<KindLabels, Counter>,
    certificate_expiry: Number,
    last_contact: Number,
    nodes: NodeMetrics,
    external: ExternalMetrics,
    agent: AgentMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// The metrics of a server, all zero.
    pub fn new() -> Self {
        let mut metrics = Self::unregistered();
        metrics.register();
        metrics.begin_at_zero();
        metrics
    }

    /// The metrics of an agent, all zero. The metrics of a server can be set too, but are not exposed, so that an agent
    /// is not mistaken for a server.
    pub fn of_agent() -> Self {
        let mut metrics = Self::unregistered();
        metrics.register_settings_and_stores();
        metrics.agent.register(&mut metrics.registry);
        for result in ["accepted", "refused"] {
            drop(metrics.settings_versions.get_or_create(&ResultLabels { result }));
        }
        metrics
    }

    fn unregistered() -> Self {
        let latencies = || Histogram::new(LATENCIES);
        Self {
            admissions: Labelled::default(),
            admission_duration: latencies(),
            evaluation_duration: latencies(),
            evaluation_errors: Counter::default(),
            usable: Labelled::default(),
            used: Labelled::default(),
            free: Labelled::default(),
            squatters: Labelled::default(),
            ledger: Gauge::default(),
            claims: Labelled::default(),
            replicas: Labelled::default(),
            moves: Labelled::default(),
            misplaced: Labelled::default(),
            settings_valid: Gauge::default(),
            settings: Labelled::default(),
            settings_versions: Labelled::default(),
            leader: Gauge::default(),
            synced: Labelled::default(),
            watch_errors: Labelled::default(),
            certificate_expiry: Number::default(),
            last_contact: Number::default(),
            nodes: NodeMetrics::default(),
            external: ExternalMetrics::default(),
            agent: AgentMetrics::default(),
            together: Mutex::default(),
            registry: Registry::with_prefix("clusterip"),
        }
    }

    fn register(&mut self) {
        let build: Labelled<VersionLabels, Gauge> = Labelled::default();
        build.get_or_create(&VersionLabels { version: env!("CARGO_PKG_VERSION") }).set(1);
        self.registry.register("build_info", "The version of the server; always 1", build);
        self.register_settings_and_stores();
        let registry = &mut self.registry;
        registry.register(
            "admissions",
            "Admission requests by kind, decision and pool; the pool is empty if none was asked for",
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
    fn register_settings_and_stores(&mut self) {
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
    fn begin_at_zero(&self) {
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

    /// Records an admission request that was answered.
    pub fn admission(&self, kind: About, decision: Decision, pool: Option<&str>, took: Duration) {
        self.admissions.get_or_create(&AdmissionLabels { kind, decision, pool: pool.map(str::to_owned) }).inc();
        self.admission_duration.observe(took.as_secs_f64());
    }

    /// Records an evaluation of the policy, with an answer or without.
    pub fn evaluation(&self, took: Duration) {
        self.evaluation_duration.observe(took.as_secs_f64());
    }

    /// Records an evaluation that the policy did not answer.
    pub fn evaluation_error(&self) {
        self.evaluation_errors.inc();
    }

    /// Sets the usage of all pools. Pools that are not in the list are removed.
    pub fn pools(&self, pools: &[PoolFill]) {
        let _together = self.together();
        for family in [&self.usable, &self.used, &self.free] {
            family.clear();
        }
        self.squatters.clear();
        for fill in pools {
            let pool = || fill.pool.clone();
            // Prometheus sees an increase only from a value that it has scraped before: without a zero, the first
            // denial would be missed.
            for decision in [Decision::Allocated, Decision::Denied] {
                let labels = AdmissionLabels { kind: About::Service, decision, pool: Some(pool()) };
                drop(self.admissions.get_or_create(&labels));
            }
            self.squatters.get_or_create(&PoolLabels { pool: pool() }).set(whole(fill.squatters));
            for family in &fill.families {
                let labels = PoolFamilyLabels { pool: pool(), family: family.family.to_string() };
                self.usable.get_or_create(&labels).set(family.usable as f64);
                self.used.get_or_create(&labels).set(family.used as f64);
                self.free.get_or_create(&labels).set(family.free as f64);
            }
        }
    }

    /// Sets how many addresses the ledger has reserved.
    pub fn ledger(&self, addresses: usize) {
        self.ledger.set(i64::try_from(addresses).unwrap_or(i64::MAX));
    }

    /// Records an attempt to claim an address.
    pub fn claim(&self, result: ClaimResult) {
        self.claims.get_or_create(&ClaimLabels { result }).inc();
    }

    /// Sets how many replicas are alive that use the same settings as this one, including itself, and how many that use
    /// others.
    pub fn replicas(&self, same: usize, other: usize) {
        let _together = self.together();
        for (settings, count) in [("same", same), ("other", other)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.replicas.get_or_create(&ReplicaLabels { settings }).set(count);
        }
    }

    /// Records a move that ended.
    pub fn moved(&self, result: MoveResult) {
        self.moves.get_or_create(&MoveLabels { result }).inc();
    }

    /// Sets the number of misplaced Services by reason. Reasons that are not in the list become zero.
    pub fn misplaced(&self, services: &[(Misplaced, u64)]) {
        let _together = self.together();
        for &reason in Misplaced::ALL {
            let count = services.iter().filter(|(why, _)| *why == reason).map(|(_, count)| count).sum();
            self.misplaced.get_or_create(&MisplacedLabels { reason }).set(whole(count));
        }
    }

    /// Records the settings that are in use from now on: the latest version, or an older version with changed ranges.
    pub fn settings_in_use(&self, hash: &str, latest: bool) {
        let _together = self.together();
        self.settings.clear();
        self.settings.get_or_create(&HashLabels { hash: hash.to_owned() }).set(1);
        self.settings_valid.set(i64::from(latest));
        if latest {
            self.settings_versions.get_or_create(&ResultLabels { result: "accepted" }).inc();
        }
    }

    /// Records a version of the settings that can't be used; the previous one stays in use.
    pub fn settings_refused(&self) {
        let _together = self.together();
        self.settings_valid.set(0);
        self.settings_versions.get_or_create(&ResultLabels { result: "refused" }).inc();
    }

    /// Records that the latest version is the one in use again, after other versions were refused.
    pub fn settings_restored(&self) {
        self.settings_valid.set(1);
    }

    /// Sets the usage of all pools of Nodes. Pools that are not in the list are removed.
    pub fn node_pools(&self, pools: &[BlockFill]) {
        let _together = self.together();
        for fill in pools {
            // As for pools of Services: without a zero, the first denial would be missed.
            let labels =
                AdmissionLabels { kind: About::Node, decision: Decision::Denied, pool: Some(fill.pool.clone()) };
            drop(self.admissions.get_or_create(&labels));
        }
        self.nodes.blocks(pools);
    }

    /// Records an attempt to assign blocks to a Node.
    pub fn node_assigned(&self, result: Assignment) {
        self.nodes.assigned(result);
    }

    /// Sets how many Nodes wait for blocks.
    pub fn nodes_waiting(&self, nodes: usize) {
        self.nodes.waiting(nodes);
    }

    /// Sets the number of Nodes with wrong blocks by reason. Reasons that are not in the list become zero.
    pub fn misplaced_nodes(&self, nodes: &BTreeMap<MisplacedNodes, u64>) {
        let _together = self.together();
        self.nodes.misplaced(nodes);
    }

    /// Resets the numbers of waiting and misplaced Nodes: this process no longer manages Nodes.
    pub fn no_nodes_waiting(&self) {
        self.nodes_waiting(0);
        self.misplaced_nodes(&BTreeMap::new());
    }

    /// Sets the usage of all external pools. Pools that are not in the list are removed.
    pub fn external_pools(&self, pools: &[ExternalFill]) {
        let _together = self.together();
        self.external.pools(pools);
    }

    /// Records an attempt to assign external addresses to a Service.
    pub fn external_given(&self, result: Given) {
        self.external.given(result);
    }

    /// Records that another node than before holds an external address.
    pub fn external_taken_over(&self) {
        self.external.taken_over();
    }

    /// Sets how many Services wait for an external address.
    pub fn external_waiting(&self, services: usize) {
        self.external.waiting(services);
    }

    /// Sets how many addresses may be on the network of this agent's node.
    pub fn agent_holds(&self, addresses: usize) {
        self.agent.held(addresses);
    }

    /// Sets whether this agent may hold addresses.
    pub fn agent_alive(&self, alive: bool) {
        self.agent.alive(alive);
    }

    /// Records an attempt to renew this agent's heartbeat.
    pub fn agent_renewal(&self, result: Renewal) {
        self.agent.renewal(result);
    }

    /// Records a failed step on the network of this agent's node.
    pub fn agent_network_failed(&self, step: Step) {
        self.agent.failed(step);
    }

    /// Records an announcement of an address.
    pub fn agent_announced(&self) {
        self.agent.announced();
    }

    /// Records an address that was left to other nodes because this node can't hold it.
    pub fn agent_gave_up(&self) {
        self.agent.given_up();
    }

    /// Sets whether this process is the leader.
    pub fn leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Sets whether the store of a kind, such as `Service`, is in sync.
    pub fn store_synced(&self, kind: &str, synced: bool) {
        self.synced.get_or_create(&KindLabels { kind: kind.to_owned() }).set(i64::from(synced));
    }

    /// Records a failed watch of a kind.
    pub fn watch_error(&self, kind: &str) {
        self.watch_errors.get_or_create(&KindLabels { kind: kind.to_owned() }).inc();
    }

    /// Sets when the certificate that is served expires.
    pub fn certificate_expiry(&self, end: SystemTime) {
        self.certificate_expiry.set(timestamp(end));
    }

    /// Sets the time of the last contact with the API server: when its watches began to fail, or now if none fails.
    pub fn api_server_contact(&self, at: SystemTime) {
        self.last_contact.set(timestamp(at));
    }

    /// All metrics in the format [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        let _together = self.together();
        let mut exposed = String::new();
        // Writing to a string can't fail.
        let _ = text::encode(&mut exposed, &self.registry);
        exposed
    }

    fn together(&self) -> MutexGuard<'_, ()> {
        self.together.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn timestamp(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    use std::fmt::Write as _;

    use clusterip_core::answer::Outcome;

    use super::*;

    fn fill(family: Family, usable: u128, used: u128, free: u128) -> FamilyFill {
        FamilyFill { family, usable, used, free }
    }

    /// A server with a value for each metric.
    fn filled() -> Metrics {
        let metrics = Metrics::new();
        metrics.admission(
            About::Service,
            Decision::from(Outcome::Allocated),
            Some("linux"),
            Duration::from_nanos(1_953_125),
        );
        metrics.admission(About::Service, Decision::from(Outcome::Allocated), Some("linux"), Duration::from_secs(9));
        metrics.admission(About::Service, Decision::from(Outcome::Denied), Some("windows"), Duration::from_millis(125));
        metrics.admission(About::Node, Decision::from(Outcome::Denied), Some("windows"), Duration::from_millis(125));
        metrics.admission(About::Service, Decision::from(Outcome::Left), None, Duration::from_millis(125));
        metrics.admission(About::Service, Decision::Error, None, Duration::from_secs(2));
        metrics.evaluation(Duration::from_micros(600));
        metrics.evaluation_error();
        let gone = PoolFill { pool: "gone".into(), families: vec![fill(Family::V4, 1, 1, 0)], squatters: 1 };
        metrics.pools(&[gone]);
        let families = vec![fill(Family::V4, 204, 7, 200), fill(Family::V6, 1 << 62, 0, 1 << 62)];
        metrics.pools(&[PoolFill { pool: "linux".into(), families, squatters: 2 }]);
        metrics.ledger(3);
        metrics.claim(ClaimResult::Claimed);
        metrics.claim(ClaimResult::Taken);
        metrics.replicas(2, 1);
        metrics.moved(MoveResult::Moved);
        metrics.moved(MoveResult::UserChanged);
        metrics.misplaced(&[(Misplaced::Never, 1)]);
        metrics.misplaced(&[(Misplaced::ByHand, 2), (Misplaced::Moving, 1), (Misplaced::ByHand, 3)]);
        metrics.settings_in_use("11", true);
        metrics.settings_refused();
        metrics.settings_in_use("22", false);
        metrics.leader(true);
        metrics.store_synced("Service", true);
        metrics.store_synced("Node", false);
        metrics.watch_error("Node");
        metrics.certificate_expiry(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        metrics.api_server_contact(SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500));
        let blocks = |pool: &str, family| BlockFill { pool: pool.into(), family, usable: 256, used: 7, free: 250 };
        metrics.node_pools(&[blocks("gone", Family::V4)]);
        metrics.node_pools(&[blocks("nodes", Family::V4), blocks("nodes", Family::V6)]);
        metrics.node_assigned(Assignment::Assigned);
        metrics.no_nodes_waiting();
        metrics.nodes_waiting(3);
        metrics.misplaced_nodes(&[(MisplacedNodes::Shared, 2)].into());
        let external =
            |pool: &str, family| ExternalFill { pool: pool.into(), family, usable: 31, assigned: 3, held: 2 };
        metrics.external_pools(&[external("gone", Family::V4)]);
        metrics.external_pools(&[external("edge", Family::V4), external("edge", Family::V6)]);
        metrics.external_given(Given::Refused);
        metrics.external_taken_over();
        metrics.external_waiting(1);
        metrics
    }

    /// An agent with a value for each metric.
    fn filled_of_agent() -> Metrics {
        let metrics = Metrics::of_agent();
        metrics.settings_in_use("11", true);
        metrics.store_synced("Service", true);
        metrics.watch_error("Node");
        metrics.api_server_contact(SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500));
        metrics.agent_holds(7);
        metrics.agent_alive(true);
        metrics.agent_renewal(Renewal::Renewed);
        metrics.agent_network_failed(Step::Hold);
        metrics.agent_announced();
        metrics.agent_gave_up();
        // Metrics of a server, which an agent does not expose.
        metrics.moved(MoveResult::Moved);
        metrics.external_taken_over();
        metrics
    }

    /// The samples without help and bucket counts, sorted because their order is that of a hash table.
    fn samples(exposed: &str) -> String {
        let plain = |line: &&str| !line.starts_with('#') && !line.contains("_bucket{");
        let mut lines: Vec<&str> = exposed.lines().filter(plain).collect();
        lines.sort_unstable();
        lines.join("\n")
    }

    #[test]
    fn server_exposes_its_metrics() {
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            r#"clusterip_admission_duration_seconds_count 6
clusterip_admission_duration_seconds_sum 11.376953125
clusterip_admissions_total{{kind="Node",decision="denied",pool="gone"}} 0
clusterip_admissions_total{{kind="Node",decision="denied",pool="nodes"}} 0
clusterip_admissions_total{{kind="Node",decision="denied",pool="windows"}} 1
clusterip_admissions_total{{kind="Service",decision="allocated",pool=""}} 0
clusterip_admissions_total{{kind="Service",decision="allocated",pool="gone"}} 0
clusterip_admissions_total{{kind="Service",decision="allocated",pool="linux"}} 2
clusterip_admissions_total{{kind="Service",decision="denied",pool=""}} 0
clusterip_admissions_total{{kind="Service",decision="denied",pool="gone"}} 0
clusterip_admissions_total{{kind="Service",decision="denied",pool="linux"}} 0
clusterip_admissions_total{{kind="Service",decision="denied",pool="windows"}} 1
clusterip_admissions_total{{kind="Service",decision="error",pool=""}} 1
clusterip_admissions_total{{kind="Service",decision="left",pool=""}} 1
clusterip_api_server_last_contact_timestamp_seconds 1700000000.5
clusterip_build_info{{version="{version}"}} 1
clusterip_certificate_expiry_timestamp_seconds 1800000000.0
clusterip_claims_total{{result="claimed"}} 1
clusterip_claims_total{{result="failed"}} 0
clusterip_claims_total{{result="taken"}} 1
clusterip_claims_total{{result="taken_over"}} 0
clusterip_evaluation_duration_seconds_count 1
clusterip_evaluation_duration_seconds_sum 0.0006
clusterip_evaluation_errors_total 1
clusterip_external_assignments_total{{result="assigned"}} 0
clusterip_external_assignments_total{{result="conflict"}} 0
clusterip_external_assignments_total{{result="failed"}} 0
clusterip_external_assignments_total{{result="refused"}} 1
clusterip_external_pool_addresses{{pool="edge",family="IPv4",state="assigned"}} 3.0
clusterip_external_pool_addresses{{pool="edge",family="IPv4",state="held"}} 2.0
clusterip_external_pool_addresses{{pool="edge",family="IPv4",state="usable"}} 31.0
clusterip_external_pool_addresses{{pool="edge",family="IPv6",state="assigned"}} 3.0
clusterip_external_pool_addresses{{pool="edge",family="IPv6",state="held"}} 2.0
clusterip_external_pool_addresses{{pool="edge",family="IPv6",state="usable"}} 31.0
clusterip_external_services_waiting 1
clusterip_external_takeovers_total 1
clusterip_leader 1
clusterip_ledger_addresses 3
clusterip_misplaced_nodes{{reason="outside"}} 0
clusterip_misplaced_nodes{{reason="shared"}} 2
clusterip_misplaced_nodes{{reason="withheld"}} 0
clusterip_misplaced_nodes{{reason="wrong_pool"}} 0
clusterip_misplaced_services{{reason="brake"}} 0
clusterip_misplaced_services{{reason="by_hand"}} 5
clusterip_misplaced_services{{reason="control_plane"}} 0
clusterip_misplaced_services{{reason="load_balancer"}} 0
clusterip_misplaced_services{{reason="moving"}} 1
clusterip_misplaced_services{{reason="never"}} 0
clusterip_misplaced_services{{reason="not_recorded"}} 0
clusterip_misplaced_services{{reason="pool_full"}} 0
clusterip_misplaced_services{{reason="ready_endpoints"}} 0
clusterip_moves_total{{result="failed"}} 0
clusterip_moves_total{{result="kept"}} 0
clusterip_moves_total{{result="moved"}} 1
clusterip_moves_total{{result="nothing"}} 0
clusterip_moves_total{{result="unmanaged"}} 0
clusterip_moves_total{{result="user_changed"}} 1
clusterip_node_assignments_total{{result="assigned"}} 1
clusterip_node_assignments_total{{result="conflict"}} 0
clusterip_node_assignments_total{{result="failed"}} 0
clusterip_node_assignments_total{{result="full"}} 0
clusterip_node_assignments_total{{result="no_pool"}} 0
clusterip_node_pool_blocks{{pool="nodes",family="IPv4",state="free"}} 250.0
clusterip_node_pool_blocks{{pool="nodes",family="IPv4",state="usable"}} 256.0
clusterip_node_pool_blocks{{pool="nodes",family="IPv4",state="used"}} 7.0
clusterip_node_pool_blocks{{pool="nodes",family="IPv6",state="free"}} 250.0
clusterip_node_pool_blocks{{pool="nodes",family="IPv6",state="usable"}} 256.0
clusterip_node_pool_blocks{{pool="nodes",family="IPv6",state="used"}} 7.0
clusterip_nodes_waiting 3
clusterip_pool_free_addresses{{pool="linux",family="IPv4"}} 200.0
clusterip_pool_free_addresses{{pool="linux",family="IPv6"}} 4611686018427388000.0
clusterip_pool_squatters{{pool="linux"}} 2
clusterip_pool_usable_addresses{{pool="linux",family="IPv4"}} 204.0
clusterip_pool_usable_addresses{{pool="linux",family="IPv6"}} 4611686018427388000.0
clusterip_pool_used_addresses{{pool="linux",family="IPv4"}} 7.0
clusterip_pool_used_addresses{{pool="linux",family="IPv6"}} 0.0
clusterip_replicas{{settings="other"}} 1
clusterip_replicas{{settings="same"}} 2
clusterip_settings_info{{hash="22"}} 1
clusterip_settings_valid 0
clusterip_settings_versions_total{{result="accepted"}} 1
clusterip_settings_versions_total{{result="refused"}} 1
clusterip_store_synced{{kind="Node"}} 0
clusterip_store_synced{{kind="Service"}} 1
clusterip_watch_errors_total{{kind="Node"}} 1"#
        );
        assert_eq!(samples(&filled().encode()), expected);
    }

    #[test]
    fn agent_exposes_its_metrics() {
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            r#"clusterip_agent_alive 1
clusterip_agent_announcements_total 1
clusterip_agent_given_up_addresses_total 1
clusterip_agent_heartbeats_total{{result="failed"}} 0
clusterip_agent_heartbeats_total{{result="renewed"}} 1
clusterip_agent_held_addresses 7
clusterip_agent_info{{version="{version}"}} 1
clusterip_agent_network_failures_total{{step="announce"}} 0
clusterip_agent_network_failures_total{{step="hold"}} 1
clusterip_agent_network_failures_total{{step="release"}} 0
clusterip_api_server_last_contact_timestamp_seconds 1700000000.5
clusterip_settings_info{{hash="11"}} 1
clusterip_settings_valid 1
clusterip_settings_versions_total{{result="accepted"}} 1
clusterip_settings_versions_total{{result="refused"}} 0
clusterip_store_synced{{kind="Service"}} 1
clusterip_watch_errors_total{{kind="Node"}} 1"#
        );
        assert_eq!(samples(&filled_of_agent().encode()), expected);
    }

    #[test]
    fn durations_are_counted_in_the_right_buckets() {
        let exposed = filled().encode();
        let buckets: Vec<_> = exposed
            .lines()
            .filter_map(|line| line.strip_prefix("clusterip_admission_duration_seconds_bucket"))
            .collect();
        let expected = [
            ("0.0005", 0),
            ("0.001", 0),
            ("0.002", 1),
            ("0.003", 1),
            ("0.005", 1),
            ("0.01", 1),
            ("0.02", 1),
            ("0.05", 1),
            ("0.1", 1),
            ("0.25", 4),
            ("0.5", 4),
            ("1.0", 4),
            ("5.0", 5),
            ("+Inf", 6),
        ];
        let expected: Vec<_> = expected.iter().map(|(le, count)| format!("{{le=\"{le}\"}} {count}")).collect();
        assert_eq!(buckets, expected);
    }

    #[test]
    fn label_values_can_not_forge_lines() {
        let metrics = Metrics::new();
        metrics.watch_error("a\"} 1\nforged 1\\");
        let forged: Vec<_> =
            samples(&metrics.encode()).lines().filter(|l| l.contains("forged")).map(str::to_owned).collect();
        assert_eq!(forged, [r#"clusterip_watch_errors_total{kind="a\"} 1\nforged 1\\"} 1"#]);
    }

    #[test]
    fn documentation_lists_all_metrics() {
        let (exposed, of_agent) = (filled().encode(), filled_of_agent().encode());
        let mut all = described(&of_agent);
        all.extend(described(&exposed));
        let mut table = String::from("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n");
        for (name, about) in all {
            let Described { kind, help, labels } = about;
            let shown = if kind == "counter" { format!("{name}_total") } else { name };
            let label = |(label, values): (&&str, &BTreeSet<&str>)| match *label {
                // The values of these labels come from the cluster.
                "pool" | "kind" | "hash" | "version" => format!("`{label}`"),
                _ => format!("`{label}`: {}", values.iter().copied().collect::<Vec<_>>().join(", ")),
            };
            let labels: Vec<_> = labels.iter().map(label).collect();
            let help = help.trim_end_matches('.');
            writeln!(table, "| `{shown}` | {kind} | {} | {help} |", labels.join("; ")).unwrap();
        }
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let page = std::fs::read_to_string(&page).unwrap_or_default();
        let written: Vec<_> =
            page.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).collect();
        let expected: Vec<_> = table.lines().collect();
        assert_eq!(written, expected, "the table of docs/metrics.md; it should be:\n{table}");
    }

    struct Described<'e> {
        kind: &'e str,
        help: &'e str,
        labels: BTreeMap<&'e str, BTreeSet<&'e str>>,
    }

    fn described(exposed: &str) -> BTreeMap<String, Described<'_>> {
        let mut all = BTreeMap::new();
        let mut current = String::new();
        for line in exposed.lines() {
            if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                name.clone_into(&mut current);
                all.insert(current.clone(), Described { kind: "", help, labels: BTreeMap::new() });
            } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                all.get_mut(name).unwrap().kind = kind;
            } else if let Some((_, rest)) = line.split_once('{') {
                let (labels, _) = rest.split_once('}').unwrap();
                let about = all.get_mut(&current).unwrap();
                for (key, value) in labels.split(',').filter_map(|label| label.split_once('=')) {
                    if key != "le" {
                        about.labels.entry(key).or_default().insert(value.trim_matches('"'));
                    }
                }
            }
        }
        all
    }
}
