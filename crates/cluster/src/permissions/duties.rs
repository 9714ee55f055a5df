//! The permissions that each duty of a process requires.

use clusterip_api::Kind;
use clusterip_failover::leases::LEASE;
use kube::api::ApiResource;

use super::Need;
use crate::watch::kinds;

const WATCHED: &[&str] = &["list", "watch"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duties {
    pub namespace: String,
    pub moves: bool,
    /// Whether it only shows which Services it would move.
    pub previews_moves: bool,
    /// Whether it also moves Services of type `LoadBalancer`, and restores their status.
    pub load_balancers: bool,
    /// Whether it may create the temporary Services of seamless moves.
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
    /// The Secret of its certificate authority, if it has one.
    pub authority: Option<String>,
    /// The webhook configuration that it looks after, if any.
    pub registration: Option<Registration>,
    /// Whether its settings are the objects of the API `clusterip-policy.io`.
    pub pools: bool,
    /// The policy of Kubewarden that contains its settings, if it watches one.
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
    let mut needs = Vec::new();
    let mut add = |group: &str, resource: &str, namespace: Option<&str>, name: Option<&str>, verbs: &[&'static str]| {
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, _)) => (resource, Some("status")),
            None => (resource, None),
        };
        for verb in verbs {
            let read = Need::read(verb, group, resource, namespace);
            let need = Need { subresource, name: name.map(str::to_owned), ..read };
            if !needs.contains(&need) {
                needs.push(need);
            }
        }
    };
    let own = Some(duties.namespace.as_str());
    let (leases, all_verbs) = ("coordination.k8s.io", &["get", "list", "watch", "create", "update", "delete"]);
    let pools = || Kind::ALL.into_iter().map(Kind::api_resource);
    let finds_moves = !duties.agent && (duties.moves || duties.previews_moves);
    let mut watched: Vec<ApiResource> = match duties.agent {
        true => kinds::of_agent().map(|kind| kinds::regular(&kind)).collect(),
        false => kinds::always().map(|kind| kinds::regular(&kind)).chain(workloads.iter().cloned()).collect(),
    };
    // The objects that make the control plane call Services, which then are not moved.
    watched.extend(kinds::callers().filter(|_| finds_moves).map(|kind| kinds::regular(&kind)));
    watched.iter().for_each(|kind| add(&kind.group, &kind.plural, None, None, WATCHED));
    if duties.agent {
        // These Leases are named after nodes and addresses, so no name is known in advance.
        add(leases, "leases", own, None, all_verbs);
    } else {
        if finds_moves {
            add("discovery.k8s.io", "endpointslices", None, None, WATCHED);
            add("", "services", None, None, &["get"]);
            add("networking.k8s.io", "ipaddresses", None, None, &["get"]);
        }
        // The records of moves, and the requests of administrators. Their names contain the UIDs of Services.
        if duties.moves {
            add("", "services", None, None, &["update"]);
            add("events.k8s.io", "events", None, None, &["create", "patch"]);
            // A name can't restrict `create`, because the object has no name before.
            add(leases, "leases", own, None, &["create"]);
            add(leases, "leases", own, Some(LEASE), &["get", "update"]);
            add("apps", "controllerrevisions", own, None, &["get", "list", "watch", "create", "delete"]);
            if duties.seamless {
                seamless_moves().iter().for_each(|need| add(&need.group, &need.resource, None, None, &[need.verb]));
            }
            if duties.load_balancers {
                add("", "services/status", None, None, &["update"]);
            }
        } else if duties.previews_moves {
            add("apps", "controllerrevisions", own, None, &["get"]);
        }
        if duties.nodes {
            // The Nodes are watched anyway. One is read again after a write that got no answer.
            add("", "nodes", None, None, &["get", "patch"]);
        }
        if duties.external {
            // The record of a Service's addresses, the status that shows them, and the Leases that tell which node
            // holds them.
            add("", "services", None, None, &["patch"]);
            add("", "services/status", None, None, &["patch"]);
            add(leases, "leases", duties.agents_namespace.as_deref().or(own), None, WATCHED);
        }
        if duties.claims {
            // These Leases are named after addresses and replicas, so no name is known in advance.
            add(leases, "leases", own, None, all_verbs);
        }
        if let Some(secret) = &duties.authority {
            add("", "secrets", own, None, &["create"]);
            add("", "secrets", own, Some(secret), &["get", "update"]);
        }
        if let Some(Registration { name, own: is_own }) = &duties.registration {
            let (group, resource) = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations");
            add(group, resource, None, Some(name), &["get", "list", "watch", "update"]);
            if *is_own {
                // A server with `--register-url` leaves nothing behind.
                add(group, resource, None, None, &["create"]);
                add(group, resource, None, Some(name), &["delete"]);
                add(leases, "leases", own, Some(LEASE), &["delete"]);
                let secret = duties.authority.as_ref();
                secret.into_iter().for_each(|secret| add("", "secrets", own, Some(secret), &["delete"]));
            }
        }
    }
    if duties.pools {
        pools().for_each(|kind| add(&kind.group, &kind.plural, None, None, WATCHED));
        if duties.moves && !duties.agent {
            pools().for_each(|kind| add(&kind.group, &format!("{}/status", kind.plural), None, None, &["patch"]));
        }
    }
    if let Some(policy) = &duties.kubewarden_policy {
        let resource = "clusteradmissionpolicies";
        add("policies.kubewarden.io", resource, None, Some(policy), &["get", "list", "watch"]);
    }
    needs
}

/// What a seamless move needs besides a plain one: for the temporary Services, and for what is read before it begins.
pub fn seamless_moves() -> Vec<Need> {
    [
        ("create", "", "services"),
        ("delete", "", "services"),
        ("list", "", "resourcequotas"),
        ("list", "discovery.k8s.io", "endpointslices"),
    ]
    .map(|(verb, group, resource)| Need::read(verb, group, resource, None))
    .to_vec()
}
