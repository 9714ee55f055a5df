//! For which addresses the certificate of an API server is valid.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::Config;
use kube::client::ConfigExt as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

const TIME_LIMIT: Duration = Duration::from_secs(3);

/// The API servers whose certificates lack some of the wanted addresses, each with these, and the ones that can't be
/// reached.
pub async fn lacking(servers: &[SocketAddr], wanted: &[IpAddr]) -> (Vec<(SocketAddr, Vec<IpAddr>)>, Vec<String>) {
    let (mut lacking, mut unreachable) = (Vec::new(), Vec::new());
    for server in servers {
        match addresses(*server).await {
            Ok(named) => {
                let missing: Vec<IpAddr> = wanted.iter().filter(|it| !named.contains(it)).copied().collect();
                lacking.extend((!missing.is_empty()).then_some((*server, missing)));
            }
            Err(error) => unreachable.push(format!("{server} ({error})")),
        }
    }
    (lacking, unreachable)
}

/// The IP addresses in the serving certificate at `server`.
async fn addresses(server: SocketAddr) -> anyhow::Result<Vec<IpAddr>> {
    // The certificate is only read: no request is sent to the server, so its certificate need not be verified.
    let mut config = Config::new(http::Uri::from_static("https://kubernetes"));
    (config.accept_invalid_certs, config.root_cert) = (true, Some(Vec::new()));
    let config = config.rustls_client_config()?;
    tokio::task::spawn_blocking(move || named_addresses(&certificate(server, config)?)).await?
}

fn certificate(server: SocketAddr, config: ClientConfig) -> anyhow::Result<CertificateDer<'static>> {
    let mut stream = TcpStream::connect_timeout(&server, TIME_LIMIT)?;
    stream.set_read_timeout(Some(TIME_LIMIT))?;
    stream.set_write_timeout(Some(TIME_LIMIT))?;
    let mut connection = ClientConnection::new(Arc::new(config), ServerName::from(server.ip()))?;
    while connection.is_handshaking() {
        let (read, written) = connection.complete_io(&mut stream)?;
        if read == 0 && written == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
    let first = connection.peer_certificates().and_then(|chain| chain.first());
    first.map(|certificate| certificate.clone().into_owned()).context("the server shows no certificate")
}

fn named_addresses(certificate: &CertificateDer<'_>) -> anyhow::Result<Vec<IpAddr>> {
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|error| anyhow!("certificate: {error}"))?;
    let names = certificate.subject_alternative_name().ok().flatten();
    let addresses = names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(IpAddr::from),
        },
        _ => None,
    });
    Ok(addresses.collect())
}
