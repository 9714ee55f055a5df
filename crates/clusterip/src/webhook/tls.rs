//! The server certificate, which can be replaced while the server runs.

use std::fmt::Display;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use axum_server::tls_rustls::RustlsConfig;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::version::{TLS12, TLS13};
use tokio::task::block_in_place;
use tokio::time::sleep;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::issuer::timestamp;
use crate::text::joined;

/// A certificate with its key, which can be replaced: every new connection gets the current one. Clones share it.
#[derive(Clone, Debug)]
pub struct Certificate {
    config: RustlsConfig,
    served: Arc<Mutex<Served>>,
}

#[derive(Clone, Debug)]
struct Served {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
    not_after: Timestamp,
    /// Verifies the certificates of clients. If it is `None`, clients are not asked for a certificate.
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl Certificate {
    pub fn from_pem(chain: &[u8], key: &[u8]) -> anyhow::Result<Self> {
        let served = Served::read(chain, key)?;
        let config = RustlsConfig::from_config(served.config()?);
        Ok(Self { config, served: Arc::new(Mutex::new(served)) })
    }

    /// Replaces certificate and key, both PEM. If these can't be served, the old ones stay.
    pub fn replace(&self, chain: &[u8], key: &[u8]) -> anyhow::Result<()> {
        let next = Served::read(chain, key)?;
        self.change(|served| Served { clients: served.clients.clone(), ..next })
    }

    /// Asks clients for certificates, and trusts those that these authorities, in PEM, have signed. A client without a
    /// certificate can still connect; one of another authority can't. After an error, nothing changes.
    pub(crate) fn trust_clients_of(&self, authorities: &[u8]) -> anyhow::Result<()> {
        let none = |reason: &dyn Display| anyhow!("not a certificate authority: {reason}; it must be PEM");
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(authorities) {
            let authority = authority.map_err(|error| none(&error))?;
            roots.add(authority).map_err(|error| none(&error))?;
        }
        if roots.is_empty() {
            return Err(none(&"no items found"));
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()))
            .allow_unauthenticated()
            .build()
            .map_err(|error| none(&error))?;
        self.change(|served| Served { clients: Some(verifier), ..served.clone() })
    }

    pub fn asks_for_clients(&self) -> bool {
        self.served.lock().clients.is_some()
    }

    fn change(&self, next: impl FnOnce(&Served) -> Served) -> anyhow::Result<()> {
        let mut served = self.served.lock();
        let next = next(&served);
        self.config.reload_from_config(next.config()?);
        *served = next;
        Ok(())
    }

    pub(crate) fn not_after(&self) -> Timestamp {
        self.served.lock().not_after
    }

    /// Why the server is not ready, if the certificate has expired at `now`.
    pub fn problem(&self, now: Timestamp) -> Option<String> {
        let end = self.not_after();
        (end <= now).then(|| format!("the certificate expired at {end}"))
    }

    pub(super) fn config(&self) -> RustlsConfig {
        self.config.clone()
    }
}

impl Served {
    fn read(chain: &[u8], key: &[u8]) -> anyhow::Result<Self> {
        let none = |reason: &dyn Display| {
            anyhow!("not a certificate: {reason}; it must be PEM, the server's own certificate first")
        };
        let chain =
            CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>().map_err(|error| none(&error))?;
        let Some(own) = chain.first() else { return Err(none(&"no items found")) };
        let (_, own) = X509Certificate::from_der(own).map_err(|error| none(&error))?;
        let not_after = timestamp(own.validity().not_after);
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| anyhow!("not a private key: {error}; it must be PEM: PKCS#8, PKCS#1 or SEC1"))?;
        Ok(Self { chain, key: Arc::new(key), not_after, clients: None })
    }

    fn config(&self) -> anyhow::Result<Arc<rustls::ServerConfig>> {
        // The certificate and the key do not belong together, or TLS can't use them.
        let unusable = |error| anyhow!("certificate and key can't be served: {error}");
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(unusable)?;
        let config = match &self.clients {
            Some(verifier) => config.with_client_cert_verifier(Arc::clone(verifier)),
            None => config.with_no_client_auth(),
        };
        let mut config = config.with_single_cert(self.chain.clone(), self.key.clone_key()).map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Files that are maintained outside of this program: a certificate with its key, or the authorities of clients.
#[derive(Debug)]
pub struct CertificateFiles {
    paths: Vec<PathBuf>,
    seen: Vec<Vec<u8>>,
    certificate: Certificate,
}

impl CertificateFiles {
    pub fn open(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let paths = vec![certificate.to_owned(), key.to_owned()];
        let (chain, private) = (read(certificate, "")?, read(key, "")?);
        let served = Certificate::from_pem(&chain, &private).map_err(|reason| unusable(&paths, &reason))?;
        Ok(Self { paths, seen: vec![chain, private], certificate: served })
    }

    /// Reads the authorities of clients. From then on the server of this certificate asks its clients for certificates.
    pub fn of_clients(file: &Path, certificate: &Certificate) -> anyhow::Result<Self> {
        let mut files = Self { paths: vec![file.to_owned()], seen: Vec::new(), certificate: certificate.clone() };
        files.reload()?;
        Ok(files)
    }

    pub fn certificate(&self) -> Certificate {
        self.certificate.clone()
    }

    /// The first file as last read: the certificate chain in PEM.
    pub fn chain(&self) -> &[u8] {
        self.seen.first().map(Vec::as_slice).unwrap_or_default()
    }

    /// Reads the files again, and returns whether they have changed and are in use now. If they can't be used, what was
    /// in use before stays, and the same content is not tried again.
    pub fn reload(&mut self) -> anyhow::Result<bool> {
        // The content is compared, not the time of the file: a file may be written twice within the clock's resolution.
        let what = if self.are_of_clients() { "the client certificate authority " } else { "" };
        let found = self.paths.iter().map(|path| read(path, what)).collect::<Result<Vec<_>, _>>()?;
        if found == self.seen {
            return Ok(false);
        }
        self.seen = found;
        let used = match self.seen.as_slice() {
            [chain, key] => self.certificate.replace(chain, key),
            authorities => self.certificate.trust_clients_of(&authorities.concat()),
        };
        used.map(|()| true).map_err(|reason| unusable(&self.paths, &reason))
    }

    /// Checks the files at this interval until `shutdown`.
    pub async fn run(mut self, every: Duration, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                () = sleep(every) => {}
            }
            // The files may be on a file system that hangs.
            let reloaded = block_in_place(|| self.reload());
            let path = self.paths.first().map(|path| tracing::field::display(path.display()));
            match (reloaded, self.are_of_clients()) {
                (Ok(false), _) => {}
                (Ok(true), false) => tracing::info!(certificate = path, "serving a new certificate"),
                (Ok(true), true) => tracing::info!(path, "trusting new client certificate authorities"),
                (Err(error), false) => {
                    tracing::error!(%error, "reloading the certificate failed, the old one stays in use");
                }
                (Err(error), true) => {
                    tracing::error!(%error, "reloading the client certificate authorities failed, the previous ones stay trusted");
                }
            }
        }
    }

    fn are_of_clients(&self) -> bool {
        self.paths.len() == 1
    }
}

/// Reads a file. An error names it, after `what` it is.
fn read(path: &Path, what: &str) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|reason| anyhow!("reading {what}{} failed: {reason}", path.display()))
}

fn unusable(paths: &[PathBuf], reason: &anyhow::Error) -> anyhow::Error {
    let files = joined(paths.iter().map(|path| path.display()), " and ");
    let what = if paths.len() == 1 { " is not a client certificate authority" } else { "" };
    anyhow!("{files}{what}: {reason}")
}
