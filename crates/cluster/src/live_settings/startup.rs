//! Reads the settings at startup, begins to follow them, and checks the permissions that they require.

use std::sync::Arc;

use kube::Client;
use serde_json::json;
use thiserror::Error;
use tokio::sync::watch;

use crate::host_metrics::ClusterMetrics;
use crate::live_settings::{CheckError, Follower, LiveSettings, SettingsError, SettingsSource, check_settings};
use crate::permissions::{self, Duties, PermissionsError};
use crate::watch::service_ranges::ServiceRanges;

/// Why the settings can't be followed.
#[derive(Debug, Error)]
pub enum FollowError {
    /// The settings can't be read or are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Permissions are missing, or can't be checked.
    #[error(transparent)]
    Permissions(#[from] PermissionsError),
    /// The policy refuses the default settings.
    #[error("the default settings: {0}")]
    Defaults(CheckError),
}

/// Reads the settings, starts to follow them, and checks that this identity has the permissions for its duties
/// under them.
///
/// # Errors
/// If the settings can't be read or are invalid, or if permissions are missing: the error names all missing ones.
pub async fn start_following(
    source: SettingsSource,
    ranges: watch::Receiver<ServiceRanges>,
    metrics: &ClusterMetrics,
    client: &Client,
    duties: &Duties,
) -> Result<Follower, FollowError> {
    let follower = match Follower::start(source, ranges, metrics.clone()).await {
        Ok(follower) => follower,
        Err(error) => {
            if let SettingsError::Request { .. } = error {
                // If the permission to read the settings is missing, others may be missing, too.
                let settings =
                    check_settings(json!({}), &ServiceRanges::default()).map_err(FollowError::Defaults)?.settings;
                permissions::check(client, &settings, duties).await?;
            }
            return Err(error.into());
        }
    };
    let settings = follower.subscribe().borrow().settings.clone();
    permissions::check(client, &settings, duties).await?;
    Ok(follower)
}

/// Reports the permissions that later settings require and this identity lacks. These settings are used nevertheless,
/// because permissions can be granted at any time.
pub async fn report_missing_permissions(
    client: Client,
    mut settings: watch::Receiver<Arc<LiveSettings>>,
    duties: Duties,
) {
    while settings.changed().await.is_ok() {
        let latest = settings.borrow_and_update().settings.clone();
        match permissions::check(&client, &latest, &duties).await {
            Ok(_) => {}
            Err(PermissionsError::Missing(missing)) => {
                // One line for each rule, so that it can be copied.
                missing.to_string().lines().for_each(|line| tracing::error!("{line}"));
            }
            Err(error) => {
                tracing::warn!(%error, "can't determine whether the settings in use require more permissions");
            }
        }
    }
}
