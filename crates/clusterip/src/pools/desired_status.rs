//! The status that each object should have.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clusterip_api::{
    ADDRESSES_IN_POOLS, Compilation, Kind, ObjectKey, ObjectState, READY, Reason, ReservationHolder, ReservationStatus,
    STALLED, addresses_in_pools_condition, range_summary, ready_condition, stalled_condition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::usage::Usage;

/// The status of each object. `before` is the status that the objects have now.
pub(super) fn of(
    compilation: &Compilation,
    usage: &Usage,
    settings_hash: &str,
    before: &BTreeMap<ObjectKey, Value>,
    now: &Time,
) -> BTreeMap<ObjectKey, Value> {
    let pools = compilation.in_use.keys().filter(|key| key.kind != Kind::ClusterIPPolicy).count();
    let status = |(key, state): (&ObjectKey, &ObjectState)| {
        let (generation, before) = (state.generation, before.get(key));
        let ready = before.and_then(|before| condition(before, READY));
        let ready = ready_condition(generation, state.reason, state.message.clone(), ready.as_ref(), now.clone());
        let stalled = before.and_then(|before| condition(before, STALLED));
        let stalled = stalled_condition(&ready, stalled.as_ref(), now.clone());
        let mut conditions: Vec<Condition> = [ready].into_iter().chain(stalled).collect();
        if key.kind == Kind::ClusterIPPolicy {
            let in_pools = before.and_then(|before| condition(before, ADDRESSES_IN_POOLS));
            conditions.push(addresses_in_pools_condition(generation, &usage.outside, in_pools.as_ref(), now.clone()));
        }
        let mut status = json!({"observedGeneration": generation, "conditions": conditions});
        let used = compilation.in_use.get(key);
        if state.reason != Reason::InUse
            && let Some(used) = used
        {
            status["inUse"] = used.clone();
        }
        if key.kind == Kind::ServicePool
            && let Some(holders) = usage.reservations.get(&key.name).filter(|holders| !holders.is_empty())
        {
            status["reservations"] = json!(reservations(holders, before, now));
        }
        if key.kind == Kind::ClusterIPPolicy {
            status["settingsHash"] = json!(settings_hash);
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
        let counts = match key.kind {
            Kind::ServicePool => usage.services.get(&key.name).map(|counts| ("addresses", json!(counts))),
            Kind::ExternalPool => usage.external.get(&key.name).map(|counts| ("addresses", json!(counts))),
            Kind::NodeBlockPool => usage.nodes.get(&key.name).map(|counts| ("blocks", json!(counts))),
            Kind::ClusterIPPolicy => None,
        };
        if let Some((field, counts)) = counts {
            status[field] = counts;
        }
        (key.clone(), status)
    };
    compilation.states.iter().map(status).collect()
}

/// The condition of this type in a status.
fn condition(status: &Value, type_: &str) -> Option<Condition> {
    let conditions = status.get("conditions")?.as_array()?.iter();
    let mut conditions = conditions.filter_map(|condition| serde_json::from_value::<Condition>(condition.clone()).ok());
    conditions.find(|condition| condition.type_ == type_)
}

/// Who has the addresses of reservations. An unchanged holder keeps the time since when it has been observed.
fn reservations(holders: &[(IpAddr, ReservationHolder)], before: Option<&Value>, now: &Time) -> Vec<ReservationStatus> {
    let before = before.and_then(|before| before.get("reservations")).and_then(Value::as_array).into_iter().flatten();
    let before: Vec<ReservationStatus> =
        before.filter_map(|reservation| serde_json::from_value(reservation.clone()).ok()).collect();
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
    use super::*;

    #[test]
    fn unchanged_holder_keeps_its_time() {
        struct Case {
            name: &'static str,
            before: Option<Value>,
            holder: ReservationHolder,
            expected: &'static str,
        }
        const EARLIER: &str = "2026-01-01T00:00:00Z";
        const NOW: &str = "2026-01-02T00:00:00Z";
        let reserved = |address: &str, holder: &str| {
            Some(json!({"reservations": [{"address": address, "holder": holder, "since": EARLIER}]}))
        };
        let cases = [
            Case { name: "without a status", before: None, holder: ReservationHolder::Nobody, expected: NOW },
            Case {
                name: "the same holder",
                before: reserved("10.0.0.4", "Nobody"),
                holder: ReservationHolder::Nobody,
                expected: EARLIER,
            },
            Case {
                name: "another holder",
                before: reserved("10.0.0.4", "Owner"),
                holder: ReservationHolder::Nobody,
                expected: NOW,
            },
            Case {
                name: "another address",
                before: reserved("10.0.0.5", "Nobody"),
                holder: ReservationHolder::Nobody,
                expected: NOW,
            },
            Case {
                name: "a status of another form",
                before: Some(json!({"reservations": [{"address": 4}, "x"]})),
                holder: ReservationHolder::Nobody,
                expected: NOW,
            },
        ];
        for Case { name, before, holder, expected } in cases {
            let now = Time(NOW.parse().unwrap());
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
