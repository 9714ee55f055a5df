//! Earlier answers of the policy. An answer holds until something changes that it depends on.

use super::{external, nodes, services};

/// Earlier answers of the policy about Services and Nodes.
#[derive(Default)]
pub struct AuditCache {
    /// The hash of the settings that the answers are for.
    settings: String,
    pub(super) services: services::evaluate::ServiceCache,
    pub(super) nodes: nodes::evaluate::NodeCache,
    pub(super) external: external::evaluate::ExternalCache,
}

impl AuditCache {
    /// Drops the answers if they are for other settings than those with this hash.
    pub(super) fn renew(&mut self, settings: &str) {
        if self.settings != settings {
            *self = Self { settings: settings.to_owned(), ..Self::default() };
        }
    }
}
