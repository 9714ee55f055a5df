//! Lists all missing permissions if the API server has refused a request of a command.

use anyhow::anyhow;
use clusterip_cluster::api_error::{RequestFailure, error_chain};
use clusterip_cluster::permissions::{self, Missing, Need};
use clusterip_cluster::watch::kinds::{self, Kind};
use kube::Client;

use crate::lease_namespaces::LeaseNamespaces;

#[derive(Default)]
pub struct Reads {
    pub kinds: Vec<Kind>,
    pub more: Vec<Need>,
}

impl Reads {
    /// If the API server has refused the request, the error also lists all permissions that the user lacks.
    pub async fn explain<T>(self, client: &Client, result: anyhow::Result<T>) -> anyhow::Result<T> {
        let error = match result {
            Err(error) if is_forbidden(&error) => error,
            result => return result,
        };
        match permissions::require(client, &self.needs(client).await).await {
            Err(missing) if missing.is::<Missing>() => Err(anyhow!("{}\n{missing}", error_chain(&*error))),
            Ok(()) | Err(_) => Err(error),
        }
    }

    async fn needs(self, client: &Client) -> Vec<Need> {
        let mut all = Vec::new();
        for kind in &self.kinds {
            // A kind that can't be looked up, or that the API server does not serve, is not listed.
            if let Ok(Some(resource)) = kinds::resource(client, kind).await {
                all.push(Need::list(&resource));
            }
        }
        all.extend(self.more);
        let mut needs: Vec<Need> = Vec::new();
        for need in all {
            if !needs.contains(&need) {
                needs.push(need);
            }
        }
        needs
    }
}

pub fn is_forbidden(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<RequestFailure>().is_some_and(RequestFailure::is_forbidden))
}

pub fn may_list_leases(namespaces: &LeaseNamespaces) -> Vec<Need> {
    let all = namespaces.server.iter().chain(&namespaces.agents);
    all.map(|namespace| Need::read("list", "coordination.k8s.io", "leases", Some(namespace))).collect()
}
