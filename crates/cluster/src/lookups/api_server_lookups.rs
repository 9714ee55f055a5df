//! Answers the policy's look-ups from the API server, each when it is asked.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::connect::ClusterArguments;
use kube::{Api, Client};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::api_server_lists;
use super::complete_objects::CompleteObjects;
use crate::policy::host_calls::{HostCall, HostCalls};
use crate::watch::kinds;

/// Answers as policy-server does: with the objects of the cluster, or with the error of the API server. An answer that
/// was given once is repeated.
pub struct ApiServerLookups {
    runtime: Runtime,
    client: Client,
    answered: Mutex<Answered>,
}

type Answered = Vec<(HostCall, Result<Vec<u8>, String>)>;

/// The result of a look-up.
enum Found {
    Objects(Vec<Value>),
    NoSuchKind,
}

impl ApiServerLookups {
    /// Look-ups in the cluster of these arguments.
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

    /// Runs other requests to the cluster.
    pub fn run<T>(&self, requests: impl AsyncFnOnce(&Client) -> T) -> T {
        self.runtime.block_on(requests(&self.client))
    }

    fn memory(&self) -> MutexGuard<'_, Answered> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_up(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let (api_version, kind) = call.resource();
        // Only [`CompleteObjects`] turns objects, selectors and masks into an answer, so that all answers are alike.
        let mut objects = CompleteObjects::default();
        match self.runtime.block_on(self.find(call, api_version, kind))? {
            Found::Objects(found) => found.into_iter().for_each(|object| objects.insert(object)),
            Found::NoSuchKind => objects.remove_api(api_version, kind),
        }
        objects.answer(call)
    }

    async fn find(&self, call: &HostCall, api_version: &str, kind: &str) -> Result<Found, String> {
        let asked = (api_version.to_owned(), kind.to_owned());
        let resource = match kinds::discovered(&self.client, &asked).await {
            Ok(Some(resource)) => resource,
            Ok(None) => return Ok(Found::NoSuchKind),
            Err(error) => return Err(format!("error finding resource {api_version} / {kind}: {}", text(&error))),
        };
        let mut objects = Vec::new();
        let done = match call {
            HostCall::ListAll { .. } => {
                let api = Api::all_with(self.client.clone(), &resource);
                api_server_lists::pages(&api, api_version, kind, &mut objects).await
            }
            HostCall::ListNamespace { namespace, .. } => {
                let api = Api::namespaced_with(self.client.clone(), namespace, &resource);
                api_server_lists::pages(&api, api_version, kind, &mut objects).await
            }
            HostCall::Get { name, namespace, .. } => {
                let api = match namespace {
                    Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
                    None => Api::all_with(self.client.clone(), &resource),
                };
                api_server_lists::one(&api, api_version, kind, name, &mut objects).await
            }
        };
        done.map_err(|error| text(&error))?;
        Ok(Found::Objects(objects))
    }
}

impl HostCalls for ApiServerLookups {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let known = self.memory().iter().find(|(asked, _)| asked == call).map(|(_, answer)| answer.clone());
        known.unwrap_or_else(|| {
            let answer = self.look_up(call);
            self.memory().push((call.clone(), answer.clone()));
            answer
        })
    }
}

/// An error in Kubewarden's words: the policy searches the text.
fn text(error: &kube::Error) -> String {
    error.to_string()
}
