//! Where a Service may go whose move is under way.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::misplaced;
use crate::evaluator::{Evaluation, Evaluator};

/// Where a Service may be placed.
pub trait Targets: Send + Sync {
    /// Addresses for it, like [`Order::addresses`](super::mover::Order::addresses), other than those that were refused; nothing where
    /// there are none.
    fn another(&self, refused: &[IpAddr]) -> Option<Vec<IpAddr>>;

    /// Whether it may have these, which its annotation names: anybody might have written that. That the
    /// annotation itself counts them as used does not matter here.
    fn fits(&self, addresses: &[IpAddr]) -> bool;
}

/// Other addresses for a Service on the move. Each is held until the move has ended.
pub struct Alternatives<'e> {
    evaluator: &'e Evaluator,
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
        let (addresses, evaluation) = misplaced::another(self.evaluator, &self.service)?;
        held.push(evaluation);
        let new = !addresses.iter().any(|address| refused.contains(address));
        new.then_some(addresses)
    }

    fn fits(&self, addresses: &[IpAddr]) -> bool {
        misplaced::may_have(self.evaluator, &self.service, addresses)
    }
}
