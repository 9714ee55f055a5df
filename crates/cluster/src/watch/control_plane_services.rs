//! Tells which Services the control plane calls.
//!
//! The API server calls admission webhooks, aggregated APIs and the conversion webhooks of custom resources through
//! Services. A Service that moves has no address for a moment. A webhook that fails closed could then refuse the very
//! request that ends the move. So the controller checks whether the control plane calls a Service before it moves the
//! Service. While one of the kinds is not listed yet, or its watch fails, there is no answer, and no Service moves.
//!
//! A [`BlockingWebhook`] can't answer while its own Service moves, and the API server refuses requests of the move
//! without its answer. So such a Service does not move. The API server may use a connection to the webhook that it has
//! opened before. That of Kubernetes 1.37 did not do so in a test, and in older versions the connection may be closed
//! at any time, so the rule is the same for all versions.
//!
//! The same objects show whether webhooks of other programs choose addresses of Services, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clusterip_core::label_selector::Labels;
use clusterip_core::service_key::ServiceKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::kinds::{self, Kind, State};
use crate::object;
use crate::send_if_changed::send_if_changed;
use crate::snapshot::{Snapshot, StoredService};

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
    format!("called by {}", shortened(callers))
}

/// What an administrator sets in blocking webhooks so that a move is possible, and why.
pub fn webhook_remedy(webhooks: &[String]) -> String {
    format!(
        "for the time of the move, set failurePolicy: Ignore and timeoutSeconds: 1 in {}, because the API server refuses \
         the requests of the move without an answer of the webhook",
        shortened(webhooks)
    )
}

fn shortened(all: &[impl fmt::Display]) -> String {
    let named: Vec<String> = all.iter().take(NAMED).map(ToString::to_string).collect();
    let more = all.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

/// What a webhook configuration, an `APIService` or a `CustomResourceDefinition` calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calls {
    /// The Services, each with those of its webhooks that block its move.
    pub services: BTreeMap<ServiceKey, Vec<BlockingWebhook>>,
    /// Whether a webhook of another program in it chooses addresses of Services, too.
    pub chooses_addresses: bool,
}

impl Calls {
    pub fn of(object: &Value) -> Self {
        // `spec.service` belongs to an `APIService`, `spec.conversion` to a `CustomResourceDefinition`.
        let webhooks: Vec<&Value> =
            list(object, "webhooks").chain(object.pointer("/spec/conversion/webhook")).collect();
        let text = |service: &Value, field: &str| Some(service.get(field)?.as_str()?.to_owned());
        let key = |service: &Value| Some(ServiceKey::new(text(service, "namespace")?, text(service, "name")?));
        let called =
            webhooks.iter().map(|webhook| (webhook.pointer("/clientConfig/service"), BlockingWebhook::of(webhook)));
        let mut services = BTreeMap::<_, Vec<_>>::new();
        for (service, blocking) in called.chain([(object.pointer("/spec/service"), None)]) {
            if let Some(key) = service.and_then(key) {
                services.entry(key).or_default().extend(blocking);
            }
        }
        let chooses_addresses = webhooks.iter().any(|webhook| chooses_addresses(webhook));
        Self { services, chooses_addresses }
    }
}

/// A webhook that blocks the move of its own Service: the API server sends it requests of the move, and refuses them
/// without its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockingWebhook {
    pub name: String,
    /// The selectors of Namespaces and of objects; `None` for one that selects everything or can't be read.
    namespaces: Option<LabelSelector>,
    objects: Option<LabelSelector>,
}

impl BlockingWebhook {
    /// `None` for a webhook that blocks no move. Its conditions are not evaluated: it counts as blocking unless one of
    /// them is `false`.
    fn of(webhook: &Value) -> Option<Self> {
        if object::text(webhook, &["failurePolicy"]) == "Ignore" || is_never_called(webhook) {
            return None;
        }
        let has = |rule: &Value, field: &str, wanted: &[&str]| {
            list(rule, field).any(|item| item.as_str().is_some_and(|item| wanted.contains(&item)))
        };
        let covers = |group: &str, resource: &str| {
            let with_subresources = format!("{resource}/*");
            list(webhook, "rules").any(|rule| {
                has(rule, "apiGroups", &["*", group])
                    && has(rule, "operations", &["*", "CREATE", "UPDATE", "DELETE"])
                    && has(rule, "resources", &["*", "*/*", resource, &with_subresources])
            })
        };
        // The API server itself creates and deletes IPAddresses for the addresses of Services. They have no namespace,
        // so the selector of Namespaces does not exclude them, and they do not have the labels of the Service.
        let receives_addresses = covers("networking.k8s.io", "ipaddresses");
        if !receives_addresses && !covers("", "services") {
            return None;
        }
        let selector = |field: &str| match webhook.get(field) {
            Some(selector) if !receives_addresses => LabelSelector::deserialize(selector).ok(),
            _ => None,
        };
        Some(Self {
            name: object::text(webhook, &["name"]).to_owned(),
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
        })
    }

    /// The smallest webhook of this Service that blocks the same moves.
    pub fn reduced(&self, service: &Value) -> Value {
        let rule = json!({"apiGroups": [""], "operations": ["*"], "resources": ["services"]});
        let mut reduced = json!({
            "name": self.name, "clientConfig": {"service": service}, "failurePolicy": "Fail", "rules": [rule],
        });
        for (field, selector) in [("namespaceSelector", &self.namespaces), ("objectSelector", &self.objects)] {
            if let Some(selector) = selector {
                reduced[field] = json!(selector);
            }
        }
        reduced
    }

    /// Whether the API server may send it requests for an object, given the labels of the Namespace and of the object;
    /// `None` for unknown labels.
    fn may_receive(&self, namespace: Option<&Labels>, object: Option<&Labels>) -> bool {
        let may_match = |selector: &Option<LabelSelector>, labels: Option<&Labels>| match (selector, labels) {
            (Some(selector), Some(labels)) => {
                Selector::try_from(selector.clone()).map_or(true, |selector| selector.matches(labels))
            }
            _ => true,
        };
        may_match(&self.namespaces, namespace) && may_match(&self.objects, object)
    }
}

fn list<'v>(object: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> {
    object.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Whether a webhook chooses addresses of Services, and the API server may call it.
fn chooses_addresses(webhook: &Value) -> bool {
    let prefix = object::text(webhook, &["name"]).strip_suffix(K2S);
    prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.')) && !is_never_called(webhook)
}

/// The API server calls a webhook only if all its conditions are true, so never one with the condition `false`.
fn is_never_called(webhook: &Value) -> bool {
    list(webhook, "matchConditions").any(|condition| object::text(condition, &["expression"]).trim() == "false")
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
        unless_missing(self.missing())?;
        Ok(self.known_callers(namespace, name))
    }

    /// The webhooks of a Service that block its move. The move writes the Service and `others`: other objects, each
    /// given by its namespace and labels. An error as long as a kind of webhook configurations is not completely known.
    pub fn blocking_webhooks(
        &self,
        service: &StoredService,
        snapshot: &Snapshot,
        others: &[(&str, Labels)],
    ) -> Result<Vec<String>, String> {
        unless_missing(self.missing_of(kinds::webhook_configurations()))?;
        Ok(self.known_blocking_webhooks(service, snapshot, others))
    }

    /// As [`Self::blocking_webhooks`], but only as far as they are known: for a report.
    pub fn known_blocking_webhooks(
        &self,
        service: &StoredService,
        snapshot: &Snapshot,
        others: &[(&str, Labels)],
    ) -> Vec<String> {
        let of_namespace = |name: &str| Some(&(**snapshot.namespace(name)?).as_ref().ok()?.labels);
        let (key, labels) = (service.key(), service.all_labels());
        let blocks = |webhook: &&BlockingWebhook| {
            webhook.may_receive(of_namespace(&key.namespace), labels.as_ref())
                || others.iter().any(|(namespace, labels)| webhook.may_receive(of_namespace(namespace), Some(labels)))
        };
        let callers = self.0.callers.lock();
        let of_service = |(caller, calls): (&Caller, &Calls)| {
            let blocking = calls.services.get(key).into_iter().flatten().filter(blocks);
            blocking.map(|webhook| format!("webhook {} of {caller}", webhook.name)).collect::<Vec<_>>()
        };
        callers.iter().flat_map(of_service).collect()
    }

    /// As [`Self::callers`], but only as far as it is known: for a report, not for the decision to move.
    pub fn known_callers(&self, namespace: &str, name: &str) -> Vec<Caller> {
        let service = ServiceKey::new(namespace, name);
        let callers = self.0.callers.lock();
        let callers = callers.iter().filter(|(_, calls)| calls.services.contains_key(&service));
        callers.map(|(caller, _)| caller.clone()).collect()
    }

    /// Describes the kinds that are not known; `None` if all are known.
    pub fn missing(&self) -> Option<String> {
        self.missing_of(kinds::callers())
    }

    fn missing_of(&self, kinds: impl Iterator<Item = Kind>) -> Option<String> {
        let states = self.states();
        let missing = kinds.filter_map(|kind| match states.get(&kind) {
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

fn unless_missing(missing: Option<String>) -> Result<(), String> {
    missing.map_or(Ok(()), |reason| Err(format!("it is not known whether the control plane calls it: {reason}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
