//! New connections get the current certificate when the files change.

use std::io::Write;
use std::time::{Duration, Instant};

use clusterip::webhook::server::Limits;
use clusterip::webhook::tls::CertificateFiles;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::version::{TLS12, TLS13};

use crate::support::{MAX_WAIT, Running, allowed, authority, backend, leaf};

fn shown(server: &Running) -> CertificateDer<'static> {
    tokio::task::block_in_place(|| {
        let mut stream = server.tls(&[&TLS12, &TLS13]);
        stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
        stream.flush().unwrap();
        stream.conn.peer_certificates().unwrap()[0].clone().into_owned()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_certificate_files_are_served_and_invalid_ones_refused() {
    struct Case<'a> {
        name: &'static str,
        chain: &'a str,
        private: &'a str,
        reason: &'static str,
    }
    let folder = tempfile::tempdir().unwrap();
    let (crt, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    let authority = authority();
    let (first, second) = (leaf(&authority), leaf(&authority));
    let write = |chain: &str, private: &str| {
        std::fs::write(&crt, chain).unwrap();
        std::fs::write(&key, private).unwrap();
    };
    write(&first.certificate, &first.key);
    let mut files = CertificateFiles::open(&crt, &key).unwrap();
    let serving =
        Running::start_with(backend(|_| allowed()), Limits::default(), &authority.certificate, files.certificate());
    let server = serving.await;
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    assert_eq!(shown(&server), der(&first.certificate));
    assert!(!files.reload().unwrap());

    let named = |reason: &str| format!("{} and {}: {reason}", crt.display(), key.display());
    const NO_CERTIFICATE: &str =
        "not a certificate: no items found; it must be PEM, the server's own certificate first";
    let rows = [
        Case { name: "an empty certificate", chain: "", private: &first.key, reason: NO_CERTIFICATE },
        Case { name: "a key for a certificate", chain: &first.key, private: &first.key, reason: NO_CERTIFICATE },
        Case {
            name: "no key",
            chain: &first.certificate,
            private: "",
            reason: "not a private key: no items found; it must be PEM: PKCS#8, PKCS#1 or SEC1",
        },
        Case {
            name: "the next certificate, and not yet its key",
            chain: &second.certificate,
            private: &first.key,
            reason: "certificate and key can't be served: keys may not be consistent: KeyMismatch",
        },
    ];
    for Case { name, chain, private, reason } in rows {
        write(chain, private);
        assert_eq!(files.reload().unwrap_err().to_string(), named(reason), "{name}");
        assert!(!files.reload().unwrap(), "{name}: it is said once");
        assert_eq!(shown(&server), der(&first.certificate), "{name}");
    }
    std::fs::remove_file(&key).unwrap();
    let gone = format!("reading {} failed: No such file or directory (os error 2)", key.display());
    assert_eq!(files.reload().unwrap_err().to_string(), gone);

    write(&second.certificate, &second.key);
    let watching = tokio::spawn(files.run(Duration::from_millis(20), std::future::pending()));
    let deadline = Instant::now() + MAX_WAIT;
    while shown(&server) != der(&second.certificate) {
        assert!(Instant::now() < deadline, "the first one is still served");
    }
    watching.abort();
    server.assert_serves().await;
}
