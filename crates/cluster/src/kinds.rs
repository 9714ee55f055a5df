//! The kinds that a decision may ask about, their resources in the API, and the states of their watches.

use std::iter::once;
use std::time::Instant;

use crate::api_error::if_found;
use crate::list_pages::{PAGE_OBJECTS, SMALL_PAGE_OBJECTS};
use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use kube::Client;
use kube::api::{ApiResource, GroupVersionKind};
use kube::discovery::oneshot;

pub type Kind = (String, String);

/// The state of the watch of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The first list is not complete.
    Syncing,
    /// The list is complete, and changes are watched.
    Synced,
    Absent,
    Failing {
        since: Instant,
        reason: String,
        /// Whether it was listed, or absent, before.
        usable: bool,
    },
}

const ALWAYS: [(&str, &str); 6] = [
    ("v1", "Service"),
    ("v1", "Namespace"),
    ("v1", "Node"),
    ("node.k8s.io/v1", "RuntimeClass"),
    ("networking.k8s.io/v1", "IPAddress"),
    ("networking.k8s.io/v1", "ServiceCIDR"),
];

/// Not part of a decision: the controller reads EndpointSlices before it moves a Service.
const ENDPOINT_SLICE: (&str, &str) = ("discovery.k8s.io/v1", "EndpointSlice");

/// The kinds whose objects make the API server call Services. Not part of a decision: the controller reads them before
/// it moves a Service, and an audit does.
const CALLERS: [(&str, &str); 4] = [
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
    ("apiregistration.k8s.io/v1", "APIService"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
];

/// The kinds that a decision may ask about with any settings.
pub fn always() -> impl Iterator<Item = Kind> {
    ALWAYS.iter().map(owned)
}

/// The kinds that a decision with these settings may ask about.
pub fn asked(settings: &Settings) -> impl Iterator<Item = Kind> {
    always().chain(settings.kinds.iter().map(of_workload))
}

/// The kinds that are watched for decisions with these settings, and for moves.
pub fn watched(settings: &Settings) -> impl Iterator<Item = Kind> {
    asked(settings).chain(once(owned(&ENDPOINT_SLICE)))
}

/// Whether every decision or move depends on the kind. Other kinds are evidence: a look-up of them may fail, and only the
/// requests that need it with it.
pub(super) fn is_required(kind: &Kind) -> bool {
    ALWAYS.iter().chain(&[ENDPOINT_SLICE]).any(|(api_version, name)| *api_version == kind.0 && *name == kind.1)
}

pub fn callers() -> impl Iterator<Item = Kind> {
    CALLERS.iter().map(owned)
}

/// The callers to which the API server sends requests for objects: the kinds of webhook configurations.
pub(crate) fn webhook_configurations() -> impl Iterator<Item = Kind> {
    callers().filter(|(api_version, _)| api_version == "admissionregistration.k8s.io/v1")
}

/// Whether objects of this kind make the API server call Services.
pub(super) fn is_caller(kind: &Kind) -> bool {
    CALLERS.iter().any(|(api_version, name)| *api_version == kind.0 && *name == kind.1)
}

/// The kinds that an agent watches: Services with their recorded addresses, Namespaces and Nodes. If it compiles pool
/// objects (`pools`), it needs the Service ranges: they decide which version of a pool is in use.
pub fn of_agent(pools: bool) -> impl Iterator<Item = Kind> {
    let ranges = Some(("networking.k8s.io/v1", "ServiceCIDR")).filter(|_| pools);
    [("v1", "Service"), ("v1", "Namespace"), ("v1", "Node")].into_iter().chain(ranges).map(|kind| owned(&kind))
}

/// With the endpoints of Services: an agent watches them from the first Service with `externalTrafficPolicy: Local` on.
pub fn endpoint_slices() -> Kind {
    owned(&ENDPOINT_SLICE)
}

pub fn of_workload(workload: &WorkloadKind) -> Kind {
    (workload.api_version.clone(), workload.kind.clone())
}

/// The kind's name if it is Pod, or a kind that is watched with any settings; empty for every other kind, even if it
/// has the same name in another API group.
pub fn own_name(kind: &Kind) -> &'static str {
    let mut own = ALWAYS.into_iter().chain([ENDPOINT_SLICE, ("v1", "Pod")]).chain(CALLERS);
    own.find(|(api_version, name)| *api_version == kind.0 && *name == kind.1).map_or("", |(_, name)| name)
}

/// The resource of a kind; `None` if the API server does not serve it. The API server is asked only about custom kinds.
/// A kind of Kubernetes itself has a regular plural, and a missing one shows when its objects are requested.
pub async fn resource(client: &Client, kind: &Kind) -> Result<Option<ApiResource>, kube::Error> {
    if is_built_in(kind) { Ok(Some(regular(kind))) } else { discovered(client, kind).await }
}

/// How many objects of a kind are listed at a time. The schema of a built-in kind limits how much memory the parsed
/// objects of a page need. A custom kind may have no schema.
pub(crate) fn page_objects(kind: &Kind) -> u32 {
    if is_built_in(kind) { PAGE_OBJECTS } else { SMALL_PAGE_OBJECTS }
}

fn is_built_in(kind: &Kind) -> bool {
    !own_name(kind).is_empty() || WorkloadKind::known().iter().any(|known| of_workload(known) == *kind)
}

/// As [`resource`], but the API server is asked about every kind. `None` if it does not know the kind.
pub async fn discovered(client: &Client, kind: &Kind) -> Result<Option<ApiResource>, kube::Error> {
    match oneshot::pinned_kind(client, &group_version_kind(kind)).await {
        Err(kube::Error::Discovery(_)) => Ok(None),
        found => if_found(found.map(|(resource, _)| Some(resource))),
    }
}

pub fn regular(kind: &Kind) -> ApiResource {
    ApiResource::from_gvk(&group_version_kind(kind))
}

fn group_version_kind((api_version, kind): &Kind) -> GroupVersionKind {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    GroupVersionKind::gvk(group, version, kind)
}

fn owned((api_version, kind): &(&str, &str)) -> Kind {
    ((*api_version).to_owned(), (*kind).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_name_is_only_for_kinds_of_kubernetes() {
        for (api_version, kind, expected) in [
            ("v1", "Service", "Service"),
            // The controller watches it.
            ("discovery.k8s.io/v1", "EndpointSlice", "EndpointSlice"),
            ("v1", "Pod", "Pod"),
            ("apps/v1", "Deployment", ""),
            ("mesh.example.org/v1", "Service", ""),
            ("networking.k8s.io/v1beta1", "IPAddress", ""),
        ] {
            assert_eq!(own_name(&(api_version.to_owned(), kind.to_owned())), expected, "{api_version} {kind}");
        }
    }
}
