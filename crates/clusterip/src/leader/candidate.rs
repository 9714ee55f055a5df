//! The part that this process takes in the leader election: takes the Lease, renews it and gives it back.

use std::future::Future;
use std::pin::pin;

use anyhow::anyhow;
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::lease_writes;
use clusterip_cluster::repeated_failures;
use clusterip_cluster::send_if_changed::send_if_changed;
use clusterip_failover::leases::{Identity, LEASE, Observed, ObservedLease, Step, Timing, Version, end, holder, step};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta};
use kube::{Client, Error as KubeError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::Leadership;
use crate::leader::readiness::{CompetingServer, Contact};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquisition {
    /// This process leads, for as long as [`Candidate::run`] runs.
    Acquired,
    /// Another process leads and is alive: it was seen to write the Lease.
    HeldBy(Identity),
}

pub struct Candidate {
    leases: Api<Lease>,
    namespace: String,
    pub me: Identity,
    timing: Timing,
    seen: Option<ObservedLease>,
    /// Whether this process may hold the Lease. A write without an answer may have been carried out.
    wrote: bool,
    /// Whether to delete the Lease at the end, if this process created it and may delete it, instead of giving it back.
    pub temporary: bool,
    created: Option<String>,
    state: watch::Sender<Leadership>,
    /// Until when this process leads without another renewal. What ends by then ends before another process may lead.
    pub(crate) term: watch::Sender<Option<Instant>>,
    pub(crate) competing_server: watch::Sender<CompetingServer>,
    /// When the API server last answered a request for the Lease; at first, when the candidate was made.
    pub(crate) contact: watch::Sender<Contact>,
}

impl Candidate {
    /// Takes part in the election for the Lease [`LEASE`] in `namespace`. Sends no request yet.
    pub fn new(client: Client, namespace: &str, me: Identity, timing: Timing) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            me,
            timing,
            seen: None,
            wrote: false,
            temporary: false,
            created: None,
            state: watch::Sender::new(Leadership::Following { holder: None }),
            term: watch::Sender::new(None),
            competing_server: watch::Sender::new(CompetingServer::Unclear(None)),
            contact: watch::Sender::new(Contact::now()),
        }
    }

    pub fn subscribe(&self) -> watch::Receiver<Leadership> {
        self.state.subscribe()
    }

    /// Reads the Lease. The sooner the Lease of a dead process is first seen, the sooner it can be taken.
    pub async fn look(&mut self) -> anyhow::Result<Option<Lease>> {
        let found = self.read().await?;
        let spec = found.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
        self.seen = spec.map(|spec| Observed::next(self.seen.take(), spec, Instant::now()));
        Ok(found)
    }

    /// Takes the Lease, or finds out that its holder is alive. Waits until the Lease of a dead process expires.
    pub async fn try_acquire(&mut self) -> anyhow::Result<Acquisition> {
        loop {
            self.attempt().await?;
            if self.deadline().is_some_and(|deadline| Instant::now() < deadline) {
                return Ok(Acquisition::Acquired);
            }
            if let Some(seen) = &self.seen
                && let (true, Some(holder)) = (seen.changed, holder(&seen.value))
            {
                return Ok(Acquisition::HeldBy(Identity::of(holder)));
            }
            sleep(self.timing.retry).await;
        }
    }

    /// Leads whenever possible until `shutdown`, when all that relies on it must have ended. Then gives the Lease back.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                () = self.round() => {}
            }
        }
        self.note_renewal(None);
        self.publish(Leadership::Following { holder: None });
        self.release().await;
    }

    async fn round(&mut self) {
        let next = Instant::now() + self.timing.retry;
        let failed = match self.deadline() {
            Some(deadline) => timeout_at(deadline, self.attempt()).await.unwrap_or(Ok(())),
            None => self.attempt().await,
        };
        if let Err(error) = failed
            && let Some(line) = repeated_failures::line(&error.to_string())
        {
            tracing::warn!(%error, not_logged = line.not_logged, "leader election");
        }
        match self.deadline() {
            Some(deadline) if next.max(Instant::now()) >= deadline => {
                sleep_until(deadline).await;
                self.note_renewal(None);
                tracing::warn!(
                    "the Lease {}/{LEASE} could not be renewed in time: this process stops leading",
                    self.namespace
                );
                self.publish(Leadership::Following { holder: None });
            }
            Some(_) => sleep_until(next).await,
            // An abandoned Lease is taken at once, and not at the next regular try.
            None => sleep_until(self.abandoned().map_or(next, |end| end.min(next))).await,
        }
    }

    /// When the Lease of another process counts as abandoned, unless it is renewed.
    fn abandoned(&self) -> Option<Instant> {
        let end = self.seen.as_ref().filter(|seen| holder(&seen.value).is_some()).map(|seen| end(seen, self.timing))?;
        (end > Instant::now()).then_some(end)
    }

    fn note_renewal(&self, began: Option<Instant>) {
        self.term.send_replace(began.map(|began| began + self.timing.deadline));
    }

    /// Until when this process leads without another renewal.
    fn deadline(&self) -> Option<Instant> {
        *self.term.borrow()
    }

    async fn attempt(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        let found = self.look().await?;
        let now = Instant::now();
        let (renewed, leadership) = match step(self.seen.as_ref(), &self.me, self.timing, now, Timestamp::now()) {
            Step::Write(spec) => {
                self.wrote = true;
                let creates = found.is_none();
                let Some(lease) = self.write(found, spec).await? else { return Ok(()) };
                if creates {
                    self.created.clone_from(&lease.metadata.uid);
                }
                self.seen = lease.spec.map(|spec| Observed::next(self.seen.take(), spec, Instant::now()));
                (Some(begin), Leadership::Leading)
            }
            Step::Wait => {
                let holder = self.seen.as_ref().and_then(|seen| holder(&seen.value)).map(Identity::of);
                (None, Leadership::Following { holder })
            }
        };
        self.note_renewal(renewed);
        self.publish(leadership);
        let competing_server = CompetingServer::of(self.seen.as_ref(), &self.me, self.timing.retry, now);
        send_if_changed(&self.competing_server, competing_server);
        Ok(())
    }

    /// Writes the Lease if it is still as it was `found`; returns `None` if it is not.
    async fn write(&self, found: Option<Lease>, spec: LeaseSpec) -> anyhow::Result<Option<Lease>> {
        let request = if found.is_some() { "updated" } else { "created" };
        let new = || ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() };
        let lease = Lease { metadata: found.map_or_else(new, |found| found.metadata), spec: Some(spec) };
        match self.bounded(request, lease_writes::write(&self.leases, &lease)).await? {
            Ok(lease) => Ok(Some(lease)),
            Err(error) if raced(&error) => Ok(None),
            Err(error) => Err(self.failed(request, error_message(&error))),
        }
    }

    async fn release(&mut self) {
        if !self.wrote {
            return;
        }
        let released = timeout(self.timing.deadline, async {
            while let Some(lease) = self.read().await?
                && let Some(spec) = lease.spec.clone()
                && spec.holder_identity.as_deref() == Some(self.me.as_str())
            {
                if self.temporary && self.created.is_some() && self.created == lease.metadata.uid {
                    let version = Version::of(&lease);
                    match self.bounded("deleted", lease_writes::delete(&self.leases, LEASE, &version)).await? {
                        Ok(()) => break,
                        Err(error) if matches!(&error, KubeError::Api(status) if status.code == 403) => {
                            let error = error_message(&error);
                            tracing::warn!(error, "the Lease {}/{LEASE} could not be deleted", self.namespace);
                        }
                        Err(error) if raced(&error) => continue,
                        Err(error) => return Err(self.failed("deleted", error_message(&error))),
                    }
                }
                let now = MicroTime(Timestamp::now());
                let spec = LeaseSpec {
                    holder_identity: Some(String::new()),
                    // As client-go does. A reader that checks only the times then takes the Lease for expired.
                    lease_duration_seconds: Some(1),
                    acquire_time: Some(now.clone()),
                    renew_time: Some(now),
                    ..spec
                };
                if self.write(Some(lease), spec).await?.is_some() {
                    break;
                }
            }
            anyhow::Ok(())
        });
        match released.await {
            Ok(Ok(())) => tracing::info!("released the Lease {}/{LEASE}", self.namespace),
            Ok(Err(error)) => {
                tracing::warn!(%error, "leader election: the next leader must wait until the Lease expires")
            }
            Err(_) => tracing::warn!("the Lease {}/{LEASE} could not be released in time", self.namespace),
        }
    }

    async fn read(&self) -> anyhow::Result<Option<Lease>> {
        let request = "read";
        let read = self.bounded(request, self.leases.get_opt(LEASE)).await?;
        // A refusal is an answer, too. An API server without etcd answers with an error of the server.
        match &read {
            Err(KubeError::Api(status)) if status.code >= 500 => {}
            Ok(_) | Err(KubeError::Api(_)) => drop(self.contact.send_replace(Contact::now())),
            Err(_) => self.contact.send_modify(|contact| contact.refused += 1),
        }
        read.map_err(|error| self.failed(request, error_message(&error)))
    }

    async fn bounded<T>(&self, request: &str, sent: impl Future<Output = T>) -> anyhow::Result<T> {
        let waited = self.timing.request();
        timeout(waited, sent).await.map_err(|_| self.failed(request, format!("no answer within {waited:?}")))
    }

    fn failed(&self, request: &str, reason: String) -> anyhow::Error {
        let namespace = &self.namespace;
        anyhow!("Lease {namespace}/{LEASE} can't be {request}: {reason}; without it nothing is moved or assigned")
    }

    fn publish(&self, state: Leadership) {
        if *self.state.borrow() == state {
            return;
        }
        match &state {
            Leadership::Leading => tracing::info!(identity = %self.me, "leading"),
            Leadership::Following { holder: Some(holder) } => tracing::info!(%holder, "another process leads"),
            Leadership::Following { holder: None } => tracing::info!("not leading"),
        }
        self.state.send_replace(state);
    }
}

/// Whether another process was faster, and changed, created or deleted the Lease.
fn raced(error: &KubeError) -> bool {
    matches!(error, KubeError::Api(status) if status.code == 409 || lease_writes::is_missing(status, LEASE))
}
