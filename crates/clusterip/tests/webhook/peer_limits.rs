//! One peer can't take the resources that others need, and idle connections are closed.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use clusterip::webhook::server::Limits;
use clusterip_cluster::http::connection::ConnectionLimits;
use reqwest::{Client, StatusCode};
use rustls::version::TLS13;
use tokio::time::timeout;

use crate::support::{MAX_WAIT, Running, allowed, backend, hanging, review};

/// Limits with which an idle connection is soon closed.
fn short_idle() -> Limits {
    let defaults = Limits::default();
    Limits { connections: ConnectionLimits { idle: IDLE, ..defaults.connections }, ..defaults }
}

/// A client with this address of the machine.
fn client_from(server: &Running, last: u8) -> Client {
    server.client_builder().local_address(IpAddr::from([127, 0, 0, last])).build().unwrap()
}

/// All connections come from one peer.
#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_a_limit_are_closed() {
    let long = Duration::from_secs(600);
    let defaults = ConnectionLimits { silence: long, ..Limits::default().connections };
    let (of_all, of_peer) = (ConnectionLimits { most: 3, ..defaults }, ConnectionLimits { per_peer: 3, ..defaults });
    for connections in [of_all, of_peer] {
        let limits = Limits { connections, handshake: long, ..Limits::default() };
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
        let (status, _) = server.post_with(&client_from(&server, 2), "/mutate", review("1")).await;
        assert_eq!(status, StatusCode::OK, "another peer is served");
        drop(silent);
        // Their places are free once the server has noticed that they are closed.
        while server.client().get(server.url("/healthz")).send().await.is_err() {}
        server.assert_serves().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_gets_a_connection_when_others_have_all() {
    let long = Duration::from_secs(600);
    let connections = ConnectionLimits { most: 8, per_peer: 4, silence: long, idle: long };
    let limits = Limits { connections, handshake: long, ..Limits::default() };
    let server = Running::start(backend(|_| allowed()), limits).await;
    let connect = async |last: u8| {
        let stream = server.tcp_from([127, 0, 0, last]).await;
        stream.set_nonblocking(true).unwrap();
        tokio::net::TcpStream::from_std(stream).unwrap()
    };
    // The server accepts connections in the order in which they were made.
    let mut held = Vec::new();
    for last in [2, 2, 2, 2, 3, 3, 3, 3] {
        held.push(connect(last).await);
    }
    let (status, text) = server.post_with(&client_from(&server, 4), "/mutate", review("1")).await;
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
    let (backend, mut hanging) = hanging();
    let server = Running::start(backend, Limits { reviews: 2, ..Limits::default() }).await;
    let first = client_from(&server, 1);
    let (status, _) = server.post_with(&first, "/mutate?timeout=200ms", review("hangs")).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    hanging.begun().await;
    let (status, text) = server.post_with(&first, "/mutate?timeout=200ms", review("1")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "it hangs, and has the only turn of its peer: {text}");
    let (status, text) = server.post_with(&client_from(&server, 2), "/mutate", review("1")).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    hanging.release();
    server.assert_serves().await;
}

const HEAD: &str = "POST /mutate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

/// Sends a request on this connection and reads the status and the body of its answer. This call blocks.
fn exchange(stream: &mut (impl Read + Write), body: &str) -> (String, String) {
    write!(stream, "{HEAD}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut said = String::new();
    while !said.contains("\r\n\r\n") || !said.ends_with('}') {
        let mut part = [0; 1000];
        let length = stream.read(&mut part).unwrap();
        assert!(length > 0, "the connection was closed after {said:?}");
        said.push_str(std::str::from_utf8(&part[..length]).unwrap());
    }
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn hundred_peers_take_neither_the_connection_nor_the_memory_of_the_api_server() {
    let long = Duration::from_secs(600);
    let connections = ConnectionLimits { silence: long, idle: long, ..Limits::default().connections };
    let limits = Limits { connections, handshake: long, body_time: long, ..Limits::default() };
    // Every peer takes more memory than its part of this.
    let limits = Limits { bodies: 85 * 20_000, ..limits };
    let server = Running::start(backend(|_| allowed()), limits).await;
    let mut api_server = tokio::task::block_in_place(|| server.tls_on(server.tcp(), &[&TLS13]));
    let reviewed = |(status, answer): (String, String)| {
        assert_eq!((status.as_str(), answer.contains(r#""allowed":true"#)), ("HTTP/1.1 200 OK", true), "{answer}");
    };
    reviewed(tokio::task::block_in_place(|| exchange(&mut api_server, &review("1"))));
    let mut held = Vec::new();
    for nth in 0..100_u16 {
        let [high, low] = nth.to_be_bytes();
        let stream = server.tcp_from([127, 1, high, low]).await;
        let mut attacker = tokio::task::block_in_place(|| server.tls_on(stream, &[&TLS13]));
        // The body never ends. Only some of the connections are still open after the last one was made.
        tokio::task::block_in_place(|| {
            let body = "{\"request\": ".to_owned() + &" ".repeat(50_000);
            let _ = write!(attacker, "{HEAD}content-length: 100000\r\n\r\n{body}").and_then(|()| attacker.flush());
            reviewed(exchange(&mut api_server, &review("1")));
        });
        held.push(attacker);
    }
    let large = review("1") + &" ".repeat(10_000);
    for _ in 0..20 {
        reviewed(tokio::task::block_in_place(|| exchange(&mut api_server, &large)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn small_reviews_do_not_wait_for_large_ones() {
    let (backend, mut hanging) = hanging();
    let server = Running::start(backend, Limits { reviews: 4, large_body: 10_000, ..Limits::default() }).await;
    let large = |uid: &str| review(uid) + &" ".repeat(20_000);
    assert_eq!(server.post("/mutate?timeout=200ms", large("hangs")).await.0, StatusCode::GATEWAY_TIMEOUT);
    hanging.begun().await;
    assert_eq!(server.post("/mutate?timeout=200ms", large("1")).await.0, StatusCode::SERVICE_UNAVAILABLE);
    server.assert_serves().await;
    hanging.release();
    assert_eq!(server.post("/mutate", large("1")).await.0, StatusCode::OK);
}

const IDLE: Duration = Duration::from_millis(400);

#[tokio::test(flavor = "multi_thread")]
async fn connection_without_requests_is_closed_despite_pings() {
    let server = Running::start(backend(|_| allowed()), short_idle()).await;
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
    let server = Running::start(backend(slow), short_idle()).await;
    server.assert_serves().await;
}
