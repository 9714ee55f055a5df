//! The kinds that a decision may ask about, and where the API server has their objects.

use std::iter::once;

use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use kube::Client;
use kube::api::{ApiResource, GroupVersionKind};
use kube::discovery::oneshot;

/// API version and kind.
pub type Kind = (String, String);

/// What a decision may ask about whatever the settings say.
const ALWAYS: [(&str, &str); 6] = [
    ("v1", "Service"),
    ("v1", "Namespace"),
    ("v1", "Node"),
    ("node.k8s.io/v1", "RuntimeClass"),
    ("networking.k8s.io/v1", "IPAddress"),
    ("networking.k8s.io/v1", "ServiceCIDR"),
];

/// What no decision asks about, but the controller, before it moves a Service.
const ENDPOINT_SLICE: (&str, &str) = ("discovery.k8s.io/v1", "EndpointSlice");

/// What makes the API server call Services. No decision asks about them, but the controller, before it moves a
/// Service, and an audit.
const CALLERS: [(&str, &str); 4] = [
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
    ("apiregistration.k8s.io/v1", "APIService"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
];

/// The kinds that a decision may ask about whatever the settings say.
pub fn always() -> impl Iterator<Item = Kind> {
    ALWAYS.iter().map(owned)
}

/// The kinds that a decision by these settings may ask about.
pub fn asked(settings: &Settings) -> impl Iterator<Item = Kind> {
    always().chain(settings.kinds.iter().map(of_workload))
}

/// The kinds that are watched for decisions by these settings, and for moves.
pub fn watched(settings: &Settings) -> impl Iterator<Item = Kind> {
    asked(settings).chain(once(owned(&ENDPOINT_SLICE)))
}

/// The kinds of objects that make the API server call Services.
pub fn callers() -> impl Iterator<Item = Kind> {
    CALLERS.iter().map(owned)
}

/// The kinds that an agent knows: who has recorded which addresses, and which nodes there are.
pub fn of_agent() -> impl Iterator<Item = Kind> {
    ALWAYS.iter().take(3).map(owned)
}

/// The kind of a workload.
pub fn of_workload(workload: &WorkloadKind) -> Kind {
    (workload.api_version.clone(), workload.kind.clone())
}

/// The kind's name where it is a Pod, or one that is watched whatever the settings say; empty for any
/// other, which may well be called the same.
pub fn own_name(kind: &Kind) -> &'static str {
    let mut own = ALWAYS.into_iter().chain([ENDPOINT_SLICE, ("v1", "Pod")]).chain(CALLERS);
    own.find(|(api_version, name)| *api_version == kind.0 && *name == kind.1).map_or("", |(_, name)| name)
}

/// Where the API server has the objects of a kind; nothing where it does not serve it. It is asked about
/// custom kinds alone: a kind of Kubernetes' own has a regular plural, and one that is absent shows when
/// its objects are asked for.
///
/// # Errors
/// Where the API server does not tell.
pub async fn resource(client: &Client, kind: &Kind) -> Result<Option<ApiResource>, kube::Error> {
    let is_own = !own_name(kind).is_empty() || WorkloadKind::known().iter().any(|known| of_workload(known) == *kind);
    if is_own {
        return Ok(Some(regular(kind)));
    }
    discovered(client, kind).await
}

/// As [`resource`], but the API server is asked about any kind: nothing where it has not heard of it.
///
/// # Errors
/// Where the API server does not tell.
pub async fn discovered(client: &Client, kind: &Kind) -> Result<Option<ApiResource>, kube::Error> {
    match oneshot::pinned_kind(client, &group_version_kind(kind)).await {
        Ok((resource, _)) => Ok(Some(resource)),
        Err(kube::Error::Discovery(_)) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Where the objects of a kind are, if English makes its plural.
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
    fn whose_names_are_their_own() {
        let rows = [
            ("a fixed kind", "v1", "Service", "Service"),
            ("what the controller watches", "discovery.k8s.io/v1", "EndpointSlice", "EndpointSlice"),
            ("a Pod", "v1", "Pod", "Pod"),
            ("a workload", "apps/v1", "Deployment", ""),
            ("a custom kind of the same name", "mesh.example.org/v1", "Service", ""),
            ("another version", "networking.k8s.io/v1beta1", "IPAddress", ""),
        ];
        for (name, api_version, kind, expected) in rows {
            assert_eq!(own_name(&(api_version.to_owned(), kind.to_owned())), expected, "{name}");
        }
    }

    #[test]
    fn where_the_objects_of_own_kinds_are() {
        let settings = Settings { kinds: WorkloadKind::known(), ..Settings::default() };
        let plurals: Vec<String> = watched(&settings)
            .chain(callers())
            .map(|kind| {
                let resource = regular(&kind);
                assert_eq!((&resource.api_version, &resource.kind), (&kind.0, &kind.1));
                resource.plural
            })
            .collect();
        let expected = [
            "services",
            "namespaces",
            "nodes",
            "runtimeclasses",
            "ipaddresses",
            "servicecidrs",
            "deployments",
            "statefulsets",
            "daemonsets",
            "replicasets",
            "replicationcontrollers",
            "jobs",
            "cronjobs",
            "pods",
            "endpointslices",
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
            "apiservices",
            "customresourcedefinitions",
        ];
        assert_eq!(plurals, expected);
    }
}
