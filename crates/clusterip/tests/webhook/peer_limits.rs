//! One peer can't take the resources that others need, and idle connections are closed.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use clusterip::webhook::server::Limits;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode};
use rustls::version::TLS13;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use crate::support::{MAX_WAIT, Running, allowed, backend, review};

/// A client with this address of the machine.
fn client_from(server: &Running, last: u8) -> Client {
    server.client_builder().local_address(IpAddr::from([127, 0, 0, last])).build().unwrap()
}

async fn post(server: &Running, client: &Client, query: &str, body: String) -> (StatusCode, String) {
    let request = client.post(server.url(&format!("/mutate{query}"))).header(CONTENT_TYPE, "application/json");
    let response = request.body(body).send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_peer_gets_only_its_share_of_connections() {
    let long = Duration::from_secs(600);
    let limits = Limits { connections_per_peer: 3, handshake: long, silence: long, ..Limits::default() };
    let server = Running::start(backend(|_| allowed()), limits).await;
    let silent = tokio::task::block_in_place(|| {
        // Any of them may be the one beyond the limit, because they come at the same time.
        let mut silent: Vec<TcpStream> = (0..4).map(|_| server.tcp()).collect();
        for stream in &silent {
            stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        }
        let deadline = Instant::now() + MAX_WAIT;
        while silent.len() == 4 {
            assert!(Instant::now() < deadline, "none was closed");
            silent.retain_mut(|stream| match stream.read(&mut [0]) {
                Ok(_) => false,
                Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            });
        }
        silent
    });
    assert_eq!(silent.len(), 3);
    let (status, _) = post(&server, &client_from(&server, 2), "", review("1")).await;
    assert_eq!(status, StatusCode::OK, "another peer is served");
    drop(silent);
    while server.client().get(server.url("/healthz")).send().await.is_err() {}
    server.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_gets_a_connection_when_others_have_all() {
    let long = Duration::from_secs(600);
    let limits = Limits {
        connections: 8,
        connections_per_peer: 4,
        handshake: long,
        silence: long,
        idle: long,
        ..Limits::default()
    };
    let server = Running::start(backend(|_| allowed()), limits).await;
    let connect = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        socket.connect(server.address).await.unwrap()
    };
    // The server accepts connections in the order in which they were made.
    let mut held = Vec::new();
    for last in [2, 2, 2, 2, 3, 3, 3, 3] {
        held.push(connect(last).await);
    }
    let (status, text) = post(&server, &client_from(&server, 4), "", review("1")).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let mut closed = 0;
    for stream in &held {
        // The server does not send first, so a readable connection is a closed one.
        closed += usize::from(timeout(Duration::from_millis(100), stream.readable()).await.is_ok());
    }
    assert_eq!(closed, 1, "one connection was closed for the new one");
    drop(held);
    while server.client().get(server.url("/healthz")).send().await.is_err() {}
    server.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_peer_can_not_take_all_reviews() {
    let (entered, begun) = channel();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let hanging = move |request: &serde_json::Value| {
        if request["uid"] == "hangs" {
            entered.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
        }
        allowed()
    };
    let server = Running::start(backend(hanging), Limits { reviews: 2, ..Limits::default() }).await;
    let first = client_from(&server, 1);
    let (status, _) = post(&server, &first, "?timeout=200ms", review("hangs")).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    tokio::task::spawn_blocking(move || begun.recv_timeout(MAX_WAIT).unwrap()).await.unwrap();
    let (status, text) = post(&server, &first, "?timeout=200ms", review("1")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "it hangs, and has the only turn of its peer: {text}");
    let (status, text) = post(&server, &client_from(&server, 2), "", review("1")).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    release.send(()).unwrap();
    let (status, text) = post(&server, &first, "", review("1")).await;
    assert_eq!(status, StatusCode::OK, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_peer_can_not_take_all_memory_for_bodies() {
    let server = Running::start(backend(|_| allowed()), Limits { bodies: 2000, ..Limits::default() }).await;
    let (status, text) = post(&server, &server.client(), "", " ".repeat(1500)).await;
    let expected = "busy: waiting bodies of this client take as much memory as is left\n";
    assert_eq!((status, text.as_str()), (StatusCode::SERVICE_UNAVAILABLE, expected));
    server.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn small_reviews_do_not_wait_for_large_ones() {
    let (entered, begun) = channel();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let hanging = move |request: &serde_json::Value| {
        if request["uid"] == "hangs" {
            entered.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
        }
        allowed()
    };
    let limits = Limits { reviews: 4, large_body: 10_000, ..Limits::default() };
    let server = Running::start(backend(hanging), limits).await;
    let client = server.client();
    let large = |uid: &str| review(uid) + &" ".repeat(20_000);
    let (status, _) = post(&server, &client, "?timeout=200ms", large("hangs")).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    tokio::task::spawn_blocking(move || begun.recv_timeout(MAX_WAIT).unwrap()).await.unwrap();
    assert_eq!(post(&server, &client, "?timeout=200ms", large("1")).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(post(&server, &client, "", review("1")).await.0, StatusCode::OK);
    release.send(()).unwrap();
    assert_eq!(post(&server, &client, "", large("1")).await.0, StatusCode::OK);
}

const IDLE: Duration = Duration::from_millis(400);

#[tokio::test(flavor = "multi_thread")]
async fn connection_without_requests_is_closed_despite_pings() {
    let server = Running::start(backend(|_| allowed()), Limits { idle: IDLE, ..Limits::default() }).await;
    tokio::task::block_in_place(|| {
        let mut stream = server.tls(&[&TLS13]);
        // HTTP/2: the preface, and empty settings.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").unwrap();
        let begin = Instant::now();
        let ended = (0..600).any(|_| {
            std::thread::sleep(IDLE / 10);
            // A ping: eight bytes that the server returns.
            let ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678";
            stream.write_all(ping).and_then(|()| stream.flush()).is_err()
        });
        assert!(ended, "a connection with nothing but pings is kept for ever");
        assert!(begin.elapsed() >= IDLE);
    });
    server.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_with_a_request_in_progress_is_not_idle() {
    let slow = |_: &serde_json::Value| {
        std::thread::sleep(4 * IDLE);
        allowed()
    };
    let server = Running::start(backend(slow), Limits { idle: IDLE, ..Limits::default() }).await;
    server.assert_serves().await;
}
