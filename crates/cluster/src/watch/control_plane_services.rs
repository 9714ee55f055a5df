//! Tells which Services the control plane calls.
//!
//! The API server calls admission webhooks, aggregated APIs and the conversion webhooks of custom resources through
//! Services. A Service that moves has no address for a moment. A webhook that fails closed could then refuse the very
//! request that ends the move. So the controller checks whether the control plane calls a Service before it moves the
//! Service. While one of the kinds is not listed yet, or its watch fails, there is no answer, and no Service moves.
//!
//! The same objects show whether webhooks of other programs choose addresses of Services, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clusterip_core::service_key::ServiceKey;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::watch;

use crate::kinds::{self, Kind, State};
use crate::object;
use crate::send_if_changed::send_if_changed;

/// The option of `clusterip move` that moves a Service although the control plane calls it.
pub const MOVE_OPTION: &str = "--called-by-control-plane";

/// The name of the webhook of K2s that gives addresses to Services. A webhook configuration does not say what its webhook
/// changes, so webhooks of other programs that choose addresses are known by their names. K2s has two, whose names have
/// not changed since its first version. The other one deletes and creates Services of Windows workloads, and its name
/// ends with this name.
pub const K2S: &str = "clusterip.k2s.io";

const NAMED: usize = 3;
/// The kind of the objects that register webhooks which change objects.
const MUTATING: &str = "MutatingWebhookConfiguration";

/// An object that makes the API server call a Service, with its kind, such as `ValidatingWebhookConfiguration`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller {
    pub kind: String,
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

/// What a webhook configuration, an `APIService` or a `CustomResourceDefinition` calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub services: BTreeSet<ServiceKey>,
    /// Whether a webhook of another program in it chooses addresses of Services, too.
    pub chooses_addresses: bool,
}

impl Calls {
    pub fn of(object: &Value) -> Self {
        let webhooks = object.get("webhooks").and_then(Value::as_array).into_iter().flatten();
        // `spec.service` belongs to an `APIService`, `spec.conversion` to a `CustomResourceDefinition`.
        let webhooks: Vec<&Value> = webhooks.chain(object.pointer("/spec/conversion/webhook")).collect();
        let called = webhooks.iter().filter_map(|webhook| webhook.pointer("/clientConfig/service"));
        let text = |service: &Value, field: &str| Some(service.get(field)?.as_str()?.to_owned());
        let services = called.chain(object.pointer("/spec/service"));
        let services = services.filter_map(|it| Some(ServiceKey::new(text(it, "namespace")?, text(it, "name")?)));
        let chooses_addresses = webhooks.iter().any(|webhook| chooses_addresses(webhook));
        Self { services: services.collect(), chooses_addresses }
    }
}

/// Whether a webhook chooses addresses of Services, and the API server may call it. The API server calls a webhook only
/// if all its conditions are true, so never one with the condition `false`.
fn chooses_addresses(webhook: &Value) -> bool {
    let prefix = object::text(webhook, &["name"]).strip_suffix(K2S);
    let mut conditions = webhook.get("matchConditions").and_then(Value::as_array).into_iter().flatten();
    prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
        && !conditions.any(|condition| object::text(condition, &["expression"]).trim() == "false")
}

/// The Services that the control plane calls. Cheap to clone: all clones share the same objects.
#[derive(Clone, Default)]
pub struct ControlPlaneServices(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Those that call a Service or choose addresses.
    callers: Mutex<BTreeMap<Caller, Calls>>,
    states: Mutex<BTreeMap<Kind, State>>,
    /// The names of the configurations with webhooks of other programs that choose addresses of Services.
    other_webhooks: watch::Sender<BTreeSet<String>>,
}

impl ControlPlaneServices {
    /// All objects that make the control plane call this Service, ordered by kind and name; empty if the Service may
    /// move. An error as long as a kind that may refer to Services is not completely known.
    pub fn callers(&self, namespace: &str, name: &str) -> Result<Vec<Caller>, String> {
        match self.missing() {
            Some(reason) => Err(format!("it is not known whether the control plane calls it: {reason}")),
            None => Ok(self.known_callers(namespace, name)),
        }
    }

    /// As [`Self::callers`], but only as far as it is known: for a report, not for the decision to move.
    pub fn known_callers(&self, namespace: &str, name: &str) -> Vec<Caller> {
        let service = ServiceKey::new(namespace, name);
        let callers = self.0.callers.lock();
        let callers = callers.iter().filter(|(_, calls)| calls.services.contains(&service));
        callers.map(|(caller, _)| caller.clone()).collect()
    }

    /// Describes the kinds that are not known; `None` if all are known.
    pub fn missing(&self) -> Option<String> {
        let states = self.states();
        let missing = kinds::callers().filter_map(|kind| match states.get(&kind) {
            None => Some(format!("{} was not listed", kind.1)),
            Some(State::Synced | State::Absent) => None,
            Some(State::Syncing) => Some(format!("{} is being listed", kind.1)),
            Some(State::Failing { reason, .. }) => Some(format!("{} can't be read: {reason}", kind.1)),
        });
        let missing: Vec<String> = missing.collect();
        (!missing.is_empty()).then(|| missing.join("; "))
    }

    /// The names of the MutatingWebhookConfigurations with webhooks of other programs that choose addresses of
    /// Services, too, as far as they are known. The receiver gets every change.
    pub fn other_webhooks(&self) -> watch::Receiver<BTreeSet<String>> {
        self.0.other_webhooks.subscribe()
    }

    /// `None` if they can be read, or were not requested yet.
    pub fn unknown_webhooks(&self) -> Option<String> {
        self.states().iter().find_map(|(kind, state)| match state {
            State::Failing { reason, .. } if kind.1 == MUTATING => Some(reason.clone()),
            _ => None,
        })
    }

    pub fn complete(&self) -> bool {
        self.missing().is_none()
    }

    /// Waits until each kind was either listed or found to be unreadable.
    pub async fn wait_until_listed(&self) {
        let is_listed = || {
            let states = self.states();
            kinds::callers().all(|kind| !matches!(states.get(&kind), None | Some(State::Syncing)))
        };
        while !is_listed() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn take(&self, kind: &Kind, object: &Value) {
        let caller = Caller { kind: kind.1.clone(), name: object::name(object).to_owned() };
        self.change(|callers| match Calls::of(object) {
            calls if calls == Calls::default() => drop(callers.remove(&caller)),
            calls => drop(callers.insert(caller, calls)),
        });
    }

    /// Removes the objects of a kind whose names are not `kept`.
    pub(super) fn retain(&self, kind: &Kind, kept: impl Fn(&str) -> bool) {
        self.change(|callers| callers.retain(|caller, _| caller.kind != kind.1 || kept(&caller.name)));
    }

    pub fn listed(&self, kind: &Kind) {
        self.states().insert(kind.clone(), State::Synced);
    }

    pub fn failed(&self, kind: &Kind, reason: String) {
        let failing = State::Failing { since: Instant::now(), reason, usable: false };
        self.states().insert(kind.clone(), failing);
    }

    pub(super) fn states(&self) -> MutexGuard<'_, BTreeMap<Kind, State>> {
        self.0.states.lock()
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Caller, Calls>)) {
        let mut callers = self.0.callers.lock();
        change(&mut callers);
        let choosing = callers.iter().filter(|(caller, calls)| caller.kind == MUTATING && calls.chooses_addresses);
        send_if_changed(&self.0.other_webhooks, choosing.map(|(caller, _)| caller.name.clone()).collect());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
