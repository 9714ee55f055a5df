//! A malicious or broken client of the webhook.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const HEAD: &str = "POST /mutate HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n";
/// The number of concurrent requests.
const AT_ONCE: usize = 64;
/// The time limit of reads and writes.
const MAX_WAIT: Duration = Duration::from_secs(20);
const MEGABYTE: usize = 1 << 20;

/// A bad request, and what the client does after it.
struct Bad {
    name: &'static str,
    /// Whether the client speaks TLS.
    tls: bool,
    said: Vec<u8>,
    /// Whether the client then keeps the connection open for a while and closes it. Otherwise it reads the answer.
    slow: bool,
}

fn with_length(body: &[u8]) -> Vec<u8> {
    [format!("{HEAD}connection: close\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

fn all() -> Vec<Bad> {
    let bad = |name, said: Vec<u8>| Bad { name, tls: true, said, slow: false };
    let slow = |name, said: Vec<u8>| Bad { name, tls: true, said, slow: true };
    let in_chunks = [format!("{HEAD}connection: close\r\ntransfer-encoding: chunked\r\n\r\n").into_bytes()];
    let chunk = [format!("{MEGABYTE:x}\r\n").into_bytes(), vec![b' '; MEGABYTE], b"\r\n".to_vec()].concat();
    let text = [&b"{\"kind\": \""[..], &vec![b'x'; 3 * MEGABYTE - 100], b"\"}"].concat();
    vec![
        Bad { name: "no TLS", tls: false, said: with_length(b"{}"), slow: false },
        Bad { name: "silence", tls: false, said: Vec::new(), slow: true },
        bad("no HTTP", vec![0x80; 4096]),
        bad("no JSON", with_length(b"{\"kind\": \"AdmissionReview\", ")),
        bad("no review", with_length(b"{\"kind\": \"Review\"}")),
        bad("no object", with_length(b"{\"kind\": \"AdmissionReview\", \"request\": {\"object\": 7}}")),
        bad("deep", with_length(&vec![b'['; 200_000])),
        bad("another type", with_length(b"{}").to_ascii_uppercase()),
        bad("many heads", [HEAD.as_bytes(), "x: y\r\n".repeat(20_000).as_bytes(), b"\r\n"].concat()),
        bad("large, and says so", format!("{HEAD}connection: close\r\ncontent-length: 99999999999\r\n\r\n").into()),
        bad("large in chunks", in_chunks.into_iter().chain(std::iter::repeat_n(chunk, 4)).flatten().collect()),
        bad("nearly too large", with_length(&text)),
        slow("half a head", HEAD.as_bytes()[..40].to_vec()),
        slow("half a body", format!("{HEAD}content-length: 1000\r\n\r\n{{").into()),
        slow("nearly a large body", with_length(&text)[..2 * MEGABYTE].to_vec()),
    ]
}

/// Sends this number of bad requests, all kinds in turn, to a server with a certificate of the `trusted` authority. A
/// slow client stays for the duration `stays`. Returns the answers with status 200, which must not occur.
pub async fn send(port: u16, trusted: &str, count: usize, stays: Duration) -> Vec<String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let tls = Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth());
    let kinds = Arc::new(all());
    let one = |nth: usize| {
        let (tls, kinds) = (Arc::clone(&tls), Arc::clone(&kinds));
        async move {
            let ask = move || {
                let bad = &kinds[nth % kinds.len()];
                let answer = attempt(port, &tls, bad, stays).unwrap_or_default();
                answer.starts_with("HTTP/1.1 200").then(|| format!("{}: {answer}", bad.name))
            };
            tokio::task::spawn_blocking(ask).await.unwrap()
        }
    };
    stream::iter((0..count).map(one)).buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await
}

/// Reads the beginning of the answer. The server may close the connection at any time.
fn attempt(port: u16, tls: &Arc<ClientConfig>, bad: &Bad, stays: Duration) -> std::io::Result<String> {
    let mut tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    tcp.set_read_timeout(Some(MAX_WAIT))?;
    tcp.set_write_timeout(Some(MAX_WAIT))?;
    if bad.tls {
        let name = Ipv4Addr::LOCALHOST.to_string().try_into().unwrap();
        let connection = ClientConnection::new(Arc::clone(tls), name).unwrap();
        talk(&mut StreamOwned::new(connection, tcp), bad, stays)
    } else {
        talk(&mut tcp, bad, stays)
    }
}

fn talk(stream: &mut (impl Read + Write), bad: &Bad, stays: Duration) -> std::io::Result<String> {
    let sent = stream.write_all(&bad.said).and_then(|()| stream.flush());
    if bad.slow {
        std::thread::sleep(stays);
        return sent.map(|()| String::new());
    }
    // The server may answer and close the connection before it has read everything.
    let mut answer = [0; 200];
    let length = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}
