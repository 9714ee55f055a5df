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
use prometheus_client::registry::Registry;

pub mod agent_metrics;
pub mod external_metrics;
mod labels;
pub mod node_metrics;
mod registration;

use self::agent_metrics::{AgentMetrics, Renewal, Step};
use self::external_metrics::{ExternalFill, ExternalMetrics, Given};
pub use self::labels::{About, ClaimResult, Decision, Misplaced, MoveResult};
use self::labels::{
    AdmissionLabels, ClaimLabels, HashLabels, KindLabels, MisplacedLabels, MoveLabels, PoolFamilyLabels, PoolLabels,
    ReplicaLabels, ResultLabels,
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
mod tests;
