//! Answers the policy's look-ups from the API server, each when it is asked.

use crate::connect::ClusterArguments;
use crate::list_pages::visit_pages;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::complete_objects::CompleteObjects;
use crate::kinds;
use crate::policy::host_calls::{HostCall, HostCalls};
use crate::watch::api_server_lists;

/// Answers as policy-server does: with the objects of the cluster, or with the error of the API server in the words of
/// kube, which the policy searches. An answer that was given once is repeated.
pub struct ApiServerLookups {
    runtime: Runtime,
    client: Client,
    answered: Mutex<Answered>,
}

type Answered = Vec<(HostCall, Result<Vec<u8>, String>)>;

impl ApiServerLookups {
    pub fn new(cluster: &ClusterArguments) -> anyhow::Result<Self> {
        let (runtime, client) = api_server_lists::connect(cluster)?;
        Ok(Self { runtime, client, answered: Mutex::default() })
    }

    /// The `ServiceCIDR` objects of the cluster; empty if it has none, as before Kubernetes 1.33, or if the user may
    /// not list them.
    pub fn service_cidrs(&self) -> Vec<Value> {
        let mut objects = Vec::new();
        let kind = ("networking.k8s.io/v1".to_owned(), "ServiceCIDR".to_owned());
        let list = api_server_lists::list(&self.client, &kind, &mut objects);
        if self.runtime.block_on(list).is_err() {
            objects.clear();
        }
        objects
    }

    pub fn run<T>(&self, requests: impl AsyncFnOnce(&Client) -> T) -> T {
        self.runtime.block_on(requests(&self.client))
    }

    async fn look_up(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let (api_version, kind) = call.resource();
        // Only [`CompleteObjects`] turns objects, selectors and masks into an answer, so that all answers are alike.
        let mut objects = CompleteObjects::default();
        let resource = match kinds::discovered(&self.client, &(api_version.to_owned(), kind.to_owned())).await {
            Ok(Some(resource)) => resource,
            Ok(None) => {
                objects.remove_api(api_version, kind);
                return objects.answer(call);
            }
            Err(error) => return Err(format!("error finding resource {api_version} / {kind}: {error}")),
        };
        let namespace = match call {
            HostCall::ListAll { .. } => None,
            HostCall::ListNamespace { namespace, .. } => Some(namespace),
            HostCall::Get { namespace, .. } => namespace.as_ref(),
        };
        let api: &Api<DynamicObject> = &match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let mut add = |object| {
            // Serializing can't fail: the keys of an object are strings, and its numbers are finite.
            let mut object = serde_json::to_value(object).unwrap_or_default();
            // The items of a list lack them.
            object["apiVersion"] = api_version.into();
            object["kind"] = kind.into();
            objects.insert(object);
        };
        let found = match call {
            HostCall::Get { name, .. } => api.get_opt(name).await.map(|found| found.into_iter().for_each(add)),
            _ => visit_pages(ListParams::default(), |page| async move { api.list(&page).await }, &mut add).await,
        };
        found.map_err(|error| error.to_string())?;
        objects.answer(call)
    }
}

impl HostCalls for ApiServerLookups {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let mut answered = self.answered.lock();
        if let Some((_, answer)) = answered.iter().find(|(asked, _)| asked == call) {
            return answer.clone();
        }
        let answer = self.runtime.block_on(self.look_up(call));
        answered.push((call.clone(), answer.clone()));
        answer
    }
}
