//! Which Services get external addresses from this policy: those of its class, or also those without a class.

use crate::support::claim_cases::{Case, DEPRECATED, check, external_ips, nothing, settings, with};
use crate::support::{FakeCluster, balancer_of, created, external_answer, now, with_record};
use serde_json::{Value, json};

#[test]
fn record_is_removed_from_services_of_another_class() {
    let removed = |object: &Value| {
        let reason = "not of type LoadBalancer with the class of external addresses";
        now("removed").because(reason).removed_from(object)
    };
    let plain = with_record(with(json!({})), "10.0.9.20");
    let foreign = with_record(with(json!({"type": "LoadBalancer", "loadBalancerClass": "x/y"})), "nonsense");
    let claiming = with_record(external_ips(&["10.0.9.10"]), "10.0.9.20");
    check(vec![
        Case { name: "type ClusterIP", request: created(plain.clone()), expected: removed(&plain).with(&[]) },
        Case { name: "another class", request: created(foreign.clone()), expected: removed(&foreign).with(&[]) },
        Case {
            name: "beside a valid claim",
            request: created(claiming.clone()),
            expected: removed(&claiming).with(&[DEPRECATED]),
        },
    ]);
}

#[test]
fn services_without_a_class_are_handled_with_external_default() {
    struct ClassCase<'a> {
        name: &'static str,
        object: &'a Value,
        is_ours: bool,
    }
    let mut of_all = settings();
    of_all["external"]["default"] = true.into();
    of_all["external"]["loadBalancerClass"] = "example.com/lan".into();
    let classless = balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerClass": null}), &[]);
    let classy = balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerClass": "example.com/lan"}), &[]);
    let foreign = balancer_of(json!({"ipFamilies": ["IPv4"]}), &[]);
    let rows = [
        ClassCase { name: "none", object: &classless, is_ours: true },
        ClassCase { name: "class of the settings", object: &classy, is_ours: true },
        ClassCase { name: "another class", object: &foreign, is_ours: false },
    ];
    for ClassCase { name, object, is_ours } in rows {
        let answer = external_answer(&created(object.clone()), &of_all, Some(&[]), &FakeCluster::default());
        let expected = if is_ours {
            now("recorded").pool("edge").addresses("10.0.9.15").recorded_in(object).with(&[])
        } else {
            nothing(&[])
        };
        assert_eq!(answer, expected, "{name}");
    }
}
