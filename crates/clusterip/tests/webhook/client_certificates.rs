//! Client certificates: which clients may send reviews with `--client-ca`.

use std::path::Path;

use clusterip::webhook::server::Limits;
use clusterip::webhook::tls::{Certificate, CertificateFiles};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Identity, StatusCode};

use crate::support::{Running, allowed, authority, backend, certificate, leaf, review};

struct ClientCa {
    certificate: String,
    key: KeyPair,
}

impl ClientCa {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self { certificate: params.self_signed(&key).unwrap().pem(), key }
    }

    /// A certificate of this authority, and its key.
    fn client(&self, usage: ExtendedKeyUsagePurpose) -> Identity {
        let issuer =
            Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key.serialize_pem()).unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["api-server".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "api-server");
        params.extended_key_usages = vec![usage];
        let pem = params.signed_by(&key, &issuer).unwrap().pem() + &key.serialize_pem();
        Identity::from_pem(pem.as_bytes()).unwrap()
    }
}

/// The status of the answer to a request; `None` if the handshake fails.
async fn asked(server: &Running, identity: Option<&Identity>, path: &str) -> Option<StatusCode> {
    let mut client = server.client_builder();
    if let Some(identity) = identity {
        client = client.identity(identity.clone());
    }
    let client = client.build().unwrap();
    let request = match path {
        "/mutate" => client.post(server.url(path)).header(CONTENT_TYPE, "application/json").body(review("1")),
        _ => client.get(server.url(path)),
    };
    request.send().await.ok().map(|response| response.status())
}

async fn started(file: &Path) -> (Running, Certificate, CertificateFiles) {
    let authority = authority();
    let served = certificate(&leaf(&authority));
    let clients = CertificateFiles::of_clients(file, &served).unwrap();
    let running =
        Running::start_with(backend(|_| allowed()), Limits::default(), &authority.certificate, served.clone());
    (running.await, served, clients)
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_need_a_client_certificate_and_probes_do_not() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.crt");
    let (ca, other) = (ClientCa::new("the API server's"), ClientCa::new("another"));
    std::fs::write(&file, &ca.certificate).unwrap();
    let (server, _, _) = started(&file).await;
    let of_client = |ca: &ClientCa| ca.client(ExtendedKeyUsagePurpose::ClientAuth);
    let (right, wrong) = (of_client(&ca), of_client(&other));
    let of_server = ca.client(ExtendedKeyUsagePurpose::ServerAuth);
    struct Row<'a> {
        name: &'static str,
        identity: Option<&'a Identity>,
        path: &'static str,
        expected: Option<StatusCode>,
    }
    let row = |name, identity, path, expected| Row { name, identity, path, expected };
    let rows = [
        row("no certificate", None, "/mutate", Some(StatusCode::FORBIDDEN)),
        row("another authority's", Some(&wrong), "/mutate", None),
        row("that of a server", Some(&of_server), "/mutate", None),
        row("the right one", Some(&right), "/mutate", Some(StatusCode::OK)),
        row("a probe", None, "/healthz", Some(StatusCode::OK)),
        row("a probe of readiness", None, "/readyz", Some(StatusCode::OK)),
        row("metrics", None, "/metrics", Some(StatusCode::OK)),
        row("a probe with a certificate", Some(&right), "/healthz", Some(StatusCode::OK)),
    ];
    for Row { name, identity, path, expected } in rows {
        assert_eq!(asked(&server, identity, path).await, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_client_ca_file_is_trusted_and_invalid_one_refused() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.crt");
    let (first, second) = (ClientCa::new("first"), ClientCa::new("second"));
    std::fs::write(&file, &first.certificate).unwrap();
    let (mut server, served, mut clients) = started(&file).await;
    let of_first = first.client(ExtendedKeyUsagePurpose::ClientAuth);
    let of_second = second.client(ExtendedKeyUsagePurpose::ClientAuth);
    let answered =
        async || (asked(&server, Some(&of_first), "/mutate").await, asked(&server, Some(&of_second), "/mutate").await);
    let ok = Some(StatusCode::OK);
    assert_eq!(answered().await, (ok, None));
    assert!(!clients.reload().unwrap());

    let unusable = format!("{} is not a client certificate authority: ", file.display());
    for (name, text) in [("empty", String::new()), ("a key", first.key.serialize_pem()), ("text", "hello".to_owned())] {
        std::fs::write(&file, text).unwrap();
        let error = clients.reload().unwrap_err().to_string();
        assert_eq!(error, format!("{unusable}not a certificate authority: no items found; it must be PEM"), "{name}");
        assert!(!clients.reload().unwrap(), "{name}: it is said once");
        assert_eq!(answered().await, (ok, None), "{name}: the authority before stays trusted");
    }
    std::fs::write(&file, format!("{}{}", first.certificate, second.certificate)).unwrap();
    assert!(clients.reload().unwrap());
    assert_eq!(answered().await, (ok, ok), "both, while one takes over from the other");
    // The server's own certificate changes meanwhile: clients are still asked for a certificate.
    let next = leaf(&authority());
    served.replace(next.certificate.as_bytes(), next.key.as_bytes()).unwrap();
    assert!(served.asks_for_clients());

    std::fs::write(&file, &second.certificate).unwrap();
    assert!(clients.reload().unwrap());
    server.authority = next.issued_by.clone();
    assert_eq!(asked(&server, Some(&of_first), "/mutate").await, None);
    assert_eq!(asked(&server, Some(&of_second), "/mutate").await, ok);
}

#[tokio::test]
async fn missing_client_ca_file_is_an_error_at_startup() {
    let served = certificate(&leaf(&authority()));
    let error = CertificateFiles::of_clients(Path::new("/nowhere/ca.crt"), &served).unwrap_err().to_string();
    let expected = "reading the client certificate authority /nowhere/ca.crt failed: No such file or directory";
    assert!(error.starts_with(expected), "{error}");
    assert!(!served.asks_for_clients());
}
