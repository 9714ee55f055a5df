//! Tests of `seamless`.

use clusterip_core::annotations::MOVING_NAME;
use serde_json::json;

use super::*;
use crate::temporary::looks_temporary;

#[test]
fn names_depend_on_the_uid_alone() {
    let plan = Plan::new("shop", "3f0c5f0e-0000-4000-8000-000000000001", "clusterip-policy", "cluster.local", 40);
    assert_eq!(plan.new.len(), "clusterip-new-".len() + 10);
    assert_eq!(plan.external_name, format!("{}.shop.svc.cluster.local", plan.old));
    assert_eq!(plan.external_name_of_old(), format!("{}.shop.svc.cluster.local", plan.new));
    let earlier = Plan { external_name: plan.external_name_of_old(), ..plan.clone() };
    assert_eq!(earlier.external_name_of_old(), "moving.invalid", "a move that an earlier version recorded");
    assert_ne!(plan.new, Plan::new("shop", "other", "clusterip-policy", "cluster.local", 40).new);
}

#[test]
fn only_services_with_the_labels_and_a_fitting_name_look_temporary() {
    struct Case {
        name: &'static str,
        service: &'static str,
        role: &'static str,
        manager: &'static str,
        expected: bool,
    }
    let case = |name, service, role, manager, expected| Case { name, service, role, manager, expected };
    let cases = [
        case("as created", "clusterip-old-0123456789", "old", "clusterip", true),
        case("of another role", "clusterip-old-0123456789", "new", "clusterip", false),
        case("of no role", "clusterip-old-0123456789", "older", "clusterip", false),
        case("of another manager", "clusterip-old-0123456789", "old", "Helm", false),
        case("without a hash", "clusterip-old-web", "old", "clusterip", false),
        case("with another name", "web", "old", "clusterip", false),
    ];
    for Case { name, service, role, manager, expected } in cases {
        let labels = json!({"clusterip-policy/temporary": role, "app.kubernetes.io/managed-by": manager});
        assert_eq!(looks_temporary(service, |key| labels[key].as_str()), expected, "{name}");
    }
}

/// The Service `web`, which moves from 10.0.0.7 to 10.0.1.7, and the journal of its move with a grace period of 40 s.
fn moving() -> (Journal, [IpAddr; 1]) {
    let web = json!({
        "metadata": {"uid": "1", "namespace": "shop", "name": "web"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.7"},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
    });
    let to = ["10.0.1.7".parse().unwrap()];
    let plan = Plan::new("shop", "1", "clusterip-policy", "cluster.local", 40);
    (Journal { seamless: Some(plan), ..step::beginning(&web, &to, "why") }, to)
}

fn at(address: &str, kind: &str, name: &str) -> Value {
    json!({"type": kind, "clusterIP": address, "clusterIPs": [address], "externalName": name})
}

fn temporary(role: &str, spec: Value) -> Value {
    let labels = json!({"clusterip-policy/temporary": role, "app.kubernetes.io/managed-by": "clusterip"});
    let annotations = json!({"clusterip-policy/swapped-at": "5"});
    json!({"metadata": {"labels": labels, "annotations": annotations, "ownerReferences": [{"uid": "1"}]}, "spec": spec})
}

#[test]
fn grace_period_counts_from_the_swap_and_nobody_can_prolong_it() {
    struct Case {
        name: &'static str,
        written: Value,
        expected: i64,
    }
    let journal = Journal { recorded_at: 1000, ..moving().0 };
    let cases = [
        Case { name: "as written", written: json!("1010"), expected: 1050 },
        Case { name: "before the move", written: json!("999"), expected: 1040 },
        Case { name: "far in the future", written: json!("99999"), expected: 1040 },
        Case { name: "no number", written: json!("soon"), expected: 1040 },
        Case { name: "removed", written: Value::Null, expected: 1040 },
    ];
    for Case { name, written, expected } in cases {
        let old = json!({"metadata": {"annotations": {"clusterip-policy/swapped-at": written}}});
        assert_eq!(grace_end(&Temporary::Ours(&old), &journal), expected, "{name}");
    }
}

#[test]
fn old_addresses_are_taken_once() {
    let (journal, to) = moving();
    let name_of_new = journal.seamless.as_ref().unwrap().external_name_of_old();
    let seen = Observed {
        service: Some(json!({"spec": {"type": "ExternalName", "externalName": journal.external_name()}})),
        new: Some(temporary("new", at("10.0.1.7", "ClusterIP", ""))),
        old: Some(temporary("old", json!({"type": "ExternalName", "externalName": name_of_new}))),
        trigger: None,
    };
    let moment = Moment { since_write: BETWEEN_SWAPS, ..Moment::default() };
    let mut progress = Progress::of_first_run();
    let step = next(&seen, &journal, &progress, &moment, &to);
    assert_eq!(step, SeamlessStep::TakeOld);
    progress.answered(&step, Ok(()));
    // A user has parked `old` again.
    assert_eq!(next(&seen, &journal, &progress, &moment, &to), SeamlessStep::Delete(Role::New));
    // The Service gets no address, because each write to it is refused.
    for (now, expected) in [(639, Role::New), (640, Role::Old)] {
        let moment = Moment { now, ..moment };
        assert_eq!(next(&seen, &journal, &progress, &moment, &to), SeamlessStep::Delete(expected), "{now}");
    }
}

#[test]
fn only_a_refusal_of_the_new_address_is_a_reason_to_try_another() {
    struct Case {
        name: &'static str,
        step: SeamlessStep,
        refusal: Refusal,
        expected: bool,
    }
    let taken = || Refusal::Address { which: None, reason: "provided IP is already allocated".to_owned() };
    let refused = || Refusal::Refused("a Service needs the label team".to_owned());
    let cases = [
        Case { name: "the new address", step: SeamlessStep::Create(Role::New), refusal: taken(), expected: true },
        Case { name: "by a policy", step: SeamlessStep::Create(Role::New), refusal: refused(), expected: false },
        Case { name: "any address", step: SeamlessStep::Create(Role::Old), refusal: taken(), expected: false },
        Case { name: "the old address", step: SeamlessStep::TakeOld, refusal: taken(), expected: false },
    ];
    for Case { name, step, refusal, expected } in cases {
        let mut progress = Progress::of_first_run();
        progress.answered(&step, Err(&refusal));
        assert_eq!(progress.new_was_refused, expected, "{name}");
    }
}

#[test]
fn author_whose_service_can_not_be_written_keeps_no_temporary_service() {
    struct Case {
        name: &'static str,
        spec: Value,
        /// The next step until the latest end of the grace period, after which `old` is deleted.
        step: SeamlessStep,
    }
    let (journal, to) = moving();
    let original = SeamlessStep::Original;
    let released = json!({"type": "ExternalName", "externalName": MOVING_NAME});
    let cases = [
        Case { name: "cleanup", spec: at("10.0.1.7", "ClusterIP", MOVING_NAME), step: original(Step::Cleanup) },
        Case { name: "status", spec: at("10.0.1.7", "LoadBalancer", MOVING_NAME), step: original(Step::RestoreStatus) },
        Case { name: "assign", spec: released, step: original(Step::Assign) },
        Case { name: "no release", spec: at("10.0.0.7", "ClusterIP", ""), step: SeamlessStep::PreventRelease },
    ];
    for Case { name, spec, step } in cases {
        let service = json!({"metadata": {"uid": "1", "resourceVersion": ""}, "spec": spec, "status": {}});
        let old = |address: &str| Some(temporary("old", at(address, "ClusterIP", "")));
        let mut seen = Observed { service: Some(service), old: old("10.0.0.7"), ..Observed::default() };
        let next_at = |now: i64, seen: &Observed| {
            let moment = Moment { now, requests_ended: true, ..Moment::default() };
            next(seen, &journal, &Progress::default(), &moment, &to)
        };
        assert_eq!(next_at(639, &seen), step, "{name}");
        assert_eq!(next_at(640, &seen), SeamlessStep::Delete(Role::Old), "{name}, too late");
        let chosen = Some(temporary("new", at("10.0.1.9", "ClusterIP", "")));
        let without_old = Observed { old: None, new: chosen, ..seen.clone() };
        let expected = SeamlessStep::Delete(Role::New);
        assert_eq!(next_at(640, &without_old), expected, "{name}, by an author who chose another address");
        if let SeamlessStep::Original(_) = step {
            seen.trigger = Some(temporary("trigger", at("10.0.2.9", "ClusterIP", "")));
            assert_eq!(next_at(639, &seen), SeamlessStep::Delete(Role::Trigger), "{name}");
            seen.old = old("10.0.2.8");
            assert_eq!(next_at(639, &seen), SeamlessStep::Delete(Role::Old), "{name}");
        }
    }
}
