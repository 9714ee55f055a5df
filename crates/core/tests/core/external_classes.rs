//! Which Services get external addresses from this policy: those of its class, or also those without a class.

use crate::support::claim_cases::{DEPRECATED, check, external_ips, settings, with};
use crate::support::{FakeCluster, balancer_of, created, external_answer, nothing, now, with_record};
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
        ("type ClusterIP", created(plain.clone()), removed(&plain)),
        ("another class", created(foreign.clone()), removed(&foreign)),
        ("beside a valid claim", created(claiming.clone()), removed(&claiming).with(DEPRECATED)),
    ]);
}

#[test]
fn services_without_a_class_are_handled_with_external_default() {
    let mut of_all = settings();
    of_all["external"]["default"] = true.into();
    of_all["external"]["loadBalancerClass"] = "example.com/lan".into();
    for (class, is_ours) in
        [(Value::Null, true), (json!("example.com/lan"), true), (json!("clusterip-policy/external"), false)]
    {
        let object = balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerClass": class}), &[]);
        let answer = external_answer(&created(object.clone()), &of_all, Some(&[]), &FakeCluster::default());
        let given = now("recorded").pool("edge").addresses("10.0.9.15").recorded_in(&object);
        assert_eq!(answer, Value::from(if is_ours { given } else { nothing() }), "{class}");
    }
}
