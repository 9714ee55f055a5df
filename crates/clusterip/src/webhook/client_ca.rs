//! The certificate authorities of the clients that may send reviews, read from a file.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::tls::{Certificate, CertificateError, poll_files};

/// A file of certificate authorities that can't be used.
#[derive(Debug, Error)]
pub enum ClientCaError {
    /// The file can't be read.
    #[error("reading the client certificate authority {} failed: {reason}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// The file does not hold usable certificate authorities.
    #[error("{} is not a client certificate authority: {reason}", path.display())]
    Unusable {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with the content.
        reason: Box<CertificateError>,
    },
}

/// The authorities that a server trusts for client certificates, in a file that is maintained outside of this program.
#[derive(Debug)]
pub struct ClientCaFile {
    path: PathBuf,
    seen: Vec<u8>,
    certificate: Certificate,
}

impl ClientCaFile {
    /// Reads the file. From then on the server of this certificate asks its clients for certificates.
    ///
    /// # Errors
    /// If the file can't be read, or holds no certificate authority.
    pub fn open(path: &Path, certificate: &Certificate) -> Result<Self, ClientCaError> {
        let mut file = Self { path: path.to_owned(), seen: Vec::new(), certificate: certificate.clone() };
        file.trust(read(path)?)?;
        Ok(file)
    }

    /// Reads the file again and returns whether it has changed. Open connections stay open.
    ///
    /// # Errors
    /// If the file can't be read, or holds no certificate authority. The previous authorities stay trusted.
    pub fn reload(&mut self) -> Result<bool, ClientCaError> {
        let found = read(&self.path)?;
        if found == self.seen {
            return Ok(false);
        }
        self.trust(found)?;
        Ok(true)
    }

    /// Reads the file again at this interval until `shutdown`.
    pub async fn run(self, every: Duration, shutdown: impl Future<Output = ()>) {
        let path = self.path.clone();
        poll_files(self, every, shutdown, Self::reload, |done| match done {
            Ok(true) => tracing::info!(path = %path.display(), "trusting new client certificate authorities"),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "reloading the client certificate authorities failed, the previous ones stay trusted")
            }
        })
        .await;
    }

    fn trust(&mut self, text: Vec<u8>) -> Result<(), ClientCaError> {
        self.seen = text;
        let unusable = |reason| ClientCaError::Unusable { path: self.path.clone(), reason: Box::new(reason) };
        self.certificate.trust_clients_of(&self.seen).map_err(unusable)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ClientCaError> {
    std::fs::read(path).map_err(|reason| ClientCaError::Read { path: path.to_owned(), reason })
}
