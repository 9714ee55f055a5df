//! Clients that are slow, silent or too many: their connections are closed, and the others are served meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use clusterip::webhook::server::Limits;
use clusterip_cluster::http::connection::ConnectionLimits;
use clusterip_cluster::http::server::TimeLimits;
use rustls::version::{TLS12, TLS13};

use crate::support::{MAX_WAIT, Running, allowed, backend};

const HURRY: Duration = Duration::from_millis(300);

fn hurried() -> Limits {
    let defaults = Limits::default();
    let connections = ConnectionLimits { silence: 2 * HURRY, ..defaults.connections };
    let time = TimeLimits { head: HURRY, ..defaults.time };
    Limits { connections, time, handshake: HURRY, body_time: HURRY, ..defaults }
}

/// Everything that the server sends until it closes the connection, which it must.
fn rest(stream: &mut impl Read) -> String {
    let mut text = Vec::new();
    if let Err(error) = stream.read_to_end(&mut text) {
        assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "the server still waits");
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The status line and the body of an HTTP/1.1 answer.
fn answer(text: &str) -> Option<(&str, &str)> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.lines().next()?, body))
}

const HEAD: &str = "POST /mutate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_are_disconnected() {
    struct Case {
        name: &'static str,
        sent: String,
        expected: Option<(&'static str, &'static str)>,
    }
    let server = Running::start(backend(|_| allowed()), hurried()).await;
    let rows = [
        Case { name: "nothing after the handshake", sent: String::new(), expected: None },
        Case { name: "half a head", sent: HEAD.to_owned(), expected: None },
        Case {
            name: "no body",
            sent: format!("{HEAD}content-length: 10\r\n\r\n"),
            expected: Some(("HTTP/1.1 408 Request Timeout", "the body did not arrive within 300ms\n")),
        },
        Case {
            name: "half a body",
            sent: format!("{HEAD}content-length: 10\r\n\r\n{{"),
            expected: Some(("HTTP/1.1 408 Request Timeout", "the body did not arrive within 300ms\n")),
        },
        Case { name: "the beginning of HTTP/2", sent: "PRI * HTTP/2.0\r\n".to_owned(), expected: None },
    ];
    tokio::task::block_in_place(|| {
        for Case { name, sent, expected } in rows {
            let mut stream = server.tls(&[&TLS13]);
            stream.write_all(sent.as_bytes()).unwrap();
            stream.flush().unwrap();
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock).unwrap();
            }
            let text = rest(&mut stream);
            assert_eq!(answer(&text), expected, "{name}: {text:?}");
        }
        assert_eq!(rest(&mut server.tcp()), "", "nothing at all");
        let mut hello = server.tcp();
        hello.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
        assert_eq!(rest(&mut hello), "", "half a handshake");
        let mut plain = server.tcp();
        plain.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
        assert!(!rest(&mut plain).contains("HTTP"), "no TLS");
    });
    server.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_disconnected() {
    struct Case {
        name: &'static str,
        head: String,
        part: &'static str,
    }
    let server = Running::start(backend(|_| allowed()), hurried()).await;
    let rows = [
        Case { name: "a head", head: HEAD.to_owned(), part: "a: b\r\n" },
        Case { name: "a body", head: format!("{HEAD}content-length: 1000\r\n\r\n"), part: " " },
    ];
    tokio::task::block_in_place(|| {
        for Case { name, head, part } in rows {
            let mut stream = server.tls(&[&TLS12]);
            stream.write_all(head.as_bytes()).unwrap();
            // The client is never silent for long, so only a limit for the whole request ends it.
            let ended = (0..600).any(|_| {
                std::thread::sleep(HURRY / 3);
                stream.write_all(part.as_bytes()).and_then(|()| stream.flush()).is_err()
            });
            assert!(ended, "{name}");
        }
    });
    server.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_are_closed() {
    let long = Duration::from_secs(600);
    let connections = ConnectionLimits { most: 3, silence: long, ..Limits::default().connections };
    let limits = Limits { connections, handshake: long, ..Limits::default() };
    let server = Running::start(backend(|_| allowed()), limits).await;
    tokio::task::block_in_place(|| {
        // Any of them may be the one beyond the limit, because they come at the same time.
        let mut silent: Vec<_> = (0..4).map(|_| server.tcp()).collect();
        for stream in &silent {
            stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        }
        let deadline = Instant::now() + MAX_WAIT;
        while silent.len() == 4 {
            assert!(Instant::now() < deadline, "none was closed");
            silent.retain_mut(|stream| !matches!(stream.read(&mut [0]), Ok(0)));
        }
        assert_eq!(silent.len(), 3);
    });
    // Their places are free once the server has noticed that they are closed.
    while server.client().get(server.url("/healthz")).send().await.is_err() {}
    server.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_without_tls_1_2_is_refused() {
    let server = Running::start(backend(|_| allowed()), Limits::default()).await;
    tokio::task::block_in_place(|| {
        // A ClientHello of TLS 1.1: one suite, no compression, one signature algorithm.
        let mut hello = b"\x16\x03\x01\x00\x37\x01\x00\x00\x33\x03\x02".to_vec();
        hello.extend([7; 32]);
        hello.extend(b"\x00\x00\x02\xc0\x13\x01\x00\x00\x08\x00\x0d\x00\x04\x00\x02\x04\x03");
        let mut stream = server.tcp();
        stream.write_all(&hello).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        // A fatal alert: protocol_version.
        assert_eq!((said.first(), said.get(5..)), (Some(&0x15), Some(&[2, 70][..])), "{said:x?}");
    });
    server.assert_serves().await;
}
