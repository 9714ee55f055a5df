//! Other settings and arguments than the defaults, and an outage of the API server.

use std::collections::BTreeSet;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip::services::controller::requests::{self, MoveRequest};
use serde_json::{Value, json};

use crate::support::control_plane::Options;
use crate::support::eventually::eventually;
use crate::support::webhook_cluster::{
    WebhookCluster, address, all, annotated, deployment, on, place, service, template,
};

fn settings(more: &str) -> String {
    format!(
        "services:
  pools:
  - {{name: windows, cidrs: [172.21.1.0/24], reserved: 50, exclude: [172.21.1.200/29], match: {{os: windows}}}}
  - {{name: linux, cidrs: [172.21.0.0/24], reserved: 50, match: {{os: linux}}}}
{more}"
    )
}

#[tokio::test]
async fn settings_take_effect_and_move_never_leaves_moves_to_administrators() {
    let options = Options::default();
    let cluster = WebhookCluster::start_with(options, &settings("  explicit: warn"), &["--move", "never"]).await;
    kind_of_evidence_that_is_installed_later_is_used(&cluster).await;
    move_never_leaves_moves_to_administrators(&cluster).await;
    server_answers_during_an_api_server_outage(&cluster).await;
}

/// A kind that the cluster does not have denies requests; when it is installed, it is evidence.
async fn kind_of_evidence_that_is_installed_later_is_used(cluster: &WebhookCluster) {
    let namespace = cluster.plane.namespace("custom-kind").await;
    cluster.use_settings(&settings("  evidence: {kinds: [Deployment, example.com/v1/Rollout]}")).await;
    let web = service("web", json!({}));
    let denied = async || cluster.dry_run(&namespace, &web).await.err();
    let expected = format!(
        "admission webhook \"services.clusterip-policy.io\" denied the request: Service {namespace}/web: the cluster has \
         no example.com/v1/Rollout: Cannot find resource example.com/v1/Rollout; install the \
         API, or remove the kind from services.evidence.kinds"
    );
    assert_eq!(eventually("a denial", denied).await, expected);
    // If an earlier kind has evidence, the missing kind is not looked up.
    cluster.plane.apply(&all(&namespace, [deployment("other", on("windows"))])).await;
    let other = async || cluster.dry_run(&namespace, &service("other", json!({}))).await.ok();
    let other = eventually("evidence of another kind", other).await;
    assert_eq!(place(address(&other)), "windows");

    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": anything}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "rollouts.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"kind": "Rollout", "plural": "rollouts", "singular": "rollout", "listKind": "RolloutList"},
            "versions": [version],
        },
    });
    cluster.plane.apply(&definition.to_string()).await;
    let rollout = json!({
        "apiVersion": "example.com/v1",
        "kind": "Rollout",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"template": template("web", on("windows"))},
    });
    let exists = async || {
        let applied = cluster.plane.kubectl_with(&["apply", "-f", "-"], &rollout.to_string()).await;
        (applied.status == 0).then_some(())
    };
    eventually("the API server to serve the kind", exists).await;
    let made = async || cluster.create(&namespace, &web).await.ok();
    let made = eventually("the kind to be watched", made).await;
    assert_eq!(place(address(&made)), "windows");
    let evidence = cluster.decided(&namespace, "web").unwrap().evidence.unwrap();
    assert_eq!(evidence.source, format!("Rollout {namespace}/web"));
    cluster.use_settings(&settings("  evidence: {kinds: [Deployment]}")).await;
}

/// With `--move never`, neither the controller nor the annotation of the author moves a Service; a request of an
/// administrator does.
async fn move_never_leaves_moves_to_administrators(cluster: &WebhookCluster) {
    let namespace = cluster.plane.namespace("custom-never").await;
    cluster.use_settings(&settings("  explicit: allow")).await;
    let before = cluster.create(&namespace, &service("web", json!({}))).await.unwrap();
    assert_eq!(place(address(&before)), "linux");
    cluster.plane.apply(&all(&namespace, [deployment("web", on("windows"))])).await;
    let reported =
        async || cluster.server.log().into_iter().find(|line| line.contains("misplaced") && line.contains(&namespace));
    let reported = eventually("a report", reported).await;
    assert!(
        reported.contains("it stays: this server does not move Services") && reported.contains("reason=\"never\""),
        "{reported}"
    );
    assert_eq!(address(&cluster.get(&namespace, "web").await), address(&before));

    let patch = json!({"metadata": {"annotations": {"clusterip-policy/move": "now"}}});
    cluster.patch(&namespace, "web", patch).await.unwrap();
    let processed = async || {
        let service = cluster.get(&namespace, "web").await;
        (!service.to_string().contains("clusterip-policy/move")).then_some(service)
    };
    let processed = eventually("the annotation to be removed", processed).await;
    assert_eq!(address(&processed), address(&before));

    let uid = before["metadata"]["uid"].as_str().unwrap().to_owned();
    let request =
        MoveRequest { namespace: namespace.clone(), name: "web".to_owned(), uid, control_plane: false, seamless: None };
    requests::ask(&cluster.plane.client(), "default", &request).await.unwrap();
    let moved = async || {
        let service = cluster.get(&namespace, "web").await;
        let ended = service["spec"]["type"] == "ClusterIP" && !service.to_string().contains("clusterip-policy/mov");
        (ended && place(address(&service)) == "windows").then_some(service)
    };
    let after = eventually("the move", moved).await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
}

async fn server_answers_during_an_api_server_outage(cluster: &WebhookCluster) {
    let namespace = cluster.plane.namespace("custom-outage").await;
    cluster.use_settings(&settings("  order: lowest")).await;
    let windows = |name: &str| annotated(name, json!({"clusterip-policy/os": "windows"}), json!({}));
    let first = address(&cluster.create(&namespace, &windows("first")).await.unwrap());

    cluster.plane.stop_api_server();
    assert_eq!(cluster.server.get("/healthz").await.unwrap().0, 200);
    // The server answers from its stores: it gives the next addresses, because the first one is used.
    let ask = async |uid: &str, name: &str| {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": uid,
                "kind": {"group": "", "version": "v1", "kind": "Service"},
                "resource": {"group": "", "version": "v1", "resource": "services"},
                "namespace": namespace,
                "name": name,
                "operation": "CREATE",
                "object": windows(name),
            },
        });
        let (status, answer) = cluster.server.post("/mutate", &review).await.unwrap();
        assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(true)), "{answer}");
        let patch = STANDARD.decode(answer["response"]["patch"].as_str().unwrap()).unwrap();
        let patch: Value = serde_json::from_slice(&patch).unwrap();
        patch[0]["value"].as_str().unwrap().parse::<IpAddr>().unwrap()
    };
    let during = [ask("1", "second").await, ask("2", "third").await];
    assert_eq!(during.map(place), ["windows"; 2]);
    assert_eq!(BTreeSet::from([first, during[0], during[1]]).len(), 3);

    cluster.plane.start_api_server();
    let ready = async || cluster.server.get("/readyz").await.filter(|(status, _)| *status == 200);
    eventually("readiness to come back", ready).await;
    // The API server reads its webhook configurations again.
    let asked = async || {
        cluster.dry_run(&namespace, &windows("again")).await.ok().filter(|made| place(address(made)) == "windows")
    };
    eventually("the webhook to be asked again", asked).await;
}
