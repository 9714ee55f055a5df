//! Gives a Service another address without deleting it.
//!
//! # Expected flow
//! A `ClusterIP` can't be changed, but a Service without one may be given any. [`Mover::start`] turns the Service
//! into an `ExternalName` for some milliseconds, and then gives it everything back, at the new address. Before that
//! it writes a [record](records) of all that is needed to finish into the server's namespace. [`step`]
//! defines the steps.
//!
//! # Guarantees
//! - The Service is never deleted or created. Its UID stays, and so does everything that depends on it.
//! - Nothing is changed if the API server refuses the first write, which is tried by a dry run.
//! - Unless the order says so, no plain move begins while an endpoint can be reached at the present addresses. The API
//!   server is asked directly before the first write to the Service.
//! - A move may be cut off anywhere. [`Mover::resume`] finishes it from the record. It may be called again, and does
//!   nothing if nothing is left to do. Before it restores an address or an external address, it asks the policy.
//! - Nothing is written to a Service without a record of its move, whatever the Service itself says.
//! - Changes that others make meanwhile are kept. Each write names the version that it was made from.
//! - A move ends: after [`Limits::total`] with an error, and the record stays for [`Mover::resume`].
//! - A seamless move returns when the Service has its new address. Its record stays until [`Mover::resume`] has deleted
//!   the last temporary Service. [`Mover::unfinished`] says when to call it.
//!
//! # Caveats
//! - Another Service may take the old address, the new address or a node port meanwhile. Then the mover takes the
//!   next address that [`Targets`] has, otherwise the old one, otherwise one that the API server picks. A node port
//!   is waited for, and then replaced. The [`Outcome`] says so.
//! - JSON is sent back as it came. A typed client would drop the fields that it does not know.
//!
//! # Modules
//! | module | purpose |
//! | --- | --- |
//! | [`step`] | decides the next step of a move |
//! | [`journal`] | the data that is needed to finish a move |
//! | [`records`] | stores the journals |
//! | [`spec_merge`] | keeps what others changed in the spec meanwhile |
//! | [`field_ownership`] | restores which manager owns which field |
//! | [`seamless`] | decides the steps of a move during which both addresses answer |
//! | [`unfinished`] | the seamless moves that this process knows and that have not ended |
//! | [`targets`] | other target addresses during a move |
//! | [`refusal`] | interprets why the API server refused a request |
//! | [`outcome`] | how a move ended |

use std::net::IpAddr;
use std::time::Duration;

use clusterip_cluster::lookups::snapshot::addresses;
use clusterip_cluster::object::service_path;
use clusterip_core::address_set_by_hand::may_be_set_by_hand;
use clusterip_core::annotations::looks_half_moved;
pub use clusterip_moves::{field_ownership, journal, outcome, refusal, seamless, spec_merge, step};
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

mod api_requests;
mod assign;
mod attempt;
mod finish;
mod move_error;
mod plan_method;
pub mod records;
mod release;
mod seamless_run;
pub mod targets;
pub mod unfinished;

use self::attempt::{Attempt, next_target, same_families};
use self::journal::Journal;
pub use self::move_error::MoveError;
use self::outcome::{MAX_SERVICE_BYTES, Outcome, Unmoved, shown};
use self::plan_method::PlannedMethod;
use self::records::Records;
use self::release::Release;
use self::seamless::progress::Progress;
use self::targets::Targets;
use self::unfinished::UnfinishedMoves;

/// A move to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOrder {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub name: String,
    /// The UID of the Service. Another Service of the same name is not moved.
    pub uid: String,
    /// All addresses that the Service is to have, primary first, in its order of families. A family that stays has
    /// its old address here.
    pub addresses: Vec<IpAddr>,
    /// Why the Service moves, for the Event and the log.
    pub why: String,
    /// The new value of the annotation [`REASON_ANNOTATION`](clusterip_core::annotations::REASON_ANNOTATION), if the
    /// Service has the annotation; `None` removes it.
    pub reason: Option<String>,
    /// Whether to move a Service of type `LoadBalancer`, whose cloud controller may tear its load balancer down.
    pub load_balancers: bool,
    /// The options of a seamless move; `None` for a plain move.
    pub seamless: Option<SeamlessOptions>,
    /// Whether to move the Service plainly although its endpoints can be reached at its present addresses.
    pub interrupts: bool,
}

/// The options of a seamless move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeamlessOptions {
    /// For how many seconds after the first swap the old address answers. DNS caches must forget it in this time.
    pub grace_period: u32,
    /// The domain of the cluster in DNS, such as `cluster.local`.
    pub cluster_domain: String,
}

/// The time limits of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit of one request.
    pub request: Duration,
    /// The limit of the whole move. After that, the move is left to the next resumption.
    pub total: Duration,
    /// How long a node port that is taken is waited for, while the Service has no address.
    pub ports: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request: Duration::from_secs(10), total: Duration::from_secs(60), ports: Duration::from_secs(5) }
    }
}

/// For how many seconds after a move was recorded the status of a load balancer is restored.
const STATUS_LASTS: i64 = 120;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Moves Services.
#[derive(Clone)]
pub struct Mover {
    client: Client,
    records: Records,
    limits: Limits,
    unfinished: UnfinishedMoves,
}

impl Mover {
    /// A mover with the default [`Limits`], which records its moves in `namespace`, the server's namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self::with_limits(client, namespace, Limits::default())
    }

    /// A mover with the given limits.
    pub fn with_limits(client: Client, namespace: &str, limits: Limits) -> Self {
        let records = Records::new(client.clone(), namespace);
        Self { client, records, limits, unfinished: UnfinishedMoves::default() }
    }

    /// The seamless moves that this process knows and that have not ended.
    pub fn unfinished(&self) -> &UnfinishedMoves {
        &self.unfinished
    }

    /// The records of this mover's moves.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Moves a Service. If a move of the Service is recorded already, that move is finished instead.
    ///
    /// # Errors
    /// [`MoveError`] if the move is not finished.
    pub async fn start(&self, order: &MoveOrder, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let mut run = Run::new(self, &order.namespace, &order.name, &order.uid);
        match run.read("read").await? {
            Some(service) => run.begin(service, order, targets).await,
            None => Ok(Outcome::Unmoved(Unmoved::Gone)),
        }
    }

    /// As [`Self::start`], for a Service that was just read. `service` is the whole object of the API server. If the
    /// Service was changed since, the first write is refused, and the Service is read again.
    ///
    /// # Errors
    /// [`MoveError`] if the move is not finished.
    pub async fn start_from(
        &self,
        service: Value,
        order: &MoveOrder,
        targets: &dyn Targets,
    ) -> Result<Outcome, MoveError> {
        let mut run = Run::new(self, &order.namespace, &order.name, &order.uid);
        match run.same_service(service) {
            Some(service) => run.begin(service, order, targets).await,
            None => Ok(Outcome::Unmoved(Unmoved::Gone)),
        }
    }

    /// Finishes a recorded move from wherever it was cut off, and deletes its record.
    ///
    /// # Errors
    /// [`MoveError`] if the move is not finished; then it may be called again.
    pub async fn resume(&self, journal: &Journal, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let mut run = Run::new(self, &journal.namespace, &journal.name, &journal.uid);
        if let Some(plan) = &journal.seamless {
            return run.finish_seamless(None, journal, plan, targets).await;
        }
        match run.read("read").await? {
            Some(service) => run.finish(service, journal, targets).await,
            None => run.end_gone().await,
        }
    }
}

/// One run of a move, from reading the Service to its outcome.
struct Run<'m> {
    mover: &'m Mover,
    namespace: &'m str,
    name: &'m str,
    uid: &'m str,
    since: Instant,
    pause: Duration,
    /// The addresses that this run has ordered; `None` in a run that finishes what another one began.
    ordered: Option<Vec<IpAddr>>,
    refused: Vec<IpAddr>,
    attempt: Option<Attempt>,
    /// The journal that this run recorded.
    recorded: Option<Journal>,
    /// Whether a release got no answer. It may still be carried out.
    uncertain: bool,
    /// Whether the creation of a record got no answer.
    unanswered: bool,
    /// What this run knows of a seamless move.
    progress: Progress,
}

impl<'m> Run<'m> {
    fn new(mover: &'m Mover, namespace: &'m str, name: &'m str, uid: &'m str) -> Self {
        Self {
            mover,
            namespace,
            name,
            uid,
            since: Instant::now(),
            pause: FIRST_PAUSE,
            ordered: None,
            refused: Vec::new(),
            attempt: None,
            recorded: None,
            uncertain: false,
            unanswered: false,
            progress: Progress::of_later_run(),
        }
    }

    fn label(&self) -> String {
        format!("Service {}/{}", self.namespace, self.name)
    }

    fn path(&self) -> String {
        service_path(self.namespace, self.name)
    }

    /// Begins a move of the Service that was read, and finishes it.
    async fn begin(&mut self, service: Value, order: &MoveOrder, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let ended = self.move_from(service, order, targets).await;
        // A record that outlives its move could be replayed. But if the API server did not answer a release, the
        // release may still be carried out and needs the record. Then the next move of the Service, or the next
        // leader, deletes it.
        let may_be_recorded = self.recorded.is_some() || self.unanswered;
        if let (Ok(Outcome::Unmoved(_)), true, false) = (&ended, may_be_recorded, self.uncertain) {
            let _ = self.discard().await;
        }
        ended
    }

    async fn move_from(
        &mut self,
        mut service: Value,
        order: &MoveOrder,
        targets: &dyn Targets,
    ) -> Result<Outcome, MoveError> {
        let mut to = order.addresses.clone();
        let was_by_hand = may_be_set_by_hand(&service);
        loop {
            if looks_half_moved(&service) {
                return self.finish_recorded(service, targets).await;
            }
            if let Some(unmoved) = step::unmovable(&service, &to, order.load_balancers) {
                return Ok(Outcome::Unmoved(unmoved));
            }
            let bytes = service.to_string().len();
            if bytes > MAX_SERVICE_BYTES {
                return Ok(Outcome::Unmoved(Unmoved::TooLarge { bytes }));
            }
            let from = addresses(&service);
            if !same_families(&from, &to) {
                let (from, to) = (shown(&from), shown(&to));
                return Err(MoveError::Families { service: self.label(), from, to });
            }
            if let Some(taken) = self.first_taken(&from, &to).await? {
                self.refused.push(taken);
                match next_target(targets, &self.refused, &from).await {
                    Some(next) => to = next,
                    None => return Ok(Outcome::Unmoved(Unmoved::NoTarget { taken: self.refused.clone() })),
                }
            } else {
                let plan = match self.plan_method(&service, &to, order).await? {
                    PlannedMethod::Plain => None,
                    PlannedMethod::Seamless(plan) => Some(plan),
                    PlannedMethod::Prevented(reason) => return Ok(Outcome::Unmoved(Unmoved::NotPrepared { reason })),
                };
                self.ordered = Some(to.clone());
                match self.release(&service, &to, (order, plan), targets).await? {
                    Release::Done(released, journal) => return self.finish(released, &journal, targets).await,
                    Release::Unmoved(unmoved) => return Ok(Outcome::Unmoved(unmoved)),
                    Release::ReadAgain => {}
                }
            }
            match self.read("read").await? {
                // A user may have set the address by hand since the Service was looked at.
                Some(now) if may_be_set_by_hand(&now) && !was_by_hand => {
                    return Ok(Outcome::Unmoved(Unmoved::SetByHand));
                }
                Some(now) => service = now,
                None => return Ok(Outcome::Unmoved(Unmoved::Gone)),
            }
        }
    }

    /// Finishes a move that looks begun, if it is recorded.
    async fn finish_recorded(&mut self, service: Value, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let recorded = match self.recorded.take() {
            Some(journal) => Some(journal),
            None => {
                // Addresses that another run ordered are checked by the policy before they are restored.
                self.ordered = None;
                self.record().await?
            }
        };
        match recorded {
            Some(journal) => self.finish(service, &journal, targets).await,
            None => Ok(Outcome::Unmoved(Unmoved::NotRecorded)),
        }
    }
}
