//! The Leases of servers and agents, and the namespaces that they are in.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use clusterip_cluster::list_pages::visit_pages;
use clusterip_cluster::permissions::Need;
use clusterip_core::annotations::LEASE_LABEL;
use clusterip_failover::claims::CLAIM;
use clusterip_failover::holders::Observer;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};

/// The namespaces whose Leases count. Those of other namespaces don't, because tenants can write such Leases.
#[derive(Args, Clone, Debug, Default, Deserialize, Serialize)]
pub struct LeaseNamespaces {
    /// The namespace of the server [default: the namespace in which a server leads, or that the snapshot names]
    #[arg(long = "server-namespace", value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    pub server: Option<String>,
    /// The namespace of the agents [default: the one that the server uses, or that the snapshot names]
    #[arg(long = "agents-namespace", value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    pub agents: Option<String>,
}

impl LeaseNamespaces {
    /// These namespaces, and others where there is none.
    pub fn or(&self, other: &Self) -> Self {
        let or = |given: &Option<String>, other: &Option<String>| given.clone().or_else(|| other.clone());
        Self { server: or(&self.server, &other.server), agents: or(&self.agents, &other.agents) }
    }

    pub fn needs(&self) -> Vec<Need> {
        let all = self.server.iter().chain(&self.agents);
        all.map(|namespace| Need::read("list", "coordination.k8s.io", "leases", Some(namespace))).collect()
    }

    /// The claims of servers, and the Leases of agents, read page by page.
    pub async fn leases(&self, client: &Client) -> Result<Vec<Lease>, kube::Error> {
        let mut all = Vec::new();
        let of_server = format!("{LEASE_LABEL}={CLAIM}");
        for (namespace, labels) in [(&self.server, of_server), (&self.agents, Observer::labels())] {
            if let Some(namespace) = namespace {
                all.extend(list_leases(&Api::namespaced(client.clone(), namespace), &labels).await?);
            }
        }
        Ok(all)
    }
}

/// The Leases of servers and agents with these labels, read page by page.
pub async fn list_leases(leases: &Api<Lease>, labels: &str) -> Result<Vec<Lease>, kube::Error> {
    let mut all = Vec::new();
    let list = |page| async move { leases.list(&page).await };
    visit_pages(ListParams::default().labels(labels), list, |lease| all.push(lease)).await?;
    Ok(all)
}
