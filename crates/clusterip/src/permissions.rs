//! Whether this identity may do all that it has to.
//!
//! Asked at the start, and anew for settings that come later, so that whoever installs us learns of every
//! missing right at once, and not of one after the other when it is needed.

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

use crate::cluster::failure::words;
use crate::cluster::kinds;
use crate::controller::leader::LEASE;

/// How many questions are asked at a time.
const AT_ONCE: usize = 8;

/// Something that must be allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Such as `get`.
    pub verb: &'static str,
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural, such as `services`.
    pub resource: String,
    /// Such as `status`.
    pub subresource: Option<&'static str>,
    /// The only object that is meant.
    pub name: Option<String>,
    /// The only namespace that is meant; `None` for all of the cluster.
    pub namespace: Option<String>,
}

/// What a process has to do, beside knowing the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duties {
    /// Its own namespace.
    pub namespace: String,
    /// It moves Services, when it leads.
    pub moves: bool,
    /// It moves Services of type LoadBalancer, too, and restores their status.
    pub load_balancers: bool,
    /// It gives Nodes their blocks, when it leads, where the settings have pools for them.
    pub nodes: bool,
    /// It looks after external addresses, when it leads, where the settings have pools of them.
    pub external: bool,
    /// The namespace of the agents' Leases, where it is not its own.
    pub agents_namespace: Option<String>,
    /// It is an agent, which holds external addresses on a node and does nothing else: the others are not asked.
    pub agent: bool,
    /// It claims addresses, as one of several replicas.
    pub claims: bool,
    /// The Secret of its certificate authority, where it has one.
    pub authority: Option<String>,
    /// Its webhook configuration, where it looks after it.
    pub registration: Option<Registration>,
    /// The ConfigMap of its settings, where it watches one.
    pub settings: Option<String>,
    /// The namespace of that ConfigMap, where it is not its own.
    pub settings_namespace: Option<String>,
}

/// What is done about a webhook configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Its name.
    pub name: String,
    /// Whether it is written at the start and removed at the end, and not just kept up to date.
    pub own: bool,
}

/// Permissions that are not there, or can't be found out.
#[derive(Debug, Error)]
pub enum PermissionsError {
    /// Some are missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The API server does not tell.
    #[error("what this identity may do can't be found out: {0}")]
    Ask(String),
    /// A custom kind can't be looked up.
    #[error("{api_version}/{kind}, one of services.evidence.kinds, can't be looked up: {reason}")]
    Discover {
        /// Its API version.
        api_version: String,
        /// Its name.
        kind: String,
        /// What the API server says.
        reason: String,
    },
}

/// All that is missing, as rules that grant it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Missing {
    /// Who needs it; `None` where the API server does not tell.
    pub user: Option<String>,
    /// What is missing.
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

/// A rule of RBAC, as YAML in one line.
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

/// Collects needs.
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

/// Everything that a process with these duties needs, where `workloads` are the kinds that are evidence.
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
        // Named after nodes, and after addresses: no name is known before.
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
        // What makes the control plane call Services: those are not moved.
        for resource in kinds::callers().map(|kind| kinds::regular(&kind)) {
            needs.cluster(&resource.group, &resource.plural, WATCHED);
        }
        needs
            .cluster("discovery.k8s.io", "endpointslices", WATCHED)
            .cluster("", "services", &["get", "update"])
            .cluster("networking.k8s.io", "ipaddresses", &["get"])
            .cluster(EVENTS.0, EVENTS.1, &["create", "patch"])
            // A name can't restrict `create`: the object has none before.
            .add("coordination.k8s.io", "leases", None, own, None, &["create"])
            .add("coordination.k8s.io", "leases", None, own, Some(LEASE), &["get", "update"])
            // The records of moves, and what administrators ask for. Their names have the UIDs of Services in them.
            .add("apps", "controllerrevisions", None, own, None, &["get", "list", "watch", "create", "delete"]);
    }
    if duties.moves && duties.load_balancers {
        needs.add("", "services", Some("status"), None, None, &["update"]);
    }
    if duties.nodes {
        // Those that it watches anyway; read again where a write got no answer.
        needs.cluster("", "nodes", &["get", "patch"]);
    }
    if duties.external {
        // The record of what a Service has, and its status; and who holds what.
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
        // Named after addresses, and after replicas: no name is known before.
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

/// Kinds of workloads, as the API server serves them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workloads {
    /// Those that it serves.
    pub served: Vec<ApiResource>,
    /// Those that it does not, now: they have no objects.
    pub unserved: Vec<WorkloadKind>,
}

/// Looks up where the API server has workloads.
///
/// # Errors
/// [`PermissionsError::Discover`] where the API server does not tell.
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

/// Which of these the API server would not allow to this identity, in their order.
///
/// # Errors
/// [`PermissionsError::Ask`] where it does not tell.
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

/// Checks at once that this identity may do all of its duties.
///
/// # Errors
/// [`PermissionsError::Missing`] with everything that it may not; the others where that can't be found
/// out.
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

/// The user's name: no more than a convenience in a message.
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

    /// As rules, without the sentence in front.
    fn rules(workloads: &[ApiResource], duties: &Duties) -> String {
        let missing = Missing { user: None, needs: needs(workloads, duties) }.to_string();
        missing.split_once('\n').expect("rules").1.to_owned()
    }

    #[test]
    fn who_only_looks() {
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
    fn who_does_everything() {
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
    fn who_claims_addresses() {
        let duties = Duties { namespace: "own".into(), moves: true, claims: true, ..Duties::default() };
        let all = rules(&[], &duties);
        let (_, own) = all.split_once("in a Role of namespace own:\n").expect("rules of the namespace");
        // In the order in which they come to be needed.
        let expected = r#"- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create", "get", "list", "watch", "update", "delete"]}
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], resourceNames: ["clusterip-leader"], verbs: ["get", "update"]}
- {apiGroups: ["apps"], resources: ["controllerrevisions"], verbs: ["get", "list", "watch", "create", "delete"]}"#;
        assert_eq!(own, expected);
    }

    #[test]
    fn who_holds_addresses_on_a_node() {
        let agent = || Duties { namespace: "own".into(), agent: true, ..Duties::default() };
        let expected = r#"in a ClusterRole:
- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["namespaces"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["nodes"], verbs: ["list", "watch"]}
in a Role of namespace own:
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["get", "list", "watch", "create", "update", "delete"]}"#;
        let settings = "\n- {apiGroups: [\"\"], resources: [\"configmaps\"], resourceNames: [\"on\"], \
                        verbs: [\"get\", \"list\", \"watch\"]}";
        let rows = [
            ("with a file", agent(), expected.to_owned()),
            ("with a configmap", Duties { settings: Some("on".into()), ..agent() }, format!("{expected}{settings}")),
            (
                "with a configmap in the namespace of the server",
                Duties { settings: Some("on".into()), settings_namespace: Some("server".into()), ..agent() },
                format!("{expected}\nin a Role of namespace server:{settings}"),
            ),
            (
                "whatever a server would do besides",
                Duties { moves: true, nodes: true, external: true, claims: true, ..agent() },
                expected.to_owned(),
            ),
        ];
        for (name, duties, expected) in rows {
            assert_eq!(rules(&known(), &duties), expected, "{name}");
        }
    }

    #[test]
    fn who_looks_after_external_addresses() {
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
    fn the_status_of_services_is_written_only_where_load_balancers_are_moved() {
        let rows = [
            ("no moves", Duties { load_balancers: true, ..Duties::default() }, vec![]),
            ("moves", Duties { moves: true, ..Duties::default() }, vec![]),
            ("moves of load balancers", Duties { moves: true, load_balancers: true, ..<_>::default() }, vec!["update"]),
        ];
        for (name, duties, expected) in rows {
            let needs = needs(&known(), &duties);
            let verbs: Vec<_> =
                needs.iter().filter(|need| need.subresource == Some("status")).map(|need| need.verb).collect();
            assert_eq!(verbs, expected, "{name}");
        }
    }

    #[test]
    fn who_serves_in_a_cluster_without_moving() {
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
    fn no_need_is_asked_about_twice_and_none_creates_or_deletes_services() {
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
    fn the_message_names_who_lacks_what() {
        let mut lacks = needs(&[], &Duties::default());
        lacks.truncate(1);
        let missing = Missing { user: Some("system:serviceaccount:a:b".into()), needs: lacks };
        let expected = "system:serviceaccount:a:b lacks permissions; these rules grant what is missing:\n\
                        in a ClusterRole:\n\
                        - {apiGroups: [\"\"], resources: [\"services\"], verbs: [\"list\"]}";
        assert_eq!(missing.to_string(), expected);
    }
}
