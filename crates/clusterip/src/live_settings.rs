//! Settings that change while we run: a watched ConfigMap, or a file.

use clusterip_core::settings::Settings;
use serde_json::Value;

/// Settings that are in force.
#[derive(Clone, Debug)]
pub struct LiveSettings {
    /// As the policy gets them.
    pub document: Value,
    /// As they are understood.
    pub settings: Settings,
    /// The same for the same document.
    pub hash: String,
}
