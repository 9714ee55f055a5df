//! The steps of a move: what is next, given what is stored, and what is written then.
//!
//! ```text
//!              release               place              restore the status       forget
//!   at home ───────────▶ released ───────────▶ placed ───────────────────────▶ ──────────▶ at home
//! ```
//! Every state is told from the stored Service alone, so that a start and a resumption are the same.

use std::net::IpAddr;

use clusterip_core::service::{MOVING_ANNOTATION, Service};
use serde_json::{Map, Value, json};

use super::field_ownership;
use super::journal::{Journal, JournalError, Phase, SOURCE_RANGES_ANNOTATION, Way};
use super::outcome::{Outcome, Unmoved};
use super::spec_merge;
use crate::cluster::snapshot::addresses;

/// The external name of a Service on the move: a name that never resolves (RFC 2606).
pub const MOVING_NAME: &str = "moving.invalid";

/// The step before which, or after which, a move may be cut off.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It has no address: give it one, as [`placed`] writes it.
    Place(Box<Journal>),
    /// The API server has dropped the status of its load balancer: put it back, as [`with_status`] does.
    RestoreStatus(Box<Journal>),
    /// It has its address: take the annotation off, and put the ownership back, as [`forgotten`] does.
    Forget {
        /// What is left to be put back.
        journal: Option<Box<Journal>>,
        /// How the move has ended then.
        ending: Outcome,
    },
    /// Nothing of a move is on it.
    AtHome,
}

/// The next step of what is stored.
pub fn next(service: &Value) -> Step {
    let journal = Journal::of(service);
    if is_ours(service) {
        return Step::Place(Box::new(match journal {
            Ok(Some(journal)) if journal.phase == Phase::Released && journal.way == Way::ExternalName => journal,
            Ok(Some(journal)) => rebuilding(service, Some(journal), "it was made an ExternalName again"),
            Ok(None) => rebuilding(service, None, "what it was before is not known: its annotation was taken off"),
            Err(error) => rebuilding(service, None, &error.to_string()),
        }));
    }
    let forget = |journal: Option<Journal>, ending| Step::Forget { journal: journal.map(Box::new), ending };
    match journal {
        Err(error) => forget(None, Outcome::Cleaned { found: error.to_string() }),
        Ok(None) if text(service, "externalName") == Some(MOVING_NAME) => {
            forget(None, Outcome::Cleaned { found: format!("a left-over externalName {MOVING_NAME}") })
        }
        Ok(None) => Step::AtHome,
        Ok(Some(journal)) if journal.phase == Phase::Released && is_single(service, &journal) => {
            Step::Place(Box::new(journal))
        }
        Ok(Some(journal)) if journal.phase == Phase::Placed && wants_status(service, &journal) => {
            Step::RestoreStatus(Box::new(journal))
        }
        Ok(Some(journal)) => {
            let ending = ending(service, &journal);
            forget(Some(journal), ending)
        }
    }
}

/// How the move of this journal ends, once nothing but forgetting is left.
pub fn ending(service: &Value, journal: &Journal) -> Outcome {
    let now = addresses(service);
    let Journal { phase, from, to, why, notes, .. } = journal.clone();
    match phase {
        Phase::Released => Outcome::Overtaken { from, now, why },
        _ if now.is_empty() => Outcome::Overtaken { from, now, why },
        _ if from.is_empty() => Outcome::Rebuilt { to: now, notes },
        _ if now == from => Outcome::Kept { from, why, notes },
        _ if to.is_empty() => Outcome::Elsewhere { from, to: now, why, notes },
        _ if now.first() == to.first() => Outcome::Moved { from, to: now, why, notes },
        _ => Outcome::Overtaken { from, now, why },
    }
}

/// Why a Service can't be moved, or need not; nothing where it can.
pub fn unmovable(service: &Value, to: &[IpAddr], load_balancers: bool) -> Option<Unmoved> {
    let read = Service::read(service, "").unwrap_or_default();
    if service.pointer("/metadata/deletionTimestamp").is_some() {
        Some(Unmoved::BeingDeleted)
    } else if read.external_name {
        Some(Unmoved::ExternalName)
    } else if read.is_headless() {
        Some(Unmoved::Headless)
    } else if text(service, "type") == Some("LoadBalancer") && !load_balancers {
        Some(Unmoved::LoadBalancer)
    } else if read.addresses().is_empty() {
        Some(Unmoved::WithoutAddress)
    } else if read.addresses() == to {
        Some(Unmoved::There)
    } else {
        None
    }
}

/// The journal of a move of this Service that begins. What the API server makes of the spec is not known
/// yet; until it is, the spec stands in for it, so that a trial is no shorter than the real thing.
pub fn beginning(service: &Value, to: &[IpAddr], why: &str) -> Journal {
    let from = addresses(service);
    let spec = spec(service);
    let status = service.pointer("/status/loadBalancer").and_then(Value::as_object);
    Journal {
        phase: Phase::Released,
        // The first address is never away then.
        way: if from.len() == 2 && from.first() == to.first() { Way::SingleStack } else { Way::ExternalName },
        from,
        to: to.to_vec(),
        why: why.to_owned(),
        notes: Vec::new(),
        released: spec.clone(),
        spec,
        managed_fields: managed_fields(service),
        source_ranges: annotation(service, SOURCE_RANGES_ANNOTATION).map(str::to_owned),
        load_balancer: status.filter(|status| !status.is_empty()).cloned(),
    }
}

/// What to write for a journal of a Service that has lost its own: a plain Service with an address, of
/// what is there.
fn rebuilding(service: &Value, found: Option<Journal>, note: &str) -> Journal {
    let released = spec(service);
    let mut original = released.clone();
    original.remove("externalName");
    original.insert("type".into(), "ClusterIP".into());
    let notes = vec![note.to_owned()];
    let (managed_fields, source_ranges, why) = match found {
        Some(found) => (found.managed_fields, found.source_ranges, found.why),
        None => Default::default(),
    };
    Journal {
        phase: Phase::Released,
        way: Way::ExternalName,
        from: Vec::new(),
        to: Vec::new(),
        why,
        notes,
        spec: original,
        released,
        managed_fields,
        source_ranges,
        load_balancer: None,
    }
}

/// The Service without its address, and with the journal.
///
/// # Errors
/// As [`Journal::text`].
pub fn released(service: &Value, journal: &Journal) -> Result<Value, JournalError> {
    let mut service = bare(service);
    annotate(&mut service, MOVING_ANNOTATION, Some(&journal.text()?));
    match journal.way {
        Way::SingleStack => {
            let first: Vec<String> = journal.from.iter().take(1).map(IpAddr::to_string).collect();
            if let Some(families) = service.pointer_mut("/spec/ipFamilies").and_then(Value::as_array_mut) {
                families.truncate(1);
            }
            service["spec"]["ipFamilyPolicy"] = "SingleStack".into();
            service["spec"]["clusterIPs"] = first.into();
        }
        Way::ExternalName => {
            // The API server allows these on no other type than LoadBalancer.
            annotate(&mut service, SOURCE_RANGES_ANNOTATION, None);
            if let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) {
                spec.remove("loadBalancerSourceRanges");
                spec.insert("type".into(), "ExternalName".into());
                spec.insert("externalName".into(), MOVING_NAME.into());
            }
        }
    }
    Ok(service)
}

/// Where a Service is placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// At these addresses, primary first.
    At(Vec<IpAddr>),
    /// Where the API server likes.
    Anywhere,
}

/// The Service as it was before, at its new place, with what is left to do. `without` are node ports
/// that can't be had.
///
/// # Errors
/// As [`Journal::text`].
pub fn placed(
    service: &Value,
    journal: &Journal,
    placement: &Placement,
    without: &[u64],
    notes: &[String],
) -> Result<Value, JournalError> {
    let mut spec = spec_merge::merged(&journal.spec, &journal.released, &spec(service));
    let kept = match (placement, journal.way) {
        (Placement::At(addresses), _) => addresses.clone(),
        (Placement::Anywhere, Way::SingleStack) => journal.from.iter().take(1).copied().collect(),
        (Placement::Anywhere, Way::ExternalName) => Vec::new(),
    };
    let kept: Vec<String> = kept.iter().map(IpAddr::to_string).collect();
    spec.remove("clusterIP");
    spec.remove("clusterIPs");
    if let Some(first) = kept.first() {
        spec.insert("clusterIP".into(), first.as_str().into());
        spec.insert("clusterIPs".into(), kept.into());
    }
    drop_ports(&mut spec, without);
    let to = match placement {
        Placement::At(addresses) => addresses.clone(),
        Placement::Anywhere => Vec::new(),
    };
    let mut all = journal.notes.clone();
    all.extend_from_slice(notes);
    let mut service = bare(service);
    service["spec"] = spec.into();
    restore_source_ranges(&mut service, journal);
    annotate(&mut service, MOVING_ANNOTATION, Some(&journal.clone().placed(to, all).text()?));
    Ok(service)
}

fn drop_ports(spec: &mut Map<String, Value>, without: &[u64]) {
    let dropped = |value: Option<&Value>| value.and_then(Value::as_u64).is_some_and(|port| without.contains(&port));
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

/// The Service with its load balancer's status, for the sub-resource `status`.
pub fn with_status(service: &Value, journal: &Journal) -> Value {
    let mut service = bare(service);
    if let Some(status) = &journal.load_balancer {
        service["status"]["loadBalancer"] = status.clone().into();
    }
    service
}

/// The Service without a trace of the move.
pub fn forgotten(service: &Value, journal: Option<&Journal>) -> Value {
    let original = journal.map(|journal| journal.managed_fields.as_slice()).unwrap_or_default();
    let owners = field_ownership::restored(original, &managed_fields(service));
    let mut service = bare(service);
    annotate(&mut service, MOVING_ANNOTATION, None);
    // Owners that are left out stay as they are; an empty list would forget them for good.
    if !owners.is_empty() {
        service["metadata"]["managedFields"] = owners.into();
    }
    if text(&service, "externalName") == Some(MOVING_NAME)
        && let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.remove("externalName");
    }
    if let Some(journal) = journal {
        // Who sets the type back himself may not know what the release took out, and that guards the
        // load balancer against the world.
        restore_source_ranges(&mut service, journal);
        let ranges = journal.spec.get("loadBalancerSourceRanges");
        if text(&service, "type") == Some("LoadBalancer")
            && service.pointer("/spec/loadBalancerSourceRanges").is_none()
            && let Some(ranges) = ranges
        {
            service["spec"]["loadBalancerSourceRanges"] = ranges.clone();
        }
    }
    service
}

fn restore_source_ranges(service: &mut Value, journal: &Journal) {
    let allowed = text(service, "type") == Some("LoadBalancer");
    if let Some(ranges) = journal.source_ranges.as_deref()
        && allowed
        && annotation(service, SOURCE_RANGES_ANNOTATION).is_none()
    {
        annotate(service, SOURCE_RANGES_ANNOTATION, Some(ranges));
    }
}

/// Whether it is in the state that releasing through `ExternalName` leaves it in.
fn is_ours(service: &Value) -> bool {
    text(service, "type") == Some("ExternalName") && text(service, "externalName") == Some(MOVING_NAME)
}

/// Whether it is in the state that releasing through `SingleStack` leaves it in.
fn is_single(service: &Value, journal: &Journal) -> bool {
    journal.way == Way::SingleStack
        && text(service, "type") != Some("ExternalName")
        && text(service, "ipFamilyPolicy") == Some("SingleStack")
        && addresses(service) == journal.from[..1.min(journal.from.len())]
}

fn wants_status(service: &Value, journal: &Journal) -> bool {
    let now = service.pointer("/status/loadBalancer").and_then(Value::as_object);
    // What a cloud controller has written meanwhile is newer.
    text(service, "type") == Some("LoadBalancer") && journal.load_balancer.is_some() && now.is_none_or(Map::is_empty)
}

/// The Service as a request has it: who owns what is the API server's to know.
fn bare(service: &Value) -> Value {
    let mut service = service.clone();
    if let Some(metadata) = service.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    service
}

fn spec(service: &Value) -> Map<String, Value> {
    service.get("spec").and_then(Value::as_object).cloned().unwrap_or_default()
}

fn managed_fields(service: &Value) -> Vec<Map<String, Value>> {
    let entries = service.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten();
    entries.filter_map(|entry| entry.as_object().cloned()).collect()
}

fn text<'v>(service: &'v Value, field: &str) -> Option<&'v str> {
    service.get("spec")?.get(field)?.as_str()
}

fn annotation<'v>(service: &'v Value, name: &str) -> Option<&'v str> {
    service.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

fn annotate(service: &mut Value, name: &str, value: Option<&str>) {
    match value {
        Some(value) => service["metadata"]["annotations"][name] = json!(value),
        None => {
            if let Some(all) = service.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
                all.remove(name);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    const OLD: &str = "172.21.0.7";
    const NEW: &str = "172.21.1.7";

    fn at_home() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "1", "resourceVersion": "7",
                "annotations": {SOURCE_RANGES_ANNOTATION: "10.0.0.0/8"},
                "managedFields": [{"manager": "owner", "fieldsV1": {"f:spec": {"f:type": {}}}}],
            },
            "spec": {
                "type": "LoadBalancer", "clusterIP": OLD, "clusterIPs": [OLD], "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "ports": [{"port": 80, "nodePort": 30080}], "healthCheckNodePort": 30081,
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
        })
    }

    fn journal() -> Journal {
        Journal { released: spec_of_released(), ..beginning(&at_home(), &[NEW.parse().unwrap()], "why") }
    }

    fn spec_of_released() -> Map<String, Value> {
        json!({"type": "ExternalName", "externalName": MOVING_NAME, "ports": [{"port": 80}]})
            .as_object()
            .cloned()
            .unwrap()
    }

    /// What the API server makes of the release.
    fn stored_released() -> Value {
        let mut service = released(&at_home(), &journal()).unwrap();
        service["spec"] = spec_of_released().into();
        service["status"] = json!({"loadBalancer": {}});
        service
    }

    fn stored_placed() -> Value {
        placed(&stored_released(), &journal(), &Placement::At(vec![NEW.parse().unwrap()]), &[], &[]).unwrap()
    }

    fn with(mut service: Value, patch: Value) -> Value {
        json_patch::merge(&mut service, &patch);
        service
    }

    fn name(step: &Step) -> String {
        match step {
            Step::Place(journal) if journal.from.is_empty() => "rebuild".to_owned(),
            Step::Place(_) => "place".to_owned(),
            Step::RestoreStatus(_) => "status".to_owned(),
            Step::Forget { ending, .. } => format!("forget: {}", ending.reason()),
            Step::AtHome => "at home".to_owned(),
        }
    }

    #[test]
    fn what_is_stored_says_what_is_next() {
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}]}}});
        let annotation = |value: Value| json!({"metadata": {"annotations": {MOVING_ANNOTATION: value}}});
        let done = with(stored_placed(), status);
        let rows = [
            ("nothing of ours", at_home(), "at home"),
            ("released", stored_released(), "place"),
            (
                "released, and deleted behind a finalizer",
                with(stored_released(), json!({"metadata": {"deletionTimestamp": "x"}})),
                "place",
            ),
            ("placed, the status wiped", stored_placed(), "status"),
            (
                "placed, no load balancer any more",
                with(stored_placed(), json!({"spec": {"type": "ClusterIP"}})),
                "forget: AddressMoved",
            ),
            ("all but forgotten", done.clone(), "forget: AddressMoved"),
            (
                "back at the old address",
                with(done.clone(), json!({"spec": {"clusterIP": OLD, "clusterIPs": [OLD]}})),
                "forget: AddressKept",
            ),
            (
                "at another address",
                with(done.clone(), json!({"spec": {"clusterIP": "172.21.9.9", "clusterIPs": ["172.21.9.9"]}})),
                "forget: MoveOvertaken",
            ),
            (
                "placed, then made somebody's alias",
                with(
                    done.clone(),
                    json!({"spec": {"type": "ExternalName", "externalName": "x", "clusterIP": null, "clusterIPs": null}}),
                ),
                "forget: MoveOvertaken",
            ),
            (
                "released, and set back by somebody",
                with(stored_released(), json!({"spec": {"type": "ClusterIP", "clusterIP": OLD}})),
                "forget: MoveOvertaken",
            ),
            (
                "released, then somebody's alias",
                with(stored_released(), json!({"spec": {"externalName": "example.com"}})),
                "forget: MoveOvertaken",
            ),
            ("released, the annotation gone", with(stored_released(), annotation(Value::Null)), "rebuild"),
            ("released, the annotation broken", with(stored_released(), annotation(json!("{"))), "rebuild"),
            (
                "placed, and released again by somebody",
                with(stored_released(), annotation(done["metadata"]["annotations"][MOVING_ANNOTATION].clone())),
                "rebuild",
            ),
            ("a broken annotation", with(at_home(), annotation(json!("{}"))), "forget: MoveCleaned"),
            ("an annotation that is no text", with(at_home(), annotation(json!(5))), "forget: MoveCleaned"),
            (
                "our external name left over",
                with(at_home(), json!({"spec": {"externalName": MOVING_NAME}})),
                "forget: MoveCleaned",
            ),
            ("no object at all", Value::Null, "at home"),
            ("types that can't be", json!({"metadata": [], "spec": 5}), "at home"),
        ];
        for (row, service, expected) in rows {
            assert_eq!(name(&next(&service)), expected, "{row}");
        }
    }

    #[test]
    fn the_second_address_of_two_moves_beside_the_first() {
        let both = [OLD, "fd00:21::7"];
        let spec = json!({"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"], "clusterIP": OLD, "clusterIPs": both});
        let service = with(at_home(), json!({"spec": null}));
        let service = with(service, json!({"spec": spec}));
        let to: Vec<IpAddr> = [OLD, "fd00:21::8"].map(|text| text.parse().unwrap()).to_vec();
        let mut journal = beginning(&service, &to, "why");
        let single = released(&service, &journal).unwrap();
        let expected = json!({"type": "ClusterIP", "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"], "clusterIP": OLD, "clusterIPs": [OLD]});
        assert_eq!(single["spec"], expected);
        assert_eq!(name(&next(&single)), "place");
        journal.released = expected.as_object().cloned().unwrap();
        let at =
            |addresses: Value| with(json!({"spec": spec}), json!({"spec": {"clusterIPs": addresses}}))["spec"].clone();
        for (placement, expected) in
            [(Placement::At(to.clone()), at(json!(to))), (Placement::Anywhere, at(json!([OLD])))]
        {
            assert_eq!(placed(&single, &journal, &placement, &[], &[]).unwrap()["spec"], expected, "{placement:?}");
        }
        assert_eq!(
            name(&next(&with(single, json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}})))),
            "forget: MoveOvertaken"
        );
    }

    #[test]
    fn everything_comes_back_and_no_trace_is_left() {
        let at_new = with(at_home(), json!({"spec": {"clusterIP": NEW, "clusterIPs": [NEW]}}));
        let rows: [(&str, &[u64], Value); 2] = [
            ("all ports", &[], json!({})),
            (
                "without two ports",
                &[30080, 30081],
                json!({"spec": {"ports": [{"port": 80}], "healthCheckNodePort": null}}),
            ),
        ];
        for (row, without, expected) in rows {
            let released = stored_released();
            let placed =
                placed(&released, &journal(), &Placement::At(vec![NEW.parse().unwrap()]), without, &[]).unwrap();
            let Step::RestoreStatus(left) = next(&placed) else { panic!("{row}: {placed}") };
            let with_status = with_status(&placed, &left);
            let Step::Forget { journal: left, .. } = next(&with_status) else { panic!("{row}: {with_status}") };
            let mut stored = with_status;
            stored["metadata"]["managedFields"] =
                json!([{"manager": field_ownership::MANAGER, "fieldsV1": {"f:spec": {"f:type": {}}}}]);
            assert_eq!(forgotten(&stored, left.as_deref()), with(at_new.clone(), expected), "{row}");
        }
    }
}
