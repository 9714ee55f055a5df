//! A client that opens streams of HTTP/2 and resets them at once, or does not read the answers, takes nothing that
//! others need.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clusterip::webhook::server::{Backend, Limits};
use clusterip_cluster::http::probes::Scrapes;
use reqwest::StatusCode;
use rustls::version::TLS13;

use crate::support::{MAX_WAIT, Running, allowed, backend, review};

const HEADERS: u8 = 1;
const DATA: u8 = 0;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// How the client sends its streams.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// The beginning of each request, and its reset.
    Headers,
    /// Each review, and its reset.
    Reviews,
    /// A hundred reviews, then the resets of all of them after the server has begun to read.
    Batches,
}

/// A hundred requests to `/mutate` from this stream on, and their resets.
fn streams(attack: Attack, first: u32) -> (Vec<u8>, Vec<u8>) {
    // HPACK: `POST` and `https` of the static table, then a path, an authority and a content type as literals.
    let headers = b"\x83\x87\x04\x07/mutate\x01\x09localhost\x0f\x10\x10application/json";
    let (mut opened, mut resets) = (Vec::new(), Vec::new());
    for stream in (first..).step_by(2).take(100) {
        let reset = frame(RESET, 0, stream, &8_u32.to_be_bytes());
        opened.extend(frame(HEADERS, END_HEADERS, stream, headers));
        if !matches!(attack, Attack::Headers) {
            opened.extend(frame(DATA, END_STREAM, stream, review("1").as_bytes()));
        }
        if matches!(attack, Attack::Batches) { &mut resets } else { &mut opened }.extend(reset);
    }
    (opened, resets)
}

/// Opens so many streams and resets them, on one connection after the other. Returns the number of connections.
fn open_and_reset(server: &Running, count: usize, attack: Attack) -> usize {
    let (mut sent, mut connections) = (0, 0);
    while sent < count {
        let mut connection = server.tls(&[&TLS13]);
        connections += 1;
        let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
        connection.write_all(begin).unwrap();
        connection.sock.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut first = 1;
        let mut is_open = true;
        while is_open && sent < count {
            let (opened, resets) = streams(attack, first);
            (first, sent) = (first + 200, sent + 100);
            for part in [opened, resets] {
                is_open = is_open && connection.write_all(&part).and_then(|()| connection.flush()).is_ok();
                is_open = is_open
                    && match connection.read(&mut [0; 10_000]) {
                        Ok(length) => length > 0,
                        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
                    };
            }
        }
    }
    connections
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn thousands_of_streams_that_are_reset_take_nothing_that_others_need() {
    let reviews = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reviews);
    let review_of = move |_: &_| {
        counted.fetch_add(1, Ordering::Relaxed);
        allowed()
    };
    let server = Arc::new(Running::start(backend(review_of), Limits::default()).await);
    for attack in [Attack::Headers, Attack::Reviews, Attack::Batches] {
        let before = reviews.load(Ordering::Relaxed);
        let attacked = Arc::clone(&server);
        let attacking = tokio::task::spawn_blocking(move || open_and_reset(&attacked, 30_000, attack));
        let mut answered = 0;
        while !attacking.is_finished() {
            server.assert_serves().await;
            answered += 1;
        }
        let connections = attacking.await.unwrap();
        let begun = reviews.load(Ordering::Relaxed) - before - answered;
        eprintln!("{attack:?}: {connections} connections, {begun} reviews, {answered} of another client");
        if !matches!(attack, Attack::Batches) {
            assert!(connections > 10, "a connection ends after many resets that are read at once");
        }
        server.assert_serves().await;
    }
}

/// A connection on which 100 answers of `/metrics` wait because the client allows no data.
fn unread_metrics(server: &Running) -> impl Write + use<> {
    let mut connection = server.tls(&[&TLS13]);
    // SETTINGS_INITIAL_WINDOW_SIZE is the setting 4.
    let mut opened = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    opened.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    let headers = b"\x82\x87\x04\x08/metrics\x01\x09localhost";
    (0..100).for_each(|nth| opened.extend(frame(HEADERS, END_HEADERS | END_STREAM, 2 * nth + 1, headers)));
    connection.write_all(&opened).unwrap();
    connection
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn answers_that_a_client_does_not_read_take_little_memory() {
    let scrapes = Scrapes::new(|| "#".repeat(100_000));
    let server = Arc::new(Running::start(Backend { scrapes, ..backend(|_| allowed()) }, Limits::default()).await);
    let status = async |server: &Running| server.client().get(server.url("/metrics")).send().await.unwrap().status();
    let attacked = Arc::clone(&server);
    let unread = tokio::task::spawn_blocking(move || unread_metrics(&attacked)).await.unwrap();
    eventually(async || status(&server).await == StatusCode::SERVICE_UNAVAILABLE).await;
    server.assert_serves().await;
    drop(unread);
    eventually(async || status(&server).await == StatusCode::OK).await;
}

async fn eventually(is_true: impl AsyncFn() -> bool) {
    let checked = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, checked).await.unwrap();
}
