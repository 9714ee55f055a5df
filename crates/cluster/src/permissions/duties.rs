//! The permissions that each duty of a process requires.

use clusterip_api::Kind;
use clusterip_failover::leases::LEASE;
use kube::api::ApiResource;

use super::Need;
use crate::watch::kinds;

const WATCHED: &[&str] = &["list", "watch"];

/// The duties of a process, besides watching the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duties {
    /// The process's own namespace.
    pub namespace: String,
    /// Whether it moves Services while it leads.
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
    /// Whether it claims addresses, as one of several replicas.
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

/// The webhook configuration that a process looks after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The name of the webhook configuration.
    pub name: String,
    /// Whether it is created at the start and deleted at the end, and not only kept up to date. Then the leader's Lease
    /// and the Secret of the certificate authority are also deleted at the end.
    pub own: bool,
}

impl Duties {
    /// The namespace in which most permissions are needed; never `None`.
    fn own_namespace(&self) -> Option<&str> {
        Some(&self.namespace)
    }

    fn agents_namespace(&self) -> Option<&str> {
        self.agents_namespace.as_deref().or(self.own_namespace())
    }
}

/// Everything that a process with these duties needs. `workloads` are the kinds that are evidence.
pub fn needs(workloads: &[ApiResource], duties: &Duties) -> Vec<Need> {
    let mut needs = Needs(Vec::new());
    if duties.agent {
        needs.agent(duties);
        return needs.0;
    }
    needs.watches(kinds::always().map(|kind| kinds::regular(&kind)).chain(workloads.iter().cloned()));
    if duties.moves || duties.previews_moves {
        needs.finds_moves();
    }
    if duties.moves {
        needs.moves(duties);
    } else if duties.previews_moves {
        // The records of moves. Their names contain the UIDs of Services.
        needs.add("apps", ("controllerrevisions", None), duties.own_namespace(), None, &["get"]);
    }
    if duties.nodes {
        // The Nodes are watched anyway. One is read again after a write that got no answer.
        needs.cluster("", "nodes", &["get", "patch"]);
    }
    if duties.external {
        needs.external(duties);
    }
    if duties.claims {
        // These Leases are named after addresses and replicas, so no name is known in advance.
        needs.all_leases(duties);
    }
    if let Some(secret) = &duties.authority {
        let own = duties.own_namespace();
        needs.add("", ("secrets", None), own, None, &["create"]);
        needs.add("", ("secrets", None), own, Some(secret), &["get", "update"]);
    }
    if let Some(registration) = &duties.registration {
        needs.registration(registration, duties);
    }
    if duties.pools {
        needs.pools();
        if duties.moves {
            for kind in Kind::ALL {
                let resource = kind.api_resource();
                needs.add(&resource.group, (&resource.plural, Some("status")), None, None, &["patch"]);
            }
        }
    }
    needs.kubewarden_policy(duties);
    needs.0
}

/// What a seamless move needs besides a plain one.
pub fn seamless_moves() -> Vec<Need> {
    let mut needs = Needs(Vec::new());
    needs.seamless_moves();
    needs.0
}

/// Collects needs without duplicates.
struct Needs(Vec<Need>);

impl Needs {
    fn cluster(&mut self, group: &str, resource: &str, verbs: &[&'static str]) -> &mut Self {
        self.add(group, (resource, None), None, None, verbs)
    }

    /// `Some` namespace or name restricts the permission to it.
    fn add(
        &mut self,
        group: &str,
        (resource, subresource): (&str, Option<&'static str>),
        namespace: Option<&str>,
        name: Option<&str>,
        verbs: &[&'static str],
    ) -> &mut Self {
        for verb in verbs {
            let read = Need::read(verb, group, resource, namespace);
            let need = Need { subresource, name: name.map(str::to_owned), ..read };
            if !self.0.contains(&need) {
                self.0.push(need);
            }
        }
        self
    }

    fn leases(&mut self, namespace: Option<&str>, name: Option<&str>, verbs: &[&'static str]) -> &mut Self {
        self.add("coordination.k8s.io", ("leases", None), namespace, name, verbs)
    }

    fn watches(&mut self, resources: impl Iterator<Item = ApiResource>) {
        for resource in resources {
            self.cluster(&resource.group, &resource.plural, WATCHED);
        }
    }

    fn agent(&mut self, duties: &Duties) {
        self.watches(kinds::of_agent().map(|kind| kinds::regular(&kind)));
        // These Leases are named after nodes and addresses, so no name is known in advance.
        self.all_leases(duties);
        if duties.pools {
            self.pools();
        }
        self.kubewarden_policy(duties);
    }

    fn kubewarden_policy(&mut self, duties: &Duties) {
        if let Some(policy) = &duties.kubewarden_policy {
            let (group, resource) = ("policies.kubewarden.io", "clusteradmissionpolicies");
            self.add(group, (resource, None), None, Some(policy), &["get", "list", "watch"]);
        }
    }

    /// The objects of the API `clusterip-policy.io`.
    fn pools(&mut self) {
        self.watches(Kind::ALL.into_iter().map(Kind::api_resource));
    }

    /// What is read to find out which Services move.
    fn finds_moves(&mut self) {
        // The objects that make the control plane call Services, which then are not moved.
        self.watches(kinds::callers().map(|kind| kinds::regular(&kind)));
        self.cluster("discovery.k8s.io", "endpointslices", WATCHED);
        self.cluster("", "services", &["get"]).cluster("networking.k8s.io", "ipaddresses", &["get"]);
    }

    fn moves(&mut self, duties: &Duties) {
        let own = duties.own_namespace();
        self.cluster("", "services", &["update"])
            .cluster("events.k8s.io", "events", &["create", "patch"])
            // A name can't restrict `create`, because the object has no name before.
            .leases(own, None, &["create"])
            .leases(own, Some(LEASE), &["get", "update"])
            // The records of moves, and the requests of administrators. Their names contain the UIDs of Services.
            .add("apps", ("controllerrevisions", None), own, None, &["get", "list", "watch", "create", "delete"]);
        if duties.seamless {
            self.seamless_moves();
        }
        if duties.load_balancers {
            self.add("", ("services", Some("status")), None, None, &["update"]);
        }
    }

    /// The temporary Services, and what is read before a seamless move begins.
    fn seamless_moves(&mut self) {
        self.cluster("", "services", &["create", "delete"]).cluster("", "resourcequotas", &["list"]);
        self.cluster("discovery.k8s.io", "endpointslices", &["list"]);
    }

    /// The record of a Service's addresses, the status that shows them, and the Leases that tell which node holds
    /// them.
    fn external(&mut self, duties: &Duties) {
        self.cluster("", "services", &["patch"]).add("", ("services", Some("status")), None, None, &["patch"]).leases(
            duties.agents_namespace(),
            None,
            &["list", "watch"],
        );
    }

    /// All Leases in the process's own namespace.
    fn all_leases(&mut self, duties: &Duties) {
        self.leases(duties.own_namespace(), None, &["get", "list", "watch", "create", "update", "delete"]);
    }

    fn registration(&mut self, Registration { name, own }: &Registration, duties: &Duties) {
        let (group, resource) = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations");
        self.add(group, (resource, None), None, Some(name), &["get", "list", "watch", "update"]);
        if *own {
            self.cluster(group, resource, &["create"]);
            self.add(group, (resource, None), None, Some(name), &["delete"]);
            // A server with `--register-url` leaves nothing behind.
            let namespace = duties.own_namespace();
            self.leases(namespace, Some(LEASE), &["delete"]);
            if let Some(secret) = &duties.authority {
                self.add("", ("secrets", None), namespace, Some(secret), &["delete"]);
            }
        }
    }
}
