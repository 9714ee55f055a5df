//! Target addresses for a Service whose move is under way.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clusterip_cluster::background;
use clusterip_cluster::evaluator::{Evaluation, Evaluator};
use clusterip_cluster::object::namespace;
use clusterip_cluster::watch::stores::Stores;
use clusterip_core::address::parse_address;
use clusterip_core::annotations::Moving;
use clusterip_core::external::stored;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::addresses as service_addresses;
use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::time::sleep;

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

    /// Those of `addresses` that other Services show or have. `service` is the Service as it was just stored: what is
    /// not known as of then counts as theirs.
    fn of_others<'a>(&'a self, service: &'a Value, addresses: &'a [IpAddr]) -> BoxFuture<'a, Vec<IpAddr>>;
}

/// How long to wait until the watch of Services has shown the last write of a move.
const SEEN_WITHIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Asks the policy for other addresses for a Service that is being moved. Each address is reserved until the move has
/// ended. The policy is asked on a background thread, because a move must neither block the runtime nor delay
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
        let namespace = namespace(&service).to_owned();
        Box::pin(async move {
            // A refused address is reserved, or seen in use, so the policy does not choose it again. If the policy
            // still does, there is no other address.
            let asked =
                background::run(&namespace, move || misplaced::reserve_targets(&evaluator, &service).ok()).await;
            let (addresses, evaluation) = asked.ok()??;
            self.evaluations.lock().unwrap_or_else(PoisonError::into_inner).push(evaluation);
            let new = !addresses.iter().any(|address| refused.contains(address));
            new.then_some(addresses)
        })
    }

    fn fits<'a>(&'a self, addresses: &'a [IpAddr]) -> BoxFuture<'a, bool> {
        let (evaluator, service, addresses) = (self.evaluator.clone(), self.service.clone(), addresses.to_vec());
        let namespace = namespace(&service).to_owned();
        let ask = background::run(&namespace, move || misplaced::may_have(&evaluator, &service, &addresses));
        Box::pin(async move { ask.await.unwrap_or_default() })
    }

    fn check_with_policy<'a>(&'a self, service: &'a Value) -> BoxFuture<'a, Result<(), TargetCheckError>> {
        let (evaluator, service) = (self.evaluator.clone(), service.clone());
        let namespace = namespace(&service).to_owned();
        let ask = background::run(&namespace, move || misplaced::check_with_policy(&evaluator, &service));
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

    fn of_others<'a>(&'a self, service: &'a Value, addresses: &'a [IpAddr]) -> BoxFuture<'a, Vec<IpAddr>> {
        let (stores, key) = (self.evaluator.stores(), ServiceKey::of(service));
        Box::pin(async move {
            // The watch shows all Services in the order in which they were written. So it has shown what the others got
            // before the last write of this Service.
            // Before its release, it may have had the same address, but not the marker.
            let is_seen = || {
                let seen = stores.service(&key);
                seen.is_some_and(|seen| Moving::is_on(&seen) && service_addresses(&seen) == service_addresses(service))
            };
            let since = Instant::now();
            while !is_seen() {
                if since.elapsed() > SEEN_WITHIN {
                    return addresses.to_vec();
                }
                sleep(LOOK_AGAIN).await;
            }
            addresses.iter().copied().filter(|address| is_of_another(stores, &key, *address)).collect()
        })
    }
}

/// Whether a Service other than that at `key` shows this address, or has it in a field that kube-proxy acts on. A
/// request for the address does not count: with `spec.loadBalancerIP` or an annotation, any user could keep the status
/// of another user's Service empty.
fn is_of_another(stores: &Stores, key: &ServiceKey, address: IpAddr) -> bool {
    let candidates: Vec<ServiceKey> = {
        let snapshot = stores.read_snapshot();
        if snapshot.packed("networking.k8s.io/v1", "IPAddress", "", &address.to_string()).is_some() {
            return true;
        }
        let holders = snapshot.external_addresses().filter(|(other, held)| *other != key && held.contains(&address));
        holders.map(|(other, _)| other.clone()).collect()
    };
    candidates.iter().filter_map(|other| stores.service(other)).any(|other| {
        let external_ips = other.pointer("/spec/externalIPs").and_then(Value::as_array).into_iter().flatten();
        let external_ips = external_ips.filter_map(|text| parse_address(text.as_str()?));
        stored::shown(other.pointer("/status/loadBalancer/ingress"))
            .into_iter()
            .chain(external_ips)
            .any(|it| it == address)
    })
}
