//! The certificate authorities of the clients that may send reviews, read from a file.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;

use super::tls::{Certificate, poll_files};

/// The authorities that a server trusts for client certificates, in a file that is maintained outside of this program.
#[derive(Debug)]
pub struct ClientCaFile {
    path: PathBuf,
    seen: Vec<u8>,
    certificate: Certificate,
}

impl ClientCaFile {
    /// Reads the file. From then on the server of this certificate asks its clients for certificates.
    pub fn open(path: &Path, certificate: &Certificate) -> anyhow::Result<Self> {
        let mut file = Self { path: path.to_owned(), seen: Vec::new(), certificate: certificate.clone() };
        file.trust(read(path)?)?;
        Ok(file)
    }

    /// Reads the file again and returns whether it has changed. Open connections stay open. If the file can't be read,
    /// or holds no certificate authority, the previous authorities stay trusted.
    pub fn reload(&mut self) -> anyhow::Result<bool> {
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

    fn trust(&mut self, text: Vec<u8>) -> anyhow::Result<()> {
        self.seen = text;
        let trusted = self.certificate.trust_clients_of(&self.seen);
        trusted.map_err(|reason| anyhow!("{} is not a client certificate authority: {reason}", self.path.display()))
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let failed = |reason| anyhow!("reading the client certificate authority {} failed: {reason}", path.display());
    std::fs::read(path).map_err(failed)
}
