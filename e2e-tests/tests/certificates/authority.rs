//! The certificate authority in its Secret, and the certificates that it signs.

use clusterip::webhook::authority::SECRET;
use clusterip::webhook::issuer;
use futures::future::join_all;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;

use super::support::{Hands, Task, bundle, days, open, some_day, soon};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;

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
    let plane = ControlPlane::shared().await;
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
    let plane = ControlPlane::shared().await;
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
    let plane = ControlPlane::shared().await;
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
    let plane = ControlPlane::shared().await;
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
            row("old ", "old ", "ca.crt ca.key"), // a second before the next authority is due
            row("old new ", "old ", waiting),     // the next authority is created
            row("old new ", "old ", waiting),     // registered for an hour, which is too short
            row("old new ", "old ", waiting),     // two days later, not registered any more
            row("old new ", "new ", done),        // registered long enough: it signs
            row("old new ", "new ", done),        // the predecessor is still valid
            row("new ", "new ", done),            // the predecessor has expired
        ]
    );
    // A process that starts now uses the same Secret.
    let another = open(&client, &namespace, &hands).await.unwrap();
    assert_eq!((bundle(&another), &another.leaf().issued_by), (new.clone(), &new));
}

#[tokio::test]
async fn expired_authority_is_replaced_at_once() {
    let plane = ControlPlane::shared().await;
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
    let plane = ControlPlane::shared().await;
    let (client, namespace) = (plane.client(), plane.namespace("authority-gone").await);
    let mut authority = open(&client, &namespace, &Hands::at(some_day())).await.unwrap();
    let before = kept(&client, &namespace).await;
    Api::<Secret>::namespaced(client.clone(), &namespace).delete(SECRET, &<_>::default()).await.unwrap();
    authority.step("").await.unwrap();
    assert_eq!(kept(&client, &namespace).await.data, before.data);
}

#[tokio::test]
async fn broken_secret_is_reported_and_left_alone() {
    let plane = ControlPlane::shared().await;
    let client = plane.client();
    let [one, other] = [(), ()].map(|()| issuer::CaCertificate::generate(some_day()).unwrap());
    let leaf = one.issue(&["a".to_owned()], some_day()).unwrap();
    let (crt, key) = (&*one.certificate, &*one.key);
    let two = format!("{crt}{}", other.certificate);
    /// A name, the keys and values of the Secret, and the reason.
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);
    let rows: [Row<'_>; 8] = [
        ("empty", &[], "ca.crt: is missing"),
        ("no-key", &[("ca.crt", crt)], "ca.key: is missing"),
        ("no-certificate", &[("ca.key", key)], "ca.crt: is missing"),
        ("text", &[("ca.crt", "x"), ("ca.key", key)], "ca.crt: not a certificate: no items found"),
        ("two", &[("ca.crt", &two), ("ca.key", key)], "ca.crt: 2 certificates, expected one"),
        (
            "others-key",
            &[("ca.crt", crt), ("ca.key", &other.key)],
            "ca.crt: the key does not belong to the certificate",
        ),
        (
            "leaf",
            &[("ca.crt", &leaf.certificate), ("ca.key", &leaf.key)],
            "ca.crt: the certificate is not that of an authority",
        ),
        ("half-next", &[("ca.crt", crt), ("ca.key", key), ("next.key", key)], "next.crt: is missing"),
    ];
    for (name, data, reason) in rows {
        let namespace = plane.namespace(&format!("authority-{name}")).await;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
        let data = data.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        let mut secret = Secret { string_data: Some(data), ..<_>::default() };
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
