//! The certificate authority in its Secret, and its registration in the webhook configuration.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip::policy::response::AdmissionResponse;
use clusterip::webhook::authority::{Authority, AuthorityError, Clock, SECRET, service_names};
use clusterip::webhook::issuer;
use clusterip::webhook::registration::{Registration, RegistrationError};
use clusterip::webhook::review::Reviewer;
use clusterip::webhook::server::{Backend, Limits, Server};
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;

/// A clock that the test sets.
#[derive(Clone)]
struct Hands(Arc<AtomicI64>);

impl Hands {
    fn at(time: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(time.as_second())))
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.load(Ordering::Acquire)).unwrap()
    }

    fn pass(&self, time: SignedDuration) {
        self.0.fetch_add(time.as_secs(), Ordering::AcqRel);
    }

    fn clock(&self) -> Clock {
        let hands = self.clone();
        Arc::new(move || hands.now())
    }
}

fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

fn some_day() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

async fn open(client: &Client, namespace: &str, hands: &Hands) -> Result<Authority, AuthorityError> {
    Authority::open(client.clone(), namespace, service_names("clusterip", namespace), hands.clock()).await
}

fn bundle(authority: &Authority) -> String {
    authority.bundle().borrow().clone()
}

async fn kept(client: &Client, namespace: &str) -> Secret {
    Api::namespaced(client.clone(), namespace).get(SECRET).await.unwrap()
}

fn text(secret: &Secret, key: &str) -> String {
    String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap()
}

fn keys(secret: &Secret) -> Vec<String> {
    secret.data.as_ref().unwrap().keys().cloned().collect()
}

#[tokio::test]
async fn servers_that_start_together_share_one_authority() {
    let plane = ControlPlane::shared();
    let (client, namespace) = (plane.client(), plane.namespace("authority-race").await);
    let hands = Hands::at(some_day());
    let mut all: Vec<_> =
        join_all((0..8).map(|_| open(&client, &namespace, &hands))).await.into_iter().map(Result::unwrap).collect();
    let secret = kept(&client, &namespace).await;
    assert_eq!(keys(&secret), ["ca.crt", "ca.key"]);
    for authority in &all {
        assert_eq!(bundle(authority), text(&secret, "ca.crt"));
        assert_eq!(authority.leaf().issued_by, text(&secret, "ca.crt"));
    }

    // All of them create one next authority, and know it after one more step.
    hands.pass(days(9 * 365 + 1));
    join_all(all.iter_mut().map(|authority| authority.step(""))).await.into_iter().for_each(Result::unwrap);
    let secret = kept(&client, &namespace).await;
    assert_eq!(keys(&secret), ["ca.crt", "ca.key", "next.crt", "next.key"]);
    for authority in &all {
        assert_eq!(bundle(authority), text(&secret, "ca.crt") + &text(&secret, "next.crt"));
    }
}

#[tokio::test]
async fn certificate_is_renewed_at_two_thirds_of_its_life_by_the_same_authority() {
    let plane = ControlPlane::shared();
    let (client, namespace) = (plane.client(), plane.namespace("authority-renewal").await);
    let hands = Hands::at(some_day());
    let mut authority = open(&client, &namespace, &hands).await.unwrap();
    let (trusted, secret) = (bundle(&authority), kept(&client, &namespace).await);
    let first = authority.leaf().clone();
    assert_eq!(first.renewal, some_day() + days(60));

    hands.pass(days(60) - SignedDuration::from_secs(1));
    authority.step(&trusted).await.unwrap();
    assert_eq!(authority.leaf().certificate, first.certificate);

    hands.pass(SignedDuration::from_secs(1));
    authority.step(&trusted).await.unwrap();
    assert_ne!(authority.leaf().certificate, first.certificate);
    assert_eq!(authority.leaf().renewal, some_day() + days(120));
    assert_eq!(bundle(&authority), trusted);
    assert_eq!(kept(&client, &namespace).await, secret);
}

#[tokio::test]
async fn certificate_is_renewed_while_the_server_runs() {
    let plane = ControlPlane::shared();
    let (client, namespace) = (plane.client(), plane.namespace("authority-runs").await);
    let hands = Hands::at(some_day());
    let authority = open(&client, &namespace, &hands).await.unwrap();
    let certificate = authority.certificate();
    let (sender, registered) = watch::channel(String::new());
    let task = Task::start(|stopped| authority.run(registered, stopped.wait()));
    let later = some_day() + days(91);
    assert_eq!(certificate.problem(later).unwrap(), "the certificate expired at 2026-04-01T00:00:00Z");
    hands.pass(days(61));
    // A change of the registration triggers a check of the certificate.
    sender.send("another".to_owned()).unwrap();
    soon(eventually("another certificate", async || certificate.problem(later).is_none().then_some(()))).await;
    task.stop().await;
}

#[tokio::test]
async fn next_authority_is_trusted_before_it_signs() {
    let plane = ControlPlane::shared();
    let (client, namespace) = (plane.client(), plane.namespace("authority-succession").await);
    let hands = Hands::at(some_day());
    let mut authority = open(&client, &namespace, &hands).await.unwrap();
    let old = bundle(&authority);
    // Each step: the time that passes, and what the API server trusts. Recorded: the trusted bundle, the authority that
    // signed the certificate, and the keys of the Secret.
    let mut seen = Vec::new();
    let mut step = async |passes: SignedDuration, registered: &str| {
        hands.pass(passes);
        authority.step(registered).await.unwrap();
        let known = bundle(&authority);
        let secret = kept(&client, &namespace).await;
        seen.push((known.clone(), authority.leaf().issued_by.clone(), keys(&secret)));
        (known, text(&secret, "ca.crt"))
    };
    step(days(9 * 365) - SignedDuration::from_secs(1), &old).await;
    let (both, _) = step(SignedDuration::from_secs(1), &old).await;
    step(SignedDuration::from_hours(1), &both).await;
    step(days(2), &old).await;
    let (_, new) = step(SignedDuration::from_secs(60), &both).await;
    step(days(362), &both).await;
    step(days(1), &both).await;
    assert_eq!(both, format!("{old}{new}"));
    let called = |pem: &str| pem.replace(&old, "old ").replace(&new, "new ");
    let seen: Vec<_> =
        seen.iter().map(|(trusted, signer, keys)| (called(trusted), called(signer), keys.join(" "))).collect();
    let row = |trusted: &str, signer: &str, keys: &str| (trusted.to_owned(), signer.to_owned(), keys.to_owned());
    let (waiting, done) = ("ca.crt ca.key next.crt next.key", "ca.crt ca.key previous.crt");
    assert_eq!(
        seen,
        [
            row("old ", "old ", "ca.crt ca.key"), // a moment before its time
            row("old new ", "old ", waiting),     // made
            row("old new ", "old ", waiting),     // registered, and not for long
            row("old new ", "old ", waiting),     // for long, and not registered
            row("old new ", "new ", done),        // signs
            row("old new ", "new ", done),        // the predecessor still holds
            row("new ", "new ", done),            // and has ended
        ]
    );
    // A process that starts now uses the same Secret.
    let another = open(&client, &namespace, &hands).await.unwrap();
    assert_eq!((bundle(&another), &another.leaf().issued_by), (new.clone(), &new));
}

#[tokio::test]
async fn expired_authority_is_replaced_at_once() {
    let plane = ControlPlane::shared();
    let (client, namespace) = (plane.client(), plane.namespace("authority-ended").await);
    let hands = Hands::at(some_day());
    let old = bundle(&open(&client, &namespace, &hands).await.unwrap());
    hands.pass(days(11 * 365));
    let authority = open(&client, &namespace, &hands).await.unwrap();
    let secret = kept(&client, &namespace).await;
    assert_ne!(bundle(&authority), old);
    assert_eq!((keys(&secret), text(&secret, "ca.crt")), (vec!["ca.crt".into(), "ca.key".into()], bundle(&authority)));
}

#[tokio::test]
async fn deleted_secret_is_recreated() {
    let plane = ControlPlane::shared();
    let (client, namespace) = (plane.client(), plane.namespace("authority-gone").await);
    let mut authority = open(&client, &namespace, &Hands::at(some_day())).await.unwrap();
    let before = kept(&client, &namespace).await;
    Api::<Secret>::namespaced(client.clone(), &namespace).delete(SECRET, &<_>::default()).await.unwrap();
    authority.step("").await.unwrap();
    assert_eq!(kept(&client, &namespace).await.data, before.data);
}

#[tokio::test]
async fn broken_secret_is_reported_and_left_alone() {
    let plane = ControlPlane::shared();
    let client = plane.client();
    let [one, other] = [(), ()].map(|()| issuer::Authority::generate(some_day()).unwrap());
    let leaf = one.issue(&["a".to_owned()], some_day()).unwrap();
    let (crt, key) = (one.certificate(), one.key().pem());
    let two = format!("{crt}{}", other.certificate());
    type Data<'a> = &'a [(&'a str, &'a str)];
    struct Case<'a> {
        name: &'static str,
        /// The keys and values of the Secret.
        data: Data<'a>,
        reason: &'static str,
    }
    let cases = [
        Case { name: "empty", data: &[], reason: "ca.crt: is missing" },
        Case { name: "no-key", data: &[("ca.crt", crt)], reason: "ca.key: is missing" },
        Case { name: "no-certificate", data: &[("ca.key", key)], reason: "ca.crt: is missing" },
        Case {
            name: "text",
            data: &[("ca.crt", "x"), ("ca.key", key)],
            reason: "ca.crt: not a certificate: no items found",
        },
        Case {
            name: "two",
            data: &[("ca.crt", &two), ("ca.key", key)],
            reason: "ca.crt: 2 certificates, expected one",
        },
        Case {
            name: "others-key",
            data: &[("ca.crt", crt), ("ca.key", other.key().pem())],
            reason: "ca.crt: the key does not belong to the certificate",
        },
        Case {
            name: "leaf",
            data: &[("ca.crt", &leaf.certificate), ("ca.key", leaf.key.pem())],
            reason: "ca.crt: the certificate is not that of an authority",
        },
        Case {
            name: "half-next",
            data: &[("ca.crt", crt), ("ca.key", key), ("next.key", key)],
            reason: "next.crt: is missing",
        },
    ];
    for Case { name, data, reason } in cases {
        let namespace = plane.namespace(&format!("authority-{name}")).await;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
        let secret = Secret {
            string_data: Some(data.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect()),
            ..<_>::default()
        };
        let mut secret = secret;
        secret.metadata.name = Some(SECRET.to_owned());
        let before = secrets.create(&PostParams::default(), &secret).await.unwrap();
        let error = open(&client, &namespace, &Hands::at(some_day())).await.err().expect(name);
        let expected = format!(
            "Secret {namespace}/clusterip-authority is broken: {reason}; repair it, or delete it and restart, and a \
             new authority is made"
        );
        assert_eq!(error.to_string(), expected, "{name}");
        assert_eq!(secrets.get(SECRET).await.unwrap(), before, "{name}");
    }
}

/// A task that can be stopped.
struct Task<T> {
    stop: oneshot::Sender<()>,
    done: JoinHandle<T>,
}

impl<T: Send + 'static> Task<T> {
    fn start<F: Future<Output = T> + Send + 'static>(run: impl FnOnce(Stopped) -> F) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, done: tokio::spawn(run(Stopped(stopped))) }
    }

    async fn stop(self) -> T {
        let _ = self.stop.send(());
        self.done.await.unwrap()
    }
}

struct Stopped(oneshot::Receiver<()>);

impl Stopped {
    async fn wait(self) {
        let _ = self.0.await;
    }
}

/// A webhook configuration that is never called, because no object has this label.
fn configuration(name: &str) -> Value {
    let webhook = |name: &str, bundle: Option<&str>| {
        let mut client = json!({"service": {"namespace": "x", "name": "x", "path": "/mutate", "port": 443}});
        if let Some(bundle) = bundle {
            client["caBundle"] = STANDARD.encode(bundle).into();
        }
        json!({
            "name": name,
            "admissionReviewVersions": ["v1"],
            "clientConfig": client,
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}],
            "objectSelector": {"matchLabels": {"certificates-test": "never"}},
            "sideEffects": "None",
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name, "labels": {"of": "a-test"}},
        "webhooks": [webhook("one.example.com", None), webhook("two.example.com", Some(&authority_pem()))],
    })
}

fn authority_pem() -> String {
    issuer::Authority::generate(some_day()).unwrap().certificate().to_owned()
}

fn configurations(client: &Client) -> Api<MutatingWebhookConfiguration> {
    Api::all(client.clone())
}

fn bundles(configuration: &MutatingWebhookConfiguration) -> Vec<String> {
    let webhooks = configuration.webhooks.iter().flatten();
    let bundles = webhooks.map(|webhook| webhook.client_config.ca_bundle.clone().unwrap_or_default().0);
    bundles.map(|bundle| String::from_utf8(bundle).unwrap()).collect()
}

/// Fails after a time that is shorter than the interval of periodic checks, so that only a watch can be in time.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.expect("waited for the watch in vain")
}

#[tokio::test]
async fn registration_changes_only_the_ca_bundle_of_each_webhook() {
    let plane = ControlPlane::shared();
    let client = plane.client();
    let configurations = configurations(&client);
    let name = "registration-keeps";
    let (sender, trusted) = watch::channel(authority_pem());
    let mut by_hand = Registration::in_cluster(client.clone(), name, trusted.clone());
    assert_eq!(
        by_hand.keep().await.unwrap_err().to_string(),
        "MutatingWebhookConfiguration registration-keeps does not exist: apply deploy/webhook, or use --register-url"
    );
    let registration = Registration::in_cluster(client.clone(), name, trusted.clone());
    let mut registered = registration.registered();
    let task = Task::start(|stopped| registration.run(stopped.wait()));
    // The configuration is applied after the start.
    plane.apply(&configuration(name).to_string()).await;
    let first = trusted.borrow().clone();
    soon(registered.wait_for(|seen| *seen == first)).await.unwrap();
    let now = configurations.get(name).await.unwrap();
    assert_eq!(bundles(&now), [first.clone(), first.clone()]);
    let mut without = serde_json::to_value(&now).unwrap();
    let mut expected = configuration(name);
    for side in [&mut without, &mut expected] {
        for webhook in side["webhooks"].as_array_mut().unwrap() {
            webhook["clientConfig"].as_object_mut().unwrap().remove("caBundle");
        }
    }
    for (field, value) in expected["webhooks"][1].as_object().unwrap() {
        if field != "rules" {
            assert_eq!(without["webhooks"][1][field], *value);
        }
    }
    assert_eq!(without["metadata"]["labels"], expected["metadata"]["labels"]);
    // Without a change, nothing is written.
    by_hand.keep().await.unwrap();
    assert_eq!(configurations.get(name).await.unwrap().resource_version(), now.resource_version());

    // An administrator replaces the configuration.
    plane.kubectl_with(&["replace", "-f", "-"], &configuration(name).to_string()).await.ok();
    let restored = async || (bundles(&configurations.get(name).await.unwrap()) == [&*first, &*first]).then_some(());
    soon(eventually("the bundle to come back", restored)).await;

    // The trusted bundle changes.
    let second = first.clone() + &authority_pem();
    sender.send(second.clone()).unwrap();
    soon(registered.wait_for(|seen| *seen == second)).await.unwrap();
    assert_eq!(bundles(&configurations.get(name).await.unwrap()), [second.clone(), second]);

    // The configuration is deleted, and not created again.
    configurations.delete(name, &<_>::default()).await.unwrap();
    soon(registered.wait_for(String::is_empty)).await.unwrap();
    task.stop().await.unwrap();
    assert!(configurations.get_opt(name).await.unwrap().is_none());
}

#[tokio::test]
async fn registration_survives_concurrent_writes_of_others() {
    let plane = ControlPlane::shared();
    let client = plane.client();
    let configurations = configurations(&client);
    let name = "registration-conflicts";
    plane.apply(&configuration(name).to_string()).await;
    let (sender, trusted) = watch::channel(authority_pem());
    let registration = Registration::in_cluster(client.clone(), name, trusted);
    let mut registered = registration.registered();
    let task = Task::start(|stopped| registration.run(stopped.wait()));
    let others = async {
        for round in 0..200 {
            let patch = json!({"metadata": {"annotations": {format!("round-{round}"): "x"}}});
            configurations.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        }
    };
    let ours = async {
        for _ in 0..3 {
            let next = authority_pem();
            sender.send(next.clone()).unwrap();
            registered.wait_for(|seen| *seen == next).await.unwrap();
        }
    };
    soon(futures::future::join(others, ours)).await;
    let now = configurations.get(name).await.unwrap();
    assert_eq!(bundles(&now), vec![sender.borrow().clone(); 2]);
    assert_eq!(now.annotations().keys().filter(|key| key.starts_with("round-")).count(), 200);
    task.stop().await.unwrap();
    configurations.delete(name, &<_>::default()).await.unwrap();
}

#[tokio::test]
async fn service_account_of_the_deployment_may_renew_and_register() {
    let plane = ControlPlane::start(Options::default());
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/webhook");
    plane.kubectl(&["apply", "-k", folder]).await.ok();
    let own = "clusterip-policy";
    let client = plane.client_with(&plane.token(own, "clusterip").await);
    let hands = Hands::at(some_day());
    let mut authority = open(&client, own, &hands).await.unwrap();
    let registration = Registration::in_cluster(client.clone(), own, authority.bundle());
    let mut registered = registration.registered();
    let task = Task::start(|stopped| registration.run(stopped.wait()));
    let first = bundle(&authority);
    soon(registered.wait_for(|seen| *seen == first)).await.unwrap();
    // Applying the manifests again changes nothing.
    plane.kubectl(&["apply", "-k", folder]).await.ok();
    assert_eq!(bundles(&configurations(&client).get(own).await.unwrap()), [&*first]);
    plane.kubectl(&["replace", "-f", &format!("{folder}/webhook-configuration.yaml")]).await.ok();
    let restored = async || (bundles(&configurations(&client).get(own).await.unwrap()) == [&*first]).then_some(());
    soon(eventually("the bundle to come back", restored)).await;
    // The next authority is written into the Secret and the configuration.
    hands.pass(days(9 * 365 + 1));
    authority.step(&first).await.unwrap();
    let both = bundle(&authority);
    soon(registered.wait_for(|seen| *seen == both)).await.unwrap();
    task.stop().await.unwrap();
    // The certificate is renewed even if the API server is unavailable.
    let leaf = authority.leaf().certificate.clone();
    plane.stop_api_server();
    hands.pass(days(61));
    let error = authority.step(&both).await.unwrap_err();
    assert!(error.to_string().starts_with("Secret clusterip-policy/clusterip-authority can't be read: "), "{error}");
    assert_ne!(authority.leaf().certificate, leaf);
    assert_eq!(bundle(&authority), both);
}

/// A reviewer that gives this address to every Service that needs one.
struct OneAddress(Ipv4Addr);

impl Reviewer for OneAddress {
    fn review(&self, request: &Value) -> AdmissionResponse {
        let patch = match request["object"]["spec"]["type"].as_str() {
            Some("ExternalName") => json!([]),
            _ => json!([{"op": "add", "path": "/spec/clusterIP", "value": self.0}]),
        };
        AdmissionResponse {
            uid: request["uid"].as_str().unwrap().to_owned(),
            allowed: true,
            patch_type: Some("JSONPatch".to_owned()),
            patch: Some(STANDARD.encode(patch.to_string())),
            status: None,
            audit_annotations: Some(BTreeMap::from([("pool".to_owned(), "linux".to_owned())])),
            warnings: None,
        }
    }
}

const ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 21, 9, 9);

/// Starts a server with [`OneAddress`] and a certificate of this authority.
async fn serve(authority: &Authority) -> (Task<()>, String) {
    let limits = Limits { linger: Duration::ZERO, drain: Duration::ZERO, ..Limits::default() };
    let server = Server::bind(([127, 0, 0, 1], 0).into(), limits).await.unwrap();
    let url = format!("https://{}", server.local_addr());
    let backend = Backend {
        reviewer: Arc::new(OneAddress(ADDRESS)),
        not_ready: Arc::new(Vec::new),
        metrics: Arc::new(String::new),
    };
    let certificate = authority.certificate();
    let task = Task::start(|stopped| async move { server.run(backend, &certificate, stopped.wait()).await.unwrap() });
    (task, url)
}

/// The address that a new Service would get.
async fn address(plane: &ControlPlane, namespace: &str) -> String {
    let args = ["create", "service", "clusterip", "web", "--tcp=80", "--dry-run=server", "--namespace", namespace];
    plane.kubectl(&[&args[..], &["-o", "jsonpath={.spec.clusterIP}"]].concat()).await.ok()
}

/// The address that the Service `moved` would get if its type changed back from `ExternalName`.
async fn address_back(plane: &ControlPlane, namespace: &str, annotations: Value) -> String {
    let patch = json!({
        "metadata": {"annotations": annotations},
        "spec": {"type": "ClusterIP", "externalName": null, "ports": [{"port": 80}]},
    });
    let args = ["patch", "service", "moved", "--type=merge", "--dry-run=server", "--namespace", namespace];
    let patch = patch.to_string();
    plane.kubectl(&[&args[..], &["-p", &patch, "-o", "jsonpath={.spec.clusterIP}"]].concat()).await.ok()
}

async fn called(plane: &ControlPlane, namespace: &str) {
    let ask = async || (address(plane, namespace).await == ADDRESS.to_string()).then_some(());
    eventually("the webhook to be called", ask).await;
}

#[tokio::test]
async fn server_outside_the_cluster_is_called_during_every_certificate_change() {
    let plane = ControlPlane::start(Options::default());
    let (client, namespace) = (plane.client(), plane.namespace("shop").await);
    // The last year of the authority began two days ago. The clock of the API server can't be set.
    let hands = Hands::at(Timestamp::now() - days(9 * 365 + 3));
    let names = vec!["127.0.0.1".to_owned()];
    let mut authority = Authority::open(client.clone(), &namespace, names, hands.clock()).await.unwrap();
    let (server, url) = serve(&authority).await;
    let registration = Registration::with_url(client.clone(), "clusterip-policy", &url, authority.bundle()).await;
    let registration = registration.unwrap();
    let mut registered = registration.registered();
    let task = Task::start(|stopped| registration.run(stopped.wait()));

    hands.pass(days(9 * 365 + 1));
    authority.step("").await.unwrap();
    let both = bundle(&authority);
    assert_eq!(both.matches("BEGIN CERTIFICATE").count(), 2);
    registered.wait_for(|seen| *seen == both).await.unwrap();
    called(&plane, &namespace).await;

    let old = authority.leaf().clone();
    hands.pass(days(2));
    authority.step(&both).await.unwrap();
    assert_ne!(authority.leaf().issued_by, old.issued_by);
    assert_eq!(bundle(&authority), both);
    assert_eq!(address(&plane, &namespace).await, ADDRESS.to_string());
    // After a restart the API server opens a new connection, to a server with a certificate of the new authority.
    plane.stop_api_server();
    plane.start_api_server();
    called(&plane, &namespace).await;
    // The webhook ignores the requests of the mover, which runs as this user and sets this annotation.
    let external = ["create", "service", "externalname", "moved", "--external-name=moving.invalid"];
    plane.kubectl(&[&external[..], &["--namespace", &namespace]].concat()).await.ok();
    assert_eq!(address_back(&plane, &namespace, json!({})).await, ADDRESS.to_string());
    let moving = json!({"clusterip-policy/moving": "{}"});
    assert_ne!(address_back(&plane, &namespace, moving).await, ADDRESS.to_string());
    // The same without a dry run.
    plane.kubectl(&["create", "service", "clusterip", "web", "--tcp=80", "--namespace", &namespace]).await.ok();
    let web = Api::<Service>::namespaced(client.clone(), &namespace).get("web").await.unwrap();
    assert_eq!(web.spec.unwrap().cluster_ip, Some(ADDRESS.to_string()));

    task.stop().await.unwrap();
    assert!(configurations(&client).get_opt("clusterip-policy").await.unwrap().is_none());
    server.stop().await;
}

#[tokio::test]
async fn registration_takes_over_only_configurations_of_register_url() {
    let plane = ControlPlane::start(Options::default());
    let client = plane.client();
    let configurations = configurations(&client);
    let (_sender, trusted) = watch::channel(authority_pem());
    let name = "clusterip-policy";
    let start = async |url: &str| {
        let registration = Registration::with_url(client.clone(), name, url, trusted.clone()).await.unwrap();
        let registered = registration.registered();
        (Task::start(|stopped| registration.run(stopped.wait())), registered)
    };
    let seen = async |mut registered: watch::Receiver<String>| {
        registered.wait_for(|seen| !seen.is_empty()).await.map(drop).unwrap();
    };

    // A process that is killed leaves its configuration, which the next process finds, with another port or the same.
    for url in ["https://127.0.0.1:1", "https://127.0.0.1:2", "https://127.0.0.1:2"] {
        let (killed, registered) = start(url).await;
        seen(registered).await;
        killed.done.abort();
        let _ = killed.done.await;
    }
    let (first, registered) = start("https://127.0.0.1:3").await;
    seen(registered).await;
    let now = configurations.get(name).await.unwrap();
    let webhook = &now.webhooks.as_ref().unwrap()[0];
    assert_eq!(webhook.client_config.url.as_deref(), Some("https://127.0.0.1:3/mutate"));
    assert_eq!(webhook.client_config.service, None);
    let selector = serde_json::to_value(&webhook.namespace_selector).unwrap();
    let expected = json!({"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]},
    ]});
    assert_eq!(selector, expected);
    let conditions = serde_json::to_string(&webhook.match_conditions).unwrap();
    assert!(!conditions.contains("system:serviceaccount"), "{conditions}");
    assert_eq!(now.labels().get("app.kubernetes.io/name").map(String::as_str), Some("clusterip"));

    // A configuration that is deleted by hand is created again.
    configurations.delete(name, &<_>::default()).await.unwrap();
    let again = async || {
        let found = configurations.get_opt(name).await.unwrap();
        found.filter(|found| found.uid() != now.uid())
    };
    soon(eventually("the configuration to come back", again)).await;

    // If two processes run, the later one owns the configuration, and the first neither writes nor deletes it any more.
    let (second, registered) = start("https://127.0.0.1:4").await;
    seen(registered).await;
    let error = soon(first.done).await.unwrap().unwrap_err();
    assert!(matches!(error, RegistrationError::TakenOver(..)), "{error}");
    assert_eq!(
        error.to_string(),
        "MutatingWebhookConfiguration clusterip-policy was taken over by another --register-url, for https://127.0.0.1:4"
    );
    let now = configurations.get(name).await.unwrap();
    assert_eq!(now.webhooks.unwrap()[0].client_config.url.as_deref(), Some("https://127.0.0.1:4/mutate"));
    second.stop().await.unwrap();
    assert!(configurations.get_opt(name).await.unwrap().is_none());

    // The configuration of a deployment is left alone.
    plane.apply(&configuration(name).to_string()).await;
    let before = configurations.get(name).await.unwrap();
    let (refused, _) = start("https://127.0.0.1:5").await;
    assert_eq!(
        soon(refused.done).await.unwrap().unwrap_err().to_string(),
        "MutatingWebhookConfiguration clusterip-policy already exists, and no earlier --register-url made it: delete \
         it, or the deployment that it belongs to, first"
    );
    assert_eq!(configurations.get(name).await.unwrap(), before);
}

#[tokio::test]
async fn invalid_register_url_is_refused() {
    let client = ControlPlane::shared().client();
    let (_sender, trusted) = watch::channel(String::new());
    for url in
        ["http://127.0.0.1:1", "127.0.0.1:1", "https://127.0.0.1:1/mutate", "https://a@127.0.0.1:1", "https://", ""]
    {
        let error = Registration::with_url(client.clone(), "x", url, trusted.clone()).await.err().expect(url);
        assert_eq!(error.to_string(), format!("--register-url {url}: it must be https://HOST:PORT, without a path"));
    }
}
