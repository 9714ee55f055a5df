//! The certificates of the replicas and their authority are renewed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::Method;
use clusterip::webhook::authority::SECRET;
use clusterip::webhook::issuer::{AUTHORITY_LIFE, CaCertificate};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::fault_cluster::FaultCluster;
use super::load::{ATTEMPT, REPLICAS, load};
use super::outcome::Row;
use super::pools::{WINDOWS, settings};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::move_helpers::send;
use crate::support::replicas::{Kind, Replicas};

/// A TLS handshake of a client that trusts these certificates.
async fn handshake(port: u16, trusted: &str) -> Result<(), String> {
    let roots = reqwest::Certificate::from_pem_bundle(trusted.as_bytes()).map_err(|error| error.to_string())?;
    let client = reqwest::Client::builder().tls_certs_only(roots).timeout(ATTEMPT).build().unwrap();
    let answered = client.get(format!("https://127.0.0.1:{port}/healthz")).send().await;
    answered.map(drop).map_err(|error| format!("{:?}", std::error::Error::source(&error)))
}

/// An authority that has been trusted long enough to sign in this many seconds.
fn successor(begin: Timestamp, seconds: i64) -> CaCertificate {
    CaCertificate::generate(begin - SignedDuration::from_hours(24) + SignedDuration::from_secs(seconds)).unwrap()
}

/// An authority that expires in this many seconds.
fn mortal(begin: Timestamp, seconds: i64) -> CaCertificate {
    CaCertificate::generate(begin - AUTHORITY_LIFE + SignedDuration::from_secs(seconds)).unwrap()
}

pub async fn certificates_are_renewed(plane: &ControlPlane, count: usize, full: bool) -> Row {
    // The certificate expires with its authority, and is renewed at two thirds of its life.
    let (end, signs) = if full { (90, 75) } else { (3600, 12) };
    let (namespace, begin) = (plane.namespace("server").await, Timestamp::now());
    let (old, new) = (mortal(begin, end), successor(begin, signs));
    let data = json!({"ca.crt": old.certificate, "ca.key": old.key,
        "next.crt": new.certificate, "next.key": new.key});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": data});
    let secrets = format!("/api/v1/namespaces/{namespace}/secrets");
    send(&plane.client(), Method::POST, &secrets, Some(&secret)).await.unwrap();
    let kinds = vec![Kind::usual(); REPLICAS];
    let cluster =
        FaultCluster::with(Replicas::start_in(plane, namespace, &settings(WINDOWS, ""), "Fail", kinds).await, count)
            .await;
    let (replicas, done) = (&cluster.replicas, AtomicBool::new(false));
    let left = (begin + SignedDuration::from_secs(signs + 2)).duration_since(Timestamp::now());
    let left = left.max(SignedDuration::from_secs(2));
    let loaded = async {
        let tally = load(&cluster.client, &cluster.namespace, &cluster.planned, left.unsigned_abs()).await;
        // A client that trusts only the new authority shows that all replicas have a certificate of it.
        for nth in 0..REPLICAS {
            let port = replicas.server(nth).port();
            let signed = async || handshake(port, &new.certificate).await.ok();
            eventually("a certificate of the new authority", signed).await;
        }
        done.store(true, Ordering::Release);
        tally
    };
    // Handshakes with the bundle that the API server trusts, as it would do for a new connection.
    let shaken = async {
        let (mut made, mut failed) = (0, BTreeMap::<String, usize>::new());
        while !done.load(Ordering::Acquire) {
            let trusted = replicas.trusted().await;
            for nth in 0..REPLICAS {
                made += 1;
                if let Err(error) = handshake(replicas.server(nth).port(), &trusted).await {
                    *failed.entry(error).or_default() += 1;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        (made, failed)
    };
    let (tally, (made, failed)) = tokio::join!(loaded, shaken);
    let logs = (0..REPLICAS).flat_map(|nth| replicas.server(nth).log());
    let renewed = logs.filter(|line| line.contains("the server's certificate was renewed")).count();
    let mut wrong: Vec<String> =
        failed.iter().map(|(why, count)| format!("{count} of {made} handshakes failed: {why}")).collect();
    // At full size, each replica first renews its certificate with the old authority.
    let least = if full { 2 * REPLICAS } else { REPLICAS };
    if renewed < least {
        wrong.push(format!("{renewed} certificates were renewed, not {least}"));
    }
    let fault = format!("new certificates ({renewed}), and a new authority ({made} handshakes)");
    let row = cluster.row(fault, tally, Instant::now()).await;
    Row { reached: true, wrong, ..row }
}
