//! Hands a move of `clusterip move` over to a running server: asks the server that leads, and waits for the result.

use std::net::IpAddr;
use std::time::Duration;

use clusterip_host::cluster::snapshot::addresses;
use clusterip_runtime::api_error::error_message;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::event_recorder::CONTROLLER;
use super::requests::{self, Request};

/// How long the server may take to deal with a request.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How many seconds the clock of the server may be behind.
const CLOCK_SKEW: i64 = 5;
/// How often the request is looked up until the server has dealt with it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Asks the server in `server_namespace` to move a Service away from the addresses `from`, and waits until it has
/// done so. Returns the addresses that the Service has then. The server also finishes a move that has begun already.
///
/// # Errors
/// Why the Service was not moved, as text.
pub async fn hand_over(
    client: &Client,
    server_namespace: &str,
    request: &Request,
    from: &[IpAddr],
) -> Result<Vec<IpAddr>, String> {
    let (namespace, name) = (request.namespace.as_str(), request.name.as_str());
    let begin = Timestamp::now();
    requests::ask(client, server_namespace, request)
        .await
        .map_err(|error| requests::refused(&error, server_namespace))?;
    let deadline = Instant::now() + MAX_WAIT;
    while requests::is_open(client, server_namespace, &request.uid).await.map_err(|error| error_message(&error))? {
        if Instant::now() > deadline {
            // The server must not carry out the request later, when no command waits for it any more.
            let _ = requests::withdraw(client, server_namespace, &request.uid).await;
            return Err(format!("the server did not take it up within {} s", MAX_WAIT.as_secs()));
        }
        sleep(POLL_INTERVAL).await;
    }
    let resource = ApiResource::erase::<Service>(&());
    let services: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let Some(service) = services.get_opt(name).await.map_err(|error| error_message(&error))? else {
        return Err("it is gone".to_owned());
    };
    let now = addresses(&json!({"spec": service.data.get("spec")}));
    if now == from {
        let told = latest_event(client, namespace, name, begin).await;
        return Err(told.unwrap_or_else(|| "the server does not say why".to_owned()));
    }
    Ok(now)
}

/// The note of the server's latest Event about a Service since `begin`. The clocks may differ by a few seconds.
async fn latest_event(client: &Client, namespace: &str, name: &str, begin: Timestamp) -> Option<String> {
    let about = format!("regarding.kind=Service,regarding.name={name},reportingController={CONTROLLER}");
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let found = events.list(&ListParams::default().fields(&about)).await.ok()?.items;
    let time = |event: &Event| {
        let series = event.series.as_ref().map(|series| series.last_observed_time.0);
        series.max(event.event_time.as_ref().map(|time| time.0))
    };
    let since = begin.as_second() - CLOCK_SKEW;
    let recent = |event: &Event| time(event).is_some_and(|time| time.as_second() >= since);
    found.into_iter().filter(recent).max_by_key(time)?.note
}
