//! Settings that can change while the program runs, from a watched ConfigMap or a file.
//!
//! # Promises
//! - Only settings that the policy itself accepts are ever published. A version with mistakes changes nothing: the
//!   previous version stays in use, and the log, the metrics and an Event on the ConfigMap report it. If several
//!   processes follow the same ConfigMap, only one kind of process writes Events ([`Follower::silently`]).
//! - Each published version differs from the one before, so comparing hashes shows whether decisions may differ.

mod completion;
pub mod follow;
mod refused;
mod settings_object;
mod settings_source;
mod validation;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use clusterip_core::settings::Settings;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;

pub use self::completion::complete;
use self::refused::publish_events;
pub use self::settings_object::settings_in;
pub use self::settings_source::{KEY, Source, written};
use self::settings_source::{Written, read, versions};
use self::validation::Judge;
pub use self::validation::{check_settings, version, why_default_pools_do_not_fit};
use crate::cluster::service_ranges::ServiceRanges;
use crate::host_metrics::ClusterMetrics;
use crate::policy::module::Module;

/// Settings in use.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveSettings {
    /// The document that the policy gets.
    pub document: Value,
    /// The same settings, parsed.
    pub settings: Settings,
    /// The hash of the document in 32 hexadecimal digits: the same for the same document in every process.
    pub hash: String,
    /// The hash of the settings version: of the document as it was written, see [`version()`]. The Service ranges of the
    /// cluster do not affect it.
    pub version: String,
    /// Settings that are allowed but probably not intended.
    pub warnings: Vec<String>,
}

/// Initial settings that can't be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// The settings have mistakes; all of them are listed, one per line.
    #[error("settings: {origin}\n{mistakes}")]
    Mistakes {
        /// The source of the settings.
        origin: String,
        /// The mistakes.
        mistakes: String,
    },
    /// The ConfigMap does not exist.
    #[error(
        "settings: there is no configmap {namespace}/{name}: create it, with the settings in its key {KEY} \
         (`{{}}` stands for the defaults)"
    )]
    NoConfigMap {
        /// The namespace of the ConfigMap.
        namespace: String,
        /// The name of the ConfigMap.
        name: String,
    },
    /// The ConfigMap can't be read.
    #[error("settings: {origin} can't be read: {reason}")]
    Request {
        /// The source of the settings.
        origin: String,
        /// The error of the API server.
        reason: String,
    },
}

/// Follows settings that may change.
pub struct Follower {
    source: Source,
    judge: Judge,
    ranges: watch::Receiver<ServiceRanges>,
    /// The Service ranges with which the settings in use are valid.
    valid_with: ServiceRanges,
    metrics: ClusterMetrics,
    /// The latest version, valid or not.
    latest: Written,
    /// The version in use.
    used: Value,
    /// The mistakes of the latest version, if it has any; each is reported once.
    refused: Option<String>,
    /// The ConfigMap as last read, on which Events are written.
    about: Option<ObjectReference>,
    events: bool,
    state: watch::Sender<Arc<LiveSettings>>,
}

impl Follower {
    /// Reads the settings and checks them. `ranges` are the Service ranges of the cluster, with the ones that are not
    /// usable.
    ///
    /// # Errors
    /// [`SettingsError`] if the settings can't be read, or have mistakes.
    pub async fn start(
        source: Source,
        module: Arc<Module>,
        mut ranges: watch::Receiver<ServiceRanges>,
        metrics: ClusterMetrics,
    ) -> Result<Self, SettingsError> {
        let (written, about) = read(&source).await?;
        let judge = Judge { module };
        let known = ranges.borrow_and_update().clone();
        let mistakes = |mistakes| SettingsError::Mistakes { origin: source.to_string(), mistakes };
        let written = written.map_err(mistakes)?;
        let live = judge.judge(written.clone(), known.clone()).await.map_err(mistakes)?;
        metrics.settings_in_use(&live.hash, true);
        log_in_use(&source, &live);
        Ok(Self {
            source,
            judge,
            ranges,
            valid_with: known,
            metrics,
            latest: Ok(written.clone()),
            used: written,
            refused: None,
            about,
            events: true,
            state: watch::Sender::new(Arc::new(live)),
        })
    }

    /// Writes no Events: another process writes them, and this one has no permission to.
    #[must_use]
    pub fn silently(self) -> Self {
        Self { events: false, ..self }
    }

    /// The settings in use. The receiver sees every change.
    pub fn subscribe(&self) -> watch::Receiver<Arc<LiveSettings>> {
        self.state.subscribe()
    }

    /// Follows the settings until `shutdown`.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut versions = versions(&self.source, self.metrics.clone(), self.latest.clone());
        // If the sender of the ranges is gone, everything else continues.
        let mut told = true;
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                Some((written, about)) = versions.next() => {
                    self.latest = written;
                    self.about = about.or(self.about.take());
                    self.apply_latest().await;
                }
                changed = self.ranges.changed(), if told => match changed {
                    Ok(()) => self.apply_latest().await,
                    Err(_) => told = false,
                },
            }
        }
    }

    /// Puts the latest version into use if it is valid, and otherwise keeps the version in use, with the current
    /// ranges.
    async fn apply_latest(&mut self) {
        let ranges = self.ranges.borrow_and_update().clone();
        let judged = match self.latest.clone() {
            Ok(written) => self.judge.judge(written, ranges.clone()).await,
            Err(mistakes) => Err(mistakes),
        };
        match judged {
            Ok(live) => {
                if let Ok(written) = &self.latest {
                    self.used.clone_from(written);
                }
                if self.refused.take().is_some() {
                    self.metrics.settings_restored();
                    tracing::info!(source = %self.source, "the settings can be used again");
                }
                self.valid_with = ranges;
                self.publish(live);
            }
            Err(mistakes) => {
                self.refuse(mistakes);
                if let Ok(live) = self.judge.judge(self.used.clone(), ranges.clone()).await {
                    self.valid_with = ranges;
                    self.publish(live);
                    return;
                }
                // A pool is in a range that is gone: no address of that range is handed out any more.
                let ranges = ranges.with_gone(&self.valid_with);
                if let Ok(live) = self.judge.judge(self.used.clone(), ranges).await {
                    self.publish(live);
                }
            }
        }
    }

    fn publish(&self, live: LiveSettings) {
        if **self.state.borrow() == live {
            return;
        }
        self.metrics.settings_in_use(&live.hash, self.refused.is_none());
        log_in_use(&self.source, &live);
        self.state.send_replace(Arc::new(live));
    }

    fn refuse(&mut self, mistakes: String) {
        if self.refused.as_ref() == Some(&mistakes) {
            return;
        }
        self.metrics.settings_refused();
        for mistake in mistakes.lines() {
            tracing::error!(source = %self.source, mistake, "settings refused, the previous ones stay in use");
        }
        if let (true, Source::ConfigMap { client, .. }, Some(about)) = (self.events, &self.source, &self.about) {
            tokio::spawn(publish_events(client.clone(), about.clone(), mistakes.clone()));
        }
        self.refused = Some(mistakes);
    }
}

fn log_in_use(source: &Source, live: &LiveSettings) {
    tracing::info!(%source, hash = live.hash, "settings in use");
    for warning in &live.warnings {
        tracing::warn!(%source, warning, "settings");
    }
}
