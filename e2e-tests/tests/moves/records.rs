//! The record of a move is the only journal that counts: the contents of a Service can't forge or replay a move.

use clusterip_core::annotations::{MOVING_ANNOTATION, MOVING_NAME};
use clusterip_moves::outcome::{Outcome, Unmoved};
use serde_json::{Value, json};

use super::support::{again, disturbed, moved};
use crate::support::fault_proxy::Proxy;
use crate::support::move_helpers::{These, addresses, create, delete, fresh, is_recorded, mover, order, patch, plane};

/// The mover writes no address, spec or status because of the contents of a Service. That includes a journal in the
/// annotation, where earlier versions kept it.
#[tokio::test]
async fn forged_journal_is_ignored() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("forged").await;
    let [forged, _] = fresh();
    let journal = |changes: Value| {
        let mut journal = json!({"phase": "released", "way": "externalName", "from": ["172.21.0.250"], "to": [forged],
            "spec": {"ports": [{"port": 80}]}, "managedFields": []});
        json_patch::merge(&mut journal, &changes);
        journal.to_string()
    };
    let ingress = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.66"}]}});
    let owners = json!([{"manager": "evil", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:type": {}}}}]);
    let ports = json!([{"port": 80}]);
    let cluster_ip = || json!({"ports": ports});
    let half_moved = || json!({"type": "ExternalName", "externalName": MOVING_NAME, "ports": ports});
    let load_balancer = || json!({"type": "LoadBalancer", "loadBalancerClass": "mallory/none", "ports": ports});
    struct Row {
        name: &'static str,
        text: String,
    }
    let rows = [
        Row { name: "rubbish", text: "{".to_owned() },
        Row { name: "released", text: journal(json!({})) },
        Row { name: "owners", text: journal(json!({"phase": "placed", "managedFields": owners})) },
        Row { name: "status", text: journal(json!({"phase": "placed", "loadBalancer": ingress["loadBalancer"]})) },
        Row { name: "external", text: journal(json!({"spec": {"externalIPs": ["192.0.2.66"]}})) },
        Row { name: "marker", text: json!({"from": ["172.21.0.250"], "to": [forged]}).to_string() },
    ];
    let specs = [("idle", cluster_ip()), ("half-moved", half_moved()), ("load-balancer", load_balancer())];
    for Row { name, text } in rows {
        for (state, spec) in &specs {
            let name = format!("{name}-{state}");
            create(&client, &namespace, &name, spec.clone()).await;
            let annotations = json!({"metadata": {"annotations": {MOVING_ANNOTATION: text}}});
            let before = patch(&client, &namespace, &name, annotations).await;
            let ordered =
                mover(client.clone()).start(&order(&before, &[forged]), None, &These(vec![vec![forged]])).await;
            assert_eq!(ordered.unwrap(), Outcome::Unmoved(Unmoved::NotRecorded), "{name}");
            assert_eq!(again(&client, &before).await, before, "{name}");
            assert!(!is_recorded(&client, &before).await, "{name}");
            delete(&client, &namespace, &name).await;
        }
    }
}

/// A record belongs to one Service and is deleted at the end of the move, so it can't be replayed.
#[tokio::test]
async fn record_is_deleted_when_its_move_ends() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("replayed").await;
    let [to, _] = fresh();
    let before = create(&client, &namespace, "web", json!({"ports": [{"port": 80}]})).await;
    let proxy = Proxy::start(&plane).await;
    let watch = async || (is_recorded(&client, &before).await, again(&client, &before).await);
    let (outcome, (recorded, released)) = disturbed(&proxy, &before, "assign", &[vec![to]], watch).await;
    assert_eq!(outcome, moved(&addresses(&before), &[to]));
    assert!(recorded, "while the Service has no address");
    assert!(!is_recorded(&client, &before).await, "afterwards");
    // The author of the Service restores its state from the middle of the move.
    let marker = &released["metadata"]["annotations"];
    let replay =
        json!({"metadata": {"annotations": marker}, "spec": {"type": "ExternalName", "externalName": MOVING_NAME}});
    let replayed = patch(&client, &namespace, "web", replay).await;
    let outcome = mover(client.clone()).start(&order(&before, &[to]), None, &These(vec![])).await.unwrap();
    assert_eq!((outcome, again(&client, &before).await), (Outcome::Unmoved(Unmoved::NotRecorded), replayed));
}
