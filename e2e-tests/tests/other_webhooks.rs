//! Other webhooks that are called after ours: they are slow, refuse, or change the Service after its address was
//! chosen.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use serde_json::{Value, json};

use crate::support::eventually::{MAX_WAIT, eventually};
use crate::support::second_webhook::{REFUSAL, Verdict, serve};
use crate::support::webhook_cluster::{WebhookCluster, address, addresses, service};

/// The two pools of this namespace have one address each: `other` is for Windows, `one` for all other Services.
const NAMESPACE: &str = "reinvocation";
const ONE: &str = "172.21.40.42";
const OTHER: &str = "172.21.40.46";

/// The label that tells the other webhook what to do.
const LATER: &str = "later";

/// Makes the change that the label names, once. The label says then that it is done.
fn later(mut object: Value) -> Verdict {
    let Some(what) = object["metadata"]["labels"][LATER].as_str().map(str::to_owned) else { return Verdict::Keep };
    object["metadata"]["labels"][LATER] = json!("done");
    match what.as_str() {
        "label" => {}
        "os" => object["metadata"]["annotations"] = json!({"clusterip-policy/os": "windows"}),
        "unknown-pool" => object["metadata"]["annotations"] = json!({"clusterip-policy/pool": "none"}),
        "external" => {
            object["spec"]["type"] = json!("ExternalName");
            object["spec"]["externalName"] = json!("example.com");
        }
        _ => return Verdict::Keep,
    }
    Verdict::Change(object)
}

fn labelled(name: &str, later: &str) -> Value {
    let mut service = service(name, json!({}));
    service["metadata"]["labels"] = json!({LATER: later});
    service
}

/// Deletes the Service of a row and waits until its address is free.
async fn clear(cluster: &WebhookCluster, made: &Value) {
    cluster.delete(NAMESPACE, made["metadata"]["name"].as_str().unwrap()).await;
    for (name, address, annotations) in
        [("one", ONE, json!({})), ("other", OTHER, json!({"clusterip-policy/os": "windows"}))]
    {
        let mut probe = service(&format!("free-{name}"), json!({}));
        probe["metadata"]["annotations"] = annotations;
        let free = async || cluster.dry_run(NAMESPACE, &probe).await.ok();
        let free = eventually("an address that is free again", free).await;
        assert_eq!(free["spec"]["clusterIP"], address);
    }
}

#[tokio::test]
async fn changes_of_later_webhooks_are_decided_again() {
    let cluster = WebhookCluster::shared().await;
    cluster.plane.namespace(NAMESPACE).await;
    serve(&cluster, NAMESPACE, later).await;
    struct Case {
        name: &'static str,
        /// The expected address.
        expected: Option<&'static str>,
        /// Whether the address of the first answer is free at once.
        free: bool,
    }
    let cases = [
        Case { name: "label", expected: Some(ONE), free: false },
        Case { name: "os", expected: Some(OTHER), free: true },
        Case { name: "external", expected: None, free: true },
    ];
    for Case { name: row, expected, free } in cases {
        let made = cluster.create(NAMESPACE, &labelled(row, row)).await.unwrap();
        let found: Vec<String> = addresses(&made).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{row}");
        let next = cluster.create(NAMESPACE, &service("next", json!({}))).await;
        if free {
            let next = next.unwrap_or_else(|error| panic!("{row}: {error}"));
            assert_eq!(address(&next).to_string(), ONE, "{row}");
            cluster.delete(NAMESPACE, "next").await;
        } else {
            let error = next.unwrap_err();
            assert!(error.contains("pool \"one\" (172.21.40.40/30) is full: 1 of 1 addresses used"), "{row}: {error}");
        }
        clear(&cluster, &made).await;
    }

    // A name that the API server generates.
    let mut unnamed = labelled("web", "label");
    let metadata = unnamed["metadata"].as_object_mut().unwrap();
    metadata.remove("name");
    metadata.insert("generateName".to_owned(), json!("web-"));
    let made = cluster.create(NAMESPACE, &unnamed).await.unwrap();
    assert_eq!(address(&made).to_string(), ONE);
    clear(&cluster, &made).await;
    // With an unknown pool, the address of the first answer is released.
    let refused = cluster.create(NAMESPACE, &labelled("unknown", "unknown-pool")).await.unwrap_err();
    assert!(refused.contains("names pool \"none\", which is unknown"), "{refused}");
    let made = cluster.create(NAMESPACE, &service("next", json!({}))).await.unwrap();
    assert_eq!(address(&made).to_string(), ONE);
    clear(&cluster, &made).await;

    // A dry run of a Service that is only labelled shows its address, without a warning.
    let dry = cluster.dry_run(NAMESPACE, &labelled("label", "label")).await.unwrap();
    assert_eq!(address(&dry).to_string(), ONE);
}

/// A slow webhook delays a request, whose address stays reserved.
#[tokio::test]
async fn address_is_reserved_while_its_request_is_in_flight() {
    let cluster = WebhookCluster::shared().await;
    // The pool of this namespace has two addresses.
    let namespace = cluster.plane.namespace("in-flight").await;
    let (entered, begun) = channel();
    let (release, released) = channel::<()>();
    let (entered, released) = (Mutex::new(entered), Mutex::new(released));
    serve(&cluster, &namespace, move |object| {
        if object["metadata"]["name"] == "slow" {
            entered.lock().unwrap().send(object["spec"]["clusterIP"].clone()).unwrap();
            released.lock().unwrap().recv().unwrap();
        }
        Verdict::Keep
    })
    .await;
    let slow = service("slow", json!({}));
    let (made, ()) = tokio::join!(cluster.create(&namespace, &slow), async {
        let held = tokio::task::spawn_blocking(move || begun.recv_timeout(MAX_WAIT).unwrap()).await.unwrap();
        // A Service that has the reserved address for a moment does not end the reservation.
        cluster.create(&namespace, &service("by-hand", json!({"clusterIP": held}))).await.unwrap();
        cluster.delete(&namespace, "by-hand").await;
        let first = cluster.create(&namespace, &service("first", json!({}))).await.unwrap();
        assert_ne!(first["spec"]["clusterIP"], held);
        let full = cluster.create(&namespace, &service("second", json!({}))).await.unwrap_err();
        assert!(full.contains("pool \"pair\" (172.21.40.32/29) is full: 2 of 2 addresses used"), "{full}");
        // When another Service is deleted, the next one gets that address and not the reserved one.
        cluster.delete(&namespace, "first").await;
        let next = async || cluster.create(&namespace, &service("next", json!({}))).await.ok();
        let next = eventually("the address of the first", next).await;
        assert_eq!(next["spec"]["clusterIP"], first["spec"]["clusterIP"]);
        release.send(()).unwrap();
    });
    let list = cluster.list(&namespace).await;
    assert_eq!(list.keys().collect::<Vec<_>>(), ["next", "slow"]);
    assert_eq!(address(&made.unwrap()), address(&list["slow"]));
    assert_ne!(address(&list["slow"]), address(&list["next"]));
}

/// A client that retries a create which a later webhook refuses does not fill the pool.
#[tokio::test]
async fn creates_refused_by_a_later_webhook_reserve_at_most_two_addresses() {
    let cluster = WebhookCluster::shared().await;
    // The pool of this namespace has three addresses.
    let namespace = cluster.plane.namespace("refusals").await;
    serve(
        &cluster,
        &namespace,
        |object| {
            if object["metadata"]["name"] == "refused" { Verdict::Refuse } else { Verdict::Keep }
        },
    )
    .await;
    for _ in 0..10 {
        let message = cluster.create(&namespace, &service("refused", json!({}))).await.unwrap_err();
        assert!(message.ends_with(REFUSAL), "{message}");
        let audit = cluster.decided(&namespace, "refused").unwrap();
        assert_eq!((audit.decision.as_str(), audit.pool.as_deref()), ("allocated", Some("refused")));
    }
    cluster.create(&namespace, &service("first", json!({}))).await.unwrap();
    let full = cluster.create(&namespace, &service("second", json!({}))).await.unwrap_err();
    assert!(full.contains("pool \"refused\" (172.21.40.48/29) is full: 3 of 3 addresses used"), "{full}");
}
