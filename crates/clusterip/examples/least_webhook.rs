//! The least that a mutating webhook can do: an address from a counter in a patch, without a look-up, with the TLS, HTTP
//! and allocator of `clusterip serve`. `make bench-cluster` compares `clusterip serve` with it.
//!
//! Arguments: the address to listen on, the files of the certificate and of its key, and the first address to give.
#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::post;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mimalloc::MiMalloc;
use serde::Deserialize;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How many addresses are given before the first one is given again: those of a /20.
const ADDRESSES: u32 = 4_094;
static GIVEN: AtomicU32 = AtomicU32::new(0);

#[derive(Deserialize)]
struct Review<'a> {
    #[serde(borrow)]
    request: Request<'a>,
}

#[derive(Deserialize)]
struct Request<'a> {
    uid: &'a str,
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().unwrap();
    let listen: SocketAddr = next().parse().unwrap();
    rustls::crypto::ring::default_provider().install_default().unwrap();
    let tls = RustlsConfig::from_pem_file(next(), next()).await.unwrap();
    let first: Ipv4Addr = next().parse().unwrap();
    let router = Router::new().route("/mutate", post(answer)).with_state(first.to_bits());
    // Without NoDelayAcceptor, the end of an answer may wait until the API server acknowledges its beginning.
    let acceptor = RustlsAcceptor::new(tls).acceptor(NoDelayAcceptor::new());
    axum_server::bind(listen).acceptor(acceptor).serve(router.into_make_service()).await.unwrap();
}

async fn answer(State(first): State<u32>, body: Bytes) -> impl IntoResponse {
    let Review { request: Request { uid } } = serde_json::from_slice(&body).unwrap();
    let address = Ipv4Addr::from_bits(first + GIVEN.fetch_add(1, Ordering::Relaxed) % ADDRESSES);
    let patch = STANDARD.encode(format!(r#"[{{"op":"add","path":"/spec/clusterIP","value":"{address}"}}]"#));
    let answer = format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{{"uid":"{uid}","allowed":true,"patchType":"JSONPatch","patch":"{patch}"}}}}"#
    );
    ([(CONTENT_TYPE, "application/json")], answer)
}
