//! Chooses the pool of a Service, for a host that needs only the pool of many Services.
//!
//! This module is not part of the policy's WebAssembly module.

use crate::lookups::Cluster;
use crate::namespace::LazyNamespace;
use crate::pool::choose;
use crate::request::Request;
use crate::settings::{Pool, Settings};
use crate::triage::{Triage, triage};

/// The pool that the answer to a request names, if the request creates a Service without an address. The decision
/// chooses the pool with the same function, so a host that reads the same objects gets the same pool, in a fraction of
/// the time of an evaluation.
///
/// `None` if the request asks for no new address, if no pool matches, or if a look-up fails. Then only the answer
/// itself tells what happens to the request.
pub fn expected_pool<'s>(request: &Request, settings: &'s Settings, cluster: &dyn Cluster) -> Option<&'s Pool> {
    let Triage::Allocate(service) = triage(request, settings) else { return None };
    let namespace = LazyNamespace::new(&request.namespace, cluster);
    choose(service, &namespace, settings, cluster, &mut Vec::new()).ok()?.pool
}
