//! What prevents or disturbs a seamless move is reported, and no other Service is changed.

use axum::http::{Method, Request};
use kube::client::Body;
use serde_json::{Value, json};

use super::support::{SEAMLESS, Stage};
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Gate, Proxy, Seen};
use crate::support::move_helpers::{
    self, addresses, allocated, but_addresses, deep_fields, path, send, with_managed_fields,
};

/// Creates a Service.
async fn create(stage: &Stage, name: &str, spec: Value) -> Value {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    let path = format!("/api/v1/namespaces/{}/services?fieldManager=author", stage.namespace);
    send(&stage.client, Method::POST, &path, Some(&service)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_shows_the_method_of_each_service_and_what_its_clients_notice() {
    let stage = Stage::new("method").await;
    struct Case {
        name: &'static str,
        spec: Value,
        has_pod: bool,
        /// The method, and the notice.
        expected: [&'static str; 2],
    }
    let cases = [
        Case {
            name: "serves",
            spec: json!({}),
            has_pod: true,
            expected: ["seamless", "both addresses answer until the grace period ends"],
        },
        Case {
            name: "idle",
            spec: json!({"ports": [{"port": 80}], "selector": {"app": "idle"}}),
            has_pod: false,
            expected: ["plain", "nothing: no endpoint is ready"],
        },
        Case {
            name: "node-port",
            spec: json!({"type": "NodePort"}),
            has_pod: true,
            expected: [
                "plain",
                "fail until DNS forgets the old address; a seamless move would interrupt its node ports for seconds",
            ],
        },
        Case {
            name: "external",
            spec: json!({"externalIPs": ["192.0.2.1"]}),
            has_pod: true,
            expected: [
                "plain",
                "fail until DNS forgets the old address; a seamless move would interrupt its external addresses for seconds",
            ],
        },
    ];
    for Case { name, spec, has_pod, .. } in &cases {
        match has_pod {
            true => stage.service(name, spec.clone()).await,
            false => create(&stage, name, spec.clone()).await,
        };
    }
    let shown = stage.run(&["--seamless", "--dry-run"]).await;
    assert_eq!(shown.status, 0, "{}", shown.stderr);
    assert!(shown.stdout.lines().next().is_some_and(|head| head.contains("METHOD")), "{}", shown.stdout);
    for Case { name, expected: [method, notice], .. } in cases {
        let row = shown.stdout.lines().position(|line| line.split_whitespace().nth(1) == Some(name));
        let row = row.unwrap_or_else(|| panic!("no {name}: {}", shown.stdout));
        let lines: Vec<&str> = shown.stdout.lines().skip(row).take(2).collect();
        assert!(lines[0].split_whitespace().any(|word| word == method), "{name}: {lines:?}");
        assert!(lines.iter().any(|line| line.contains(notice)), "{name}: {lines:?}");
    }
    assert_eq!(stage.left().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_without_room_is_reported_before_anything_changes() {
    let stage = Stage::new("quota").await;
    let before = stage.service("web", json!({})).await;
    let quotas = format!("/api/v1/namespaces/{}/resourcequotas", stage.namespace);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "services"},
        "spec": {"hard": {"services": "2"}}});
    send(&stage.client, Method::POST, &quotas, Some(&quota)).await.unwrap();
    eventually("the quota to be counted", async || {
        let quota = send(&stage.client, Method::GET, &format!("{quotas}/services"), None).await?;
        (quota["status"]["used"]["services"] == "1").then_some(())
    })
    .await;
    let proxy = Proxy::start(&stage.plane).await;
    let ended = stage.wait_for(stage.command_through(&proxy, &SEAMLESS)).await;
    let output = format!("{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.status, 1, "{output}");
    assert!(output.contains("ResourceQuota services"), "{output}");
    let is_write = stage.is_write();
    let writes: Vec<Seen> = proxy.writes().into_iter().filter(|seen| is_write(seen) && !seen.is_dry_run()).collect();
    assert!(writes.is_empty(), "{writes:?}");
    assert_eq!(stage.stored("web").await, before);
}

/// Refuses Services without the label `team` in this namespace.
fn requires_team(namespace: &str) -> [Value; 2] {
    let name = format!("team-{namespace}");
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["services"]}],
            },
            "validations": [{"expression": "has(object.metadata.labels) && 'team' in object.metadata.labels",
                "message": "a Service needs the label team"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    [policy, binding]
}

/// Temporary Services do not have the labels of the Service, which other programs may select.
#[tokio::test(flavor = "multi_thread")]
async fn policy_that_requires_a_label_is_reported_before_anything_changes() {
    let stage = Stage::new("labels").await;
    stage.service("web", json!({})).await;
    let labels = json!({"metadata": {"labels": {"team": "blue"}}});
    send(&stage.client, Method::PATCH, &path(&stage.namespace, "web"), Some(&labels)).await.unwrap();
    let before = stage.stored("web").await;
    for (object, plural) in requires_team(&stage.namespace).iter().zip(["policies", "policybindings"]) {
        let path = format!("/apis/admissionregistration.k8s.io/v1/validatingadmission{plural}");
        send(&stage.client, Method::POST, &path, Some(object)).await.unwrap();
    }
    let probes = format!("/api/v1/namespaces/{}/services?dryRun=All", stage.namespace);
    let probe = json!({"metadata": {"name": "probe"}, "spec": {"ports": [{"port": 80}]}});
    eventually("the policy to be in force", async || {
        let refused =
            stage.client.request::<Value>(move_helpers::request(Method::POST, &probes, &probe)).await.err()?;
        refused.to_string().contains("a Service needs the label team").then_some(())
    })
    .await;
    let proxy = Proxy::start(&stage.plane).await;
    let ended = stage.wait_for(stage.command_through(&proxy, &SEAMLESS)).await;
    assert_eq!(ended.status, 1, "{}{}", ended.stdout, ended.stderr);
    for expected in ["a Service needs the label team", "exempt Services with this label"] {
        assert!(ended.stderr.contains(expected), "no {expected}: {}", ended.stderr);
    }
    let is_write = stage.is_write();
    let writes: Vec<Seen> = proxy.writes().into_iter().filter(|seen| is_write(seen) && !seen.is_dry_run()).collect();
    assert!(writes.is_empty(), "{writes:?}");
    assert_eq!(stage.stored("web").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permissions_are_reported_at_once() {
    let stage = Stage::new("seamless-rights").await;
    stage.plane.kubectl(&["create", "serviceaccount", "mover", "--namespace", &stage.namespace]).await.ok();
    let kubeconfig = stage.plane.kubeconfig_of(&stage.namespace, "mover").await;
    let ended = eventually("an answer of the API server", async || {
        let ended = stage.wait_for(stage.command_as(&kubeconfig, &SEAMLESS)).await;
        // Tokens of new accounts may not be known at once.
        (!ended.stderr.contains("Unauthorized")).then_some(ended)
    })
    .await;
    assert_eq!((ended.status, ended.stdout.as_str()), (2, ""), "{}", ended.stderr);
    for expected in [
        r#"- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch", "get", "update", "create", "delete"]}"#,
        r#"- {apiGroups: [""], resources: ["resourcequotas"], verbs: ["list"]}"#,
    ] {
        assert!(ended.stderr.lines().any(|line| line == expected), "no {expected}: {}", ended.stderr);
    }
}

/// A command that waits at this request, and the request.
async fn waits_at(
    stage: &Stage,
    proxy: &Proxy,
    matches: fn(&Seen) -> bool,
) -> (Gate, Seen, tokio::task::JoinHandle<std::io::Result<std::process::Output>>) {
    let gate = proxy.on(matches, Fault::PauseBefore);
    let child = stage.command_through(proxy, &SEAMLESS).spawn().unwrap();
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output());
    gate.arrived().await;
    let seen = proxy.writes().into_iter().rfind(matches).expect("the request that waits");
    (gate, seen, ended)
}

fn creates_new(seen: &Seen) -> bool {
    seen.method == Method::POST
        && !seen.is_dry_run()
        && seen.body["metadata"]["labels"]["clusterip-policy/temporary"] == "new"
}

/// The write that gives `web` its new address.
fn assigns(seen: &Seen) -> bool {
    seen.method == Method::PUT
        && !seen.is_dry_run()
        && seen.path.ends_with("/services/web")
        && seen.body["spec"]["type"] == "ClusterIP"
}

/// The write that gives `old` the old address.
fn takes_old(seen: &Seen) -> bool {
    seen.method == Method::PUT
        && !seen.is_dry_run()
        && seen.path.contains("/services/clusterip-old-")
        && seen.body["spec"]["type"] == "ClusterIP"
}

#[tokio::test(flavor = "multi_thread")]
async fn service_of_a_user_with_the_name_of_a_temporary_service_is_not_touched() {
    let stage = Stage::new("foreign").await;
    let before = stage.service("web", json!({})).await;
    let proxy = Proxy::start(&stage.plane).await;
    let (gate, seen, ended) = waits_at(&stage, &proxy, creates_new).await;
    let name = seen.body["metadata"]["name"].as_str().unwrap();
    let foreign = create(&stage, name, json!({"ports": [{"port": 80}], "selector": {"app": "other"}})).await;
    gate.release();
    let ended = ended.await.unwrap().unwrap();
    let output = format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert_eq!(ended.status.code(), Some(1), "{output}");
    assert!(output.contains(name), "{output}");
    assert_eq!(stage.stored(name).await, foreign);
    let after = stage.stored("web").await;
    assert_eq!((addresses(&after), but_addresses(&after)), (addresses(&before), but_addresses(&before)));
    assert_eq!(stage.left().await, [""; 0]);
}

/// Runs commands until nothing is left of the move of `web`, and returns `web`.
async fn ends(stage: &Stage, ended: tokio::task::JoinHandle<std::io::Result<std::process::Output>>) -> Value {
    ended.await.unwrap().unwrap();
    eventually("the end of the move", async || {
        if !stage.left().await.is_empty() {
            stage.run(&SEAMLESS).await;
        }
        stage.left().await.is_empty().then_some(())
    })
    .await;
    stage.stored("web").await
}

#[tokio::test(flavor = "multi_thread")]
async fn address_that_another_service_takes_meanwhile_stays_with_that_service() {
    struct Case {
        name: &'static str,
        waits: fn(&Seen) -> bool,
    }
    let cases = [
        Case { name: "taken-before-the-move", waits: creates_new },
        Case { name: "taken-between-the-swaps", waits: assigns },
    ];
    for Case { name, waits } in cases {
        let stage = Stage::new(name).await;
        let before = stage.service("web", json!({})).await;
        let proxy = Proxy::start(&stage.plane).await;
        let (gate, seen, ended) = waits_at(&stage, &proxy, waits).await;
        let taken = seen.body["spec"]["clusterIP"].clone();
        let other = create(&stage, "other", json!({"clusterIP": taken, "ports": [{"port": 80}]})).await;
        gate.release();
        let after = ends(&stage, ended).await;
        let now = addresses(&after);
        assert!(
            now == addresses(&before) || now.iter().all(|address| stage.is_in_pool(address)) && !now.is_empty(),
            "{name}: {after}"
        );
        assert_ne!(now, addresses(&other), "{name}");
        assert_eq!(but_addresses(&after), but_addresses(&before), "{name}");
        assert_eq!(stage.stored("other").await, other, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_address_that_another_service_takes_meanwhile_does_not_stop_the_move() {
    let stage = Stage::new("taken-old").await;
    let before = stage.service("web", json!({})).await;
    let proxy = Proxy::start(&stage.plane).await;
    let (gate, seen, ended) = waits_at(&stage, &proxy, takes_old).await;
    let taken = seen.body["spec"]["clusterIP"].clone();
    let other = create(&stage, "other", json!({"clusterIP": taken, "ports": [{"port": 80}]})).await;
    gate.release();
    let after = ends(&stage, ended).await;
    assert!(addresses(&after).iter().all(|address| stage.is_in_pool(address)), "{after}");
    assert_eq!(but_addresses(&after), but_addresses(&before));
    assert_eq!(stage.stored("other").await, other);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_users_during_the_move_are_kept() {
    let stage = Stage::new("changed").await;
    stage.service("web", json!({})).await;
    let proxy = Proxy::start(&stage.plane).await;
    let (gate, _, ended) = waits_at(&stage, &proxy, takes_old).await;
    let change =
        json!({"metadata": {"labels": {"team": "blue"}}, "spec": {"selector": {"app": "web", "track": "stable"}}});
    send(&stage.client, Method::PATCH, &path(&stage.namespace, "web"), Some(&change)).await.unwrap();
    gate.release();
    let after = ends(&stage, ended).await;
    assert!(addresses(&after).iter().all(|address| stage.is_in_pool(address)), "{after}");
    assert_eq!(after["spec"]["selector"], json!({"app": "web", "track": "stable"}));
    assert_eq!(after["metadata"]["labels"], json!({"team": "blue"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn service_that_is_deleted_during_the_move_leaves_no_temporary_service() {
    let stage = Stage::new("deleted").await;
    stage.service("web", json!({})).await;
    let proxy = Proxy::start(&stage.plane).await;
    let (gate, _, ended) = waits_at(&stage, &proxy, takes_old).await;
    send(&stage.client, Method::DELETE, &path(&stage.namespace, "web"), None).await.unwrap();
    gate.release();
    ended.await.unwrap().unwrap();
    eventually("the end of the move", async || stage.left().await.is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizer_of_a_temporary_service_does_not_keep_the_command_running() {
    let stage = Stage::new("finalizer").await;
    let before = stage.service("web", json!({})).await;
    let proxy = Proxy::start(&stage.plane).await;
    let (gate, seen, ended) = waits_at(&stage, &proxy, takes_old).await;
    let name = seen.body["metadata"]["name"].as_str().unwrap();
    let finalizers = async |finalizers: Value| {
        let change = json!({"metadata": {"finalizers": finalizers}});
        send(&stage.client, Method::PATCH, &path(&stage.namespace, name), Some(&change)).await.unwrap();
    };
    finalizers(json!(["example.com/keep"])).await;
    gate.release();
    let ended = ended.await.unwrap().unwrap();
    let output = format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert_eq!(ended.status.code(), Some(1), "{output}");
    assert!(output.contains("remove the finalizer"), "{output}");
    finalizers(Value::Null).await;
    let after = stage.stored("web").await;
    assert!(addresses(&after).iter().all(|address| stage.is_in_pool(address)), "{after}");
    assert_eq!(but_addresses(&after), but_addresses(&before));
}

/// The API server stores managed fields that are nested so deep that most readers of JSON refuse them.
#[tokio::test(flavor = "multi_thread")]
async fn service_that_its_author_makes_hard_to_read_during_its_move_keeps_no_temporary_service() {
    type Matches = fn(&Seen) -> bool;
    let cases =
        [("deep-new", creates_new as Matches, false), ("deep-old", takes_old, true), ("deep-end", assigns, true)];
    let ends = cases.map(async |(name, matches, moves)| {
        let stage = Stage::new(name).await;
        stage.service("web", json!({})).await;
        let proxy = Proxy::start(&stage.plane).await;
        let (gate, _, ended) = waits_at(&stage, &proxy, matches).await;
        let body = with_managed_fields(&stage.stored("web").await, &deep_fields());
        let request = Request::put(path(&stage.namespace, "web")).header("content-type", "application/json");
        let answer = stage.client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200, "{name}");
        gate.release();
        let ended = ended.await.unwrap().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(stage.left().await, [""; 0], "{name}: {errors}");
        // The API server deletes the IPAddress of an address after the update that gives the address up.
        let (address, service) = eventually("one address", async || {
            <[_; 1]>::try_from(allocated(&stage.client, &stage.namespace).await).ok().map(|[only]| only)
        })
        .await;
        assert_eq!((service.as_str(), stage.is_in_pool(&address)), ("web", moves), "{name}: {address} {errors}");
    });
    futures::future::join_all(ends).await;
}
