//! For which addresses the certificate of an API server is valid.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use kube::Config;
use kube::client::ConfigExt as _;
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const TIME_LIMIT: Duration = Duration::from_secs(3);

/// The API servers whose certificates do not name the address `wanted`, and those whose certificates can't be read. With
/// `names_itself`, a certificate that does not name the address of its server counts as that of another program: in the
/// network of an administrator, another machine may have the address of an API server.
pub async fn lacking(wanted: IpAddr, servers: &[SocketAddr], names_itself: bool) -> (Vec<SocketAddr>, Vec<String>) {
    let (mut lacking, mut unreachable) = (Vec::new(), Vec::new());
    for server in servers {
        match names(*server, wanted, names_itself).await {
            Ok(true) => {}
            Ok(false) => lacking.push(*server),
            Err(error) => unreachable.push(format!("{server} ({error})")),
        }
    }
    (lacking, unreachable)
}

async fn names(server: SocketAddr, wanted: IpAddr, names_itself: bool) -> anyhow::Result<bool> {
    // The certificate is only read: no request is sent to the server, so its certificate need not be verified.
    let mut config = Config::new(http::Uri::from_static("https://kubernetes"));
    (config.accept_invalid_certs, config.root_cert) = (true, Some(Vec::new()));
    let connector = TlsConnector::from(Arc::new(config.rustls_client_config()?));
    let connected = async { connector.connect(ServerName::from(server.ip()), TcpStream::connect(server).await?).await };
    let stream = timeout(TIME_LIMIT, connected).await.context("connection timed out")??;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = ParsedCertificate::try_from(certificate.context("the server shows no certificate")?)?;
    let is_named = |address: IpAddr| verify_server_name(&certificate, &ServerName::from(address)).is_ok();
    if names_itself && !is_named(server.ip()) {
        bail!("another program answers, whose certificate does not name this address");
    }
    Ok(is_named(wanted))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;

    use rcgen::{CertificateParams, KeyPair};
    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::{ServerConfig, ServerConnection};

    use super::*;

    /// A server on loopback that accepts one connection, with a certificate for these addresses.
    fn server(named: &[&str]) -> SocketAddr {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
            while connection.is_handshaking() && connection.complete_io(&mut stream).is_ok() {}
        });
        address
    }

    #[tokio::test]
    async fn certificate_of_another_program_says_nothing_about_an_api_server() {
        struct Case {
            named: &'static [&'static str],
            names_itself: bool,
            is_lacking: bool,
            is_reachable: bool,
        }
        let cases = [
            Case { named: &["127.0.0.1"], names_itself: true, is_lacking: true, is_reachable: true },
            Case { named: &["127.0.0.1", "10.100.0.1"], names_itself: true, is_lacking: false, is_reachable: true },
            Case { named: &["10.0.0.9"], names_itself: true, is_lacking: false, is_reachable: false },
            // A load balancer, which the kubeconfig names by its host.
            Case { named: &["10.0.0.9"], names_itself: false, is_lacking: true, is_reachable: true },
        ];
        let wanted = "10.100.0.1".parse().unwrap();
        for Case { named, names_itself, is_lacking, is_reachable } in cases {
            let server = server(named);
            let (lacking, unreachable) = super::lacking(wanted, &[server], names_itself).await;
            let expected = if is_lacking { vec![server] } else { Vec::new() };
            assert_eq!((lacking, unreachable.is_empty()), (expected, is_reachable), "{named:?} {names_itself}");
        }
    }
}
