//! The settings that a command begins with, those that come later, and the rights that they take.

use std::sync::Arc;

use kube::Client;
use serde_json::json;
use tokio::sync::watch;

use crate::cluster::service_ranges::ServiceRanges;
use crate::live_settings::{Follower, LiveSettings, SettingsError, Source, judge};
use crate::metrics::Metrics;
use crate::permissions::{self, Duties, PermissionsError};
use crate::policy::module::Module;

/// Reads the settings, which are followed from then on, and asks whether this identity may do what its duties
/// are by them.
///
/// # Errors
/// Where the settings can't be had or are wrong, or a right is missing: all that are missing are named at once.
pub async fn followed(
    source: Source,
    module: &Arc<Module>,
    ranges: watch::Receiver<ServiceRanges>,
    metrics: &Arc<Metrics>,
    client: &Client,
    duties: &Duties,
) -> anyhow::Result<Follower> {
    let follower = match Follower::start(source, Arc::clone(module), ranges, Arc::clone(metrics)).await {
        Ok(follower) => follower,
        Err(error) => {
            if let SettingsError::Request { .. } = error {
                // Where a right is missing, others may be.
                let settings =
                    judge(module, json!({}), &ServiceRanges::default()).map_err(anyhow::Error::msg)?.settings;
                permissions::check(client, &settings, duties).await?;
            }
            return Err(error.into());
        }
    };
    let settings = follower.subscribe().borrow().settings.clone();
    permissions::check(client, &settings, duties).await?;
    Ok(follower)
}

/// Says what this identity may not do of what its duties are by settings that come later. They are in force
/// all the same: what is missing can be granted at any time.
pub async fn say_what_is_missing(client: Client, mut settings: watch::Receiver<Arc<LiveSettings>>, duties: Duties) {
    while settings.changed().await.is_ok() {
        let latest = settings.borrow_and_update().settings.clone();
        match permissions::check(&client, &latest, &duties).await {
            Ok(_) => {}
            Err(PermissionsError::Missing(missing)) => {
                // A line for each rule, to be pasted.
                missing.to_string().lines().for_each(|line| tracing::error!("{line}"));
            }
            Err(error) => tracing::warn!(%error, "whether the settings in use need other rights is not known"),
        }
    }
}
