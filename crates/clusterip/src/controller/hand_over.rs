//! Moves for those that can't make them: the server that leads is asked, and watched.

use std::net::IpAddr;
use std::time::Duration;

use clusterip_core::service::MOVING_ANNOTATION;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::affected::Id;
use super::events::CONTROLLER;
use super::misplaced::MOVE_ANNOTATION;
use crate::cluster::failure::words;
use crate::cluster::snapshot::addresses;

/// How long a running server may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether it has done so.
const LOOK: Duration = Duration::from_millis(100);

/// What a server is to do about a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Begin a move. It is asked to: what is held for the Service in this process must be let go before,
    /// since it would only stand in the server's way.
    Move,
    /// Finish one that was begun. It does so by itself.
    Finish,
}

/// Has a running server move a Service from its addresses, and waits until it has. Tells the addresses
/// that the Service has then.
///
/// # Errors
/// Why it was not moved, in words.
pub async fn hand_over(client: &Client, id: &Id, from: &[IpAddr], task: Task) -> Result<Vec<IpAddr>, String> {
    let (namespace, name) = id;
    let resource = ApiResource::erase::<Service>(&());
    let services: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let wish = |wish: Value| Patch::Merge(json!({"metadata": {"annotations": {MOVE_ANNOTATION: wish}}}));
    let said = |error: kube::Error| words(&error);
    if task == Task::Move {
        services.patch(name, &PatchParams::default(), &wish("now".into())).await.map_err(said)?;
    }
    let deadline = Instant::now() + PATIENCE;
    let now = loop {
        let Some(service) = services.get_opt(name).await.map_err(said)? else { return Err("it is gone".to_owned()) };
        let annotations = service.metadata.annotations.clone().unwrap_or_default();
        let waits = annotations.get(MOVE_ANNOTATION).is_some_and(|wish| wish == "now");
        if !waits && !annotations.contains_key(MOVING_ANNOTATION) {
            break addresses(&json!({"spec": service.data.get("spec")}));
        }
        if Instant::now() > deadline {
            // It must not be heard much later, when nobody waits for it.
            let _ = services.patch(name, &PatchParams::default(), &wish(Value::Null)).await;
            return Err(format!("the server did not take it up within {} s", PATIENCE.as_secs()));
        }
        sleep(LOOK).await;
    };
    if now == from {
        let told = latest_event(client, namespace, name).await;
        return Err(told.unwrap_or_else(|| "the server does not say why".to_owned()));
    }
    Ok(now)
}

/// What the server told last of a Service.
async fn latest_event(client: &Client, namespace: &str, name: &str) -> Option<String> {
    let about = format!("regarding.kind=Service,regarding.name={name},reportingController={CONTROLLER}");
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let found = events.list(&ListParams::default().fields(&about)).await.ok()?.items;
    let time = |event: &Event| {
        let series = event.series.as_ref().map(|series| series.last_observed_time.0);
        series.max(event.event_time.as_ref().map(|time| time.0))
    };
    found.into_iter().max_by_key(time)?.note
}
