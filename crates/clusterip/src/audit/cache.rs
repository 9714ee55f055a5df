//! Earlier decisions. A decision holds until something changes that it depends on.

use super::services;

/// Earlier decisions about Services.
#[derive(Default)]
pub struct AuditCache {
    /// The hash of the settings that the decisions are for.
    settings: String,
    pub(super) services: services::evaluate::ServiceCache,
}

impl AuditCache {
    /// Drops the decisions if they are for other settings than those with this hash.
    pub(super) fn renew(&mut self, settings: &str) {
        if self.settings != settings {
            *self = Self { settings: settings.to_owned(), ..Self::default() };
        }
    }
}
