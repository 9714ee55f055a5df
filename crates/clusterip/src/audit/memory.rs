//! Earlier answers of the policy. An answer holds until something changes that it depends on.

use super::{external_judge, judge, node_judge};

/// Earlier answers of the policy about Services and Nodes.
#[derive(Default)]
pub struct Memory {
    /// The hash of the settings that the answers are for.
    settings: String,
    pub(super) services: judge::Known,
    pub(super) nodes: node_judge::Known,
    pub(super) external: external_judge::Known,
}

impl Memory {
    /// Drops the answers if they are for other settings than those with this hash.
    pub(super) fn renew(&mut self, settings: &str) {
        if self.settings != settings {
            *self = Self { settings: settings.to_owned(), ..Self::default() };
        }
    }
}
