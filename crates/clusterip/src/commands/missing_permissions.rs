//! Lists all missing permissions if the API server has refused a request of a command.

use anyhow::anyhow;
use clusterip_cluster::api_error::{RequestFailure, error_chain};
use clusterip_cluster::kinds::{self, Kind};
use clusterip_cluster::permissions::{self, Duties, Missing, Need};
use clusterip_core::distinct;
use clusterip_core::settings::Settings;
use kube::Client;

/// What a command reads of a cluster.
#[derive(Default)]
pub struct Reads {
    /// The duties of `clusterip move`, with the kinds of the default settings while those of the settings are not known.
    pub duties: Option<Duties>,
    pub kinds: Vec<Kind>,
    pub more: Vec<Need>,
}

impl Reads {
    /// If the API server has refused the request, the error also lists all permissions that the user lacks.
    pub async fn explain<T>(self, client: &Client, result: anyhow::Result<T>) -> anyhow::Result<T> {
        let is_refusal = |error: &anyhow::Error| {
            error.chain().any(|cause| cause.downcast_ref().is_some_and(|failure: &RequestFailure| failure.is_forbidden))
        };
        let error = match result {
            Err(error) if is_refusal(&error) => error,
            result => return result,
        };
        match permissions::require(client, &self.needs(client).await).await {
            Err(missing) if missing.is::<Missing>() => Err(anyhow!("{}\n{missing}", error_chain(&*error))),
            Ok(()) | Err(_) => Err(error),
        }
    }

    async fn needs(self, client: &Client) -> Vec<Need> {
        let (mut needs, mut listed) = (Vec::new(), Vec::new());
        if let Some(duties) = &self.duties {
            let workloads = permissions::workloads(client, &Settings::default().kinds).await.unwrap_or_default();
            needs = permissions::needs(&workloads, duties);
        }
        for kind in &self.kinds {
            // A kind that can't be looked up, or that the API server does not serve, is not listed.
            if let Ok(Some(resource)) = kinds::resource(client, kind).await {
                listed.push(Need::list(&resource));
            }
        }
        distinct(needs.into_iter().chain(listed).chain(self.more))
    }
}
