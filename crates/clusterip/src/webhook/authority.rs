//! The certificate authority that the API server trusts, stored in a Secret.
//!
//! The Secret holds `ca.crt` and `ca.key`, which sign. A year before that authority expires, its successor is made and
//! stored as `next.crt` and `next.key`: it is trusted beside the current authority but does not sign yet. When the
//! successor is in the webhook configuration and is at least a day old, it starts to sign. The authority before it
//! stays trusted until it expires, as `previous.crt`. Each step is one write of the Secret with its `resourceVersion`,
//! so that exactly one of several processes makes it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::send_if_changed::send_if_changed;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::issuer::{self, Leaf};
use super::tls::Certificate;

pub const SECRET: &str = "clusterip-authority";
/// How long before its expiry an authority gets a successor.
const SUCCESSION: SignedDuration = SignedDuration::from_hours(365 * 24);
/// How long a successor is trusted before it signs, because other API servers may learn of it late.
const SETTLED: SignedDuration = SignedDuration::from_hours(24);
/// How often the Secret and the certificate are checked if nothing is due earlier.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a write is attempted when another process changes the Secret first.
const TRIES: usize = 8;

pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The DNS names of a Service under which the API server and clients in the cluster reach it.
pub fn service_names(service: &str, namespace: &str) -> Vec<String> {
    let full = format!("{service}.{namespace}.svc");
    vec![full.clone(), format!("{full}.cluster.local"), format!("{service}.{namespace}"), service.to_owned()]
}

#[derive(Clone, PartialEq, Eq)]
struct StoredAuthority {
    current: issuer::CaCertificate,
    next: Option<issuer::CaCertificate>,
    /// One is enough: it expires long before its successor has a successor.
    previous: Option<(String, Timestamp)>,
}

impl StoredAuthority {
    fn new(now: Timestamp) -> anyhow::Result<Self> {
        Ok(Self { current: issuer::CaCertificate::generate(now)?, next: None, previous: None })
    }

    fn read(data: &BTreeMap<String, ByteString>) -> anyhow::Result<Self> {
        let text = |key: &'static str| {
            data.get(key).map(|ByteString(bytes)| std::str::from_utf8(bytes)).transpose().context(key)
        };
        let pair = |certificate: &'static str, key: &'static str| match (text(certificate)?, text(key)?) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(anyhow!("{certificate}: is missing")),
            (Some(_), None) => Err(anyhow!("{key}: is missing")),
            (Some(pem), Some(key)) => issuer::CaCertificate::read(pem, key).map(Some).context(certificate),
        };
        let previous = text("previous.crt")?.map(|pem| Ok((pem.to_owned(), issuer::end(pem)?))).transpose();
        let previous = previous.map_err(|error: anyhow::Error| error.context("previous.crt"))?;
        let current = pair("ca.crt", "ca.key")?.ok_or_else(|| anyhow!("ca.crt: is missing"))?;
        Ok(Self { current, next: pair("next.crt", "next.key")?, previous })
    }

    fn write(&self, data: &mut BTreeMap<String, ByteString>) {
        let (current, next) = (&self.current, self.next.as_ref());
        let texts = [
            ("ca.crt", Some(&current.certificate)),
            ("ca.key", Some(&current.key)),
            ("next.crt", next.map(|next| &next.certificate)),
            ("next.key", next.map(|next| &next.key)),
            ("previous.crt", self.previous.as_ref().map(|(pem, _)| pem)),
        ];
        data.retain(|key, _| !texts.iter().any(|(known, _)| known == key));
        let written = texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.clone().into_bytes())));
        data.extend(written.map(|(key, bytes)| (key, ByteString(bytes))));
    }

    /// The certificates to trust, the oldest first: the text stays the same when the successor starts to sign.
    fn bundle(&self, now: Timestamp) -> String {
        let previous = self.previous.iter().filter(|(_, end)| *end > now).map(|(pem, _)| pem);
        let all = previous.chain([&self.current.certificate]).chain(self.next.iter().map(|next| &next.certificate));
        all.flat_map(|pem| [pem.as_str(), if pem.ends_with('\n') { "" } else { "\n" }]).collect()
    }

    /// The next step of a succession, if one is due, with the message to log.
    fn step(&self, registered: &str, now: Timestamp) -> anyhow::Result<Option<(Self, &'static str)>> {
        let ended = self.current.not_after <= now;
        match &self.next {
            Some(next) if next.not_after > now => {
                let settled = next.made + SETTLED <= now && registered.contains(&next.certificate);
                // No client trusts an authority that has expired, so waiting gains nothing.
                if !settled && !ended {
                    return Ok(None);
                }
                let previous = Some((self.current.certificate.clone(), self.current.not_after));
                let stored = Self { current: next.clone(), next: None, previous };
                Ok(Some((stored, "the next certificate authority signs from now on")))
            }
            _ if ended => Ok(Some((Self::new(now)?, "the certificate authority has ended; a new one was made"))),
            None if self.current.not_after - SUCCESSION <= now => {
                let next = Some(issuer::CaCertificate::generate(now)?);
                Ok(Some((Self { next, ..self.clone() }, "the next certificate authority was made")))
            }
            _ => Ok(None),
        }
    }
}

pub struct Authority {
    secrets: Api<Secret>,
    namespace: String,
    names: Vec<String>,
    clock: Clock,
    stored: StoredAuthority,
    leaf: Leaf,
    certificate: Certificate,
    bundle: watch::Sender<String>,
    created: Option<String>,
    /// Whether to delete the Secret at the end of [`Self::run`] if this process created it.
    pub temporary: bool,
}

impl Authority {
    /// Reads or makes the authority, and issues a certificate for these DNS names and IP addresses.
    pub async fn open(client: Client, namespace: &str, names: Vec<String>, clock: Clock) -> anyhow::Result<Self> {
        let secrets = Api::namespaced(client, namespace);
        let now = clock();
        let mut created = None;
        let stored = advance(&secrets, namespace, None, "", now, &mut created).await?;
        let leaf = stored.current.issue(&names, now)?;
        let certificate = Certificate::from_pem(leaf.certificate.as_bytes(), leaf.key.as_bytes())?;
        let bundle = watch::Sender::new(stored.bundle(now));
        let namespace = namespace.to_owned();
        Ok(Self { secrets, namespace, names, clock, stored, leaf, certificate, bundle, created, temporary: false })
    }

    pub fn certificate(&self) -> Certificate {
        self.certificate.clone()
    }

    pub fn leaf(&self) -> &Leaf {
        &self.leaf
    }

    /// The certificates that the API server must trust, in PEM. The receiver sees changes.
    pub fn bundle(&self) -> watch::Receiver<String> {
        self.bundle.subscribe()
    }

    /// Makes the next step of a succession, and renews the server certificate, if they are due. `registered` is what
    /// the API server trusts, in PEM. After an error, the certificate that is being served stays.
    pub async fn step(&mut self, registered: &str) -> anyhow::Result<()> {
        let now = (self.clock)();
        let created = &mut self.created;
        let stored = advance(&self.secrets, &self.namespace, Some(&self.stored), registered, now, created);
        let stored = timeout(REQUEST_TIMEOUT, stored).await.unwrap_or_else(|_| {
            bail!("Secret {}/{SECRET}: no answer from the API server within {REQUEST_TIMEOUT:?}", self.namespace)
        });
        // The certificate is renewed even if the API server can't be reached, because the authority is in memory.
        let renewed = stored.map(|stored| self.stored = stored);
        let bundle = self.stored.bundle(now);
        send_if_changed(&self.bundle, bundle);
        let signer = &self.stored.current.certificate;
        // An authority that an administrator has put into the Secret signs once the API server trusts it.
        let succeeded = self.leaf.issued_by != *signer && registered.contains(signer);
        if succeeded || self.leaf.renewal <= now {
            let leaf = self.stored.current.issue(&self.names, now)?;
            self.certificate.replace(leaf.certificate.as_bytes(), leaf.key.as_bytes())?;
            tracing::info!(renewal = %leaf.renewal, "the server's certificate was renewed");
            self.leaf = leaf;
        }
        renewed
    }

    /// Makes each step when it is due or `registered` has changed, until `shutdown`. After an error it is tried again.
    pub async fn run(mut self, mut registered: watch::Receiver<String>, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                () = sleep(pause) => {}
                Ok(()) = registered.changed() => {}
            }
            let trusted = registered.borrow_and_update().clone();
            let stepped = tokio::select! {
                () = &mut shutdown => break,
                stepped = self.step(&trusted) => stepped,
            };
            if let Err(error) = stepped {
                tracing::error!(%error, "maintaining the certificate authority failed");
            }
            pause = self.pause();
        }
        self.remove().await;
    }

    /// Deletes a temporary Secret that this process created, if it still has the authority of this process.
    async fn remove(&self) {
        let Some(uid) = self.created.clone().filter(|_| self.temporary) else { return };
        let secret = format!("{}/{SECRET}", self.namespace);
        let removed = timeout(REQUEST_TIMEOUT, async {
            let Secret { metadata, data, .. } = self.secrets.get(SECRET).await?;
            let own = self.stored.current.certificate.as_bytes();
            let is_own = data.as_ref().and_then(|data| data.get("ca.crt")).is_some_and(|stored| stored.0 == own);
            if is_own {
                let preconditions = Preconditions { uid: Some(uid), resource_version: metadata.resource_version };
                self.secrets.delete(SECRET, &DeleteParams::default().preconditions(preconditions)).await?;
            }
            Ok::<_, kube::Error>(is_own)
        });
        match removed.await {
            Ok(Ok(false)) => tracing::info!(secret, "the certificate authority stays: another client has changed it"),
            Ok(Ok(true)) => tracing::info!(secret, "the certificate authority was removed"),
            // The Secret is gone, or another process has created it again.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {}
            Ok(Err(error)) => tracing::warn!(secret, error = error_message(&error), "the Secret could not be deleted"),
            Err(_) => tracing::warn!(secret, "the Secret could not be deleted in time"),
        }
    }

    /// How long until the next step may be due, at most a minute. A step that is due and failed also waits that long.
    fn pause(&self) -> Duration {
        let now = (self.clock)();
        let settled = self.stored.next.as_ref().map(|next| next.made + SETTLED);
        let due = settled.into_iter().chain([self.leaf.renewal]).filter(|due| *due > now).min();
        due.map_or(CHECK_INTERVAL, |due| due.duration_since(now).unsigned_abs().min(CHECK_INTERVAL))
    }
}

/// The content of the Secret after every step that is due. A missing Secret is created from `known`: deleting it must
/// not end the authority that the API server trusts. `created` gets the UID of a Secret that is created.
async fn advance(
    secrets: &Api<Secret>,
    namespace: &str,
    known: Option<&StoredAuthority>,
    registered: &str,
    now: Timestamp,
    created: &mut Option<String>,
) -> anyhow::Result<StoredAuthority> {
    let failed =
        |verb, reason: kube::Error| anyhow!("Secret {namespace}/{SECRET} can't be {verb}: {}", error_message(&reason));
    for _ in 0..TRIES {
        let found = secrets.get_opt(SECRET).await.map_err(|error| failed("read", error))?;
        let exists = found.is_some();
        let mut secret = found.unwrap_or_else(|| Secret {
            metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        });
        let data = secret.data.get_or_insert_default();
        let (stored, what) = if exists {
            // Stored data is never overwritten, because it may still be needed.
            let broken = |error: anyhow::Error| {
                anyhow!(
                    "Secret {namespace}/{SECRET} is broken: {error:#}; repair it, or delete it and restart, and a new \
                     authority is made"
                )
            };
            let stored = StoredAuthority::read(data).map_err(broken)?;
            match stored.step(registered, now)? {
                None => return Ok(stored),
                Some(due) => due,
            }
        } else {
            match known {
                Some(known) => (known.clone(), "the Secret was gone; the certificate authority is kept again"),
                None => (StoredAuthority::new(now)?, "a certificate authority was made"),
            }
        };
        stored.write(data);
        let parameters = PostParams::default();
        let (verb, written) = match exists {
            true => ("updated", secrets.replace(SECRET, &parameters, &secret).await),
            false => ("created", secrets.create(&parameters, &secret).await),
        };
        match written {
            Ok(written) => {
                if !exists {
                    *created = written.metadata.uid;
                }
                tracing::info!(secret = format!("{namespace}/{SECRET}"), "{what}");
            }
            // 409: another process was faster. 404: the Secret was deleted meanwhile.
            Err(kube::Error::Api(status)) if status.code == 409 || exists && status.code == 404 => {}
            Err(error) => return Err(failed(verb, error)),
        }
        // Read again: all processes continue with what the Secret holds now, and another step may be due.
    }
    bail!("Secret {namespace}/{SECRET} was changed by others {TRIES} times in a row")
}
