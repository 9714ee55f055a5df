//! Where a Service may go whose move is under way.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};

use super::misplaced;
use crate::evaluator::{Evaluation, Evaluator};

/// Where a Service may be placed.
pub trait Targets: Send + Sync {
    /// Addresses for it, like [`Order::addresses`](super::mover::Order::addresses), other than those that were refused; nothing where
    /// there are none.
    fn another(&self, refused: &[IpAddr]) -> Option<Vec<IpAddr>>;

    /// Whether the policy still gives it these addresses, which a recorded move was to bring it to.
    fn fits(&self, addresses: &[IpAddr]) -> bool;

    /// Asks the policy about the Service as a resumed move would restore it, with its addresses and external
    /// addresses: the settings may have changed since the move began.
    ///
    /// # Errors
    /// Why the policy refuses it.
    fn judge(&self, service: &Value) -> Result<(), String>;

    /// Whether the mover may put this `status.loadBalancer` back. One with an address of an external pool is
    /// written by the controller of external addresses alone.
    fn may_show(&self, status: &Map<String, Value>) -> bool;
}

/// Other addresses for a Service on the move. Each is held until the move has ended.
pub struct Alternatives<'e> {
    evaluator: &'e Evaluator,
    /// The Service as it was before its move.
    service: Value,
    held: Mutex<Vec<Evaluation>>,
}

impl<'e> Alternatives<'e> {
    /// For this Service, asked of this evaluator.
    pub fn new(evaluator: &'e Evaluator, service: &Value) -> Self {
        Self { evaluator, service: service.clone(), held: Mutex::default() }
    }
}

impl Targets for Alternatives<'_> {
    fn another(&self, refused: &[IpAddr]) -> Option<Vec<IpAddr>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // What was refused is held, or seen, so the policy does not name it again; where it does, there is
        // nothing else.
        let (addresses, evaluation) = misplaced::hold_targets(self.evaluator, &self.service).ok()?;
        held.push(evaluation);
        let new = !addresses.iter().any(|address| refused.contains(address));
        new.then_some(addresses)
    }

    fn fits(&self, addresses: &[IpAddr]) -> bool {
        misplaced::may_have(self.evaluator, &self.service, addresses)
    }

    fn judge(&self, service: &Value) -> Result<(), String> {
        misplaced::judge(self.evaluator, service)
    }

    fn may_show(&self, status: &Map<String, Value>) -> bool {
        let settings = self.evaluator.settings();
        let ingress = status.get("ingress").and_then(Value::as_array).into_iter().flatten();
        let mut addresses = ingress.filter_map(|entry| entry.get("ip")?.as_str()?.parse::<IpAddr>().ok());
        let external = &settings.settings.external;
        !addresses.any(|address| external.pools.iter().any(|pool| pool.contains(address)))
    }
}
