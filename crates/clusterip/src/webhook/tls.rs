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
    /// A certificate chain and its key, both PEM.
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

    /// Whether clients are asked for certificates.
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

    /// When the certificate expires.
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

#[derive(Debug)]
struct Pair {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    not_after: i64,
}

impl Clone for Pair {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key(), not_after: self.not_after }
    }
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
        Ok(Self { chain, key, not_after })
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
        let Pair { chain, key, .. } = self.pair.clone();
        let mut config = config.with_single_cert(chain, key).map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// A certificate and a key in two files that are maintained outside of this program.
#[derive(Debug)]
pub struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
    seen: (Vec<u8>, Vec<u8>),
    served: Certificate,
}

impl CertificateFiles {
    /// Reads the files.
    pub fn open(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let seen = (read(certificate)?, read(key)?);
        let served = Certificate::from_pem(&seen.0, &seen.1).map_err(|reason| named(certificate, key, &reason))?;
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), seen, served })
    }

    /// The certificate that is served from these files.
    pub fn certificate(&self) -> Certificate {
        self.served.clone()
    }

    /// The certificate chain in PEM, as last read.
    pub fn chain(&self) -> &[u8] {
        &self.seen.0
    }

    /// Reads the files again, serves them if they have changed, and returns whether they have changed. If they can't be
    /// read or served, the old certificate stays, and the same content is not tried again.
    pub fn reload(&mut self) -> anyhow::Result<bool> {
        // The content is compared, not the time of the file: a file may be written twice within the clock's resolution.
        let found = (read(&self.certificate)?, read(&self.key)?);
        if found == self.seen {
            return Ok(false);
        }
        self.seen = found;
        self.served
            .replace(&self.seen.0, &self.seen.1)
            .map_err(|reason| named(&self.certificate, &self.key, &reason))?;
        Ok(true)
    }

    /// Checks the files at this interval until `shutdown`.
    pub async fn run(self, every: Duration, shutdown: impl Future<Output = ()>) {
        let certificate = self.certificate.clone();
        poll_files(self, every, shutdown, Self::reload, |done| match done {
            Ok(true) => tracing::info!(certificate = %certificate.display(), "serving a new certificate"),
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "reloading the certificate failed, the old one stays in use"),
        })
        .await;
    }
}

/// Reloads files at this interval until `shutdown`, and calls `tell` with each result.
pub(super) async fn poll_files<F: Send + 'static>(
    mut files: F,
    every: Duration,
    shutdown: impl Future<Output = ()>,
    reload: fn(&mut F) -> anyhow::Result<bool>,
    tell: impl Fn(anyhow::Result<bool>),
) {
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
            let done = reload(&mut files);
            (files, done)
        });
        let done;
        match looked.await {
            Ok(looked) => (files, done) = looked,
            Err(error) => return tracing::error!(%error, "certificate files are no longer watched"),
        }
        tell(done);
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).map_err(|reason| anyhow!("reading {} failed: {reason}", path.display()))
}

fn named(certificate: &Path, key: &Path, reason: &anyhow::Error) -> anyhow::Error {
    anyhow!("{} and {}: {reason}", certificate.display(), key.display())
}
