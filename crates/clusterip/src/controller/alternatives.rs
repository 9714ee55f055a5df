//! Where a Service may go whose move is under way.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::misplaced;
use crate::background;
use crate::evaluator::{Evaluation, Evaluator};

/// Where a Service may be placed.
pub trait Targets: Send + Sync {
    /// Addresses for it, like [`Order::addresses`](super::mover::Order::addresses), other than those that were refused; nothing where
    /// there are none.
    fn another<'a>(&'a self, refused: &'a [IpAddr]) -> BoxFuture<'a, Option<Vec<IpAddr>>>;

    /// Whether the policy still gives it these addresses, which a recorded move was to bring it to.
    fn fits<'a>(&'a self, addresses: &'a [IpAddr]) -> BoxFuture<'a, bool>;

    /// Asks the policy about the Service as a resumed move would restore it, with its addresses and external
    /// addresses: the settings may have changed since the move began.
    ///
    /// # Errors
    /// Why the policy refuses it.
    fn judge<'a>(&'a self, service: &'a Value) -> BoxFuture<'a, Result<(), String>>;

    /// Whether the mover may put this `status.loadBalancer` back. One with an address of an external pool is
    /// written by the controller of external addresses alone.
    fn may_show(&self, status: &Map<String, Value>) -> bool;
}

/// Other addresses for a Service on the move. Each is held until the move has ended. The policy is asked on the
/// background thread: a move must neither stop the runtime nor go before admission.
pub struct Alternatives {
    evaluator: Evaluator,
    /// The Service as it was before its move.
    service: Value,
    held: Mutex<Vec<Evaluation>>,
}

impl Alternatives {
    /// For this Service, asked of this evaluator.
    pub fn new(evaluator: &Evaluator, service: &Value) -> Self {
        Self { evaluator: evaluator.clone(), service: service.clone(), held: Mutex::default() }
    }
}

impl Targets for Alternatives {
    fn another<'a>(&'a self, refused: &'a [IpAddr]) -> BoxFuture<'a, Option<Vec<IpAddr>>> {
        let (evaluator, service) = (self.evaluator.clone(), self.service.clone());
        Box::pin(async move {
            // What was refused is held, or seen, so the policy does not name it again; where it does, there is
            // nothing else.
            let asked = background::run(move || misplaced::hold_targets(&evaluator, &service).ok()).await;
            let (addresses, evaluation) = asked.ok()??;
            self.held.lock().unwrap_or_else(PoisonError::into_inner).push(evaluation);
            let new = !addresses.iter().any(|address| refused.contains(address));
            new.then_some(addresses)
        })
    }

    fn fits<'a>(&'a self, addresses: &'a [IpAddr]) -> BoxFuture<'a, bool> {
        let (evaluator, service, addresses) = (self.evaluator.clone(), self.service.clone(), addresses.to_vec());
        let ask = background::run(move || misplaced::may_have(&evaluator, &service, &addresses));
        Box::pin(async move { ask.await.unwrap_or_default() })
    }

    fn judge<'a>(&'a self, service: &'a Value) -> BoxFuture<'a, Result<(), String>> {
        let (evaluator, service) = (self.evaluator.clone(), service.clone());
        let ask = background::run(move || misplaced::judge(&evaluator, &service));
        Box::pin(async move { ask.await.map_err(|error| error.to_string())? })
    }

    fn may_show(&self, status: &Map<String, Value>) -> bool {
        let settings = self.evaluator.settings();
        let ingress = status.get("ingress").and_then(Value::as_array).into_iter().flatten();
        let mut addresses = ingress.filter_map(|entry| entry.get("ip")?.as_str()?.parse::<IpAddr>().ok());
        let external = &settings.settings.external;
        !addresses.any(|address| external.pools.iter().any(|pool| pool.contains(address)))
    }
}
