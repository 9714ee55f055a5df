//! The part that this process takes in the leader election: takes the Lease, renews it and gives it back. The reads of the
//! Lease, every 2 s, also show why a server is not ready: the API server does not answer, or another server runs beside
//! this one. A watch of an API server that hangs is silent.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use anyhow::anyhow;
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::lease_writes;
use clusterip_cluster::repeated_failures;
use clusterip_cluster::send_if_changed::send_if_changed;
use clusterip_failover::leases::{
    Identity, LEASE, Observed, ObservedLease, Role, Step, Timing, Version, end, holder, step,
};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta};
use kube::{Client, Error as KubeError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::Leadership;

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

/// How long the API server may give no answer: at least two requests for the Lease have failed by then.
pub const MAX_SILENCE: Duration = Duration::from_secs(15);

/// So many refused connections in a row show that the API server is down. One may be its restart.
const MAX_REFUSED: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub struct Contact {
    pub last: Instant,
    pub refused: u32,
}

impl Contact {
    pub fn now() -> Self {
        Self { last: Instant::now(), refused: 0 }
    }

    pub fn problem(self, now: Instant) -> Option<String> {
        let silence = now.saturating_duration_since(self.last);
        (silence > MAX_SILENCE || self.refused >= MAX_REFUSED).then(|| {
            format!(
                "the API server has not answered for {} s: the Lease of the leader could not be read",
                silence.as_secs()
            )
        })
    }
}

/// A Lease counts as abandoned if it stays unchanged for the time of this many renewals.
const MISSED: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompetingServer {
    /// It is not known yet whether this holder renews the Lease; `None` until the Lease was read.
    Unclear(Option<Identity>),
    /// There is no other server, or this one leads.
    None,
    /// There is another server: it was seen to renew the Lease.
    Lives(Identity),
}

impl CompetingServer {
    /// `clusterip move` does not compete: while a server runs, it hands out no addresses.
    fn of(seen: Option<&ObservedLease>, me: &Identity, retry: Duration, now: Instant) -> Self {
        let Some((seen, holder)) = seen.and_then(|seen| Some((seen, Identity::of(holder(&seen.value)?)))) else {
            return Self::None;
        };
        if holder == *me || holder.role() != Some(Role::Serve) {
            Self::None
        } else if seen.changed {
            Self::Lives(holder)
        } else if !seen.is_unchanged_for(MISSED * retry, now) {
            Self::Unclear(Some(holder))
        } else {
            Self::None
        }
    }

    /// Why a server that records addresses in flight only in its memory is not ready, and what to do.
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Unclear(None) => {
                Some("another server may be at work: the Lease of the leader is yet to be read".into())
            }
            Self::Unclear(Some(holder)) => {
                Some(format!("another server, {holder}, may be at work: whether it renews its Lease is being watched"))
            }
            Self::Lives(holder) => Some(format!(
                "another server, {holder}, is at work and leads; both would hand out the same addresses: stop one of \
                 them, or start all of them with --claims lease"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;

    const RETRY: Duration = Duration::from_secs(2);

    #[test]
    fn a_server_is_not_ready_if_the_api_server_is_silent() {
        let last = Instant::now();
        for (seconds, refused, is_silent) in [(0, 0, false), (15, 1, false), (4, 2, true), (16, 0, true)] {
            let problem = Contact { last, refused }.problem(last + Duration::from_secs(seconds));
            let expected =
                format!("the API server has not answered for {seconds} s: the Lease of the leader could not be read");
            assert_eq!(problem, is_silent.then_some(expected), "{refused} refused");
        }
    }

    #[test]
    fn a_competing_server_is_a_server_that_renews_the_lease() {
        struct Case {
            name: &'static str,
            seen: Option<ObservedLease>,
            seconds: u64,
            expected: CompetingServer,
        }
        let me = Identity::with("me", Role::Serve, 1);
        let (server, mover) = (Identity::with("other", Role::Serve, 2), Identity::with("other", Role::Move, 3));
        let begin = Instant::now();
        let seen = |holder: &str, changed| {
            let spec = LeaseSpec { holder_identity: Some(holder.to_owned()), ..LeaseSpec::default() };
            Some(ObservedLease { value: spec, since: begin, changed })
        };
        let none = |name, seen| Case { name, seen, seconds: 0, expected: CompetingServer::None };
        let unclear = || CompetingServer::Unclear(Some(server.clone()));
        let lives = || CompetingServer::Lives(server.clone());
        let cases = [
            none("no Lease", None),
            none("a Lease without a holder", seen("", true)),
            none("its own Lease", seen(me.as_str(), true)),
            none("`clusterip move`", seen(mover.as_str(), true)),
            none("a Lease of another program", seen("another-program", true)),
            Case { expected: unclear(), ..none("first seen", seen(server.as_str(), false)) },
            Case { seconds: 5, expected: unclear(), ..none("not renewed for 5 s", seen(server.as_str(), false)) },
            Case { seconds: 6, ..none("not renewed for 6 s", seen(server.as_str(), false)) },
            Case { expected: lives(), ..none("renewed", seen(server.as_str(), true)) },
            Case { seconds: 14, expected: lives(), ..none("renewed 14 s ago", seen(server.as_str(), true)) },
        ];
        for Case { name, seen, seconds, expected } in cases {
            let now = begin + Duration::from_secs(seconds);
            assert_eq!(CompetingServer::of(seen.as_ref(), &me, RETRY, now), expected, "{name}");
        }
    }

    #[test]
    fn the_problem_says_what_to_do() {
        let server = Identity::with("other", Role::Serve, 2);
        assert_eq!(CompetingServer::None.problem(), None);
        for found in [CompetingServer::Unclear(None), CompetingServer::Unclear(Some(server.clone()))] {
            assert!(found.problem().is_some_and(|problem| problem.contains("may be at work")), "{found:?}");
        }
        let expected = "another server, other_serve_0000000000000002, is at work and leads; both would hand out the same \
                        addresses: stop one of them, or start all of them with --claims lease";
        assert_eq!(CompetingServer::Lives(server).problem().as_deref(), Some(expected));
    }
}
