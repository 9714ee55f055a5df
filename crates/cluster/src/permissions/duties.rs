//! The permissions that each duty of a process requires.

use clusterip_api::Kind;
use clusterip_core::distinct;
use clusterip_failover::leases::LEASE;
use kube::api::ApiResource;

use super::Need;
use crate::kinds;

const WATCHED: &[&str] = &["list", "watch"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duties {
    pub namespace: String,
    pub moves: bool,
    /// Whether it only shows which Services it would move.
    pub previews_moves: bool,
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
    let (finds_moves, seamless) = (is_server && (duties.moves || duties.previews_moves), moves && duties.seamless);
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
        (finds_moves, "discovery.k8s.io", "endpointslices", None, None, WATCHED),
        (finds_moves, core, "services", None, None, &["get"]),
        (finds_moves, "networking.k8s.io", "ipaddresses", None, None, &["get"]),
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
