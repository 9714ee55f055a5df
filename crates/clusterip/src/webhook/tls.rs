//! The server certificate, which can be replaced while the server runs.

use std::fmt::Display;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

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
use tokio::time::{MissedTickBehavior, interval};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::text::joined;

/// A certificate with its key, which can be replaced: every new connection gets the current one. Clones share it.
#[derive(Clone, Debug)]
pub struct Certificate {
    config: RustlsConfig,
    served: Arc<Mutex<Served>>,
}

/// The parts of the TLS configuration.
#[derive(Debug)]
struct Served {
    pair: Pair,
    /// Verifies the certificates of clients. If it is `None`, clients are not asked for a certificate.
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl Certificate {
    pub fn from_pem(chain: &[u8], key: &[u8]) -> anyhow::Result<Self> {
        let served = Served { pair: Pair::read(chain, key)?, clients: None };
        let config = RustlsConfig::from_config(served.config()?);
        Ok(Self { config, served: Arc::new(Mutex::new(served)) })
    }

    /// Replaces certificate and key, both PEM. If these can't be served, the old ones stay.
    pub fn replace(&self, chain: &[u8], key: &[u8]) -> anyhow::Result<()> {
        let pair = Pair::read(chain, key)?;
        self.change(|served| Served { pair, clients: served.clients.clone() })
    }

    /// Asks clients for certificates from now on, and trusts those that these authorities have signed. A client without
    /// a certificate can still connect; a client with a certificate of another authority can't. If the text, which must
    /// be PEM, does not hold a certificate authority, nothing changes.
    pub fn trust_clients_of(&self, authorities: &[u8]) -> anyhow::Result<()> {
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
        self.change(|served| Served { pair: served.pair.clone(), clients: Some(verifier) })
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

    pub fn not_after(&self) -> SystemTime {
        let seconds = self.served.lock().pair.not_after;
        SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
    }

    /// Why the server is not ready, if the certificate has expired at `now`.
    pub fn problem(&self, now: Timestamp) -> Option<String> {
        let not_after = self.served.lock().pair.not_after;
        let end = Timestamp::from_second(not_after).unwrap_or(Timestamp::MAX);
        (end <= now).then(|| format!("the certificate expired at {end}"))
    }

    pub(super) fn config(&self) -> RustlsConfig {
        self.config.clone()
    }
}

#[derive(Clone, Debug)]
struct Pair {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
    not_after: i64,
}

impl Pair {
    fn read(chain: &[u8], key: &[u8]) -> anyhow::Result<Self> {
        let none = |reason: &dyn Display| {
            anyhow!("not a certificate: {reason}; it must be PEM, the server's own certificate first")
        };
        let chain =
            CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>().map_err(|error| none(&error))?;
        let Some(own) = chain.first() else { return Err(none(&"no items found")) };
        let (_, own) = X509Certificate::from_der(own).map_err(|error| none(&error))?;
        let not_after = own.validity().not_after.timestamp();
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| anyhow!("not a private key: {error}; it must be PEM: PKCS#8, PKCS#1 or SEC1"))?;
        Ok(Self { chain, key: Arc::new(key), not_after })
    }
}

impl Served {
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
        let Pair { chain, key, .. } = &self.pair;
        let mut config = config.with_single_cert(chain.clone(), key.clone_key()).map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Files that are maintained outside of this program: a certificate with its key, or the authorities of clients.
#[derive(Debug)]
pub struct CertificateFiles {
    content: Content,
    paths: Vec<PathBuf>,
    seen: Vec<Vec<u8>>,
    certificate: Certificate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    CertificateAndKey,
    AuthoritiesOfClients,
}

impl CertificateFiles {
    /// Reads a certificate and its key.
    pub fn open(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let (content, paths) = (Content::CertificateAndKey, vec![certificate.to_owned(), key.to_owned()]);
        let (chain, private) = (content.read(certificate)?, content.read(key)?);
        let served = Certificate::from_pem(&chain, &private).map_err(|reason| content.unusable(&paths, &reason))?;
        Ok(Self { content, paths, seen: vec![chain, private], certificate: served })
    }

    /// Reads the authorities of clients. From then on the server of this certificate asks its clients for certificates.
    pub fn of_clients(file: &Path, certificate: &Certificate) -> anyhow::Result<Self> {
        let (content, paths) = (Content::AuthoritiesOfClients, vec![file.to_owned()]);
        let mut files = Self { content, paths, seen: Vec::new(), certificate: certificate.clone() };
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

    /// Reads the files again, puts them into use if they have changed, and returns whether they have changed. Open
    /// connections stay open. If the files can't be read or used, what was in use before stays in use, and the same
    /// content is not tried again.
    pub fn reload(&mut self) -> anyhow::Result<bool> {
        // The content is compared, not the time of the file: a file may be written twice within the clock's resolution.
        let found = self.paths.iter().map(|path| self.content.read(path)).collect::<Result<Vec<_>, _>>()?;
        if found == self.seen {
            return Ok(false);
        }
        self.seen = found;
        let used = match self.seen.as_slice() {
            [chain, key] => self.certificate.replace(chain, key),
            authorities => self.certificate.trust_clients_of(&authorities.concat()),
        };
        used.map(|()| true).map_err(|reason| self.content.unusable(&self.paths, &reason))
    }

    /// Checks the files at this interval until `shutdown`.
    pub async fn run(mut self, every: Duration, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                _ = ticks.tick() => {}
            }
            // The files may be on a file system that hangs.
            let looked = tokio::task::spawn_blocking(move || {
                let done = self.reload();
                (self, done)
            });
            let done;
            match looked.await {
                Ok(looked) => (self, done) = looked,
                Err(error) => return tracing::error!(%error, "certificate files are no longer watched"),
            }
            let path = self.paths.first().map(|path| path.display());
            match (done, self.content) {
                (Ok(false), _) => {}
                (Ok(true), Content::CertificateAndKey) => {
                    tracing::info!(certificate = path.map(tracing::field::display), "serving a new certificate");
                }
                (Ok(true), Content::AuthoritiesOfClients) => {
                    tracing::info!(
                        path = path.map(tracing::field::display),
                        "trusting new client certificate authorities"
                    );
                }
                (Err(error), Content::CertificateAndKey) => {
                    tracing::error!(%error, "reloading the certificate failed, the old one stays in use");
                }
                (Err(error), Content::AuthoritiesOfClients) => {
                    tracing::error!(%error, "reloading the client certificate authorities failed, the previous ones stay trusted");
                }
            }
        }
    }
}

impl Content {
    fn read(self, path: &Path) -> anyhow::Result<Vec<u8>> {
        let what = if self == Self::AuthoritiesOfClients { "the client certificate authority " } else { "" };
        std::fs::read(path).map_err(|reason| anyhow!("reading {what}{} failed: {reason}", path.display()))
    }

    fn unusable(self, paths: &[PathBuf], reason: &anyhow::Error) -> anyhow::Error {
        let files = joined(paths.iter().map(|path| path.display()), " and ");
        let what = if self == Self::AuthoritiesOfClients { " is not a client certificate authority" } else { "" };
        anyhow!("{files}{what}: {reason}")
    }
}
