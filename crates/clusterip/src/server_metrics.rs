//! The metrics of a server.

use clusterip_cluster::host_metrics::{ClaimMetrics, ClusterMetrics, EvaluationMetrics};
use clusterip_cluster::metrics::{Component, Exposition, ScrapeLock, register_version};
use prometheus_client::registry::Registry;

use crate::external::external_metrics::ExternalMetrics;
use crate::nodes::node_metrics::NodeMetrics;
use crate::services::service_metrics::ServiceMetrics;
use crate::webhook::admission_metrics::AdmissionMetrics;

/// The metrics of a server, one struct for each component. Every method can be called from any thread, and none of them
/// blocks for long.
pub struct ServerMetrics {
    pub admission: AdmissionMetrics,
    pub evaluation: EvaluationMetrics,
    pub cluster: ClusterMetrics,
    pub claims: ClaimMetrics,
    pub services: ServiceMetrics,
    pub nodes: NodeMetrics,
    pub external: ExternalMetrics,
    exposition: Exposition,
}

impl Default for ServerMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl ServerMetrics {
    pub fn new() -> Self {
        let lock = ScrapeLock::default();
        let mut metrics = Self {
            admission: AdmissionMetrics::default(),
            evaluation: EvaluationMetrics::default(),
            cluster: ClusterMetrics::new(lock.clone()),
            claims: ClaimMetrics::default(),
            services: ServiceMetrics::new(lock.clone()),
            nodes: NodeMetrics::new(lock.clone()),
            external: ExternalMetrics::new(lock.clone()),
            exposition: Exposition::new(lock),
        };
        metrics.exposition.add(&BuildInfo);
        metrics.exposition.add(&metrics.cluster);
        metrics.exposition.add(&metrics.admission);
        metrics.exposition.add(&metrics.evaluation);
        metrics.exposition.add(&metrics.services);
        metrics.exposition.add(&metrics.claims);
        metrics.exposition.add(&metrics.nodes);
        metrics.exposition.add(&metrics.external);
        metrics
    }

    /// All metrics in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        self.exposition.encode()
    }
}

struct BuildInfo;

impl Component for BuildInfo {
    fn register(&self, registry: &mut Registry) {
        register_version(registry, "build_info", "The version of the server; always 1");
    }
}

// The agent, whose metrics docs/metrics.md lists, too, runs on Linux only.
#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
