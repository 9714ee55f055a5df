//! Tests of `seamless`.

use serde_json::json;

use super::*;
use crate::journal::Plan;
use crate::temporary::looks_temporary;

#[test]
fn names_depend_on_the_uid_alone() {
    let plan = Plan::new("shop", "3f0c5f0e-0000-4000-8000-000000000001", "clusterip-policy", "cluster.local", 40);
    assert_eq!(plan.new.len(), "clusterip-new-".len() + 10);
    assert_eq!(plan.external_name, format!("{}.shop.svc.cluster.local", plan.new));
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

#[test]
fn grace_period_counts_from_the_swap_and_nobody_can_prolong_it() {
    struct Case {
        name: &'static str,
        written: Value,
        expected: i64,
    }
    let mut journal = step::beginning(&json!({"metadata": {"uid": "1"}}), &[], "why");
    journal.recorded_at = 1000;
    journal.seamless = Some(Plan::new("shop", "1", "clusterip-policy", "cluster.local", 40));
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
    let web = json!({"metadata": {"uid": "1", "namespace": "shop", "name": "web"}, "spec": {"clusterIP": "10.0.0.7"}});
    let to: [IpAddr; 1] = ["10.0.1.7".parse().unwrap()];
    let mut journal = step::beginning(&web, &to, "why");
    let plan = Plan::new("shop", "1", "clusterip-policy", "cluster.local", 40);
    journal.seamless = Some(plan.clone());
    let temporary = |role: &str, spec: Value| {
        json!({"metadata": {"labels": {"clusterip-policy/temporary": role, "app.kubernetes.io/managed-by": "clusterip"},
            "ownerReferences": [{"uid": "1"}]}, "spec": spec})
    };
    let seen = Observed {
        service: Some(json!({"spec": {"type": "ExternalName", "externalName": plan.external_name}})),
        new: Some(temporary("new", json!({"type": "ClusterIP", "clusterIP": "10.0.1.7", "clusterIPs": ["10.0.1.7"]}))),
        old: Some(temporary("old", json!({"type": "ExternalName", "externalName": MOVING_NAME}))),
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
fn author_whose_service_can_not_be_written_keeps_no_temporary_service() {
    struct Case {
        name: &'static str,
        spec: Value,
        status: Value,
        now: i64,
        expected: SeamlessStep,
    }
    let load_balancer = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
    let web = json!({"metadata": {"uid": "1", "namespace": "shop", "name": "web"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.7"}, "status": load_balancer});
    let to: [IpAddr; 1] = ["10.0.1.7".parse().unwrap()];
    let mut journal = step::beginning(&web, &to, "why");
    let plan = Plan::new("shop", "1", "clusterip-policy", "cluster.local", 40);
    journal.seamless = Some(plan.clone());
    let at = |address: &str, kind: &str, name: &str| json!({"type": kind, "clusterIP": address, "clusterIPs": [address], "externalName": name});
    let temporary = |role: &str, address: &str| {
        json!({"metadata": {"labels": {"clusterip-policy/temporary": role, "app.kubernetes.io/managed-by": "clusterip"},
            "annotations": {"clusterip-policy/swapped-at": "5"}, "ownerReferences": [{"uid": "1"}]},
            "spec": at(address, "ClusterIP", "")})
    };
    let moved = || at("10.0.1.7", "ClusterIP", MOVING_NAME);
    let shown = || at("10.0.1.7", "LoadBalancer", MOVING_NAME);
    let before = || at("10.0.0.7", "ClusterIP", "");
    let released = || json!({"type": "ExternalName", "externalName": MOVING_NAME});
    let original = SeamlessStep::Original;
    let cases = [
        Case { name: "cleanup", spec: moved(), status: json!({}), now: 639, expected: original(Step::Cleanup) },
        Case {
            name: "no cleanup",
            spec: moved(),
            status: json!({}),
            now: 640,
            expected: SeamlessStep::Delete(Role::Old),
        },
        Case { name: "status", spec: shown(), status: json!({}), now: 639, expected: original(Step::RestoreStatus) },
        Case {
            name: "no status",
            spec: shown(),
            status: json!({}),
            now: 640,
            expected: SeamlessStep::Delete(Role::Old),
        },
        Case { name: "assign", spec: released(), status: json!({}), now: 639, expected: original(Step::Assign) },
        Case {
            name: "no assign",
            spec: released(),
            status: json!({}),
            now: 640,
            expected: SeamlessStep::Delete(Role::Old),
        },
        Case {
            name: "no release",
            spec: before(),
            status: json!({}),
            now: 639,
            expected: SeamlessStep::PreventRelease,
        },
        Case {
            name: "a release that can't be prevented",
            spec: before(),
            status: json!({}),
            now: 640,
            expected: SeamlessStep::Delete(Role::Old),
        },
    ];
    for Case { name, spec, status, now, expected } in cases {
        let service = json!({"metadata": {"uid": "1", "resourceVersion": ""}, "spec": spec, "status": status});
        let old = Some(temporary("old", "10.0.0.7"));
        let mut seen = Observed { service: Some(service), old, ..Observed::default() };
        let moment = Moment { now, requests_ended: true, ..Moment::default() };
        let step = |seen: &Observed| next(seen, &journal, &Progress::default(), &moment, &to);
        assert_eq!(step(&seen), expected, "{name}");
        if let SeamlessStep::Original(_) = expected {
            seen.trigger = Some(temporary("trigger", "10.0.2.9"));
            assert_eq!(step(&seen), SeamlessStep::Delete(Role::Trigger), "{name}");
            seen.old = Some(temporary("old", "10.0.2.8"));
            assert_eq!(step(&seen), SeamlessStep::Delete(Role::Old), "{name}");
        }
        if expected == SeamlessStep::Delete(Role::Old) {
            seen.old = None;
            seen.new = Some(temporary("new", "10.0.1.9"));
            assert_eq!(step(&seen), SeamlessStep::Delete(Role::New), "{name}, by an author who chose another address");
        }
    }
}
