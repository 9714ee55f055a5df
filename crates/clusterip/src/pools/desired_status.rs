//! The status that each object should have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use clusterip_api::{
    Compilation, Kind, ObjectKey, ObjectState, READY, Reason, ReservationHolder, ReservationStatus, range_summary,
};
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_core::service_key::ServiceKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::counts::PoolCounts;
use crate::text::{first_three, joined, several};

/// The time after which the status of an object is written again although nothing in it has changed.
const CHECKED_EVERY: Duration = Duration::from_secs(300);
/// An object with this condition is not in use as it was written last. Tools that follow kstatus would wait.
const STALLED: &str = "Stalled";
/// The condition that an object has only while it is in use and probably not intended as it is.
const HAS_WARNINGS: &str = "HasWarnings";
/// The condition of a ClusterIPPolicy that says whether the addresses of all Services lie in pools.
const ADDRESSES_IN_POOLS: &str = "AddressesInPools";

pub(super) fn of<'b>(
    compilation: &Compilation,
    counts: &PoolCounts,
    settings: &LiveSettings,
    before: impl Fn(&ObjectKey) -> Option<&'b Value>,
    now: &Time,
) -> BTreeMap<ObjectKey, Value> {
    let pools = compilation.in_use.keys().filter(|key| key.kind != Kind::ClusterIPPolicy).count();
    let status = |(key, state): (&ObjectKey, &ObjectState)| {
        let before = before(key);
        let write = |type_: &str, is_true: bool, reason: &str, message: String| {
            let status = if is_true { "True" } else { "False" };
            let before = before.and_then(|before| condition(before, type_));
            let unchanged = before.filter(|before| before.status == status);
            Condition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: reason.to_owned(),
                message,
                observed_generation: state.generation,
                last_transition_time: unchanged.map_or_else(|| now.clone(), |before| before.last_transition_time),
            }
        };
        let of_object = settings.warnings.iter().filter(|warning| warning.object.as_ref() == Some(key));
        let warnings = joined(of_object.map(|warning| &warning.mistake), "; ");
        let is_ready = state.reason == Reason::InUse;
        let mut conditions = vec![write(READY, is_ready, state.reason.as_str(), state.message.clone())];
        if !is_ready {
            // Nothing changes until a user changes this object or another one, so it does not become ready by itself.
            conditions.push(write(STALLED, true, state.reason.as_str(), state.message.clone()));
        }
        if !warnings.is_empty() {
            conditions.push(write(HAS_WARNINGS, true, "ProbablyNotIntended", warnings));
        }
        let mut status = json!({"observedGeneration": state.generation});
        let used = compilation.in_use.get(key);
        // Also of a ready object: a server that starts after an edit knows the version before the edit only from here.
        if let Some(used) = used {
            status["inUse"] = used.clone();
        }
        if key.kind == Kind::ServicePool
            && let Some(holders) = counts.reservations.get(&key.name).filter(|holders| !holders.is_empty())
        {
            status["reservations"] = json!(reservations(holders, before, now));
        }
        if key.kind == Kind::ClusterIPPolicy {
            let (is_true, reason, message) = addresses_in_pools(&counts.outside);
            conditions.push(write(ADDRESSES_IN_POOLS, is_true, reason, message));
            status["settingsHash"] = json!(settings.hash);
            status["pools"] = json!(pools);
        } else {
            // The fence reads the ranges of the version that counts.
            let cidrs = used.and_then(|used| used.get("cidrs")).and_then(Value::as_array);
            let ranges: Vec<&str> = cidrs.into_iter().flatten().filter_map(Value::as_str).collect();
            status["ranges"] = json!(ranges);
            // Without this field, kubectl prints <none>.
            if !ranges.is_empty() {
                status["rangeSummary"] = json!(range_summary(&ranges));
            }
            status["for"] = json!(state.selects);
        }
        status["conditions"] = json!(conditions);
        let (field, counts) = match key.kind {
            Kind::ServicePool => ("addresses", json!(counts.services.get(&key.name))),
            Kind::ExternalPool => ("addresses", json!(counts.external.get(&key.name))),
            Kind::NodeBlockPool => ("blocks", json!(counts.nodes.get(&key.name))),
            Kind::ClusterIPPolicy => ("", Value::Null),
        };
        if !counts.is_null() {
            status[field] = counts;
        }
        status["checkedAt"] = json!(checked_at(&status, before, now));
        (key.clone(), status)
    };
    compilation.states.iter().map(status).collect()
}

fn addresses_in_pools(outside: &BTreeSet<ServiceKey>) -> (bool, &'static str, String) {
    let count = outside.len();
    if count == 0 {
        return (true, "AllInPools", "the address of every Service lies in a pool".to_owned());
    }
    // All names would make a condition hard to read, and change it often.
    let names = first_three(outside.iter());
    let message = format!(
        "{} {} an address that lies in no pool: {names}; add a pool with this range, or run `clusterip move \
         --seamless`, which moves the Services that a pool matches",
        several(count, "Service"),
        if count == 1 { "has" } else { "have" },
    );
    (false, "OutsideOfPools", message)
}

/// The time of the status `before` if it is recent and nothing else changes: then an object is written rarely, and its
/// age shows whether a server runs.
fn checked_at(status: &Value, before: Option<&Value>, now: &Time) -> Time {
    let recent = || {
        let mut before = before?.clone();
        let at: Time = serde_json::from_value(before.as_object_mut()?.remove("checkedAt")?).ok()?;
        let is_recent = now.0.duration_since(at.0).unsigned_abs() < CHECKED_EVERY;
        (is_recent && before == *status).then_some(at)
    };
    recent().unwrap_or_else(|| now.clone())
}

/// The conditions of a status that say what is wrong, unless the status `before` has said the same.
pub(super) fn new_problems(before: Option<&Value>, status: &Value) -> Vec<Condition> {
    let problems = [STALLED, HAS_WARNINGS].into_iter().filter_map(|type_| condition(status, type_));
    let is_known = |problem: &Condition| {
        let known = before.and_then(|before| condition(before, &problem.type_));
        known.is_some_and(|known| known.reason == problem.reason && known.message == problem.message)
    };
    problems.filter(|problem| !is_known(problem)).collect()
}

fn condition(status: &Value, type_: &str) -> Option<Condition> {
    let conditions = status.get("conditions")?.as_array()?.iter();
    let mut conditions = conditions.filter_map(|condition| serde_json::from_value::<Condition>(condition.clone()).ok());
    conditions.find(|condition| condition.type_ == type_)
}

fn reservations(holders: &[(IpAddr, ReservationHolder)], before: Option<&Value>, now: &Time) -> Vec<ReservationStatus> {
    let before = before.and_then(|before| before.get("reservations")).cloned();
    let before: Vec<ReservationStatus> =
        before.and_then(|before| serde_json::from_value(before).ok()).unwrap_or_default();
    let status = |(address, holder): &(IpAddr, ReservationHolder)| {
        let (address, holder) = (address.to_string(), *holder);
        let mut unchanged = before.iter().filter(|before| before.address == address && before.holder == holder);
        let since = unchanged.next().map_or_else(|| now.clone(), |before| before.since.clone());
        ReservationStatus { address, holder, since }
    };
    holders.iter().map(status).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_api::{InUse, Objects, compile, in_use_before};
    use clusterip_cluster::live_settings::check_settings;
    use clusterip_cluster::snapshot::service_ranges::ServiceRanges;

    use super::*;

    #[test]
    fn unchanged_status_is_written_again_after_some_minutes() {
        struct Case {
            name: &'static str,
            before: Option<Value>,
            expected: &'static str,
        }
        const NOW: &str = "2026-01-02T00:10:00Z";
        const RECENTLY: &str = "2026-01-02T00:05:01Z";
        let written = |used: u8, at: &str| Some(json!({"addresses": {"used": used}, "checkedAt": at}));
        let cases = [
            Case { name: "without a status", before: None, expected: NOW },
            Case { name: "nothing has changed", before: written(1, RECENTLY), expected: RECENTLY },
            Case { name: "something has changed", before: written(2, RECENTLY), expected: NOW },
            Case { name: "five minutes ago", before: written(1, "2026-01-02T00:05:00Z"), expected: NOW },
            Case { name: "a clock that is wrong by hours", before: written(1, "2026-01-02T09:00:00Z"), expected: NOW },
            Case { name: "without a time", before: Some(json!({"addresses": {"used": 1}})), expected: NOW },
            Case { name: "no time", before: written(1, "yesterday"), expected: NOW },
        ];
        for Case { name, before, expected } in cases {
            let now = Time(NOW.parse().unwrap());
            let found = checked_at(&json!({"addresses": {"used": 1}}), before.as_ref(), &now);
            assert_eq!(found, Time(expected.parse().unwrap()), "{name}");
        }
    }

    #[test]
    fn edit_while_no_server_runs_leaves_the_last_good_version_in_use() {
        let objects = |cidr: &str, status: &Value| Objects {
            objects: vec![json!({
                "apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ExternalPool", "status": status,
                "metadata": {"name": "edge", "generation": if status.is_null() { 1 } else { 2 }},
                "spec": {"cidrs": [cidr]},
            })],
            cluster_ranges: vec!["10.96.0.0/16".to_owned()],
            ..Objects::default()
        };
        let before = compile(&objects("10.0.9.0/24", &Value::Null), &InUse::new());
        let settings = check_settings(json!({}), &ServiceRanges::default()).unwrap();
        let now = Time("2026-01-01T00:00:00Z".parse().unwrap());
        let settings = LiveSettings { are_objects: true, ..settings };
        let written = of(&before, &PoolCounts::default(), &settings, |_| None, &now);
        let edited = objects("10.96.1.0/24", written.values().next().unwrap());
        let after = compile(&edited, &in_use_before(&edited));
        assert_eq!((after.document, after.in_use), (before.document, before.in_use));
    }

    #[test]
    fn problem_is_new_until_a_status_has_said_it() {
        struct Case {
            name: &'static str,
            before: Value,
            expected: &'static [&'static str],
        }
        let of = |type_: &str, message: &str| {
            json!({"type": type_, "status": "True", "reason": "R", "message": message,
                   "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let status =
            json!({"conditions": [of("Ready", "x"), of("Stalled", "overlaps"), of("HasWarnings", "misspelt")]});
        let cases = [
            Case { name: "without a status", before: Value::Null, expected: &["overlaps", "misspelt"] },
            Case { name: "the same", before: status.clone(), expected: &[] },
            Case {
                name: "another message",
                before: json!({"conditions": [of("Stalled", "other"), of("HasWarnings", "misspelt")]}),
                expected: &["overlaps"],
            },
        ];
        for Case { name, before, expected } in cases {
            let found = new_problems(Some(&before), &status);
            let messages: Vec<&str> = found.iter().map(|problem| problem.message.as_str()).collect();
            assert_eq!(messages, expected, "{name}");
        }
    }

    #[test]
    fn unchanged_holder_keeps_its_time() {
        struct Case {
            name: &'static str,
            before: Option<Value>,
            expected: &'static str,
        }
        const EARLIER: &str = "2026-01-01T00:00:00Z";
        const NOW: &str = "2026-01-02T00:00:00Z";
        let reserved = |address: &str, holder: &str| {
            Some(json!({"reservations": [{"address": address, "holder": holder, "since": EARLIER}]}))
        };
        let another_form = Some(json!({"reservations": [{"address": 4}, "x"]}));
        let cases = [
            Case { name: "without a status", before: None, expected: NOW },
            Case { name: "the same holder", before: reserved("10.0.0.4", "Nobody"), expected: EARLIER },
            Case { name: "another holder", before: reserved("10.0.0.4", "Owner"), expected: NOW },
            Case { name: "another address", before: reserved("10.0.0.5", "Nobody"), expected: NOW },
            Case { name: "a status of another form", before: another_form, expected: NOW },
        ];
        for Case { name, before, expected } in cases {
            let (now, holder) = (Time(NOW.parse().unwrap()), ReservationHolder::Nobody);
            let found = reservations(&[("10.0.0.4".parse().unwrap(), holder)], before.as_ref(), &now);
            let expected = Time(expected.parse().unwrap());
            assert_eq!(
                found,
                [ReservationStatus { address: "10.0.0.4".to_owned(), holder, since: expected }],
                "{name}"
            );
        }
    }
}
