//! For which addresses the certificate of an API server is valid.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

const TIME_LIMIT: Duration = Duration::from_secs(3);

/// The IP addresses in the serving certificate at `server`.
pub async fn addresses(server: SocketAddr) -> anyhow::Result<Vec<IpAddr>> {
    tokio::task::spawn_blocking(move || named_addresses(&certificate(server)?)).await?
}

/// The certificate is only read: no request is sent to the server, so its certificate need not be verified.
fn certificate(server: SocketAddr) -> anyhow::Result<CertificateDer<'static>> {
    let mut stream = TcpStream::connect_timeout(&server, TIME_LIMIT)?;
    stream.set_read_timeout(Some(TIME_LIMIT))?;
    stream.set_write_timeout(Some(TIME_LIMIT))?;
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
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

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
