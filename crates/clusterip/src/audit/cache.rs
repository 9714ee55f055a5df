//! Earlier answers of the policy. An answer holds until something changes that it depends on.

use super::{evaluate_external, evaluate_nodes, evaluate_services};

/// Earlier answers of the policy about Services and Nodes.
#[derive(Default)]
pub struct AuditCache {
    /// The hash of the settings that the answers are for.
    settings: String,
    pub(super) services: evaluate_services::ServiceCache,
    pub(super) nodes: evaluate_nodes::NodeCache,
    pub(super) external: evaluate_external::ExternalCache,
}

impl AuditCache {
    /// Drops the answers if they are for other settings than those with this hash.
    pub(super) fn renew(&mut self, settings: &str) {
        if self.settings != settings {
            *self = Self { settings: settings.to_owned(), ..Self::default() };
        }
    }
}
