//! Checks whether this identity may do everything that it has to do.
//!
//! The check runs at the start, and again for settings that come later. So an administrator learns of all missing
//! permissions at once, and not of one after the other when it is needed.

use std::fmt;

use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, ApiResource, PostParams};
use serde_json::json;
use thiserror::Error;

use crate::cluster::api_error::words;
use crate::cluster::kinds;
use crate::controller::leader::LEASE;

/// How many permissions are reviewed at a time.
const AT_ONCE: usize = 8;

/// A permission that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The verb, such as `get`.
    pub verb: &'static str,
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural of the resource, such as `services`.
    pub resource: String,
    /// The subresource, such as `status`.
    pub subresource: Option<&'static str>,
    /// The only object that the permission is needed for; `None` for all objects.
    pub name: Option<String>,
    /// The only namespace that the permission is needed for; `None` for the whole cluster.
    pub namespace: Option<String>,
}

/// What a process has to do, besides knowing the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duties {
    /// The process's own namespace.
    pub namespace: String,
    /// Whether it moves Services while it leads.
    pub moves: bool,
    /// Whether it also moves Services of type `LoadBalancer`, and restores their status.
    pub load_balancers: bool,
    /// Whether it gives Nodes their blocks while it leads, if the settings have pools for Nodes.
    pub nodes: bool,
    /// Whether it looks after external addresses while it leads, if the settings have pools of them.
    pub external: bool,
    /// The namespace of the agents' Leases, if it is not the process's own.
    pub agents_namespace: Option<String>,
    /// Whether it is an agent, which only holds external addresses on a node. Then the other duties are ignored.
    pub agent: bool,
    /// Whether it claims addresses, as one of several replicas.
    pub claims: bool,
    /// The Secret of its certificate authority, if it has one.
    pub authority: Option<String>,
    /// The webhook configuration that it looks after, if any.
    pub registration: Option<Registration>,
    /// The ConfigMap of its settings, if it watches one.
    pub settings: Option<String>,
    /// The namespace of that ConfigMap, if it is not the process's own.
    pub settings_namespace: Option<String>,
}

/// The webhook configuration that a process looks after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The name of the webhook configuration.
    pub name: String,
    /// Whether it is created at the start and deleted at the end, and not only kept up to date.
    pub own: bool,
}

/// Permissions are missing, or can't be found out.
#[derive(Debug, Error)]
pub enum PermissionsError {
    /// Permissions are missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The API server can't be asked. Contains its message.
    #[error("the permissions of this identity can't be checked: {0}")]
    Ask(String),
    /// A kind of workloads in the settings can't be looked up.
    #[error("{api_version}/{kind}, one of services.evidence.kinds, can't be looked up: {reason}")]
    Discover {
        /// The API version of the kind.
        api_version: String,
        /// The name of the kind.
        kind: String,
        /// The message of the API server.
        reason: String,
    },
}

/// All missing permissions. The message lists them as rules that grant them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Missing {
    /// The user that needs the permissions; `None` if the API server does not tell.
    pub user: Option<String>,
    /// The missing permissions.
    pub needs: Vec<Need>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_deref().unwrap_or("this identity");
        write!(f, "{user} lacks permissions; these rules grant what is missing:")?;
        let mut namespaces: Vec<_> = self.needs.iter().map(|need| &need.namespace).collect();
        namespaces.sort();
        namespaces.dedup();
        for namespace in namespaces {
            match namespace {
                None => f.write_str("\nin a ClusterRole:")?,
                Some(namespace) => write!(f, "\nin a Role of namespace {namespace}:")?,
            }
            let mut rules: Vec<(&Need, Vec<&str>)> = Vec::new();
            for need in self.needs.iter().filter(|need| need.namespace == *namespace) {
                match rules.iter_mut().find(|(rule, _)| Need { verb: need.verb, ..(*rule).clone() } == *need) {
                    Some((_, verbs)) => verbs.push(need.verb),
                    None => rules.push((need, vec![need.verb])),
                }
            }
            for (need, verbs) in rules {
                write!(f, "\n- {}", rule(need, &verbs))?;
            }
        }
        Ok(())
    }
}

/// A rule of RBAC, as YAML on one line.
fn rule(need: &Need, verbs: &[&str]) -> String {
    let resource = match need.subresource {
        Some(subresource) => format!("{}/{subresource}", need.resource),
        None => need.resource.clone(),
    };
    let list = |items: &[&str]| json!(items).to_string().replace(',', ", ");
    let names = need.name.as_deref().map(|name| format!("resourceNames: {}, ", list(&[name]))).unwrap_or_default();
    format!(
        "{{apiGroups: {}, resources: {}, {names}verbs: {}}}",
        list(&[need.group.as_str()]),
        list(&[resource.as_str()]),
        list(verbs)
    )
}

/// Collects needs without duplicates.
struct Needs(Vec<Need>);

impl Needs {
    fn cluster(&mut self, group: &str, resource: &str, verbs: &[&'static str]) -> &mut Self {
        self.add(group, resource, None, None, None, verbs)
    }

    fn add(
        &mut self,
        group: &str,
        resource: &str,
        subresource: Option<&'static str>,
        namespace: Option<&str>,
        name: Option<&str>,
        verbs: &[&'static str],
    ) -> &mut Self {
        for verb in verbs {
            let need = Need {
                verb,
                group: group.to_owned(),
                resource: resource.to_owned(),
                subresource,
                name: name.map(str::to_owned),
                namespace: namespace.map(str::to_owned),
            };
            if !self.0.contains(&need) {
                self.0.push(need);
            }
        }
        self
    }
}

/// Everything that a process with these duties needs. `workloads` are the kinds that are evidence.
pub fn needs(workloads: &[ApiResource], duties: &Duties) -> Vec<Need> {
    const WATCHED: &[&str] = &["list", "watch"];
    const EVENTS: (&str, &str) = ("events.k8s.io", "events");
    let own = Some(duties.namespace.as_str());
    let agents = duties.agents_namespace.as_deref().or(own);
    let settings = duties.settings_namespace.as_deref().or(own);
    let mut needs = Needs(Vec::new());
    if duties.agent {
        for resource in kinds::of_agent().map(|kind| kinds::regular(&kind)) {
            needs.cluster(&resource.group, &resource.plural, WATCHED);
        }
        // These Leases are named after nodes and addresses, so no name is known in advance.
        let verbs = ["get", "list", "watch", "create", "update", "delete"];
        needs.add("coordination.k8s.io", "leases", None, own, None, &verbs);
        if let Some(config_map) = &duties.settings {
            needs.add("", "configmaps", None, settings, Some(config_map), &["get", "list", "watch"]);
        }
        return needs.0;
    }
    for resource in kinds::always().map(|kind| kinds::regular(&kind)).chain(workloads.iter().cloned()) {
        needs.cluster(&resource.group, &resource.plural, WATCHED);
    }
    if duties.moves {
        // The objects that make the control plane call Services, which then are not moved.
        for resource in kinds::callers().map(|kind| kinds::regular(&kind)) {
            needs.cluster(&resource.group, &resource.plural, WATCHED);
        }
        needs
            .cluster("discovery.k8s.io", "endpointslices", WATCHED)
            .cluster("", "services", &["get", "update"])
            .cluster("networking.k8s.io", "ipaddresses", &["get"])
            .cluster(EVENTS.0, EVENTS.1, &["create", "patch"])
            // A name can't restrict `create`, because the object has no name before.
            .add("coordination.k8s.io", "leases", None, own, None, &["create"])
            .add("coordination.k8s.io", "leases", None, own, Some(LEASE), &["get", "update"])
            // The records of moves, and the requests of administrators. Their names contain the UIDs of Services.
            .add("apps", "controllerrevisions", None, own, None, &["get", "list", "watch", "create", "delete"]);
    }
    if duties.moves && duties.load_balancers {
        needs.add("", "services", Some("status"), None, None, &["update"]);
    }
    if duties.nodes {
        // The Nodes are watched anyway. One is read again after a write that got no answer.
        needs.cluster("", "nodes", &["get", "patch"]);
    }
    if duties.external {
        // The record of a Service's addresses, the status that shows them, and the Leases that tell which node holds
        // them.
        needs.cluster("", "services", &["patch"]).add("", "services", Some("status"), None, None, &["patch"]).add(
            "coordination.k8s.io",
            "leases",
            None,
            agents,
            None,
            &["list", "watch"],
        );
    }
    if duties.claims {
        // These Leases are named after addresses and replicas, so no name is known in advance.
        let verbs = ["get", "list", "watch", "create", "update", "delete"];
        needs.add("coordination.k8s.io", "leases", None, own, None, &verbs);
    }
    if let Some(secret) = &duties.authority {
        needs.add("", "secrets", None, own, None, &["create"]);
        needs.add("", "secrets", None, own, Some(secret), &["get", "update"]);
    }
    if let Some(Registration { name, own }) = &duties.registration {
        let (group, resource) = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations");
        needs.add(group, resource, None, None, Some(name), &["get", "list", "watch", "update"]);
        if *own {
            needs.cluster(group, resource, &["create"]);
            needs.add(group, resource, None, None, Some(name), &["delete"]);
        }
    }
    if let Some(config_map) = &duties.settings {
        needs.add("", "configmaps", None, settings, Some(config_map), &["get", "list", "watch"]);
        if !duties.moves {
            needs.add(EVENTS.0, EVENTS.1, None, own, None, &["create"]);
        }
    }
    needs.0
}

/// The kinds of workloads in the settings, as the API server has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workloads {
    /// The kinds that the API server serves.
    pub served: Vec<ApiResource>,
    /// The kinds that the API server does not serve now. They have no objects.
    pub unserved: Vec<WorkloadKind>,
}

/// Looks up these kinds of workloads on the API server.
///
/// # Errors
/// [`PermissionsError::Discover`] if a kind can't be looked up.
pub async fn workloads(client: &Client, kinds: &[WorkloadKind]) -> Result<Workloads, PermissionsError> {
    let mut found = Workloads::default();
    for kind in kinds {
        match kinds::resource(client, &kinds::of_workload(kind)).await {
            Ok(Some(resource)) => found.served.push(resource),
            Ok(None) => found.unserved.push(kind.clone()),
            Err(error) => {
                return Err(PermissionsError::Discover {
                    api_version: kind.api_version.clone(),
                    kind: kind.kind.clone(),
                    reason: words(&error),
                });
            }
        }
    }
    Ok(found)
}

/// The needs that the API server does not allow to this identity, in the order of `needs`.
///
/// # Errors
/// [`PermissionsError::Ask`] if the API server can't be asked.
pub async fn missing(client: &Client, needs: &[Need]) -> Result<Vec<Need>, PermissionsError> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let ask = |need: Need| {
        let reviews = reviews.clone();
        async move {
            let review = review(&need);
            let answer = reviews.create(&PostParams::default(), &review).await;
            let answer = answer.map_err(|error| PermissionsError::Ask(words(&error)))?;
            let allowed = answer.status.is_some_and(|status| status.allowed);
            Ok((!allowed).then_some(need))
        }
    };
    stream::iter(needs.to_vec())
        .map(ask)
        .buffered(AT_ONCE)
        .try_filter_map(|need| async { Ok(need) })
        .try_collect()
        .await
}

fn review(need: &Need) -> SelfSubjectAccessReview {
    let attributes = ResourceAttributes {
        verb: Some(need.verb.to_owned()),
        group: Some(need.group.clone()),
        resource: Some(need.resource.clone()),
        subresource: need.subresource.map(str::to_owned),
        name: need.name.clone(),
        namespace: need.namespace.clone(),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    SelfSubjectAccessReview { spec, ..Default::default() }
}

/// Checks all permissions for these duties at once. Returns the kinds of workloads in the settings; for an agent,
/// none are looked up.
///
/// # Errors
/// [`PermissionsError::Missing`] with all missing permissions, or another error if they can't be found out.
pub async fn check(client: &Client, settings: &Settings, duties: &Duties) -> Result<Workloads, PermissionsError> {
    let workloads = if duties.agent { Workloads::default() } else { workloads(client, &settings.kinds).await? };
    let duties = Duties {
        nodes: duties.nodes && !settings.nodes.pools.is_empty(),
        external: duties.external && !settings.external.pools.is_empty(),
        ..duties.clone()
    };
    let needs = missing(client, &needs(&workloads.served, &duties)).await?;
    if needs.is_empty() {
        return Ok(workloads);
    }
    Err(Missing { user: user(client).await, needs }.into())
}

/// The name of this user, for the message only.
async fn user(client: &Client) -> Option<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await.ok()?;
    answer.status?.user_info?.username
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    fn known() -> Vec<ApiResource> {
        WorkloadKind::known().iter().map(|kind| kinds::regular(&kinds::of_workload(kind))).collect()
    }

    /// The needs as rules, without the sentence before them.
    fn rules(workloads: &[ApiResource], duties: &Duties) -> String {
        let missing = Missing { user: None, needs: needs(workloads, duties) }.to_string();
        missing.split_once('\n').expect("rules").1.to_owned()
    }

    #[test]
    fn permissions_to_watch_only() {
        let expected = r#"in a ClusterRole:
- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["namespaces"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["nodes"], verbs: ["list", "watch"]}
- {apiGroups: ["node.k8s.io"], resources: ["runtimeclasses"], verbs: ["list", "watch"]}
- {apiGroups: ["networking.k8s.io"], resources: ["ipaddresses"], verbs: ["list", "watch"]}
- {apiGroups: ["networking.k8s.io"], resources: ["servicecidrs"], verbs: ["list", "watch"]}"#;
        assert_eq!(rules(&[], &Duties::default()), expected);
    }

    #[test]
    fn permissions_of_a_server_with_all_duties() {
        let duties = Duties {
            namespace: "clusterip-policy".into(),
            moves: true,
            load_balancers: true,
            nodes: true,
            external: true,
            agents_namespace: None,
            agent: false,
            claims: false,
            authority: Some("clusterip-authority".into()),
            registration: Some(Registration { name: "clusterip-policy".into(), own: true }),
            settings: Some("clusterip-settings".into()),
            settings_namespace: None,
        };
        let expected = r#"in a ClusterRole:
- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch", "get", "update", "patch"]}
- {apiGroups: [""], resources: ["namespaces"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["nodes"], verbs: ["list", "watch", "get", "patch"]}
- {apiGroups: ["node.k8s.io"], resources: ["runtimeclasses"], verbs: ["list", "watch"]}
- {apiGroups: ["networking.k8s.io"], resources: ["ipaddresses"], verbs: ["list", "watch", "get"]}
- {apiGroups: ["networking.k8s.io"], resources: ["servicecidrs"], verbs: ["list", "watch"]}
- {apiGroups: ["apps"], resources: ["deployments"], verbs: ["list", "watch"]}
- {apiGroups: ["apps"], resources: ["statefulsets"], verbs: ["list", "watch"]}
- {apiGroups: ["apps"], resources: ["daemonsets"], verbs: ["list", "watch"]}
- {apiGroups: ["apps"], resources: ["replicasets"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["replicationcontrollers"], verbs: ["list", "watch"]}
- {apiGroups: ["batch"], resources: ["jobs"], verbs: ["list", "watch"]}
- {apiGroups: ["batch"], resources: ["cronjobs"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]}
- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], verbs: ["list", "watch", "create"]}
- {apiGroups: ["admissionregistration.k8s.io"], resources: ["validatingwebhookconfigurations"], verbs: ["list", "watch"]}
- {apiGroups: ["apiregistration.k8s.io"], resources: ["apiservices"], verbs: ["list", "watch"]}
- {apiGroups: ["apiextensions.k8s.io"], resources: ["customresourcedefinitions"], verbs: ["list", "watch"]}
- {apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list", "watch"]}
- {apiGroups: ["events.k8s.io"], resources: ["events"], verbs: ["create", "patch"]}
- {apiGroups: [""], resources: ["services/status"], verbs: ["update", "patch"]}
- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], resourceNames: ["clusterip-policy"], verbs: ["get", "list", "watch", "update", "delete"]}
in a Role of namespace clusterip-policy:
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create", "list", "watch"]}
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], resourceNames: ["clusterip-leader"], verbs: ["get", "update"]}
- {apiGroups: ["apps"], resources: ["controllerrevisions"], verbs: ["get", "list", "watch", "create", "delete"]}
- {apiGroups: [""], resources: ["secrets"], verbs: ["create"]}
- {apiGroups: [""], resources: ["secrets"], resourceNames: ["clusterip-authority"], verbs: ["get", "update"]}
- {apiGroups: [""], resources: ["configmaps"], resourceNames: ["clusterip-settings"], verbs: ["get", "list", "watch"]}"#;
        assert_eq!(rules(&known(), &duties), expected);
    }

    #[test]
    fn permissions_of_a_replica_that_claims_addresses() {
        let duties = Duties { namespace: "own".into(), moves: true, claims: true, ..Duties::default() };
        let all = rules(&[], &duties);
        let (_, own) = all.split_once("in a Role of namespace own:\n").expect("rules of the namespace");
        // In the order in which the needs are added.
        let expected = r#"- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create", "get", "list", "watch", "update", "delete"]}
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], resourceNames: ["clusterip-leader"], verbs: ["get", "update"]}
- {apiGroups: ["apps"], resources: ["controllerrevisions"], verbs: ["get", "list", "watch", "create", "delete"]}"#;
        assert_eq!(own, expected);
    }

    #[test]
    fn permissions_of_an_agent() {
        struct Case {
            name: &'static str,
            duties: Duties,
            expected: String,
        }
        let agent = || Duties { namespace: "own".into(), agent: true, ..Duties::default() };
        let expected = r#"in a ClusterRole:
- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["namespaces"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["nodes"], verbs: ["list", "watch"]}
in a Role of namespace own:
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["get", "list", "watch", "create", "update", "delete"]}"#;
        let settings = "\n- {apiGroups: [\"\"], resources: [\"configmaps\"], resourceNames: [\"on\"], \
                        verbs: [\"get\", \"list\", \"watch\"]}";
        let cases = [
            Case { name: "with a file", duties: agent(), expected: expected.to_owned() },
            Case {
                name: "with a configmap",
                duties: Duties { settings: Some("on".into()), ..agent() },
                expected: format!("{expected}{settings}"),
            },
            Case {
                name: "with a configmap in the namespace of the server",
                duties: Duties { settings: Some("on".into()), settings_namespace: Some("server".into()), ..agent() },
                expected: format!("{expected}\nin a Role of namespace server:{settings}"),
            },
            Case {
                name: "whatever a server would do besides",
                duties: Duties { moves: true, nodes: true, external: true, claims: true, ..agent() },
                expected: expected.to_owned(),
            },
        ];
        for Case { name, duties, expected } in cases {
            assert_eq!(rules(&known(), &duties), expected, "{name}");
        }
    }

    #[test]
    fn permissions_for_external_addresses() {
        let moves = Duties { namespace: "own".into(), moves: true, ..Duties::default() };
        let before = needs(&[], &moves);
        let more: Vec<Need> = needs(&[], &Duties { external: true, agents_namespace: Some("agents".into()), ..moves })
            .into_iter()
            .filter(|need| !before.contains(need))
            .collect();
        let told = Missing { user: None, needs: more }.to_string();
        let expected = r#"in a ClusterRole:
- {apiGroups: [""], resources: ["services"], verbs: ["patch"]}
- {apiGroups: [""], resources: ["services/status"], verbs: ["patch"]}
in a Role of namespace agents:
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["list", "watch"]}"#;
        assert_eq!(told.split_once('\n').expect("rules").1, expected);
    }

    #[test]
    fn only_moves_of_load_balancers_write_the_status_of_services() {
        struct Case {
            name: &'static str,
            duties: Duties,
            expected: Vec<&'static str>,
        }
        let cases = [
            Case { name: "no moves", duties: Duties { load_balancers: true, ..Duties::default() }, expected: vec![] },
            Case { name: "moves", duties: Duties { moves: true, ..Duties::default() }, expected: vec![] },
            Case {
                name: "moves of load balancers",
                duties: Duties { moves: true, load_balancers: true, ..<_>::default() },
                expected: vec!["update"],
            },
        ];
        for Case { name, duties, expected } in cases {
            let needs = needs(&known(), &duties);
            let verbs: Vec<_> =
                needs.iter().filter(|need| need.subresource == Some("status")).map(|need| need.verb).collect();
            assert_eq!(verbs, expected, "{name}");
        }
    }

    #[test]
    fn permissions_of_a_server_that_moves_nothing() {
        let duties = Duties {
            namespace: "own".into(),
            registration: Some(Registration { name: "clusterip-policy".into(), own: false }),
            settings: Some("on".into()),
            ..Duties::default()
        };
        let all = rules(&[], &duties);
        let (_, own) =
            all.split_once("servicecidrs\"], verbs: [\"list\", \"watch\"]}\n").expect("the last that all need");
        let expected = r#"- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], resourceNames: ["clusterip-policy"], verbs: ["get", "list", "watch", "update"]}
in a Role of namespace own:
- {apiGroups: [""], resources: ["configmaps"], resourceNames: ["on"], verbs: ["get", "list", "watch"]}
- {apiGroups: ["events.k8s.io"], resources: ["events"], verbs: ["create"]}"#;
        assert_eq!(own, expected);
    }

    #[test]
    fn needs_are_unique_and_never_create_or_delete_services() {
        let duties = Duties { moves: true, external: true, ..Duties::default() };
        let mut workloads = known();
        workloads.extend(known());
        let needs = needs(&workloads, &duties);
        for (index, need) in needs.iter().enumerate() {
            assert!(!needs[..index].contains(need), "{need:?}");
            let services = need.resource == "services";
            assert!(!services || matches!(need.verb, "get" | "list" | "watch" | "update" | "patch"), "{need:?}");
        }
    }

    #[test]
    fn the_message_names_the_user_and_the_missing_rules() {
        let mut lacks = needs(&[], &Duties::default());
        lacks.truncate(1);
        let missing = Missing { user: Some("system:serviceaccount:a:b".into()), needs: lacks };
        let expected = "system:serviceaccount:a:b lacks permissions; these rules grant what is missing:\n\
                        in a ClusterRole:\n\
                        - {apiGroups: [\"\"], resources: [\"services\"], verbs: [\"list\"]}";
        assert_eq!(missing.to_string(), expected);
    }
}
