//! The server of the map.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clusterip::audit::model::Audit;
use clusterip::map_server::{AUDIT_TIME, MapServer, Source};
use clusterip::report::map::{self, About};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::audits;

/// Longer than any operation takes on a machine under load.
const MAX_WAIT: Duration = Duration::from_secs(60);

fn small() -> Source {
    Arc::new(|| Ok(audits::small()))
}

async fn started(listen: [u8; 4], source: Source, audit_time: Duration) -> (SocketAddr, oneshot::Sender<()>) {
    let server = MapServer::bind((listen, 0).into(), audit_time).await.unwrap();
    let port = server.local_addr().port();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(server.run(source, async { drop(stopped.await) }));
    (([127, 0, 0, 1], port).into(), stop)
}

/// Sends a request head unchanged. Returns the status, the response head in lower case, and the body.
async fn asked(address: SocketAddr, head: &str) -> (u16, Vec<String>, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = head.replace("PORT", &address.port().to_string());
    stream.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(MAX_WAIT, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut lines: Vec<String> = head.lines().skip(1).map(str::to_owned).collect();
    lines.retain(|line| !line.starts_with("date:") && !line.starts_with("content-length:"));
    lines.sort();
    (status, lines, body.to_owned())
}

#[tokio::test]
async fn map_and_audit_are_served() {
    struct Case {
        line: &'static str,
        status: u16,
        head: Vec<String>,
        body: String,
    }
    let (address, _stop) = started([127, 0, 0, 1], small(), AUDIT_TIME).await;
    let guards = |kind: &str, policy: &str| {
        let mut lines = vec![
            "cache-control: no-store".to_owned(),
            "connection: close".to_owned(),
            format!("content-security-policy: {policy}frame-ancestors 'none'"),
            format!("content-type: {kind}"),
            "cross-origin-opener-policy: same-origin".to_owned(),
            "cross-origin-resource-policy: same-origin".to_owned(),
            "referrer-policy: no-referrer".to_owned(),
            "x-content-type-options: nosniff".to_owned(),
            "x-frame-options: DENY".to_owned(),
        ];
        lines.sort();
        lines
    };
    let page = map::page(&audits::small(), &About::default()).unwrap();
    let policy = format!("{}; ", map::content_security_policy());
    let json = serde_json::to_string(&audits::small()).unwrap() + "\n";
    let text = "text/plain; charset=utf-8";
    let bare = "default-src 'none'; ";
    let rows = [
        Case {
            line: "GET / HTTP/1.1",
            status: 200,
            head: guards("text/html; charset=utf-8", &policy),
            body: page.clone(),
        },
        Case { line: "GET /?x=1 HTTP/1.1", status: 200, head: guards("text/html; charset=utf-8", &policy), body: page },
        Case { line: "GET /audit.json HTTP/1.1", status: 200, head: guards("application/json", bare), body: json },
        Case {
            line: "GET /nothing HTTP/1.1",
            status: 404,
            head: guards(text, bare),
            body: "not found: /nothing (try / or /audit.json)\n".to_owned(),
        },
        Case {
            line: "POST /audit.json HTTP/1.1",
            status: 405,
            head: [vec!["allow: GET,HEAD".to_owned()], guards(text, bare)].concat(),
            body: "/audit.json accepts only GET and HEAD, not POST\n".to_owned(),
        },
    ];
    for Case { line, status, head, body } in rows {
        let found = asked(address, &format!("{line}\r\nhost: localhost:PORT")).await;
        assert_eq!(found, (status, head, body), "{line}");
    }
}

#[tokio::test]
async fn foreign_host_name_is_refused_on_loopback() {
    let rows = [
        ("/ HTTP/1.1\r\nhost: localhost:PORT", 200),
        ("/ HTTP/1.1\r\nhost: LOCALHOST", 200),
        ("/ HTTP/1.1\r\nhost: 127.0.0.1:PORT", 200),
        ("/ HTTP/1.1\r\nhost: 127.1.2.3", 200),
        ("/ HTTP/1.1\r\nhost: [::1]:PORT", 200),
        ("http://localhost:PORT/ HTTP/1.1\r\nhost: localhost:PORT", 200),
        ("/ HTTP/1.1\r\nhost: rebound.example:PORT", 421),
        ("/audit.json HTTP/1.1\r\nhost: rebound.example", 421),
        ("/nothing HTTP/1.1\r\nhost: rebound.example", 421),
        ("http://rebound.example/ HTTP/1.1\r\nhost: localhost", 421),
        ("/ HTTP/1.1\r\nhost: localhost.rebound.example", 421),
        ("/ HTTP/1.1\r\nhost: 127.0.0.1.rebound.example", 421),
        ("/ HTTP/1.1\r\nhost: localhost@rebound.example", 421),
        ("/ HTTP/1.1\r\nhost: 192.0.2.1", 421),
        ("/ HTTP/1.0", 421),
        ("/ HTTP/1.1\r\nhost:", 421),
        ("/ HTTP/1.1\r\nhost: localhost\r\nhost: rebound.example", 421),
        ("/ HTTP/1.1\r\nhost: local host", 421),
    ];
    let (address, _stop) = started([127, 0, 0, 1], small(), AUDIT_TIME).await;
    for (head, expected) in rows {
        let (status, _, body) = asked(address, &format!("GET {head}")).await;
        assert_eq!(status, expected, "{head}: {body:.100}");
        assert_eq!(body.contains("172.21."), expected == 200, "{head}");
    }
}

#[tokio::test]
async fn any_host_name_is_accepted_on_other_addresses() {
    let (address, _stop) = started([0, 0, 0, 0], small(), AUDIT_TIME).await;
    assert_eq!(asked(address, "GET / HTTP/1.1\r\nhost: map.example").await.0, 200);
}

#[tokio::test]
async fn each_request_gets_a_new_audit_or_its_error() {
    let times = AtomicUsize::new(0);
    let source: Source = Arc::new(move || match times.fetch_add(1, Ordering::AcqRel) {
        0 => Ok(Audit::default()),
        1 => Err("Services are not listed yet".into()),
        2 => panic!("a defect"),
        _ => Ok(audits::small()),
    });
    let (address, _stop) = started([127, 0, 0, 1], source, AUDIT_TIME).await;
    let mut found = Vec::new();
    for _ in 0..4 {
        let (status, _, body) = asked(address, "GET /audit.json HTTP/1.1\r\nhost: localhost").await;
        found.push((status, body));
    }
    let (status, broken) = found.remove(2);
    assert_eq!((status, broken.contains("panicked")), (503, true), "{broken}");
    let expected = [
        (200, "{\"pools\":[],\"findings\":[],\"services\":0,\"notes\":[]}\n".to_owned()),
        (503, "Services are not listed yet\n".to_owned()),
        (200, serde_json::to_string(&audits::small()).unwrap() + "\n"),
    ];
    assert_eq!(found, expected);
}

#[tokio::test]
async fn slow_audit_times_out() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let source: Source = Arc::new(move || {
        let _ = held.lock().unwrap().recv();
        Ok(Audit::default())
    });
    let (address, _stop) = started([127, 0, 0, 1], source, Duration::from_millis(50)).await;
    let (status, _, body) = asked(address, "GET / HTTP/1.1\r\nhost: localhost").await;
    assert_eq!((status, body.as_str()), (503, "no audit was made within 50ms\n"));
    drop(release);
}

#[tokio::test]
async fn port_in_use_is_named() {
    let (address, _stop) = started([127, 0, 0, 1], small(), AUDIT_TIME).await;
    let error = MapServer::bind(address, AUDIT_TIME).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(&format!("listening on {address} for the map failed: ")), "{text}");
    assert!(text.ends_with("; choose another address with --ui"), "{text}");
}
