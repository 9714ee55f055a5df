//! A snapshot of a live cluster.

use clusterip_core::settings::Settings;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::Value;
use thiserror::Error;

use super::kinds::{self, Kind};

/// A cluster that can't be read.
#[derive(Debug, Error)]
pub enum LiveError {
    /// There is no way to it.
    #[error("no cluster: {0}; check KUBECONFIG and the current context")]
    Connect(String),
    /// It refuses a list.
    #[error("listing {api_version}/{kind} failed: {reason}")]
    List {
        /// The API version.
        api_version: String,
        /// The kind.
        kind: String,
        /// What the API server says.
        reason: String,
    },
}

/// How many objects are asked for at a time.
const PAGE: u32 = 500;

/// Lists everything that a decision may ask about, from the cluster of the current context. A kind that
/// the cluster does not have has no objects.
///
/// # Errors
/// [`LiveError`] where the cluster can't be reached, or refuses a list.
pub fn objects(settings: &Settings) -> Result<Vec<Value>, LiveError> {
    let connect = |error: &dyn std::fmt::Display| LiveError::Connect(error.to_string());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.map_err(|error| connect(&error))?.block_on(async {
        let client = Client::try_default().await.map_err(|error| connect(&error))?;
        let mut objects = Vec::new();
        for kind in kinds::asked(settings) {
            list(&client, &kind, &mut objects).await?;
        }
        Ok(objects)
    })
}

async fn list(client: &Client, kind: &Kind, objects: &mut Vec<Value>) -> Result<(), LiveError> {
    let (api_version, name) = kind;
    let failed = |reason: String| LiveError::List { api_version: api_version.clone(), kind: name.clone(), reason };
    let resource = kinds::resource(client, kind).await.map_err(|error| failed(error.to_string()))?;
    let Some(resource) = resource else { return Ok(()) };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = match api.list(&page).await {
            Ok(list) => list,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(error) => return Err(failed(error.to_string())),
        };
        for object in list.items {
            let mut object = serde_json::to_value(object).map_err(|error| failed(error.to_string()))?;
            object["apiVersion"] = api_version.as_str().into();
            object["kind"] = name.as_str().into();
            objects.push(object);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = ListParams::default().limit(PAGE).continue_token(&token),
            None => return Ok(()),
        }
    }
}
