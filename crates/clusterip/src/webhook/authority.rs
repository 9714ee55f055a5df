//! The certificate authority that the API server trusts, kept in a Secret.
//!
//! The Secret holds `ca.crt` and `ca.key`, which sign. A year before that authority ends, its successor
//! is made: `next.crt` and `next.key`, trusted beside it, but not signing yet. Once the successor stands
//! in the webhook configuration, and a day has passed, it signs; what it succeeded stays trusted, as
//! `previous.crt`, until its end. Every step is one write of the Secret with its `resourceVersion`, so
//! that of several processes each step is made by one.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::issuing::{self, IssuingError, Leaf};
use super::tls::{Certificate, CertificateError};

/// The Secret.
pub const SECRET: &str = "clusterip-authority";
/// How long before its end an authority gets a successor.
const SUCCESSION: SignedDuration = SignedDuration::from_hours(365 * 24);
/// How long a successor is trusted before it signs: other API servers may be late to know of it.
const SETTLED: SignedDuration = SignedDuration::from_hours(24);
/// How often the Secret and the certificate are looked at where nothing is due before.
const EVERY: Duration = Duration::from_secs(60);
/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a write is tried that others come before.
const TRIES: usize = 8;

/// The time, as everything here knows it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// An authority that can't be had.
#[derive(Debug, Error)]
pub enum AuthorityError {
    /// The API server refuses.
    #[error("Secret {namespace}/{SECRET} can't be {verb}: {reason}", verb = .verb)]
    Cluster {
        /// Of the Secret.
        namespace: String,
        /// `read`, `created` or `updated`.
        verb: &'static str,
        /// What the API server says.
        reason: Box<kube::Error>,
    },
    /// What is kept can't be used. It is never overwritten: somebody may need it.
    #[error(
        "Secret {namespace}/{SECRET} is broken: {key}: {reason}; repair it, or delete it and restart, and a new authority is made"
    )]
    Broken {
        /// Of the Secret.
        namespace: String,
        /// The key of its data.
        key: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The API server is silent.
    #[error("Secret {namespace}/{SECRET}: no answer from the API server within {PATIENCE:?}")]
    Silent {
        /// Of the Secret.
        namespace: String,
    },
    /// Others write it all the time.
    #[error("Secret {namespace}/{SECRET} was changed by others {TRIES} times in a row")]
    Conflict {
        /// Of the Secret.
        namespace: String,
    },
    /// A certificate can't be made.
    #[error(transparent)]
    Issuing(#[from] IssuingError),
    /// A certificate can't be served.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// The DNS names of a Service, as the API server and clients in the cluster call it.
pub fn service_names(service: &str, namespace: &str) -> Vec<String> {
    let full = format!("{service}.{namespace}.svc");
    vec![full.clone(), format!("{full}.cluster.local"), format!("{service}.{namespace}"), service.to_owned()]
}

/// What the Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    current: issuing::Authority,
    next: Option<issuing::Authority>,
    /// One is enough: it ends long before its successor has one.
    previous: Option<(String, Timestamp)>,
}

impl Kept {
    fn new(now: Timestamp) -> Result<Self, IssuingError> {
        Ok(Self { current: issuing::Authority::generate(now)?, next: None, previous: None })
    }

    fn read(data: &BTreeMap<String, ByteString>) -> Result<Self, (&'static str, String)> {
        let text = |key: &'static str| match data.get(key) {
            None => Ok(None),
            Some(ByteString(bytes)) => std::str::from_utf8(bytes).map(Some).map_err(|error| (key, error.to_string())),
        };
        let pair = |certificate: &'static str, key: &'static str| match (text(certificate)?, text(key)?) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err((certificate, "is not there".to_owned())),
            (Some(_), None) => Err((key, "is not there".to_owned())),
            (Some(pem), Some(key)) => {
                issuing::Authority::read(pem, key).map(Some).map_err(|error| (certificate, error.to_string()))
            }
        };
        let previous = text("previous.crt")?.map(|pem| issuing::end(pem).map(|end| (pem.to_owned(), end)));
        let previous = previous.transpose().map_err(|error| ("previous.crt", error.to_string()))?;
        let current = pair("ca.crt", "ca.key")?.ok_or(("ca.crt", "is not there".to_owned()))?;
        Ok(Self { current, next: pair("next.crt", "next.key")?, previous })
    }

    fn write(&self, data: &mut BTreeMap<String, ByteString>) {
        let mut put = |key: &str, text: Option<String>| match text {
            Some(text) => drop(data.insert(key.to_owned(), ByteString(text.into_bytes()))),
            None => drop(data.remove(key)),
        };
        put("ca.crt", Some(self.current.certificate().to_owned()));
        put("ca.key", Some(self.current.key().pem().to_owned()));
        put("next.crt", self.next.as_ref().map(|next| next.certificate().to_owned()));
        put("next.key", self.next.as_ref().map(|next| next.key().pem().to_owned()));
        put("previous.crt", self.previous.as_ref().map(|(pem, _)| pem.clone()));
    }

    /// What clients must trust, from the oldest to the newest: so a succession changes nothing in it.
    fn bundle(&self, now: Timestamp) -> String {
        let previous = self.previous.iter().filter(|(_, end)| *end > now).map(|(pem, _)| pem.as_str());
        let next = self.next.as_ref().map(issuing::Authority::certificate);
        let all = previous.chain([self.current.certificate()]).chain(next);
        all.flat_map(|pem| [pem, if pem.ends_with('\n') { "" } else { "\n" }]).collect()
    }

    /// The next step of a succession, where one is due.
    fn step(&self, registered: &str, now: Timestamp) -> Result<Option<(Self, &'static str)>, IssuingError> {
        let ended = self.current.not_after() <= now;
        match &self.next {
            Some(next) if next.not_after() > now => {
                let settled = next.made() + SETTLED <= now && registered.contains(next.certificate());
                // Nobody trusts one that has ended: nothing is lost by not waiting.
                if !settled && !ended {
                    return Ok(None);
                }
                let previous = Some((self.current.certificate().to_owned(), self.current.not_after()));
                let kept = Self { current: next.clone(), next: None, previous };
                Ok(Some((kept, "the next certificate authority signs from now on")))
            }
            _ if ended => Ok(Some((Self::new(now)?, "the certificate authority has ended; a new one was made"))),
            None if self.current.not_after() - SUCCESSION <= now => {
                let next = Some(issuing::Authority::generate(now)?);
                Ok(Some((Self { next, ..self.clone() }, "the next certificate authority was made")))
            }
            _ => Ok(None),
        }
    }
}

/// The authority, and the server's certificate that it issues.
pub struct Authority {
    secrets: Api<Secret>,
    namespace: String,
    names: Vec<String>,
    clock: Clock,
    kept: Kept,
    leaf: Leaf,
    certificate: Certificate,
    bundle: watch::Sender<String>,
}

impl Authority {
    /// Makes the authority, or reads it where there is one, and issues a certificate for these names: DNS
    /// names and IP addresses.
    ///
    /// # Errors
    /// Where the Secret can't be read or made, or is broken.
    pub async fn open(
        client: Client,
        namespace: &str,
        names: Vec<String>,
        clock: Clock,
    ) -> Result<Self, AuthorityError> {
        let secrets = Api::namespaced(client, namespace);
        let now = clock();
        let kept = advance(&secrets, namespace, None, "", now).await?;
        let leaf = kept.current.issue(&names, now)?;
        let certificate = Certificate::from_pem(leaf.certificate.as_bytes(), leaf.key.pem().as_bytes())?;
        let bundle = watch::Sender::new(kept.bundle(now));
        Ok(Self { secrets, namespace: namespace.to_owned(), names, clock, kept, leaf, certificate, bundle })
    }

    /// The server's certificate, now and later.
    pub fn certificate(&self) -> Certificate {
        self.certificate.clone()
    }

    /// What the server's certificate is now.
    pub fn leaf(&self) -> &Leaf {
        &self.leaf
    }

    /// What the API server must trust, in PEM, now and later.
    pub fn bundle(&self) -> watch::Receiver<String> {
        self.bundle.subscribe()
    }

    /// Reads the Secret, does what is due, and renews the certificate where that is due. `registered` is
    /// what the API server trusts, in PEM.
    ///
    /// # Errors
    /// As [`Authority::open`]. The certificate that is served stays.
    pub async fn step(&mut self, registered: &str) -> Result<(), AuthorityError> {
        let now = (self.clock)();
        let kept = advance(&self.secrets, &self.namespace, Some(&self.kept), registered, now);
        let silent = |_| AuthorityError::Silent { namespace: self.namespace.clone() };
        let kept = timeout(PATIENCE, kept).await.map_err(silent).flatten();
        // The certificate is renewed even if the API server is away: the authority is here.
        let renewed = kept.map(|kept| self.kept = kept);
        let bundle = self.kept.bundle(now);
        self.bundle.send_if_modified(|known| {
            let other = *known != bundle;
            if other {
                *known = bundle;
            }
            other
        });
        let signer = self.kept.current.certificate();
        // Another authority, which somebody else put there, signs once the API server trusts it.
        let succeeded = self.leaf.issued_by != signer && registered.contains(signer);
        if succeeded || self.leaf.renewal <= now {
            let leaf = self.kept.current.issue(&self.names, now)?;
            self.certificate.replace(leaf.certificate.as_bytes(), leaf.key.pem().as_bytes())?;
            tracing::info!(renewal = %leaf.renewal, "the server's certificate was renewed");
            self.leaf = leaf;
        }
        renewed
    }

    /// Does that every minute, when something is due, and whenever what the API server trusts has changed,
    /// until `shutdown`. Errors are logged, and tried again.
    pub async fn run(mut self, mut registered: watch::Receiver<String>, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut pause = Duration::ZERO;
        let mut registering = true;
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                () = sleep(pause) => {}
                changed = registered.changed(), if registering => registering = changed.is_ok(),
            }
            let trusted = registered.borrow_and_update().clone();
            let stepped = tokio::select! {
                () = &mut shutdown => return,
                stepped = self.step(&trusted) => stepped,
            };
            if let Err(error) = stepped {
                tracing::error!(%error, "the certificate authority can't be kept up");
            }
            pause = self.pause();
        }
    }

    /// How long nothing is due. What is due and could not be done has to wait as well.
    fn pause(&self) -> Duration {
        let now = (self.clock)();
        let settled = self.kept.next.as_ref().map(|next| next.made() + SETTLED);
        let due = settled.into_iter().chain([self.leaf.renewal]).filter(|due| *due > now).min();
        due.map_or(EVERY, |due| due.duration_since(now).unsigned_abs().min(EVERY))
    }
}

/// What the Secret holds, after every step that is due. Without a Secret it is made of what is `known`:
/// what the API server trusts must not end because somebody deletes a Secret.
async fn advance(
    secrets: &Api<Secret>,
    namespace: &str,
    known: Option<&Kept>,
    registered: &str,
    now: Timestamp,
) -> Result<Kept, AuthorityError> {
    let namespace = || namespace.to_owned();
    let failed = |verb, reason| AuthorityError::Cluster { namespace: namespace(), verb, reason: Box::new(reason) };
    for _ in 0..TRIES {
        let found = secrets.get_opt(SECRET).await.map_err(|error| failed("read", error))?;
        let exists = found.is_some();
        let mut secret = found.unwrap_or_else(|| Secret {
            metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        });
        let data = secret.data.get_or_insert_default();
        let (kept, what) = if exists {
            let broken = |(key, reason)| AuthorityError::Broken { namespace: namespace(), key, reason };
            let kept = Kept::read(data).map_err(broken)?;
            match kept.step(registered, now)? {
                None => return Ok(kept),
                Some(due) => due,
            }
        } else {
            match known {
                Some(known) => (known.clone(), "the Secret was gone; the certificate authority is kept again"),
                None => (Kept::new(now)?, "a certificate authority was made"),
            }
        };
        kept.write(data);
        let parameters = PostParams::default();
        let written = if exists {
            secrets.replace(SECRET, &parameters, &secret).await.map_err(|error| ("updated", error))
        } else {
            secrets.create(&parameters, &secret).await.map_err(|error| ("created", error))
        };
        match written {
            Ok(_) => tracing::info!(secret = format!("{}/{SECRET}", namespace()), "{what}"),
            // 409: another process was faster. 404: it was deleted meanwhile.
            Err((_, kube::Error::Api(status)))
                if matches!(status.code, 404 | 409) && (exists || status.code == 409) => {}
            Err((verb, error)) => return Err(failed(verb, error)),
        }
        // Read again: what stands there is what everybody goes on with, and another step may be due.
    }
    Err(AuthorityError::Conflict { namespace: namespace() })
}
