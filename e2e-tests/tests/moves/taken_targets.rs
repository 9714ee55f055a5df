//! Other Services take the target addresses or the node ports of a Service before or during its move.

use std::time::Duration;

use clusterip::services::mover::Limits;
use clusterip_moves::outcome::Outcome;
use serde_json::json;

use super::support::{again, disturbed};
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{
    These, addresses, but_addresses, create, delete, fresh, is_step, mover_with, order, plane,
};

#[tokio::test]
async fn next_target_is_used_if_one_is_taken() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("taken").await;
    let proxy = Proxy::start(&plane).await;
    let ports = json!([{"port": 80}]);
    struct Case {
        name: &'static str,
        /// The addresses that other Services take before the move.
        taken_before: &'static [&'static str],
        /// The addresses that other Services take while the Service has none.
        taken_meanwhile: &'static [&'static str],
        expected: &'static str,
    }
    let cases = [
        Case { name: "before", taken_before: &["first"], taken_meanwhile: &[], expected: "second" },
        Case { name: "meanwhile", taken_before: &[], taken_meanwhile: &["first"], expected: "second" },
        Case { name: "both", taken_before: &["first"], taken_meanwhile: &["second"], expected: "old" },
        Case { name: "all-meanwhile", taken_before: &[], taken_meanwhile: &["first", "second"], expected: "old" },
        Case { name: "old-too", taken_before: &[], taken_meanwhile: &["first", "second", "old"], expected: "any" },
        Case { name: "old-alone", taken_before: &[], taken_meanwhile: &["old"], expected: "first" },
    ];
    for Case { name, taken_before, taken_meanwhile, expected } in cases {
        let [[first, _], [second, _]] = [fresh(), fresh()];
        let before = create(&client, &namespace, name, json!({"type": "NodePort", "ports": ports})).await;
        let old = addresses(&before)[0];
        let take = async |whose: &[&str]| {
            for who in whose {
                let address = match *who {
                    "first" => first,
                    "second" => second,
                    _ => old,
                };
                create(&client, &namespace, &format!("{name}-{who}"), json!({"clusterIP": address, "ports": ports}))
                    .await;
            }
        };
        take(taken_before).await;
        let targets = [vec![first], vec![second]];
        let (outcome, ()) = disturbed(&proxy, &before, "assign", &targets, async || take(taken_meanwhile).await).await;
        let after = again(&client, &before).await;
        let at = addresses(&after);
        let is = match outcome {
            Outcome::Moved { from, to, .. } if from == [old] && to == at && at == [first] => "first",
            Outcome::Moved { from, to, notes, .. }
                if from == [old] && to == at && at == [second] && notes.len() == 1 =>
            {
                "second"
            }
            Outcome::Kept { from, notes, .. } if from == at && at == [old] && notes.len() == 2 => "old",
            Outcome::Elsewhere { from, to, notes, .. } if from == [old] && to == at && notes.len() == 3 => "any",
            other => panic!("{name}: {other:?} at {at:?}"),
        };
        assert_eq!(is, expected, "{name}");
        assert_eq!(but_addresses(&after), but_addresses(&before), "{name}");
    }
}

#[tokio::test]
async fn taken_second_address_is_replaced() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("second").await;
    let proxy = Proxy::start(&plane).await;
    let ports = json!([{"port": 80}]);
    for (name, first_moves) in [("second-alone", false), ("both", true)] {
        let [[four, first], [other_four, second]] = [fresh(), fresh()];
        let before =
            create(&client, &namespace, name, json!({"ipFamilyPolicy": "RequireDualStack", "ports": ports})).await;
        let old = addresses(&before);
        let (one, two) = if first_moves { (four, other_four) } else { (old[0], old[0]) };
        let (thief, targets) = (format!("{name}-thief"), [vec![one, first], vec![two, second]]);
        let spec = json!({"clusterIP": first, "ipFamilies": ["IPv6"], "ports": ports});
        let steal = async || create(&client, &namespace, &thief, spec).await;
        let (outcome, _) = disturbed(&proxy, &before, "assign", &targets, steal).await;
        let after = again(&client, &before).await;
        assert_eq!(addresses(&after), [two, second], "{name}: {outcome:?}");
        assert_eq!(but_addresses(&after), but_addresses(&before), "{name}");
    }
}

#[tokio::test]
async fn taken_first_address_is_replaced_and_the_second_stays() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("first").await;
    let proxy = Proxy::start(&plane).await;
    let ports = json!([{"port": 80}]);
    let [[first, _], [next, _]] = [fresh(), fresh()];
    let before =
        create(&client, &namespace, "web", json!({"ipFamilyPolicy": "RequireDualStack", "ports": ports})).await;
    let stays = addresses(&before)[1];
    let steal = async || create(&client, &namespace, "thief", json!({"clusterIP": first, "ports": ports})).await;
    let targets = [vec![first, stays], vec![next, stays]];
    let (outcome, _) = disturbed(&proxy, &before, "assign", &targets, steal).await;
    let after = again(&client, &before).await;
    // The API server allocates the addresses of the two families one after the other, in either order. If it allocated
    // the second before it refused the first, it does not release it for a minute. Then only other addresses are
    // available, and the notes say so.
    let leaked = matches!(&outcome, Outcome::Elsewhere { notes, .. }
        if notes.iter().any(|note| note.contains(&format!("{stays}"))));
    if leaked {
        let now = addresses(&after);
        assert!(now.len() == 2 && now[0].is_ipv4() && now[1].is_ipv6() && now[1] != stays, "{now:?}: {outcome:?}");
    } else {
        assert_eq!(addresses(&after), [next, stays], "{outcome:?}");
    }
    assert_eq!(but_addresses(&after), but_addresses(&before));
}

#[tokio::test]
async fn taken_node_port_is_replaced_after_a_wait() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("ports").await;
    let proxy = Proxy::start(&plane).await;
    for (name, comes_back) in [("comes-back", true), ("stays-away", false)] {
        let spec = json!({"type": "NodePort", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]});
        let before = create(&client, &namespace, name, spec).await;
        let [to, _] = fresh();
        let gate = proxy.on(is_step(&namespace, name, "assign"), Fault::PauseBefore);
        let later = proxy.on(is_step(&namespace, name, "assign"), Fault::PauseBefore);
        let ports = if comes_back { Duration::from_secs(600) } else { Duration::ZERO };
        let moving = mover_with(proxy.client(), Limits { ports, ..Limits::default() });
        let thief = format!("{name}-thief");
        let disturb = async {
            gate.arrived().await;
            let port = &before["spec"]["ports"][1]["nodePort"];
            create(&client, &namespace, &thief, json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]}))
                .await;
            gate.release();
            later.arrived().await;
            if comes_back {
                delete(&client, &namespace, &thief).await;
            }
            later.release();
        };
        let (order, targets) = (order(&before, &[to]), These(vec![]));
        let (outcome, ()) = tokio::join!(moving.start(&order, None, &targets), disturb);
        let outcome = outcome.unwrap();
        let mut after = again(&client, &before).await;
        assert_eq!(addresses(&after), [to], "{name}");
        if !comes_back {
            assert!(outcome.to_string().contains("was replaced by another"), "{outcome}");
            let replaced = after["spec"]["ports"][1]["nodePort"].take();
            assert_ne!(replaced, before["spec"]["ports"][1]["nodePort"]);
            after["spec"]["ports"][1]["nodePort"] = before["spec"]["ports"][1]["nodePort"].clone();
        }
        assert_eq!(but_addresses(&after), but_addresses(&before), "{name}");
    }
}
