//! Clients that are slow, silent or too many: their connections are closed, and the others are served meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use clusterip::webhook::server::Limits;
use clusterip_cluster::http::connection::ConnectionLimits;
use clusterip_cluster::http::server::TimeLimits;
use rustls::version::{TLS12, TLS13};

use crate::support::{Running, allowed, backend};

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
    let late = Some(("HTTP/1.1 408 Request Timeout", "the body did not arrive within 300ms\n"));
    let rows = [
        Case { name: "nothing after the handshake", sent: String::new(), expected: None },
        Case { name: "half a head", sent: HEAD.to_owned(), expected: None },
        Case { name: "no body", sent: format!("{HEAD}content-length: 10\r\n\r\n"), expected: late },
        Case { name: "half a body", sent: format!("{HEAD}content-length: 10\r\n\r\n{{"), expected: late },
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
