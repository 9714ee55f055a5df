//! Target addresses for a Service whose move is under way.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use clusterip_core::external::stored;
use clusterip_host::evaluator::{Evaluation, Evaluator};
use clusterip_runtime::background;
use futures::future::BoxFuture;
use serde_json::{Map, Value};

use crate::services::endpoints;
use crate::services::misplaced::{self, TargetCheckError};

/// Chooses and checks the target addresses of one Service.
pub trait Targets: Send + Sync {
    /// Other addresses for the Service, as in [`MoveOrder::addresses`](super::MoveOrder::addresses), without any
    /// that is in `refused`; `None` if there are no such addresses.
    fn another<'a>(&'a self, refused: &'a [IpAddr]) -> BoxFuture<'a, Option<Vec<IpAddr>>>;

    /// Whether the policy still gives the Service these addresses, which are the target of a recorded move.
    fn fits<'a>(&'a self, addresses: &'a [IpAddr]) -> BoxFuture<'a, bool>;

    /// Asks the policy about the Service as a resumed move would restore it, with its addresses and external
    /// addresses. The settings may have changed since the move began.
    ///
    /// # Errors
    /// [`TargetCheckError`] if the policy refuses the Service or does not answer.
    fn check_with_policy<'a>(&'a self, service: &'a Value) -> BoxFuture<'a, Result<(), TargetCheckError>>;

    /// Whether the Service, as it was before its move, can be reached at its addresses, if it has these EndpointSlices.
    fn is_reachable(&self, slices: &[Value]) -> bool;

    /// Whether the mover may restore this `status.loadBalancer`. A status with an address of an external pool is
    /// written only by the controller of external addresses.
    fn may_show(&self, status: &Map<String, Value>) -> bool;
}

/// Asks the policy for other addresses for a Service that is being moved. Each address is reserved until the move has
/// ended. The policy is asked on the background thread, because a move must neither block the runtime nor delay
/// admission.
pub struct Alternatives {
    evaluator: Evaluator,
    /// The Service as it was before its move.
    service: Value,
    /// The evaluations that reserved the addresses.
    evaluations: Mutex<Vec<Evaluation>>,
}

impl Alternatives {
    /// Targets for this Service, as `evaluator` chooses them.
    pub fn new(evaluator: &Evaluator, service: &Value) -> Self {
        Self { evaluator: evaluator.clone(), service: service.clone(), evaluations: Mutex::default() }
    }
}

impl Targets for Alternatives {
    fn another<'a>(&'a self, refused: &'a [IpAddr]) -> BoxFuture<'a, Option<Vec<IpAddr>>> {
        let (evaluator, service) = (self.evaluator.clone(), self.service.clone());
        Box::pin(async move {
            // A refused address is reserved, or seen in use, so the policy does not choose it again. If the policy
            // still does, there is no other address.
            let asked = background::run(move || misplaced::reserve_targets(&evaluator, &service).ok()).await;
            let (addresses, evaluation) = asked.ok()??;
            self.evaluations.lock().unwrap_or_else(PoisonError::into_inner).push(evaluation);
            let new = !addresses.iter().any(|address| refused.contains(address));
            new.then_some(addresses)
        })
    }

    fn fits<'a>(&'a self, addresses: &'a [IpAddr]) -> BoxFuture<'a, bool> {
        let (evaluator, service, addresses) = (self.evaluator.clone(), self.service.clone(), addresses.to_vec());
        let ask = background::run(move || misplaced::may_have(&evaluator, &service, &addresses));
        Box::pin(async move { ask.await.unwrap_or_default() })
    }

    fn check_with_policy<'a>(&'a self, service: &'a Value) -> BoxFuture<'a, Result<(), TargetCheckError>> {
        let (evaluator, service) = (self.evaluator.clone(), service.clone());
        let ask = background::run(move || misplaced::check_with_policy(&evaluator, &service));
        Box::pin(async move { ask.await.map_err(TargetCheckError::Interrupted)? })
    }

    fn is_reachable(&self, slices: &[Value]) -> bool {
        let settings = self.evaluator.settings();
        endpoints::of(slices, self.evaluator.stores(), &settings.settings, &self.service).reachable > 0
    }

    fn may_show(&self, status: &Map<String, Value>) -> bool {
        let settings = self.evaluator.settings();
        let shown = stored::shown(status.get("ingress"));
        !shown.into_iter().any(|address| settings.settings.external.pool_of(address).is_some())
    }
}
