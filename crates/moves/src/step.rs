//! The steps of a move on the Service itself: decides which step is next, and what it writes.
//!
//! ```text
//!           release               assign             restore the status       cleanup
//!   idle ───────────▶ released ───────────▶ assigned ─────────────────────▶ ──────────▶ idle
//! ```
//! The stored Service shows the state of a move, and the journal says what to write. Without a journal, nothing is
//! written.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_core::annotations::{MOVING_ANNOTATION, MOVING_NAME, REASON_ANNOTATION, in_moving_annotation, is_moving};
use clusterip_core::external::claim;
use clusterip_core::service::{MANAGER, Service, addresses};
use serde_json::{Map, Value, json};

use crate::journal::{Journal, ReleaseMethod, SOURCE_RANGES_ANNOTATION};
use crate::outcome::{Outcome, Unmoved};

type Fields = Map<String, Value>;

/// The next step of a move. A move may be cut off before or after each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The Service has no address: give it one, as [`assigned`] writes it.
    Assign,
    /// The API server has dropped the status of the load balancer: restore it, as [`with_status`] does.
    RestoreStatus,
    /// The Service has its address: remove the marker and restore the field owners, as [`cleaned_up`] does.
    Cleanup,
    /// The Service shows no trace of the move.
    Idle,
}

/// The next step of a recorded move, given the Service as it is stored.
pub fn next(service: &Value, journal: &Journal) -> Step {
    if is_released(service, journal) {
        Step::Assign
    } else if !is_moving(service) && !has_leftover_name(service, journal) {
        Step::Idle
    } else if wants_status(service, journal) {
        Step::RestoreStatus
    } else {
        Step::Cleanup
    }
}

/// Whether the Service was not written since its move was recorded. Then the release may still be carried out.
pub fn may_still_begin(service: &Value, journal: &Journal) -> bool {
    let version = service.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    version == Some(journal.resource_version.as_str())
}

/// How the move of this journal ends, once only [`Step::Cleanup`] is left. `to` are the addresses of the last attempt.
pub fn ending(service: &Value, journal: &Journal, to: &[IpAddr], notes: &[String]) -> Outcome {
    let now = addresses(service);
    let (from, why, notes) = (journal.from.clone(), journal.why.clone(), notes.to_vec());
    // If only the second address moves, the first is always the same, and so proves nothing.
    let first_proves_move = journal.release_method == ReleaseMethod::ExternalName;
    if now.is_empty() {
        Outcome::Overtaken { from, now, why }
    } else if now == from {
        Outcome::Kept { from, why, notes }
    } else if to.is_empty() {
        Outcome::Elsewhere { from, to: now, why, notes }
    } else if now == to || first_proves_move && now.first() == to.first() {
        Outcome::Moved { from, to: now, why, notes }
    } else {
        Outcome::Overtaken { from, now, why }
    }
}

/// Why a Service can't be moved, or need not be moved; `None` if it can.
pub fn unmovable(service: &Value, to: &[IpAddr], load_balancers: bool) -> Option<Unmoved> {
    let read = Service::read(service, "").unwrap_or_default();
    let reasons = [
        (is_being_deleted(service), "it is being deleted"),
        (read.external_name, "it is of type ExternalName"),
        (read.is_headless(), "it is headless"),
        (is_load_balancer(service) && !load_balancers, "it is a load balancer, which is moved only on request"),
        (read.addresses().is_empty(), "it has no address"),
        (read.addresses() == to, "it already has that address"),
    ];
    reasons.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| Unmoved::Unfit(reason))
}

/// The journal for a move of this Service that begins. What the API server makes of the spec is not known until the
/// release was tried by a dry run. Until then, the original spec stands in for it.
pub fn beginning(service: &Value, to: &[IpAddr], why: &str) -> Journal {
    let from = addresses(service);
    let spec = spec(service);
    let status = service.pointer("/status/loadBalancer").and_then(Value::as_object);
    let metadata = |field: &str| {
        let value = service.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    Journal {
        namespace: metadata("namespace"),
        name: metadata("name"),
        uid: metadata("uid"),
        resource_version: metadata("resourceVersion"),
        recorded_at: 0,
        seamless: None,
        // With `SingleStack`, the Service keeps its first address throughout.
        release_method: if from.len() == 2 && from.first() == to.first() {
            ReleaseMethod::SingleStack
        } else {
            ReleaseMethod::ExternalName
        },
        from,
        to: to.to_vec(),
        why: why.to_owned(),
        reason: None,
        released: spec.clone(),
        spec,
        managed_fields: managed_fields(service).cloned().collect(),
        source_ranges: annotation(service, SOURCE_RANGES_ANNOTATION).map(str::to_owned),
        load_balancer: status.filter(|status| !status.is_empty()).cloned(),
    }
}

/// The Service without its address, and with the marker.
pub fn released(service: &Value, journal: &Journal) -> Value {
    let mut service = marked(service, journal, &journal.to);
    match journal.release_method {
        ReleaseMethod::SingleStack => {
            let first: Vec<String> = journal.from.iter().take(1).map(IpAddr::to_string).collect();
            if let Some(families) = service.pointer_mut("/spec/ipFamilies").and_then(Value::as_array_mut) {
                families.truncate(1);
            }
            service["spec"]["ipFamilyPolicy"] = "SingleStack".into();
            service["spec"]["clusterIPs"] = first.into();
        }
        ReleaseMethod::ExternalName => {
            // The API server allows these only on the type LoadBalancer.
            annotate(&mut service, SOURCE_RANGES_ANNOTATION, None);
            if let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) {
                spec.remove("loadBalancerSourceRanges");
                spec.insert("type".into(), "ExternalName".into());
                spec.insert("externalName".into(), journal.external_name().into());
            }
        }
    }
    service
}

/// The Service with the marker of an attempt to move to these addresses, otherwise unchanged. It gets another version,
/// so the API server refuses a release that was made from the version before.
pub(crate) fn marked(service: &Value, journal: &Journal, to: &[IpAddr]) -> Value {
    let mut service = bare(service);
    let marker = in_moving_annotation(&journal.from, to);
    annotate(&mut service, MOVING_ANNOTATION, Some(&marker));
    service
}

/// What a Service does not get back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// Node ports that other Services have taken.
    pub ports: Vec<u64>,
    /// Whether the external addresses of its spec are left out, because the policy refuses them.
    pub external: bool,
}

/// The Service as it was, at the addresses `to`, still with the marker. Without addresses, the API server picks some.
pub fn assigned(service: &Value, journal: &Journal, to: &[IpAddr], without: &Without) -> Value {
    let mut spec = merged_spec(&journal.spec, &journal.released, &spec(service));
    let kept = match (to, journal.release_method) {
        ([], ReleaseMethod::SingleStack) => &journal.from[..1.min(journal.from.len())],
        (to, _) => to,
    };
    spec.remove("clusterIP");
    spec.remove("clusterIPs");
    set_addresses(&mut spec, kept);
    drop_ports(&mut spec, |port| without.ports.contains(&port));
    if without.external {
        EXTERNAL_FIELDS.iter().for_each(|field| drop(spec.remove(*field)));
    }
    let mut service = marked(service, journal, to);
    service["spec"] = spec.into();
    restore_source_ranges(&mut service, journal);
    // The reason for the old addresses is removed if that for the new ones is unknown. It is written now, so that the
    // cleanup restores its owners.
    if annotation(&service, REASON_ANNOTATION).is_some() && to != journal.from {
        let reason = journal.reason.as_deref().filter(|_| to == journal.to);
        annotate(&mut service, REASON_ANNOTATION, reason);
    }
    service
}

/// Writes these addresses to a spec; none if the API server picks them.
pub(crate) fn set_addresses(spec: &mut Fields, addresses: &[IpAddr]) {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    if let Some(first) = texts.first() {
        spec.insert("clusterIP".into(), first.as_str().into());
        spec.insert("clusterIPs".into(), texts.into());
    }
}

const EXTERNAL_FIELDS: [&str; 2] = ["externalIPs", "loadBalancerIP"];

/// The Service without the external addresses of its spec; `None` if it has none.
pub fn without_external(service: &Value) -> Option<Value> {
    let mut service = service.clone();
    let spec = service.get_mut("spec")?.as_object_mut()?;
    let removed = EXTERNAL_FIELDS.iter().filter(|field| spec.remove(**field).is_some()).count();
    (removed > 0).then_some(service)
}

pub(crate) fn drop_ports(spec: &mut Fields, is_dropped: impl Fn(u64) -> bool) {
    let dropped = |value: Option<&Value>| value.and_then(Value::as_u64).is_some_and(&is_dropped);
    if dropped(spec.get("healthCheckNodePort")) {
        spec.remove("healthCheckNodePort");
    }
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
    for port in ports.filter_map(Value::as_object_mut) {
        if dropped(port.get("nodePort")) {
            port.remove("nodePort");
        }
    }
}

/// The Service with the recorded status of its load balancer, for the subresource `status`.
pub fn with_status(service: &Value, journal: &Journal) -> Value {
    let mut service = bare(service);
    if let Some(status) = &journal.load_balancer {
        service["status"]["loadBalancer"] = status.clone().into();
    }
    service
}

pub fn recorded_ips(journal: &Journal) -> Vec<IpAddr> {
    claim::shown(journal.load_balancer.as_ref().and_then(|status| status.get("ingress")))
}

/// The Service without a trace of the move. With `keep_owners`, the field owners stay as they are.
pub fn cleaned_up(service: &Value, journal: &Journal, keep_owners: bool) -> Value {
    let original = if keep_owners { &[] } else { journal.managed_fields.as_slice() };
    let owners = restored_owners(original, managed_fields(service));
    let mut service = bare(service);
    annotate(&mut service, MOVING_ANNOTATION, None);
    // If a request leaves the owners out, they stay as they are. An empty list would delete them for good.
    if !owners.is_empty() {
        service["metadata"]["managedFields"] = owners.into();
    }
    if has_leftover_name(&service, journal)
        && let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.remove("externalName");
    }
    // A user who sets the type back may not know that the release removed the source ranges, which restrict who can
    // reach the load balancer.
    restore_source_ranges(&mut service, journal);
    if is_load_balancer(&service)
        && service.pointer("/spec/loadBalancerSourceRanges").is_none()
        && let Some(ranges) = journal.spec.get("loadBalancerSourceRanges")
    {
        service["spec"]["loadBalancerSourceRanges"] = ranges.clone();
    }
    service
}

fn restore_source_ranges(service: &mut Value, journal: &Journal) {
    if let Some(ranges) = journal.source_ranges.as_deref()
        && is_load_balancer(service)
        && annotation(service, SOURCE_RANGES_ANNOTATION).is_none()
    {
        annotate(service, SOURCE_RANGES_ANNOTATION, Some(ranges));
    }
}

fn is_released(service: &Value, journal: &Journal) -> bool {
    match journal.release_method {
        ReleaseMethod::ExternalName => {
            text(service, "type") == Some("ExternalName") && is_name_of_move(text(service, "externalName"), journal)
        }
        // A user may have made the Service single-stack, but then without the marker.
        ReleaseMethod::SingleStack => {
            is_moving(service)
                && text(service, "type") != Some("ExternalName")
                && text(service, "ipFamilyPolicy") == Some("SingleStack")
                && addresses(service) == journal.from[..1.min(journal.from.len())]
        }
    }
}

/// Whether a Service of another type than `ExternalName` still has the external name of a move.
fn has_leftover_name(service: &Value, journal: &Journal) -> bool {
    text(service, "type") != Some("ExternalName") && is_name_of_move(text(service, "externalName"), journal)
}

/// Whether a move wrote this external name: this one, or an earlier plain one whose release arrived late.
fn is_name_of_move(name: Option<&str>, journal: &Journal) -> bool {
    name == Some(MOVING_NAME) || name == Some(journal.external_name())
}

/// Whether to restore the recorded status: the release has wiped it, and the Service has the same load balancer class
/// as before. The status of another class may be written only by its own controller.
fn wants_status(service: &Value, journal: &Journal) -> bool {
    let now = service.pointer("/status/loadBalancer").and_then(Value::as_object);
    let same_class =
        text(service, "loadBalancerClass") == journal.spec.get("loadBalancerClass").and_then(Value::as_str);
    // A status that a cloud controller has written meanwhile is newer.
    is_load_balancer(service) && same_class && journal.load_balancer.is_some() && now.is_none_or(Map::is_empty)
}

fn is_load_balancer(service: &Value) -> bool {
    text(service, "type") == Some("LoadBalancer")
}

/// The Service as a request contains it, without field owners, which only the API server knows. They may be most of the
/// object, so they are not copied.
pub fn bare(service: &Value) -> Value {
    let mut bare = copied_without(service.as_object(), "metadata");
    let metadata = service.get("metadata").and_then(Value::as_object);
    bare.insert("metadata".into(), copied_without(metadata, "managedFields").into());
    bare.into()
}

fn spec(service: &Value) -> Fields {
    service.get("spec").and_then(Value::as_object).cloned().unwrap_or_default()
}

fn managed_fields(service: &Value) -> impl Iterator<Item = &Fields> {
    let entries = service.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten();
    entries.filter_map(Value::as_object)
}

/// Whether an object is deleted as soon as it has no finalizer any more.
pub fn is_being_deleted(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

pub(crate) fn text<'v>(service: &'v Value, field: &str) -> Option<&'v str> {
    service.get("spec")?.get(field)?.as_str()
}

pub(crate) fn annotation<'v>(service: &'v Value, name: &str) -> Option<&'v str> {
    service.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

pub(crate) fn annotate(service: &mut Value, name: &str, value: Option<&str>) {
    match value {
        Some(value) => service["metadata"]["annotations"][name] = json!(value),
        None => {
            if let Some(all) = service.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
                all.remove(name);
            }
        }
    }
}

/// Merges three versions of a spec. A field that is `now` as the API server left it when the address was `released`
/// becomes as it was in the `original`. A field that was changed since then stays as it is now.
fn merged_spec(original: &Fields, released: &Fields, now: &Fields) -> Fields {
    let mut names: Vec<&String> = original.keys().chain(released.keys()).chain(now.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let value = |name: &String| {
        let (original, released, now) = (original.get(name), released.get(name), now.get(name));
        if now == released {
            return original.cloned();
        }
        match (original, released, now) {
            _ if original == released => now.cloned(),
            (Some(Value::Object(original)), Some(Value::Object(released)), Some(Value::Object(now))) => {
                Some(merged_spec(original, released, now).into())
            }
            (Some(Value::Array(original)), Some(Value::Array(released)), Some(Value::Array(now)))
                if name == "ports" =>
            {
                Some(ports(original, released, now).into())
            }
            _ => now.cloned(),
        }
    };
    names.into_iter().filter_map(|name| Some((name.clone(), value(name)?))).collect()
}

/// The present ports, each with the fields that the release removed. A port is known by its protocol and number.
fn ports(original: &[Value], released: &[Value], now: &[Value]) -> Vec<Value> {
    let (original, released) = (by_number(original), by_number(released));
    let merge = |port: &Value| match (original.get(&number(port)), released.get(&number(port)), port.as_object()) {
        (Some(original), Some(released), Some(now)) => merged_spec(original, released, now).into(),
        _ => port.clone(),
    };
    now.iter().map(merge).collect()
}

fn number(port: &Value) -> (Option<&str>, Option<u64>) {
    (port.get("protocol").and_then(Value::as_str), port.get("port").and_then(Value::as_u64))
}

/// A Service may have thousands of ports. If two have the same number, the first one counts.
fn by_number(ports: &[Value]) -> BTreeMap<(Option<&str>, Option<u64>), &Fields> {
    ports.iter().rev().filter_map(|port| Some((number(port), port.as_object()?))).collect()
}

/// The entries of `metadata.managedFields` that a Service should have after a move. A set of owned fields is a tree: a
/// node is in the set if it has no children, or has the child `.`.
///
/// The API server takes a field away from its owners when another manager writes it. So the fields that the mover
/// owns now go back to their previous owners. A field that an owner has lost otherwise was taken by another manager
/// or given up, and stays lost. A field that an owner has gained stays with that owner. If no other client changed the
/// Service, the result equals `original` exactly.
fn restored_owners<'e>(original: &[Fields], now: impl Iterator<Item = &'e Fields>) -> Vec<Fields> {
    let is_ours = |entry: &&Fields| entry.get("manager").is_some_and(|manager| manager == MANAGER);
    let (ours, others): (Vec<&Fields>, Vec<&Fields>) = now.partition(is_ours);
    let taken = tree(ours);
    let current: BTreeMap<_, &Fields> = others.iter().rev().map(|other| (key(other), *other)).collect();
    let known: BTreeSet<_> = original.iter().map(key).collect();
    let kept = original.iter().filter_map(|entry| {
        let before = tree([entry]);
        let current = current.get(&key(entry)).copied();
        let mut owned = tree(current);
        add(&mut owned, &intersection(&before, &taken));
        let current = current.unwrap_or(entry);
        if owned.is_empty() {
            return None;
        }
        if owned == before && current.get("time") == entry.get("time") {
            return Some(entry.clone());
        }
        // The fields of an owner may be most of the Service, so they are copied only once.
        let mut entry = copied_without(Some(current), "fieldsV1");
        entry.insert("fieldsV1".into(), owned.into());
        Some(entry)
    });
    let new = others.into_iter().filter(|other| !known.contains(&key(other)));
    kept.chain(new.cloned()).collect()
}

/// A copy of an object without this field, which is not copied.
fn copied_without(object: Option<&Fields>, field: &str) -> Fields {
    let others = object.into_iter().flatten().filter(|(name, _)| *name != field);
    others.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn key(entry: &Fields) -> [Option<&str>; 4] {
    ["manager", "operation", "apiVersion", "subresource"].map(|field| entry.get(field)?.as_str())
}

fn tree<'e>(entries: impl IntoIterator<Item = &'e Fields>) -> Fields {
    let mut tree = Fields::new();
    let sets = entries.into_iter().filter_map(|entry| entry.get("fieldsV1")?.as_object());
    sets.for_each(|set| add(&mut tree, set));
    tree
}

fn add(all: &mut Fields, more: &Fields) {
    for (name, child) in more.iter().filter(|(name, _)| *name != ".") {
        let child = child.as_object();
        let is_new = !all.contains_key(name);
        let Some(node) = all.entry(name.clone()).or_insert_with(|| json!({})).as_object_mut() else { continue };
        let member = child.is_none_or(is_member) || !is_new && is_member(node);
        child.into_iter().for_each(|child| add(node, child));
        if member && !node.is_empty() {
            node.insert(".".into(), json!({}));
        }
    }
}

fn intersection(a: &Fields, b: &Fields) -> Fields {
    let common = a.iter().filter(|(name, _)| *name != ".").filter_map(|(name, child)| {
        let (one, other) = (child.as_object()?, b.get(name)?.as_object()?);
        Some((name.clone(), node(is_member(one) && is_member(other), intersection(one, other))?))
    });
    common.collect()
}

fn is_member(node: &Fields) -> bool {
    node.is_empty() || node.contains_key(".")
}

/// A node of the tree; `None` if neither the node nor anything below it is in the set.
fn node(member: bool, mut children: Fields) -> Option<Value> {
    if member && !children.is_empty() {
        children.insert(".".into(), json!({}));
    }
    (member || !children.is_empty()).then(|| children.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
