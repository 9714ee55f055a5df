use clusterip_cluster::host_metrics::{ClaimMetrics, ClusterMetrics, EvaluationMetrics};
use clusterip_cluster::metrics::Exposition;

use crate::external::external_metrics::ExternalMetrics;
use crate::nodes::node_metrics::NodeMetrics;
use crate::services::service_metrics::ServiceMetrics;
use crate::webhook::admission_metrics::AdmissionMetrics;

/// The metrics of a server. No method blocks for long.
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

impl ServerMetrics {
    #[expect(clippy::new_without_default, reason = "a server has one")]
    pub fn new() -> Self {
        let mut exposition = Exposition::default();
        Self {
            cluster: exposition.exposed(),
            admission: exposition.exposed(),
            evaluation: exposition.exposed(),
            services: exposition.exposed(),
            claims: exposition.exposed(),
            nodes: exposition.exposed(),
            external: exposition.exposed(),
            exposition,
        }
    }

    /// All metrics in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        self.exposition.encode()
    }
}

// The agent, whose metrics docs/metrics.md lists, too, runs on Linux only.
#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
