//! Translates objects into the settings document.
//!
//! A pool that can't be used is left out of the document, and the other pools stay in use. If a pool was in use before
//! an edit made it unusable, its last good version stays in use.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use clusterip_core::settings::{Mistake, Settings};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::document;
use crate::object_key::{Kind, ObjectKey, field_of};
use crate::status::{READY, Reason, summary};

/// All that the settings document is compiled from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Objects {
    /// The objects of this API, in any order. Objects of other kinds are ignored.
    pub objects: Vec<Value>,
    /// The ServiceCIDR objects of the cluster, for pools with a `serviceCIDRSelector`.
    pub service_cidrs: Vec<LabelledRanges>,
    /// The Service ranges of the cluster, the primary one first; empty if they are unknown.
    pub cluster_ranges: Vec<String>,
}

/// The parts of the document in use, by the object that each one comes from: for a pool its entry in the list of pools
/// and its `priority`, for the ClusterIPPolicy its spec. `status.inUse` of an object has the same contents.
pub type InUse = BTreeMap<ObjectKey, Value>;

#[derive(Clone, Debug, PartialEq)]
pub struct Compilation {
    pub document: Value,
    /// The parts of the document; the `in_use` of the next compilation.
    pub in_use: InUse,
    pub states: BTreeMap<ObjectKey, ObjectState>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectState {
    /// An object that was deleted and created again is another one.
    pub uid: Option<String>,
    pub generation: Option<i64>,
    /// [`Reason::InUse`], or why the latest version is not in use.
    pub reason: Reason,
    pub message: String,
    /// What the latest version is for, in one line; empty for a [`Kind::ClusterIPPolicy`].
    pub selects: String,
}

impl ObjectState {
    fn new(object: &Value, reason: Reason, message: String, selects: String) -> Self {
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
        let generation = object.pointer("/metadata/generation").and_then(Value::as_i64);
        Self { uid, generation, reason, message, selects }
    }
}

/// A pool, and its part of the document as [`InUse`] has it.
type Pool = (ObjectKey, Value);

/// The part of the latest version of a pool, with these ranges in place of a `serviceCIDRSelector`.
fn part(key: &ObjectKey, object: &Value, cidrs: Option<Vec<String>>) -> Value {
    let mut part = document::entry(key, object, cidrs);
    part["priority"] = json!(object.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or_default());
    part
}

/// The position in the order in which pools are tried.
fn place((key, part): &Pool) -> (Reverse<i64>, &ObjectKey) {
    (Reverse(part.get("priority").and_then(Value::as_i64).unwrap_or_default()), key)
}

/// The parts that the last compilation put into use, as far as the status of the objects tells: of an object that is
/// ready its spec, and of every other object `status.inUse`. A process that has just started begins with these.
pub fn in_use_before(objects: &Objects) -> InUse {
    let mut in_use = InUse::new();
    for object in &objects.objects {
        let Some(key) = ObjectKey::of(object) else { continue };
        let observed = object.pointer("/status/observedGeneration").filter(|observed| !observed.is_null());
        let is_current = observed.is_some() && observed == object.pointer("/metadata/generation");
        let used = if is_current && is_ready(object) {
            ready_part(&key, object)
        } else {
            object.pointer("/status/inUse").filter(|used| used.is_object()).cloned()
        };
        in_use.extend(used.map(|used| (key, used)));
    }
    in_use
}

fn is_ready(object: &Value) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| condition["type"] == READY && condition["status"] == "True")
}

/// The part of the document that a ready object stands for. ServiceCIDRs may have changed while no process ran, so the
/// ranges of a `serviceCIDRSelector` are those in the status.
fn ready_part(key: &ObjectKey, object: &Value) -> Option<Value> {
    if key.kind == Kind::ClusterIPPolicy {
        return object.get("spec").cloned();
    }
    let selector = object.pointer("/spec/serviceCIDRSelector").filter(|selector| !selector.is_null());
    let cidrs = match selector {
        None => None,
        Some(_) => Some(serde_json::from_value(object.pointer("/status/ranges")?.clone()).ok()?),
    };
    Some(part(key, object, cidrs))
}

/// Translates objects into the settings document. `in_use` is that of the compilation before, or at the start
/// [`in_use_before`].
///
/// Pools are tried in descending order of priority, and pools of the same priority in the order of their names. If two
/// pools exclude each other, an unchanged pool in use is preferred to an edited one, and an edited one to a new one.
/// Among equals, the one with the higher priority is used.
///
/// A pool whose `serviceCIDRSelector` selects nothing any more keeps the ranges that it had, while they lie in Service
/// ranges of the cluster. So removing a label from a ServiceCIDR moves no Service.
pub fn compile(objects: &Objects, in_use: &InUse) -> Compilation {
    let mut states = BTreeMap::new();
    let policy = policy_in_use(objects, in_use, &mut states);
    let builder = DocumentBuilder { policy: policy.as_ref(), cluster_ranges: &objects.cluster_ranges };
    let (known, new): (Vec<_>, Vec<_>) =
        candidates(objects, in_use, &mut states).into_iter().partition(|(key, _)| in_use.contains_key(key));
    let (unchanged, changed): (Vec<_>, Vec<_>) =
        known.into_iter().partition(|(key, part)| in_use.get(key) == Some(part));
    let mut accepted = Vec::new();
    for group in [unchanged, changed, new] {
        for ((key, part), reason, message) in builder.admit(&mut accepted, group) {
            // The state of a pool that has no ranges any more already says why it can't be used.
            let Some(state) = states.get_mut(&key).filter(|state| state.reason != Reason::NoRanges) else { continue };
            (state.reason, state.message) = (reason, message);
            let last_good = in_use.get(&key).filter(|last| **last != part);
            if let Some(last) = last_good
                && builder.admit(&mut accepted, vec![(key, last.clone())]).is_empty()
            {
                state.message.push_str("; the previous version stays in use");
            }
        }
    }
    for (key, _) in &accepted {
        if let Some(state) = states.get_mut(key).filter(|state| state.reason == Reason::NoRanges) {
            state.message.push_str("; the previous version stays in use, with its ranges");
        }
    }
    let mut in_use: InUse = accepted.iter().cloned().collect();
    in_use.extend(policy.iter().map(|policy| (ObjectKey::policy(), policy.clone())));
    Compilation { document: builder.document(&accepted, false), in_use, states }
}

/// The latest versions of the pools, in the order in which pools are tried. If a pool has no ranges, its version in use
/// takes this place. Adds the state of every pool to `states`.
fn candidates(objects: &Objects, in_use: &InUse, states: &mut BTreeMap<ObjectKey, ObjectState>) -> Vec<Pool> {
    let mut candidates = Vec::new();
    for object in &objects.objects {
        let Some(key) = ObjectKey::of(object).filter(|key| key.kind != Kind::ClusterIPPolicy) else { continue };
        let resolved = resolve(object, &objects.service_cidrs);
        let (reason, message) = match &resolved {
            Ok(_) => (Reason::InUse, "the pool is in use".to_owned()),
            Err(message) => (Reason::NoRanges, message.clone()),
        };
        let latest = part(&key, object, resolved.unwrap_or_default());
        states.insert(key.clone(), ObjectState::new(object, reason, message, summary(key.kind, &latest)));
        let used = if reason == Reason::InUse { Some(latest) } else { in_use.get(&key).cloned() };
        candidates.extend(used.map(|part| (key, part)));
    }
    candidates.sort_by(|a, b| place(a).cmp(&place(b)));
    candidates
}

/// The spec of the ClusterIPPolicy to use: the latest one, or if that has a mistake, the one in use.
fn policy_in_use(objects: &Objects, in_use: &InUse, states: &mut BTreeMap<ObjectKey, ObjectState>) -> Option<Value> {
    let is_policy = |object: &&Value| ObjectKey::of(object).is_some_and(|key| key == ObjectKey::policy());
    let object = objects.objects.iter().find(is_policy)?;
    let spec = object.get("spec").cloned().unwrap_or_else(|| json!({}));
    // Sections of pools are checked only with pools, so check all settings with a pool of each kind.
    let mistakes = document::policy_mistakes(&spec);
    let mut state = ObjectState::new(object, Reason::InUse, "the settings are in use".to_owned(), String::new());
    let mut used = Some(spec);
    if !mistakes.is_empty() {
        state.reason = Reason::Invalid;
        used = in_use.get(&ObjectKey::policy()).cloned();
        let instead = if used.is_some() { "the previous settings stay in use" } else { "the defaults are in use" };
        state.message = format!("{}; {instead}", mistakes.join("; "));
    }
    states.insert(ObjectKey::policy(), state);
    used
}

struct DocumentBuilder<'a> {
    policy: Option<&'a Value>,
    cluster_ranges: &'a [String],
}

impl DocumentBuilder<'_> {
    /// The Service ranges of the cluster belong only into a document that is checked.
    fn document(&self, pools: &[Pool], with_cluster_ranges: bool) -> Value {
        let mut sorted: Vec<&Pool> = pools.iter().collect();
        sorted.sort_by(|a, b| place(a).cmp(&place(b)));
        let entry = |(_, part): &&Pool| {
            let mut entry = part.clone();
            entry.as_object_mut().map(|fields| fields.remove("priority"));
            entry
        };
        let of = |kind: Kind| sorted.iter().filter(|(key, _)| key.kind == kind).map(entry).collect();
        let mut document = document::document(self.policy, of);
        if with_cluster_ranges && !self.cluster_ranges.is_empty() {
            document["services"]["serviceCIDRs"] = json!(self.cluster_ranges);
        }
        document
    }

    fn mistakes(&self, pools: &[Pool]) -> Vec<(String, Mistake)> {
        let document = self.document(pools, true);
        let Err(invalid) = Settings::from_value(&document) else { return Vec::new() };
        let of_object = |mistake: Mistake| match field_of(&mistake.path, &document) {
            Some((key, path)) => (key.name, Mistake { path, ..mistake }),
            None => (String::new(), mistake),
        };
        invalid.mistakes.into_iter().map(of_object).collect()
    }

    /// Adds those pools of `group` to `accepted` that can be used together with the accepted ones. Returns the others.
    /// Tries all of them first and then halves, so that one unusable pool among many costs few checks.
    fn admit(&self, accepted: &mut Vec<Pool>, mut group: Vec<Pool>) -> Vec<(Pool, Reason, String)> {
        if group.is_empty() {
            return Vec::new();
        }
        let before = accepted.len();
        accepted.extend(group.iter().cloned());
        let mistakes = self.mistakes(accepted);
        if mistakes.is_empty() {
            return Vec::new();
        }
        accepted.truncate(before);
        if group.len() > 1 {
            let second = group.split_off(group.len() / 2);
            let mut rejected = self.admit(accepted, group);
            rejected.extend(self.admit(accepted, second));
            return rejected;
        }
        let rejected = |pool: Pool| {
            let (reason, why) = self.rejection(&pool, mistakes.clone());
            (pool, reason, why)
        };
        group.into_iter().map(rejected).collect()
    }

    /// Why a pool can't be used. `with_others` are the mistakes of the document of all accepted pools and this one.
    fn rejection(&self, pool: &Pool, with_others: Vec<(String, Mistake)>) -> (Reason, String) {
        let alone = std::slice::from_ref(pool);
        let without_ranges = DocumentBuilder { policy: None, cluster_ranges: &[] }.mistakes(alone);
        let (reason, mistakes) = if !without_ranges.is_empty() {
            (Reason::Invalid, without_ranges)
        } else {
            // Before Kubernetes 1.33, only the policy has the Service ranges.
            let with_ranges = self.mistakes(alone);
            if !with_ranges.is_empty() && pool.0.kind == Kind::ServicePool {
                (Reason::OutsideServiceCIDRs, with_ranges)
            } else if with_others.iter().all(|(_, mistake)| mistake.path == "spec.match") {
                (Reason::NeverUsed, with_others)
            } else {
                (Reason::Overlaps, with_others)
            }
        };
        /// More mistakes than these make a condition hard to read.
        const SHOWN: usize = 5;
        let shown = mistakes.iter().take(SHOWN).map(|(name, mistake)| match *name == pool.0.name {
            true => mistake.to_string(),
            // A pool with a higher priority can make another one unusable.
            false => format!("this pool conflicts with pool {name:?}: {mistake}"),
        });
        let mut message = shown.collect::<Vec<_>>().join("; ");
        if mistakes.len() > SHOWN {
            message.push_str(&format!("; and {} more mistakes", mistakes.len() - SHOWN));
        }
        (reason, message)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelledRanges {
    pub labels: BTreeMap<String, String>,
    pub cidrs: Vec<String>,
}

/// The ranges of the ServiceCIDR objects that a pool selects, in ascending order of their text; `None` if the pool has
/// no `serviceCIDRSelector`. The error begins with the path of the field.
fn resolve(pool: &Value, service_cidrs: &[LabelledRanges]) -> Result<Option<Vec<String>>, String> {
    let Some(selector) = pool.pointer("/spec/serviceCIDRSelector").filter(|selector| !selector.is_null()) else {
        return Ok(None);
    };
    if pool.pointer("/spec/cidrs").is_some_and(|cidrs| !cidrs.is_null()) {
        return Err("spec: give either cidrs or serviceCIDRSelector".to_owned());
    }
    let unreadable = |reason: &dyn std::fmt::Display| format!("spec.serviceCIDRSelector: {reason}");
    let selector = LabelSelector::deserialize(selector).map_err(|error| unreadable(&error))?;
    let selector = Selector::try_from(selector).map_err(|error| unreadable(&error))?;
    let selected = service_cidrs.iter().filter(|ranges| selector.matches(&ranges.labels));
    let mut cidrs: Vec<String> = selected.flat_map(|ranges| ranges.cidrs.iter().cloned()).collect();
    cidrs.sort();
    cidrs.dedup();
    if cidrs.is_empty() {
        return Err("spec.serviceCIDRSelector: no ServiceCIDR object has these labels: label one with kubectl label \
                    servicecidr, or list cidrs"
            .to_owned());
    }
    Ok(Some(cidrs))
}

const MAX_REASON: usize = 1000;

impl Compilation {
    /// What to show if the policy refused these settings for the reason `why`, so that those of `before` stay in use:
    /// each object whose latest version would have been put into use now is [`Reason::Invalid`].
    #[must_use]
    pub fn refused(&self, before: Option<&Self>, why: &str) -> Self {
        let (document, in_use) = match before {
            Some(before) => (before.document.clone(), before.in_use.clone()),
            None => (json!({}), InUse::new()),
        };
        let mut states: BTreeMap<_, _> = self.states.clone();
        for (key, state) in &mut states {
            if state.reason == Reason::InUse && in_use.get(key) != self.in_use.get(key) {
                let why: String = why.chars().take(MAX_REASON).collect();
                state.reason = Reason::Invalid;
                state.message = format!("the policy refuses the settings with this version: {why}");
                if in_use.contains_key(key) {
                    state.message.push_str("; the previous version stays in use");
                }
            }
        }
        Self { document, in_use, states }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn compiled(pools: &[(&str, &str)], before: &InUse) -> Compilation {
        let pool = |(name, cidr): &(&str, &str)| -> Value {
            json!({"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": name},
                "spec": {"cidrs": [cidr], "match": {"namespaces": [name]}}})
        };
        let objects = Objects {
            objects: pools.iter().map(pool).collect(),
            service_cidrs: Vec::new(),
            cluster_ranges: Vec::new(),
        };
        compile(&objects, before)
    }

    #[test]
    fn versions_that_the_policy_refused_are_invalid() {
        let before = compiled(&[("same", "10.0.0.0/24"), ("edited", "10.0.1.0/24")], &InUse::new());
        let pools = [("same", "10.0.0.0/24"), ("edited", "10.0.2.0/24"), ("new", "10.0.3.0/24")];
        let refused = compiled(&pools, &before.in_use).refused(Some(&before), "too large");
        let states: Vec<(&str, Reason, &str)> =
            refused.states.iter().map(|(key, state)| (&*key.name, state.reason, &*state.message)).collect();
        assert_eq!(
            states,
            [
                (
                    "edited",
                    Reason::Invalid,
                    "the policy refuses the settings with this version: too large; the previous version stays in use"
                ),
                ("new", Reason::Invalid, "the policy refuses the settings with this version: too large"),
                ("same", Reason::InUse, "the pool is in use"),
            ]
        );
        assert_eq!((refused.document, refused.in_use), (before.document, before.in_use));
    }
}
