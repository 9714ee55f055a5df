//! Moves that are interrupted at any step: the next start finishes them, and nothing is lost. `CHAOS` sets the number
//! of rounds.

use axum::http::Method;
use clusterip_moves::outcome::{Outcome, Unmoved};
use serde_json::{Value, json};

use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{
    These, addresses, but_addresses, create, delete, fresh, is_recorded, is_step, mover, order, path, plane, resume,
    send, stored,
};

/// The state of the move when the next process resumes it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    /// Nothing was written yet: the Service stays where it was.
    Nothing,
    /// The address was released: the move is finished.
    Some,
    /// All steps were done.
    All,
}

/// The request at which the mover is interrupted.
struct Interruption {
    /// `before` or `after` the API server executes the request.
    when: &'static str,
    step: &'static str,
    left: Left,
}

const INTERRUPTIONS: [Interruption; 10] = [
    Interruption { when: "before", step: "try", left: Left::Nothing },
    Interruption { when: "after", step: "try", left: Left::Nothing },
    Interruption { when: "before", step: "release", left: Left::Nothing },
    Interruption { when: "after", step: "release", left: Left::Some },
    Interruption { when: "before", step: "assign", left: Left::Some },
    Interruption { when: "after", step: "assign", left: Left::Some },
    Interruption { when: "before", step: "status", left: Left::Some },
    Interruption { when: "after", step: "status", left: Left::Some },
    Interruption { when: "before", step: "cleanup", left: Left::Some },
    Interruption { when: "after", step: "cleanup", left: Left::All },
];

fn rounds() -> usize {
    std::env::var("CHAOS").ok().map(|count| count.parse().expect("CHAOS is a number")).unwrap_or(1)
}

fn services() -> [(&'static str, Value); 3] {
    let ports = json!([{"name": "a", "port": 80}, {"name": "b", "port": 80, "protocol": "UDP"}]);
    [
        (
            "load-balancer",
            json!({"type": "LoadBalancer", "selector": {"app": "web"}, "externalTrafficPolicy": "Local",
                "loadBalancerSourceRanges": ["10.0.0.0/8"], "ports": ports}),
        ),
        ("dual", json!({"ipFamilyPolicy": "RequireDualStack", "ports": ports})),
        ("dual-second", json!({"ipFamilyPolicy": "RequireDualStack", "ports": ports})),
    ]
}

#[tokio::test]
async fn next_start_finishes_an_interrupted_move() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("crashes").await;
    let proxy = Proxy::start(&plane).await;
    let [four, six] = fresh();
    for (kind, spec) in (0..rounds()).flat_map(|_| services()) {
        for Interruption { when, step, left } in INTERRUPTIONS {
            let has_status = spec["type"] == "LoadBalancer";
            if step == "status" && !has_status {
                continue;
            }
            let name = format!("{kind}-{when}-{step}");
            let mut before = create(&client, &namespace, &name, spec.clone()).await;
            if has_status {
                let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10", "ipMode": "VIP"}]}}});
                let path = format!("{}/status?fieldManager=cloud", path(&namespace, &name));
                before = send(&client, Method::PATCH, &path, Some(&status)).await.unwrap();
            }
            let from = addresses(&before);
            let to = match (kind, from.as_slice()) {
                ("dual-second", [first, _]) => vec![*first, six],
                (_, [_]) => vec![four],
                _ => vec![four, six],
            };
            let fault = if when == "before" { Fault::PauseBefore } else { Fault::PauseAfter };
            let gate = proxy.on(is_step(&namespace, &name, step), fault);
            let (cut_off, ordered) = (mover(proxy.client()), order(&before, &to));
            let task = tokio::spawn(async move { cut_off.start(&ordered, None, &These(vec![])).await });
            gate.arrived().await;
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled(), "{name}");
            gate.discard();

            // The next start reads the record, with the addresses that the policy would give.
            let found = stored(&client, &namespace, &name).await.expect("the Service exists");
            let next = mover(client.clone());
            let outcome = resume(&next, &found, &These(vec![to.clone()])).await;
            let why = "its Pods run on windows".to_owned();
            let expected = match left {
                Left::Some => Outcome::Moved { from: from.clone(), to: to.clone(), why, notes: Vec::new() },
                // The release may still be executed, so its record is kept for a while.
                Left::Nothing if step == "release" => Outcome::Unmoved(Unmoved::NotBegun),
                _ => Outcome::Unmoved(Unmoved::NotMoving),
            };
            assert_eq!(outcome, expected, "{name}");
            let after = stored(&client, &namespace, &name).await.expect("the Service exists");
            assert_eq!(addresses(&after), if left == Left::Nothing { from } else { to }, "{name}");
            assert_eq!(but_addresses(&after), but_addresses(&before), "{name}");
            assert_eq!(is_recorded(&client, &after).await, (when, step) == ("before", "release"), "{name}");
            delete(&client, &namespace, &name).await;
        }
    }
}

/// The API server may execute a request long after its sender is gone.
#[tokio::test]
async fn late_write_of_a_killed_process_is_harmless() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("late").await;
    let proxy = Proxy::start(&plane).await;
    for (kind, spec) in services() {
        for step in ["release", "assign", "cleanup"] {
            let name = format!("{kind}-{step}");
            let before = create(&client, &namespace, &name, spec.clone()).await;
            let from = addresses(&before);
            let [four, six] = fresh();
            let to = if from.len() == 2 { vec![four, six] } else { vec![four] };
            let gate = proxy.on(is_step(&namespace, &name, step), Fault::PauseBefore);
            let (cut_off, ordered) = (mover(proxy.client()), order(&before, &to));
            let task = tokio::spawn(async move { cut_off.start(&ordered, None, &These(vec![])).await });
            gate.arrived().await;
            task.abort();
            let next = mover(client.clone());
            let targets = These(vec![to.clone()]);
            resume(&next, &before, &targets).await;
            let resumed = stored(&client, &namespace, &name).await.unwrap();
            gate.release();
            gate.carried_out().await;
            let late = stored(&client, &namespace, &name).await.unwrap();
            if step == "release" {
                assert!(addresses(&late).is_empty(), "{name}: it was not late");
                resume(&next, &late, &targets).await;
            } else {
                assert_eq!(late, resumed, "{name}");
            }
            let after = stored(&client, &namespace, &name).await.unwrap();
            assert_eq!((addresses(&after), but_addresses(&after)), (to, but_addresses(&before)), "{name}");
        }
    }
}
