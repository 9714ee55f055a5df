//! One peer can't take the resources that others need, and idle connections are closed.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use clusterip::webhook::server::Limits;
use clusterip_cluster::http::connection::ConnectionLimits;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode};
use rustls::version::TLS13;
use tokio::time::timeout;

use crate::support::{MAX_WAIT, Running, allowed, backend, review};

/// Limits with which an idle connection is soon closed.
fn short_idle() -> Limits {
    let defaults = Limits::default();
    Limits { connections: ConnectionLimits { idle: IDLE, ..defaults.connections }, ..defaults }
}

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
    let connections = ConnectionLimits { per_peer: 3, silence: long, ..Limits::default().connections };
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
    let (status, _) = post(&server, &client_from(&server, 2), "", review("1")).await;
    assert_eq!(status, StatusCode::OK, "another peer is served");
    drop(silent);
    while server.client().get(server.url("/healthz")).send().await.is_err() {}
    server.assert_serves().await;
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
