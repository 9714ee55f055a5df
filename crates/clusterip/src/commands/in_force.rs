//! The settings that a command begins with, and the rights that they take.

use std::sync::Arc;

use kube::Client;
use serde_json::json;
use tokio::sync::watch;

use crate::live_settings::{Follower, SettingsError, Source, judge};
use crate::metrics::Metrics;
use crate::permissions::{self, Duties};
use crate::policy::module::Module;

/// Reads the settings, which are followed from then on, and asks whether this identity may do what its duties
/// are by them.
///
/// # Errors
/// Where the settings can't be had or are wrong, or a right is missing: all that are missing are named at once.
pub async fn followed(
    source: Source,
    module: &Arc<Module>,
    ranges: watch::Receiver<Vec<String>>,
    metrics: &Arc<Metrics>,
    client: &Client,
    duties: &Duties,
) -> anyhow::Result<Follower> {
    let follower = match Follower::start(source, Arc::clone(module), ranges, Arc::clone(metrics)).await {
        Ok(follower) => follower,
        Err(error) => {
            if let SettingsError::Request { .. } = error {
                // Where a right is missing, others may be.
                let settings = judge(module, json!({}), &[]).map_err(anyhow::Error::msg)?.settings;
                permissions::check(client, &settings, duties).await?;
            }
            return Err(error.into());
        }
    };
    let settings = follower.subscribe().borrow().settings.clone();
    permissions::check(client, &settings, duties).await?;
    Ok(follower)
}
