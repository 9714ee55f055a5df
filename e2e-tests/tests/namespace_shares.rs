//! Requests of one namespace whose Services are never created do not use up the addresses of other namespaces.

use clusterip_cluster::reservations::ledger::YOUNG_TIME;
use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::control_plane::Options;
use crate::support::second_webhook::{REFUSAL, Verdict, serve};
use crate::support::webhook_cluster::{WebhookCluster, address, place, service, within};

/// There are 205 usable addresses: a namespace may have 51 of them in flight, or 103 for five seconds.
const SETTINGS: &str = "
services:
  pools:
  - {name: all, cidrs: [172.21.1.0/24], reserved: 50}
";
const SHARE: usize = 51;
const BURST: usize = 103;
const USABLE: usize = 205;

/// A review of a create. Every client that reaches the server could send it.
fn review(namespace: &str, name: &str, number: usize, spec: &Value) -> Value {
    let mut object = service(name, spec.clone());
    object["metadata"]["namespace"] = namespace.into();
    if name.is_empty() {
        object["metadata"] = json!({"generateName": "web-", "namespace": namespace});
    }
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": format!("uid-{number}"),
            "kind": {"group": "", "version": "v1", "kind": "Service"},
            "resource": {"group": "", "version": "v1", "resource": "services"},
            "operation": "CREATE",
            "namespace": namespace,
            "name": name,
            "userInfo": {"username": "mallory"},
            "object": object,
        },
    })
}

async fn in_flight(cluster: &WebhookCluster) -> usize {
    let (_, metrics) = cluster.server.get("/metrics").await.unwrap();
    let line = metrics.lines().find(|line| line.starts_with("clusterip_ledger_addresses ")).expect("the gauge");
    line.split_whitespace().last().unwrap().parse::<f64>().unwrap() as usize
}

#[tokio::test]
async fn namespace_reserves_at_most_its_share_of_a_pool_and_nothing_in_dry_runs() {
    let cluster = WebhookCluster::start_with(Options::default(), SETTINGS, &["--move", "never"]).await;
    for number in 0..20 {
        for (name, spec) in [("web", json!({})), ("hand", json!({"clusterIP": "172.21.1.77"}))] {
            let mut review = review("default", name, number, &spec);
            review["request"]["dryRun"] = json!(true);
            let (status, answer) = cluster.server.post("/mutate", &review).await.unwrap();
            assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(true)), "{answer}");
        }
    }
    assert_eq!(in_flight(&cluster).await, 0, "a dry run reserves no address");
    let victim = cluster.plane.namespace("victim").await;
    cluster.plane.namespace("mallory").await;
    let by_hand = |number: usize| json!({"clusterIP": format!("172.21.1.{}", 50 + number)});
    struct Row {
        name: &'static str,
        review: Box<dyn Fn(usize) -> Value>,
    }
    let rows = [
        Row { name: "names", review: Box::new(|n| review("mallory", &format!("web-{n}"), n, &json!({}))) },
        Row { name: "generated names", review: Box::new(|n| review("mallory", "", 1000 + n, &json!({}))) },
        Row {
            name: "chosen by hand",
            review: Box::new(move |n| review("mallory", &format!("hand-{n}"), 2000 + n, &by_hand(n % USABLE))),
        },
    ];
    for (row, Row { name, review }) in rows.into_iter().enumerate() {
        // More requests than the pool has addresses, sixteen at a time.
        for first in (0..USABLE + 50).step_by(16) {
            let reviews: Vec<Value> = (first..first + 16).map(&review).collect();
            let sent = reviews.iter().map(|review| cluster.server.post("/mutate", review));
            for answer in join_all(sent).await {
                let (status, answer) = answer.expect(name);
                assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(true)), "{name}: {answer}");
            }
        }
        let reserved = in_flight(&cluster).await;
        assert!(reserved <= BURST, "{name}: {reserved} addresses are in flight");
        let creates: Vec<Value> = (0..10).map(|number| service(&format!("web-{row}-{number}"), json!({}))).collect();
        for created in join_all(creates.iter().map(|service| cluster.create(&victim, service))).await {
            assert!(within(address(&created.expect(name)), "172.21.1.0/24"), "{name}");
        }
        // When no reservation is young any more, the next request replaces all that are above the share. Its number
        // selects an address that is not reserved.
        tokio::time::sleep(YOUNG_TIME).await;
        cluster.server.post("/mutate", &review(10_145)).await.expect(name);
        let reserved = in_flight(&cluster).await;
        assert!(reserved <= SHARE, "{name}: {reserved} addresses are in flight");
    }
}

/// The same through the API server, with another webhook that refuses the Services.
#[tokio::test]
async fn refused_creates_leave_addresses_for_other_namespaces() {
    let cluster = WebhookCluster::shared().await;
    let refused = cluster.plane.namespace("refused-names").await;
    let other = cluster.plane.namespace("beside-refused-names").await;
    serve(&cluster, &refused, |object| {
        if object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("refused")) {
            Verdict::Refuse
        } else {
            Verdict::Keep
        }
    })
    .await;
    let windows = |name: String| {
        let mut service = service(&name, json!({}));
        service["metadata"]["annotations"] = json!({"clusterip-policy/os": "windows"});
        service
    };
    // The pool "windows" has fewer than 200 usable addresses.
    for first in (0..256).step_by(16) {
        let services: Vec<Value> = (first..first + 16).map(|number| windows(format!("refused-{number}"))).collect();
        for refusal in join_all(services.iter().map(|service| cluster.create(&refused, service))).await {
            let message = refusal.unwrap_err();
            assert!(message.ends_with(REFUSAL), "{message}");
        }
    }
    for number in 0..10 {
        let created = cluster.create(&other, &windows(format!("web-{number}"))).await.unwrap();
        assert_eq!(place(address(&created)), "windows");
    }
}
