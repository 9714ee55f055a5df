//! What was said of a cluster before: it holds as long as nothing changes that was asked about.

use super::{external_judge, judge, node_judge};

/// What was said of Services and Nodes before.
#[derive(Default)]
pub struct Memory {
    /// By which settings.
    settings: String,
    pub(super) services: judge::Known,
    pub(super) nodes: node_judge::Known,
    pub(super) external: external_judge::Known,
}

impl Memory {
    /// Forgets what was said by other settings than those of this hash.
    pub(super) fn renew(&mut self, settings: &str) {
        if self.settings != settings {
            *self = Self { settings: settings.to_owned(), ..Self::default() };
        }
    }
}
