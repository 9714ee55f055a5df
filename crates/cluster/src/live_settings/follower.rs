//! Follows the settings, and publishes each version that the policy accepts.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use clusterip_api::{Compilation, Reason};
use clusterip_core::settings::Settings;
use futures::StreamExt;
use kube::Client;
use tokio::sync::watch;
use tokio::time::timeout;

use super::settings_source::{SettingsSource, Version, read, versions};
use super::validation::check_in_background;
use super::{LiveSettings, WrittenSettings, in_lines, pool_objects};
use crate::api_error::RequestFailure;
use crate::host_metrics::ClusterMetrics;
use crate::kinds;
use crate::permissions::{self, Duties, Missing};
use crate::snapshot::service_ranges::ServiceRanges;
use crate::watch::stores::Stores;

pub struct Follower {
    source: SettingsSource,
    ranges: watch::Receiver<ServiceRanges>,
    valid_with: ServiceRanges,
    metrics: ClusterMetrics,
    latest: Version,
    /// What was compiled from the latest version, if that consists of objects.
    compilation: watch::Sender<Option<Arc<Compilation>>>,
    used: WrittenSettings,
    /// The mistakes of the latest version, if it has any; each is reported once.
    refused: Option<String>,
    state: watch::Sender<Arc<LiveSettings>>,
    stores: Option<Stores>,
}

/// How long new settings wait until the kinds that only they read are listed. Look-ups of these kinds fail after that.
const LIST_TIME: Duration = Duration::from_secs(5);

impl Follower {
    pub async fn start(
        source: SettingsSource,
        mut ranges: watch::Receiver<ServiceRanges>,
        metrics: ClusterMetrics,
    ) -> anyhow::Result<Self> {
        let latest = read(&source).await?;
        let known = ranges.borrow_and_update().clone();
        let (compiled, checked) = checked(&latest, &known, None).await;
        compiled.iter().for_each(|compiled| log_changes(None, compiled));
        let (used, live) = checked.map_err(|mistakes| anyhow!(in_lines(&source.to_string(), mistakes)))?;
        metrics.settings_in_use(&live.hash, true);
        log_in_use(&source, &live);
        Ok(Self {
            source,
            ranges,
            valid_with: known,
            metrics,
            latest,
            compilation: watch::Sender::new(compiled.map(Arc::new)),
            used,
            refused: None,
            state: watch::Sender::new(Arc::new(live)),
            stores: None,
        })
    }

    /// Watches the kinds that decisions with the settings read, and those of each later version before it is in use: a
    /// kind that is not watched would look as if it had no objects.
    pub fn watching(self, stores: &Stores) -> Self {
        stores.watch(&self.state.borrow().settings);
        Self { stores: Some(stores.clone()), ..self }
    }

    pub fn subscribe(&self) -> watch::Receiver<Arc<LiveSettings>> {
        self.state.subscribe()
    }

    /// What was compiled from the pool objects of a cluster; always `None` for other sources.
    pub fn subscribe_compilation(&self) -> watch::Receiver<Option<Arc<Compilation>>> {
        self.compilation.subscribe()
    }

    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut versions = versions(&self.source, self.metrics.clone(), self.latest.clone());
        // If the sender of the ranges is gone, everything else continues.
        let mut ranges_may_change = true;
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                Some(version) = versions.next() => {
                    self.latest = version;
                    self.apply_latest().await;
                }
                changed = self.ranges.changed(), if ranges_may_change => match changed {
                    Ok(()) => self.apply_latest().await,
                    Err(_) => ranges_may_change = false,
                },
            }
        }
    }

    /// Puts the latest version into use if it is valid; otherwise the version in use stays, with the current ranges.
    async fn apply_latest(&mut self) {
        let ranges = self.ranges.borrow_and_update().clone();
        let before = self.compilation.borrow().clone();
        let (compiled, checked) = checked(&self.latest, &ranges, before.as_deref()).await;
        if let Some(mut compiled) = compiled {
            if let Err(mistakes) = &checked {
                compiled = compiled.refused(before.as_deref(), mistakes);
            }
            if before.as_deref() != Some(&compiled) {
                log_changes(before.as_deref(), &compiled);
                self.compilation.send_replace(Some(Arc::new(compiled)));
            }
        }
        match checked {
            Ok((written, live)) => {
                self.used = written;
                if self.refused.take().is_some() {
                    self.metrics.valid.set(1);
                    tracing::info!(source = %self.source, "the settings can be used again");
                }
                self.valid_with = ranges;
                self.publish(live).await;
            }
            Err(error) => {
                self.refuse(error);
                if let Ok(live) = check_in_background(self.used.clone(), ranges.clone()).await {
                    self.valid_with = ranges;
                    self.publish(live).await;
                    return;
                }
                // A pool is in a range that is gone: no address of that range is handed out any more.
                let ranges = ranges.with_gone(&self.valid_with);
                if let Ok(live) = check_in_background(self.used.clone(), ranges).await {
                    self.publish(live).await;
                }
            }
        }
    }

    async fn publish(&self, live: LiveSettings) {
        if **self.state.borrow() == live {
            return;
        }
        if let Some(stores) = &self.stores
            && stores.watch(&live.settings)
        {
            // Whether they are listed or not, the settings take effect.
            let _ = timeout(LIST_TIME, stores.completed()).await;
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
        self.refused = Some(mistakes);
    }
}

/// The document of a version with these ranges, which is checked. If the version consists of objects, the first value is
/// what was compiled from them: `before` is the compilation before.
async fn checked(
    version: &Version,
    ranges: &ServiceRanges,
    before: Option<&Compilation>,
) -> (Option<Compilation>, Result<(WrittenSettings, LiveSettings), String>) {
    let (compiled, written) = match version {
        Version::File(content) => (None, content.clone().and_then(|file| file.document(ranges))),
        Version::Objects(objects) => {
            let compiled = pool_objects::compiled(objects, ranges, before.map(|before| &before.in_use));
            (Some(compiled.clone()), Ok(compiled.into()))
        }
    };
    let live = match &written {
        Ok(written) => check_in_background(written.clone(), ranges.clone()).await,
        Err(mistakes) => Err(mistakes.clone()),
    };
    (compiled, written.and_then(|written| Ok((written, live?))))
}

/// Logs the objects whose latest version can't be used, each once, and those whose latest version can be used again.
fn log_changes(before: Option<&Compilation>, now: &Compilation) {
    for (key, state) in &now.states {
        let last = before.and_then(|before| before.states.get(key));
        if last.is_some_and(|last| last.reason == state.reason && last.message == state.message) {
            continue;
        }
        if state.reason != Reason::InUse {
            let (reason, why) = (state.reason.as_str(), &state.message);
            tracing::error!(object = %key, reason, why, "the latest version of the object is not in use");
        } else if last.is_some() {
            tracing::info!(object = %key, "the latest version of the object is in use");
        }
    }
}

fn log_in_use(source: &SettingsSource, live: &LiveSettings) {
    let LiveSettings { settings, .. } = live;
    let pools = settings.pools.len() + settings.nodes.pools.len() + settings.external.pools.len();
    tracing::info!(%source, hash = live.hash, pools, "settings in use");
    if pools == 0 {
        tracing::warn!(%source, "the settings have no pool, so Kubernetes picks the address of every Service");
    }
    for warning in &live.warnings {
        tracing::warn!(%source, %warning, "settings");
    }
}

/// Reads the settings, starts to follow them, and checks that this identity has the permissions for its duties under
/// them; the error names all that are missing. Then it watches the kinds that the settings and the duties need.
pub async fn start_following(source: SettingsSource, stores: &Stores, duties: &Duties) -> anyhow::Result<Follower> {
    let client = stores.client();
    let start = async {
        // An agent compiles pool objects with the Service ranges, too: otherwise it would use an edited pool that the
        // server refuses because of them, and release the addresses of the version in use.
        if duties.pools || !duties.agent {
            stores.ask_for_service_cidrs().await?;
        }
        Follower::start(source, stores.service_cidrs(), stores.metrics().clone()).await
    };
    let follower = match start.await {
        Ok(follower) => follower,
        Err(error) => {
            if error.is::<RequestFailure>() {
                // If the permission to read the settings is missing, others may be missing, too.
                permissions::check(client, &Settings::default(), duties).await?;
            }
            return Err(error);
        }
    };
    let settings = follower.subscribe().borrow().settings.clone();
    permissions::check(client, &settings, duties).await?;
    if duties.agent {
        stores.watch_kinds(kinds::of_agent(duties.pools));
        return Ok(follower);
    }
    Ok(follower.watching(stores))
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
        let Err(error) = permissions::check(&client, &latest, &duties).await else { continue };
        if error.is::<Missing>() {
            // One line for each rule, so that it can be copied.
            error.to_string().lines().for_each(|line| tracing::error!("{line}"));
        } else {
            tracing::warn!(%error, "can't determine whether the settings in use require more permissions");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::{Value, json};

    use super::*;
    use crate::watch::stores::tests::client;

    /// The pool was edited into a Service range, so its version in use is the one in its status.
    #[tokio::test]
    async fn start_without_service_ranges_fails_and_forgets_no_version_in_use() {
        const GOOD: &str = "10.0.9.0/24";
        let edited = json!({"metadata": {"name": "edge", "generation": 2}, "spec": {"cidrs": ["10.96.0.0/24"]},
            "status": {"observedGeneration": 2, "inUse": {"name": "edge", "cidrs": [GOOD], "priority": 0},
                       "conditions": [{"type": "Ready", "status": "False"}]}});
        let range = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}});
        let list = |items: &[&Value]| json!({"metadata": {}, "items": items});
        let (of_pools, of_ranges) = (list(&[&edited]), list(&[&range]));
        let fails = Arc::new(AtomicBool::new(true));
        let is_failing = Arc::clone(&fails);
        let client = client(move |path, _| {
            let (status, answer) = match path.rsplit('/').next().unwrap() {
                "servicecidrs" if is_failing.load(Ordering::SeqCst) => {
                    (429, json!({"status": "Failure", "code": 429, "message": "too many requests"}))
                }
                "servicecidrs" => (200, of_ranges.clone()),
                "externalpools" => (200, of_pools.clone()),
                "selfsubjectaccessreviews" => (201, json!({"spec": {}, "status": {"allowed": true}})),
                _ => (200, json!({"metadata": {}, "items": []})),
            };
            (status, answer.to_string())
        });
        let metrics = ClusterMetrics::default();
        for agent in [false, true] {
            let duties = Duties { agent, pools: true, ..Duties::default() };
            let stores = Stores::new(client.clone(), metrics.clone(), |_| (), |_| ());
            let start = async || {
                let source = SettingsSource::Pools { client: client.clone() };
                let follower = start_following(source, &stores, &duties).await?;
                anyhow::Ok(follower.subscribe().borrow().document["external"]["pools"].clone())
            };
            fails.store(true, Ordering::SeqCst);
            let error = start().await.unwrap_err().to_string();
            assert_eq!(error, "listing networking.k8s.io/v1/ServiceCIDR failed: too many requests");
            fails.store(false, Ordering::SeqCst);
            assert_eq!(start().await.unwrap(), json!([{"name": "edge", "cidrs": [GOOD]}]), "an agent: {agent}");
        }
    }
}
