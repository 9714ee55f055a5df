//! Gives a Service another address without deleting it.
//!
//! # Expected flow
//! A `ClusterIP` can't be changed, but a Service without one may be given any. [`Mover::start`] turns the Service
//! into an `ExternalName` for some milliseconds, and then gives it everything back, at the new address. Before that
//! it writes a record of all that is needed to finish into the server's namespace. [`step`]
//! defines the steps.
//!
//! # Guarantees
//! - The Service is never deleted or created. Its UID stays, and so does everything that depends on it.
//! - Nothing is changed if the API server refuses the first write, which is tried by a dry run.
//! - Unless the order says so, no plain move begins while an endpoint can be reached at the present addresses. The API
//!   server is asked directly before the first write to the Service.
//! - A move may be cut off anywhere. [`Mover::resume`] finishes it from the record. It may be called again, and does
//!   nothing if nothing is left to do. Before it restores a new address or an external address, it asks the policy.
//! - Nothing is written to a Service without a record of its move, whatever the Service itself says.
//! - Changes that others make meanwhile are kept. Each write names the version that it was made from.
//! - A move ends: after [`Limits::total`] with an error, and the record stays for [`Mover::resume`].
//! - A seamless move returns when the Service has its new address. Its record stays until [`Mover::resume`] has deleted
//!   the last temporary Service.
//! - [`Mover::unfinished`] has each move whose record may exist, and says when to resume it, also if its Service is gone.
//!
//! # Caveats
//! - Another Service may take the old address, the new address or a node port meanwhile. Then the mover takes the
//!   next address that [`Targets`] has, otherwise the old one, otherwise one that no pool contains. The API server
//!   picks one only where the settings isolate no Services, because it may pick one of any pool. If nothing is left, the
//!   record stays, and the move is tried again. A node port is waited for, and then replaced. The [`Outcome`] says so.
//! - JSON is sent back as it came. A typed client would drop the fields that it does not know.
//!
//! # Modules
//! [`Mover`] is on top. `plain_run` and `seamless_run` carry out the steps that [`clusterip_moves`] decides, with the
//! requests of `run`. `records` stores the journals, and [`targets`] chooses target addresses.

use std::sync::Arc;

use clusterip_cluster::lookups::snapshot::addresses;
use clusterip_core::annotations::looks_half_moved;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::may_be_set_by_hand;
use clusterip_moves::journal::Journal;
use clusterip_moves::outcome::{Outcome, Size, Unmoved, shown};
use clusterip_moves::step;
use kube::Client;
use serde_json::Value;

mod plain_run;
pub(crate) mod records;
mod run;
mod seamless_run;
pub mod targets;

use self::records::{Records, UnfinishedMoves};
pub use self::run::{Limits, MoveError, MoveOrder};
use self::run::{Run, Shared, Stop};
use self::targets::{Targets, next_target, same_families};

/// Moves Services.
#[derive(Clone)]
pub struct Mover(Shared);

impl Mover {
    /// A mover with the default [`Limits`], which records its moves in `namespace`, the server's namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self::with_limits(client, namespace, Limits::default())
    }

    /// A mover with the given limits.
    pub fn with_limits(client: Client, namespace: &str, limits: Limits) -> Self {
        let records = Records::new(client.clone(), namespace);
        Self(Shared { client, records, limits, size: Size::Large, unfinished: UnfinishedMoves::default() })
    }

    /// This mover for Services up to this size.
    #[must_use]
    pub fn up_to(&self, size: Size) -> Self {
        let mut shared = self.0.clone();
        (shared.size, shared.records.size) = (size, size);
        Self(shared)
    }

    /// The moves that other leaders left, and those of this process that have not ended.
    pub fn unfinished(&self) -> &UnfinishedMoves {
        &self.0.unfinished
    }

    /// The records of this mover's moves.
    pub fn records(&self) -> &Records {
        &self.0.records
    }

    /// Moves a Service. If a move of the Service is recorded already, that move is finished instead.
    pub async fn start(&self, order: &MoveOrder, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let mut run = Run::new(&self.0, &order.id, &order.uid);
        match run.read_to_begin().await {
            Ok(service) => run.begin(service, order, targets).await,
            Err(stop) => stop.ended(),
        }
    }

    /// As [`Self::start`], for a Service that was just read. `service` is the whole object of the API server. If the
    /// Service was changed since, the first write is refused, and the Service is read again.
    pub async fn start_from(
        &self,
        service: Value,
        order: &MoveOrder,
        targets: &dyn Targets,
    ) -> Result<Outcome, MoveError> {
        let mut run = Run::new(&self.0, &order.id, &order.uid);
        match run.same_service(service) {
            Some(service) => run.begin(service, order, targets).await,
            None => Ok(Outcome::Unmoved(Unmoved::Gone)),
        }
    }

    /// Finishes a recorded move from wherever it was cut off, and deletes its record.
    pub async fn resume(&self, journal: &Journal, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let id = ServiceKey::new(journal.namespace.as_str(), journal.name.as_str());
        self.0.unfinished.add(&journal.uid, &id, false);
        let mut run = Run::new(&self.0, &id, &journal.uid);
        if let Some(plan) = &journal.seamless {
            return run.finish_seamless(None, journal, plan, targets).await;
        }
        match run.read("read").await? {
            Some(service) => run.finish(service, journal, targets).await,
            None => run.discard().await.map(|()| Outcome::Unmoved(Unmoved::Gone)),
        }
    }
}

impl Run<'_> {
    /// Begins a move of the Service that was read, and finishes it.
    async fn begin(&mut self, service: Value, order: &MoveOrder, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let ended = self.move_from(service, order, targets).await.or_else(Stop::ended);
        // A record that outlives its move could be replayed. But if the API server did not answer a release, the
        // release may still be carried out and needs the record. Then the next resumption deletes it.
        if let Ok(Outcome::Unmoved(_)) = &ended
            && self.recorded.is_some()
            && self.requests_ended()
        {
            let _ = self.discard().await;
        }
        ended
    }

    async fn move_from(
        &mut self,
        mut service: Value,
        order: &MoveOrder,
        targets: &dyn Targets,
    ) -> Result<Outcome, Stop> {
        let mut to = order.addresses.clone();
        let was_by_hand = may_be_set_by_hand(&service);
        loop {
            if looks_half_moved(&service) {
                return Ok(self.finish_recorded(service, targets).await?);
            }
            if let Some(unmoved) = step::unmovable(&service, &to, order.load_balancers) {
                return Err(Stop::Unmoved(unmoved));
            }
            let from = addresses(&service);
            if !same_families(&from, &to) {
                let (service, from, to) = (self.label(), shown(&from), shown(&to));
                return Err(Stop::Error(MoveError::Families(format!(
                    "{service} at {from} can't be moved to {to}: one address for each of its families is needed, in \
                     their order"
                ))));
            }
            if let Some(taken) = self.first_taken(&from, &to).await? {
                self.refused.push(taken);
                match next_target(targets, &self.refused, &from).await {
                    Some(next) => to = next,
                    None => return Err(Stop::Unmoved(Unmoved::NoTarget { taken: self.refused.clone() })),
                }
            } else {
                let plan = self.plan_method(&service, &to, order).await?;
                self.ordered = Some(to.clone());
                if let Some((released, journal)) = self.release(service, &to, (order, plan), targets).await? {
                    return Ok(self.finish(released, &journal, targets).await?);
                }
            }
            service = self.read_to_begin().await?;
            // A user may have set the address by hand since the Service was looked at.
            if may_be_set_by_hand(&service) && !was_by_hand {
                return Err(Stop::Unmoved(Unmoved::SetByHand));
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
                self.record().await?.map(Arc::new)
            }
        };
        match recorded {
            Some(journal) => {
                self.shared.unfinished.add(self.uid, self.id, false);
                self.finish(service, &journal, targets).await
            }
            None => Ok(Outcome::Unmoved(Unmoved::NotRecorded)),
        }
    }

    /// Carries out the steps that are left of a recorded move.
    async fn finish(&mut self, service: Value, journal: &Journal, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        match &journal.seamless {
            Some(plan) => self.finish_seamless(Some(service), journal, plan, targets).await,
            None => self.finish_plain(service, journal, targets).await,
        }
    }
}
