//! Tells which replicas are alive, and whether all of them use the same settings.
//!
//! Each replica keeps a Lease of its own with the hash of its settings, and renews it. After a change, the settings
//! reach one replica before the other. Until all replicas have them, a Service that one replica places looks
//! misplaced to another.
//!
//! # Guarantees
//! - No clock of another process is trusted. A replica counts as gone when this process has seen its Lease unchanged
//!   for its whole duration, so a replica that was killed is waited for no longer than that.
//! - A replica that stops removes its own Lease. The leader removes Leases that were left behind.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::api_error::{error_chain, error_message};
use clusterip_cluster::connect::answer;
use clusterip_cluster::lease_writes;
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::watch::stores::watch_config;
use clusterip_core::annotations::{LEASE_LABEL, SETTINGS_HASH_ANNOTATION};
use clusterip_failover::leases::{Identity, Observed, Version};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ObjectMeta};
use kube::runtime::watcher::{Event, watcher};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client, Error as KubeError, ResourceExt};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::services::service_metrics::ServiceMetrics;

pub const REPLICA: &str = "replica";
const LEASE_DURATION: Duration = Duration::from_secs(20);
const RENEWAL: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// How often the other replicas are checked for Leases that have ended.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// After how many times its duration a Lease that was left behind is removed.
const LEFT_BEHIND: u32 = 3;
/// How many times a write is tried if it conflicts with another.
const TRIES: usize = 3;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// The hash of the settings of this replica; empty as long as the other replicas are not known.
    pub hash: String,
    /// How many replicas use the same settings, including this one.
    pub same: usize,
    /// The identities of the replicas that use other settings, sorted.
    pub others: Vec<String>,
}

impl Agreement {
    /// Whether all live replicas use the settings with this hash.
    pub fn is_on(&self, hash: &str) -> bool {
        self.hash == hash && self.others.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Other {
    version: Version,
    holder: String,
    hash: String,
    duration: Duration,
}

impl Other {
    fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Self {
            version: Version::of(lease),
            holder: spec.holder_identity.filter(|holder| !holder.is_empty()).unwrap_or_else(|| lease.name_any()),
            hash: lease.annotations().get(SETTINGS_HASH_ANNOTATION).cloned().unwrap_or_default(),
            duration: seconds.map_or(LEASE_DURATION, Duration::from_secs),
        }
    }
}

fn is_alive(other: &Observed<Other>, now: Instant) -> bool {
    !other.is_unchanged_for(other.value.duration, now)
}

#[derive(Default)]
struct Others {
    listed: bool,
    by_name: HashMap<String, Observed<Other>>,
}

impl Others {
    /// Takes the Leases that exist now. The age of one that is unchanged still counts from when it was seen first.
    fn update(&mut self, leases: &[Arc<Lease>], me: &str, now: Instant) {
        let mut before = std::mem::take(&mut self.by_name);
        let others = leases.iter().map(|lease| (lease.name_any(), lease)).filter(|(name, _)| name != me);
        let observe = |(name, lease): (String, &Arc<Lease>)| {
            let observed = Observed::next(before.remove(&name), Other::of(lease), now);
            (name, observed)
        };
        (self.by_name, self.listed) = (others.map(observe).collect(), true);
    }

    fn agreement(&self, hash: &str, now: Instant) -> Agreement {
        if !self.listed {
            return Agreement::default();
        }
        let alive = self.by_name.values().filter(|other| is_alive(other, now)).map(|other| &other.value);
        let (same, others): (Vec<&Other>, Vec<&Other>) = alive.partition(|other| other.hash == hash);
        let mut others: Vec<String> = others.into_iter().map(|other| other.holder.clone()).collect();
        others.sort_unstable();
        Agreement { hash: hash.to_owned(), same: same.len() + 1, others }
    }

    /// The names and versions of the Leases that were left behind. Each is returned only once in a while.
    fn left_behind(&mut self, now: Instant) -> Vec<(String, Version)> {
        let is_left_behind = |other: &Observed<Other>| other.is_unchanged_for(LEFT_BEHIND * other.value.duration, now);
        let gone = self.by_name.iter_mut().filter(|(_, other)| is_left_behind(other));
        gone.map(|(name, other)| {
            // The replica still counts as gone, but its Lease is not removed again before two durations have passed.
            other.restart(other.value.duration, now);
            (name.clone(), other.value.version.clone())
        })
        .collect()
    }
}

/// This replica of the server, and what it knows of the others.
pub struct Replicas {
    leases: Api<Lease>,
    name: String,
    me: Identity,
    settings: watch::Receiver<Arc<LiveSettings>>,
    metrics: ServiceMetrics,
    version: Option<String>,
    others: Others,
    agreement: watch::Sender<Agreement>,
}

impl Replicas {
    /// The replica `me` among those in `namespace`. Sends no request yet.
    pub fn new(
        client: Client,
        namespace: &str,
        me: Identity,
        settings: watch::Receiver<Arc<LiveSettings>>,
        metrics: ServiceMetrics,
    ) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: format!("clusterip-replica-{}", me.random()),
            me,
            settings,
            metrics,
            version: None,
            others: Others::default(),
            agreement: watch::Sender::default(),
        }
    }

    /// A receiver that tells which settings the replicas use, now and after each change.
    pub fn subscribe(&self) -> watch::Receiver<Agreement> {
        self.agreement.subscribe()
    }

    /// Keeps this replica's Lease and follows the Leases of the others until `shutdown`. Then it removes its own
    /// Lease. While `leads` returns `true`, it also removes Leases that were left behind.
    pub async fn run(mut self, leads: impl Fn() -> bool, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let config = watch_config().labels(&format!("{LEASE_LABEL}={REPLICA}"));
        let (leases, writer) = reflector::store::<Lease>();
        let mut events = pin!(reflector(writer, watcher(self.leases.clone(), config).default_backoff()));
        let mut renewal = interval(RENEWAL);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = interval(CHECK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // When the settings can't change any more, this process stops.
        let mut followed = true;
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                _ = renewal.tick() => self.renew().await,
                changed = self.settings.changed(), if followed => match changed {
                    Ok(()) => self.renew().await,
                    Err(_) => followed = false,
                },
                _ = look.tick() => {
                    if leads() {
                        self.sweep();
                    }
                }
                Some(event) = events.next() => match event {
                    // The store has the new list at its end.
                    Ok(Event::Init | Event::InitApply(_)) => {}
                    Ok(_) => self.others.update(&leases.state(), &self.name, Instant::now()),
                    Err(error) => {
                        tracing::warn!(error = error_chain(&error), "watching the replicas failed, trying again");
                    }
                },
            }
            self.publish(leads());
        }
        let removed = timeout(REQUEST_TIMEOUT, self.leases.delete(&self.name, &DeleteParams::default())).await;
        if !matches!(removed, Ok(Ok(_))) {
            tracing::warn!(
                lease = self.name,
                "the Lease of this replica can't be removed: other replicas wait until it expires"
            );
        }
    }

    fn publish(&self, leads: bool) {
        let hash = self.settings.borrow().hash.clone();
        let now = self.others.agreement(&hash, Instant::now());
        self.agreement.send_if_modified(|known| {
            if *known == now {
                return false;
            }
            self.metrics.replicas(now.same.max(1), now.others.len());
            if !now.others.is_empty() {
                let others = now.others.join(", ");
                let what = if leads { "; nothing is moved until they agree" } else { "" };
                tracing::warn!(hash, others, "other replicas have other settings in use{what}");
            } else if !known.others.is_empty() {
                tracing::info!(hash, replicas = now.same, "all replicas have the same settings in use");
            }
            *known = now;
            true
        });
    }

    fn sweep(&mut self) {
        for (name, version) in self.others.left_behind(Instant::now()) {
            let leases = self.leases.clone();
            tokio::spawn(async move {
                let removed = timeout(REQUEST_TIMEOUT, lease_writes::delete(&leases, &name, &version)).await;
                // A deletion that fails is tried again later.
                if removed.is_ok_and(|removed| removed.is_ok()) {
                    tracing::info!(lease = name, "the Lease of a replica that is gone was removed");
                }
            });
        }
    }

    async fn renew(&mut self) {
        if let Err(error) = answer(REQUEST_TIMEOUT, self.write()).await {
            // The Lease may have been written nevertheless.
            self.version = None;
            let error = error_message(&error);
            tracing::warn!(lease = self.name, error, "the Lease of this replica can't be renewed");
        }
    }

    async fn write(&mut self) -> Result<(), KubeError> {
        let mut tried = 0;
        loop {
            tried += 1;
            let mut lease = self.lease();
            lease.metadata.resource_version.clone_from(&self.version);
            match lease_writes::write(&self.leases, &lease).await {
                Ok(lease) => {
                    self.version = lease.resource_version();
                    return Ok(());
                }
                // A request that seemed to fail has written the Lease, or the Lease was removed.
                Err(KubeError::Api(status)) if matches!(status.code, 404 | 409) && tried < TRIES => {
                    let found = self.leases.get_opt(&self.name).await?;
                    self.version = found.and_then(|found| found.resource_version());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn lease(&self) -> Lease {
        let hash = self.settings.borrow().hash.clone();
        Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(BTreeMap::from([(LEASE_LABEL.to_owned(), REPLICA.to_owned())])),
                annotations: Some(BTreeMap::from([(SETTINGS_HASH_ANNOTATION.to_owned(), hash)])),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.me.to_string()),
                lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                // For people only: no clock of another process is trusted.
                renew_time: Some(MicroTime(Timestamp::now())),
                ..LeaseSpec::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests;
