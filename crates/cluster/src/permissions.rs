//! The permissions that each duty of a process requires, and whether this identity has all of them.
//!
//! An administrator learns of all missing permissions at once, and not of one after the other when it is needed.

use std::collections::BTreeSet;
use std::fmt;

use clusterip_api::Kind;
use clusterip_core::distinct;
use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use clusterip_failover::leases::LEASE;
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, ApiResource, PostParams};
use serde_json::json;
use thiserror::Error;

use crate::api_error::failed;
use crate::kinds;

const AT_ONCE: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub verb: &'static str,
    pub group: String,
    /// With the subresource, if it is for one: `services/status`.
    pub resource: String,
    /// The only object that the permission is needed for; `None` for all objects.
    pub name: Option<String>,
    /// The only namespace that the permission is needed for; `None` for the whole cluster.
    pub namespace: Option<String>,
}

impl Need {
    pub fn list(resource: &ApiResource) -> Self {
        Self::read("list", &resource.group, &resource.plural, None)
    }

    /// The permission to read all objects of a resource with this verb, in a namespace or in the whole cluster.
    pub fn read(verb: &'static str, group: &str, resource: &str, namespace: Option<&str>) -> Self {
        Self {
            verb,
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: None,
            namespace: namespace.map(str::to_owned),
        }
    }
}

/// The error about all missing permissions. The message lists them as rules that grant them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Missing {
    /// The user that needs the permissions; `None` if the API server does not tell.
    pub user: Option<String>,
    pub needs: Vec<Need>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_deref().unwrap_or("this identity");
        write!(f, "{user} lacks permissions; these rules grant what is missing:")?;
        for namespace in self.needs.iter().map(|need| &need.namespace).collect::<BTreeSet<_>>() {
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
        // Nothing but seamless moves creates or deletes Services.
        if self.needs.iter().any(|need| need.resource == "services" && matches!(need.verb, "create" | "delete")) {
            f.write_str("\ndeploy/seamless has the rules for seamless moves; plain moves do not need them")?;
        }
        Ok(())
    }
}

fn rule(need: &Need, verbs: &[&str]) -> String {
    let list = |items: &[&str]| json!(items).to_string().replace(',', ", ");
    let names = need.name.as_deref().map(|name| format!("resourceNames: {}, ", list(&[name]))).unwrap_or_default();
    format!(
        "{{apiGroups: {}, resources: {}, {names}verbs: {}}}",
        list(&[&need.group]),
        list(&[&need.resource]),
        list(verbs)
    )
}

/// The resources of these kinds of workloads. A kind that the API server does not serve has no objects.
pub async fn workloads(client: &Client, kinds: &[WorkloadKind]) -> anyhow::Result<Vec<ApiResource>> {
    let mut served = Vec::new();
    for kind in kinds {
        served.extend(kinds::resource(client, &kinds::of_workload(kind)).await.map_err(|error| {
            let WorkloadKind { api_version, kind, .. } = kind;
            failed(format!("{api_version}/{kind}, one of evidence.kinds in the settings, can't be looked up"), &error)
        })?);
    }
    Ok(served)
}

fn review(need: &Need) -> SelfSubjectAccessReview {
    let (resource, subresource) = need.resource.split_once('/').unwrap_or((&need.resource, ""));
    let attributes = ResourceAttributes {
        verb: Some(need.verb.to_owned()),
        group: Some(need.group.clone()),
        resource: Some(resource.to_owned()),
        subresource: (!subresource.is_empty()).then(|| subresource.to_owned()),
        name: need.name.clone(),
        namespace: need.namespace.clone(),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    SelfSubjectAccessReview { spec, ..Default::default() }
}

pub async fn check(client: &Client, settings: &Settings, duties: &Duties) -> anyhow::Result<()> {
    // An agent looks no workloads up.
    let workloads = if duties.agent { Vec::new() } else { workloads(client, &settings.kinds).await? };
    let duties = Duties {
        nodes: duties.nodes && !settings.nodes.pools.is_empty(),
        external: duties.external && !settings.external.pools.is_empty(),
        ..duties.clone()
    };
    require(client, &needs(&workloads, &duties)).await
}

pub async fn require(client: &Client, needs: &[Need]) -> anyhow::Result<()> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let ask = async |need: Need| {
        let answer = reviews.create(&PostParams::default(), &review(&need)).await;
        let answer = answer.map_err(|error| failed("the permissions of this identity can't be checked", &error))?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        anyhow::Ok((!allowed).then_some(need))
    };
    let asked = stream::iter(needs.to_vec()).map(ask).buffered(AT_ONCE).try_filter_map(async |need| Ok(need));
    let needs: Vec<Need> = asked.try_collect().await?;
    if needs.is_empty() {
        return Ok(());
    }
    // The name of this user is for the message only.
    let users: Api<SelfSubjectReview> = Api::all(client.clone());
    let user = users.create(&PostParams::default(), &SelfSubjectReview::default()).await.ok();
    Err(Missing { user: user.and_then(|user| user.status?.user_info?.username), needs }.into())
}

const WATCHED: &[&str] = &["list", "watch"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duties {
    pub namespace: String,
    pub moves: bool,
    /// Whether it only shows which Services it would move.
    pub previews_moves: bool,
    /// Whether it asks the server for moves.
    pub requests_moves: bool,
    /// Whether it also moves Services of type `LoadBalancer`, and restores their status.
    pub load_balancers: bool,
    pub seamless: bool,
    /// Whether it gives Nodes their blocks while it leads, if the settings have pools for Nodes.
    pub nodes: bool,
    /// Whether it looks after external addresses while it leads, if the settings have pools of them.
    pub external: bool,
    /// The namespace of the agents' Leases, if it is not the process's own.
    pub agents_namespace: Option<String>,
    /// Whether it is an agent, which only holds external addresses on a node. Then the other duties are ignored.
    pub agent: bool,
    pub claims: bool,
    pub authority: Option<String>,
    pub registration: Option<Registration>,
    /// Whether its settings are the objects of the API `clusterip-policy.io`.
    pub pools: bool,
    pub kubewarden_policy: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub name: String,
    /// Whether it is created at the start and deleted at the end, and not only kept up to date. Then the leader's Lease
    /// and the Secret of the certificate authority are also deleted at the end.
    pub own: bool,
}

/// Everything that a process with these duties needs, without duplicates. `workloads` are the kinds that are evidence.
pub fn needs(workloads: &[ApiResource], duties: &Duties) -> Vec<Need> {
    let is_server = !duties.agent;
    let (moves, external) = (is_server && duties.moves, is_server && duties.external);
    let requests_moves = is_server && duties.requests_moves;
    let finds_moves = is_server && (duties.moves || duties.previews_moves || duties.requests_moves);
    let seamless = moves && duties.seamless;
    let mut watched: Vec<ApiResource> = match duties.agent {
        true => kinds::of_agent(duties.pools).map(|kind| kinds::regular(&kind)).collect(),
        false => kinds::always().map(|kind| kinds::regular(&kind)).chain(workloads.iter().cloned()).collect(),
    };
    // The objects that make the control plane call Services, which then are not moved.
    watched.extend(kinds::callers().filter(|_| finds_moves).map(|kind| kinds::regular(&kind)));
    let pools = || Kind::ALL.into_iter().filter(|_| duties.pools).map(Kind::api_resource);

    let own = Some(duties.namespace.as_str());
    let agents = duties.agents_namespace.as_deref().or(own);
    let secret = duties.authority.as_deref().filter(|_| is_server);
    let registration = duties.registration.as_ref().filter(|_| is_server);
    let webhook = registration.map(|registration| registration.name.as_str());
    let is_registrar = registration.is_some_and(|registration| registration.own);
    let (core, leases, webhooks) = ("", "coordination.k8s.io", "admissionregistration.k8s.io");
    let configurations = "mutatingwebhookconfigurations";
    let all_verbs: &[&str] = &["get", "list", "watch", "create", "update", "delete"];
    type Row<'r> = (bool, &'r str, &'r str, Option<&'r str>, Option<&'r str>, &'r [&'static str]);
    let rows: &[Row<'_>] = &[
        // These Leases are named after nodes and addresses, so no name is known in advance.
        (duties.agent, leases, "leases", own, None, all_verbs),
        // For Services with `externalTrafficPolicy: Local`.
        (duties.agent, "discovery.k8s.io", "endpointslices", None, None, WATCHED),
        (finds_moves, "discovery.k8s.io", "endpointslices", None, None, WATCHED),
        (finds_moves, core, "services", None, None, &["get"]),
        (moves, core, "services", None, None, &["update"]),
        (moves, "events.k8s.io", "events", None, None, &["create", "patch"]),
        // A name can't restrict `create`, because the object has no name before.
        (moves, leases, "leases", own, None, &["create"]),
        (moves, leases, "leases", own, Some(LEASE), &["get", "update"]),
        // The records of moves, and the requests of administrators. Their names contain the UIDs of Services.
        (moves, "apps", "controllerrevisions", own, None, &["get", "list", "watch", "create", "delete"]),
        (seamless, core, "services", None, None, &["create", "delete"]),
        (seamless, core, "resourcequotas", None, None, &["list"]),
        (moves && duties.load_balancers, core, "services/status", None, None, &["update"]),
        (finds_moves && !moves, "apps", "controllerrevisions", own, None, &["get"]),
        (requests_moves, leases, "leases", own, Some(LEASE), &["get"]),
        (requests_moves, "apps", "controllerrevisions", own, None, &["list", "create", "delete"]),
        // The Nodes are watched anyway. One is read again after a write that got no answer.
        (is_server && duties.nodes, core, "nodes", None, None, &["get", "patch"]),
        // The record of a Service's addresses, the status that shows them, and the Leases that tell which node holds them.
        (external, core, "services", None, None, &["patch"]),
        (external, core, "services/status", None, None, &["patch"]),
        (external, leases, "leases", agents, None, WATCHED),
        // These Leases are named after addresses and replicas, so no name is known in advance.
        (is_server && duties.claims, leases, "leases", own, None, all_verbs),
        (secret.is_some(), core, "secrets", own, None, &["create"]),
        (secret.is_some(), core, "secrets", own, secret, &["get", "update"]),
        (webhook.is_some(), webhooks, configurations, None, webhook, &["get", "list", "watch", "update"]),
        // A server with `--register-url` leaves nothing behind.
        (is_registrar, webhooks, configurations, None, None, &["create"]),
        (is_registrar, webhooks, configurations, None, webhook, &["delete"]),
        (is_registrar, leases, "leases", own, Some(LEASE), &["delete"]),
        (is_registrar && secret.is_some(), core, "secrets", own, secret, &["delete"]),
    ];
    let mut needs = Vec::new();
    let mut add = |group: &str, resource: &str, namespace: Option<&str>, name: Option<&str>, verbs: &[&'static str]| {
        for verb in verbs {
            needs.push(Need { name: name.map(str::to_owned), ..Need::read(verb, group, resource, namespace) });
        }
    };
    watched.iter().for_each(|kind| add(&kind.group, &kind.plural, None, None, WATCHED));
    for (is_needed, group, resource, namespace, name, verbs) in rows {
        if *is_needed {
            add(group, resource, *namespace, *name, verbs);
        }
    }
    pools().for_each(|kind| add(&kind.group, &kind.plural, None, None, WATCHED));
    let statuses = pools().filter(|_| moves);
    statuses.for_each(|kind| add(&kind.group, &format!("{}/status", kind.plural), None, None, &["patch"]));
    if let Some(policy) = &duties.kubewarden_policy {
        let resource = "clusteradmissionpolicies";
        add("policies.kubewarden.io", resource, None, Some(policy), &["get", "list", "watch"]);
    }
    distinct(needs)
}

/// What a seamless move needs besides a plain one: for the temporary Services, and for what is read before it begins.
pub fn seamless_moves() -> Vec<Need> {
    let plain = Duties { moves: true, ..Duties::default() };
    let of_plain = needs(&[], &plain);
    let all = needs(&[], &Duties { seamless: true, ..plain });
    all.into_iter().filter(|need| !of_plain.contains(need)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
