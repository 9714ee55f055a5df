//! `clusterip move` beside a running server: the server that leads is asked, and watched.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::events::CONTROLLER;
use super::requests::{self, Request};
use crate::cluster::failure::words;
use crate::cluster::snapshot::addresses;

/// How long a running server may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// By how many seconds the clock of the server may be behind.
const CLOCK_SKEW: i64 = 5;
/// How often it is looked whether it has done so.
const LOOK: Duration = Duration::from_millis(100);

/// Has the server in `server_namespace` move a Service from its addresses, and waits until it has. Tells the
/// addresses that the Service has then. A move that has begun is finished by it, too.
///
/// # Errors
/// Why it was not moved, in words.
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
    let deadline = Instant::now() + PATIENCE;
    while requests::is_open(client, server_namespace, &request.uid).await.map_err(|error| words(&error))? {
        if Instant::now() > deadline {
            // It must not be heard much later, when nobody waits for it.
            let _ = requests::withdraw(client, server_namespace, &request.uid).await;
            return Err(format!("the server did not take it up within {} s", PATIENCE.as_secs()));
        }
        sleep(LOOK).await;
    }
    let resource = ApiResource::erase::<Service>(&());
    let services: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let Some(service) = services.get_opt(name).await.map_err(|error| words(&error))? else {
        return Err("it is gone".to_owned());
    };
    let now = addresses(&json!({"spec": service.data.get("spec")}));
    if now == from {
        let told = latest_event(client, namespace, name, begin).await;
        return Err(told.unwrap_or_else(|| "the server does not say why".to_owned()));
    }
    Ok(now)
}

/// What the server told last of a Service, since it was asked. Clocks may differ by a few seconds.
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
