//! Tells which Services the control plane calls.
//!
//! The API server calls admission webhooks, aggregated APIs and the conversion webhooks of custom resources through
//! Services. A Service that moves has no address for a moment, so the API server can't call it meanwhile. A webhook
//! that fails closed could then refuse the very request that ends the move. So before a Service moves, the controller
//! checks whether the control plane calls it.
//!
//! Only the references to Services are kept of webhook configurations, APIServices and CustomResourceDefinitions.
//! Everything else is dropped while it is read, because a CustomResourceDefinition may be large.
//!
//! While one of the kinds is not listed yet, or its watch fails, there is no answer: a Service must not move while it
//! is unknown whether the control plane calls it.
//!
//! The same objects show whether webhooks of other programs choose addresses of Services, too.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::api_error::error_chain;
use crate::backoff::{MAX_RETRY_PAUSE, RetryBackoff};
use crate::repeated_failures;
use clusterip_core::service_key::ServiceKey;
use futures::StreamExt;
use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use thiserror::Error;
use tokio::sync::watch;

pub use self::caller_object::{CallerObject, K2S};
use super::kinds::{self, Kind};
use crate::host_metrics::ClusterMetrics;

mod caller_object;

/// The option of `clusterip move` that moves a Service although the control plane calls it.
pub const MOVE_OPTION: &str = "--called-by-control-plane";

/// How many objects are listed at a time. A whole page is in memory before it is parsed.
const PAGE: u32 = 20;
/// How often the API server is asked for a kind that it did not have.
const ABSENT_PAUSE: Duration = Duration::from_secs(30);
/// How many callers a message names.
const NAMED: usize = 3;
/// The kind of the objects that register webhooks which change objects.
const MUTATING: &str = "MutatingWebhookConfiguration";

/// An object that makes the API server call a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller {
    /// The kind, such as `ValidatingWebhookConfiguration`.
    pub kind: String,
    /// The name of the object.
    pub name: String,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// Describes the callers of a Service: the first three by name, and how many more there are.
pub fn called_by(callers: &[Caller]) -> String {
    let named: Vec<String> = callers.iter().take(NAMED).map(Caller::to_string).collect();
    let more = callers.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("called by {}{more}", named.join(", "))
}

/// It is not known whether the control plane calls a Service.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("it is not known whether the control plane calls it: {reason}")]
pub struct Unknown {
    /// Why, with the kinds of objects that could not be read.
    pub reason: String,
}

/// The Services that the control plane calls. Cheap to clone: all clones share the same objects.
#[derive(Clone, Default)]
pub struct ControlPlaneServices(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// The Services that each object refers to.
    references: RwLock<BTreeMap<Caller, BTreeSet<ServiceKey>>>,
    states: Mutex<BTreeMap<Kind, State>>,
    /// The names of the configurations with webhooks of other programs that choose addresses of Services.
    other_webhooks: watch::Sender<BTreeSet<String>>,
}

/// The state of the watch of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// The first list is not complete.
    Listing,
    /// All objects are known, and their changes are followed.
    Known,
    /// The objects can't be read, for this reason.
    Failing(String),
}

impl ControlPlaneServices {
    /// Starts to watch the kinds that refer to Services, except for those that are watched already.
    pub fn watch(&self, client: &Client, metrics: &ClusterMetrics) {
        for kind in kinds::callers() {
            let mut states = self.0.states();
            if !states.contains_key(&kind) {
                states.insert(kind.clone(), State::Listing);
                tokio::spawn(Arc::clone(&self.0).follow(client.clone(), kind, metrics.clone()));
            }
        }
    }

    /// All objects that make the control plane call this Service, ordered by kind and name; empty if the Service may
    /// move. An error as long as a kind that may refer to Services is not completely known.
    pub fn callers(&self, namespace: &str, name: &str) -> Result<Vec<Caller>, Unknown> {
        if let Some(reason) = self.missing() {
            return Err(Unknown { reason });
        }
        Ok(self.known_callers(namespace, name))
    }

    /// As [`Self::callers`], but only as far as it is known: for a report, not for the decision to move.
    pub fn known_callers(&self, namespace: &str, name: &str) -> Vec<Caller> {
        let references = self.0.references.read().unwrap_or_else(PoisonError::into_inner);
        let service = ServiceKey::new(namespace, name);
        let callers = references.iter().filter(|(_, services)| services.contains(&service));
        callers.map(|(caller, _)| caller.clone()).collect()
    }

    /// Describes the kinds that are not known; `None` if all are known.
    pub fn missing(&self) -> Option<String> {
        let states = self.0.states();
        let missing = kinds::callers().filter_map(|kind| match states.get(&kind) {
            None => Some(format!("{} was not listed", kind.1)),
            Some(State::Known) => None,
            Some(State::Listing) => Some(format!("{} is being listed", kind.1)),
            Some(State::Failing(reason)) => Some(format!("{} can't be read: {reason}", kind.1)),
        });
        let missing: Vec<String> = missing.collect();
        (!missing.is_empty()).then(|| missing.join("; "))
    }

    /// The names of the MutatingWebhookConfigurations with webhooks of other programs that choose addresses of
    /// Services, too, as far as they are known. The receiver gets every change.
    pub fn other_webhooks(&self) -> watch::Receiver<BTreeSet<String>> {
        self.0.other_webhooks.subscribe()
    }

    /// Why MutatingWebhookConfigurations can't be read; `None` if they can, or if they were not requested yet.
    pub fn unknown_webhooks(&self) -> Option<String> {
        let states = self.0.states();
        states.iter().find(|(kind, _)| kind.1 == MUTATING).and_then(|(_, state)| match state {
            State::Failing(reason) => Some(reason.clone()),
            State::Listing | State::Known => None,
        })
    }

    /// Whether all kinds that may refer to Services are known.
    pub fn complete(&self) -> bool {
        self.missing().is_none()
    }

    /// Waits until each kind was either listed or found to be unreadable.
    pub async fn wait_until_listed(&self) {
        let is_listed = || {
            let states = self.0.states();
            kinds::callers().all(|kind| !matches!(states.get(&kind), None | Some(State::Listing)))
        };
        while !is_listed() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The name of each watched kind, and whether its changes are followed.
    pub fn start_following(&self) -> Vec<(String, bool)> {
        self.0.states().iter().map(|(kind, state)| (kind.1.clone(), *state == State::Known)).collect()
    }

    /// Adds an object of a list.
    pub fn take(&self, kind: &Kind, object: CallerObject) {
        self.0.put(kind, object);
    }

    /// Notes that all objects of a kind were added.
    pub fn listed(&self, kind: &Kind) {
        self.0.set_state(kind, State::Known);
    }

    /// Notes why the objects of a kind can't be read.
    pub fn failed(&self, kind: &Kind, reason: String) {
        self.0.set_state(kind, State::Failing(reason));
    }
}

impl Inner {
    fn states(&self) -> MutexGuard<'_, BTreeMap<Kind, State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_state(&self, kind: &Kind, state: State) -> Option<State> {
        self.states().insert(kind.clone(), state)
    }

    fn put(&self, kind: &Kind, object: CallerObject) {
        let name = object.metadata.name.unwrap_or_default();
        if kind.1 == MUTATING {
            self.other_webhooks.send_if_modified(|names| match object.chooses_addresses {
                true => names.insert(name.clone()),
                false => names.remove(&name),
            });
        }
        let caller = Caller { kind: kind.1.clone(), name };
        let mut references = self.references.write().unwrap_or_else(PoisonError::into_inner);
        if object.services.is_empty() {
            references.remove(&caller);
        } else {
            references.insert(caller, object.services);
        }
    }

    async fn follow(self: Arc<Self>, client: Client, kind: Kind, metrics: ClusterMetrics) {
        let api: Api<CallerObject> = Api::all_with(client, &kinds::regular(&kind));
        let mut backoff = RetryBackoff::default();
        loop {
            let begin = Instant::now();
            match self.follow_once(&kind, &api).await {
                Some(error) if is_absent(&error) => {
                    // Without this kind, no object of it refers to a Service.
                    self.retain(&kind, &HashSet::new());
                    self.set_state(&kind, State::Known);
                    tokio::time::sleep(ABSENT_PAUSE).await;
                    continue;
                }
                Some(error) => {
                    let reason = error_chain(&error);
                    metrics.watch_error(&kind.1);
                    repeated_failures::warn_of_watch(&kind, &reason);
                    self.set_state(&kind, State::Failing(reason));
                }
                None => drop(self.set_state(&kind, State::Failing("its watch ended".to_owned()))),
            }
            if begin.elapsed() > 2 * MAX_RETRY_PAUSE {
                backoff.reset();
            }
            tokio::time::sleep(backoff.next().unwrap_or(MAX_RETRY_PAUSE)).await;
        }
    }

    /// Lists a kind and follows its changes until that fails. Returns the error, or `None` if the watch just ended.
    async fn follow_once(&self, kind: &Kind, api: &Api<CallerObject>) -> Option<watcher::Error> {
        let mut events = pin!(watcher(api.clone(), watcher::Config::default().page_size(PAGE)));
        let mut listed = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.extend(object.metadata.name.clone());
                    self.put(kind, object);
                }
                Ok(Event::InitDone) => {
                    self.retain(kind, &std::mem::take(&mut listed));
                    if let Some(State::Failing(_)) = self.set_state(kind, State::Known) {
                        tracing::info!(api_version = kind.0, kind = kind.1, "followed again");
                    }
                }
                Ok(Event::Apply(object)) => self.put(kind, object),
                Ok(Event::Delete(CallerObject { metadata, .. })) => {
                    self.put(kind, CallerObject { metadata, ..CallerObject::default() });
                }
                Err(error) => return Some(error),
            }
        }
        None
    }

    /// Removes the objects of a kind that a complete list did not contain.
    fn retain(&self, kind: &Kind, listed: &HashSet<String>) {
        if kind.1 == MUTATING {
            self.other_webhooks.send_if_modified(|names| {
                let before = names.len();
                names.retain(|name| listed.contains(name));
                names.len() != before
            });
        }
        let mut references = self.references.write().unwrap_or_else(PoisonError::into_inner);
        references.retain(|caller, _| caller.kind != kind.1 || listed.contains(&caller.name));
    }
}

fn is_absent(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
