//! A GitOps controller or a user applies the manifest of a Service during its move.

use clusterip_core::annotations::{MOVING_ANNOTATION, MOVING_NAME};
use clusterip_moves::outcome::Outcome;
use serde_json::{Value, json};

use super::support::{again, disturbed, manifest, moved};
use crate::support::fault_proxy::Proxy;
use crate::support::move_helpers::{addresses, but_addresses, cached, delete, fresh, plane, stored};

const FORCED: &[&str] = &["--server-side", "--field-manager=gitops", "--force-conflicts"];

/// The Service has no address at that moment. A manifest with a type ends the move, and the API server asks the
/// webhooks for an address, as for a new Service. Any other manifest does not disturb the move.
#[tokio::test]
async fn manifest_applied_during_a_move_leaves_a_service_without_differences() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("applied").await;
    let proxy = Proxy::start(&plane).await;
    struct Case {
        name: &'static str,
        flags: &'static [&'static str],
        spec: Value,
        ends_the_move: bool,
    }
    let plain = json!({"selector": {"app": "web"}, "ports": [{"port": 80}]});
    let mut typed = plain.clone();
    typed["type"] = json!("ClusterIP");
    let cases = [
        Case { name: "client-side", flags: &[], spec: plain.clone(), ends_the_move: false },
        Case { name: "server-side", flags: FORCED, spec: plain, ends_the_move: false },
        Case { name: "client-side-with-a-type", flags: &[], spec: typed.clone(), ends_the_move: true },
        Case { name: "server-side-with-a-type", flags: FORCED, spec: typed, ends_the_move: true },
    ];
    for Case { name, flags, spec, ends_the_move } in cases {
        let text = manifest(name, &namespace, json!({}), spec).to_string();
        let run = async |verb: &str| plane.kubectl_with(&[&[verb], flags, &["-f", "-"]].concat(), &text).await;
        run("apply").await.ok();
        let before = stored(&client, &namespace, name).await.unwrap();
        let [to, _] = fresh();
        let targets = [vec![to]];
        let applied = disturbed(&proxy, &before, "assign", &targets, async || {
            run("apply").await.ok();
            cached(&client, &again(&client, &before).await).await;
        });
        let (outcome, ()) = applied.await;
        let after = again(&client, &before).await;
        match outcome {
            Outcome::Overtaken { now, .. } if ends_the_move => assert_eq!(now, addresses(&after), "{name}"),
            outcome if ends_the_move => panic!("{name}: {outcome:?}"),
            outcome => assert_eq!(outcome, moved(&addresses(&before), &[to]), "{name}"),
        }
        assert_eq!(addresses(&after).len(), 1, "{name}: {after}");
        assert_eq!(but_addresses(&after)["spec"], but_addresses(&before)["spec"], "{name}");
        let text = after.to_string();
        assert!(!text.contains(MOVING_ANNOTATION) && !text.contains(MOVING_NAME), "{name}: {text}");
        let diff = run("diff").await;
        assert_eq!((diff.status, diff.stdout.as_str()), (0, ""), "{name}: {}", diff.stderr);
        delete(&client, &namespace, name).await;
    }
}
