//! Finds the misplaced Services, and the moves that are possible.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::lookups::snapshot::addresses;
use clusterip_cluster::object::text;
use clusterip_core::service_key::ServiceKey;
use serde_json::Value;

use super::MoveArguments;
use super::jobs::{Job, Order, Run};
use crate::report::moves::Row;
use crate::services::controller::reconcile::moves::Movable;
use crate::services::controller::reconcile::{BY_HAND, Reconciler};
use crate::services::endpoints;
use crate::services::misplaced::{self, Inspection};
use crate::services::service_metrics::StayReason;
use clusterip_moves::journal::Journal;
use clusterip_moves::method::{Method, NOT_ASKED, method};
use clusterip_moves::outcome::{Size, Unmoved};

impl MoveArguments {
    pub(super) async fn list(
        &self,
        run: &Run<'_>,
        namespace: Option<&str>,
        named: Option<&ServiceKey>,
    ) -> anyhow::Result<(Vec<Row>, Vec<Job>)> {
        let reconciler = &run.reconciler;
        // Without the permission to list them, no unfinished move is known.
        let unfinished = reconciler.find_left_moves().await.unwrap_or_default();
        let stores = reconciler.evaluator.stores();
        let ids = {
            let snapshot = stores.read_snapshot();
            self.scope.check(&snapshot, namespace, self.service.as_ref())?;
            snapshot.services(namespace)
        };
        let wanted = ids.into_iter().filter(|id| named.is_none_or(|named| named == id));
        let wanted: Vec<ServiceKey> = wanted.collect();
        if let (true, Some(named)) = (wanted.is_empty(), named) {
            bail!("there is no Service {named}");
        }
        if let Some(unknown) = self.called_by_control_plane.iter().find(|id| stores.service(id).is_none()) {
            bail!("there is no Service {unknown}: check --called-by-control-plane");
        }
        let (mut rows, mut jobs) = (Vec::new(), Vec::new());
        for id in wanted {
            let Some(service) = stores.service(&id) else { continue };
            if self.scope.selector.as_ref().is_some_and(|selector| !selector.matches(&service))
                || reconciler.is_temporary(&service)
            {
                continue;
            }
            let this = Arc::clone(reconciler);
            let (evaluator, at) = (this.evaluator.clone(), service.clone());
            let request = run.request(&id, text(&service, &["metadata", "uid"]));
            let inspect = move || misplaced::inspect(&evaluator, &at, &this.allowed, Some(&request));
            let inspection = tokio::task::spawn_blocking(inspect).await?;
            let inspection = inspection.with_context(|| format!("Service {}/{}", id.namespace, id.name))?;
            let Some((mut row, job)) = row(reconciler, &id, service.clone(), inspection).await? else { continue };
            if let Some(Order { to, .. }) = job.as_ref().and_then(|job| job.order.as_ref()) {
                row.method = Some(method_of(reconciler, &service, to, self.seamless));
            }
            jobs.extend(job);
            rows.push(row);
        }
        for (id, uid) in unfinished {
            let is_in_scope =
                named.is_none_or(|named| *named == id) && namespace.is_none_or(|only| only == id.namespace);
            if is_in_scope && !rows.iter().any(|row| row.namespace == id.namespace && row.name == id.name) {
                // Its temporary Services are not deleted yet, or it is gone, or its author has ended its move.
                let why = "a move of it has not ended".to_owned();
                match reconciler.mover.records.get(&uid, Size::Large).await {
                    Ok(Some(Journal { from, .. })) => {
                        rows.push(Row { to: Some(Vec::new()), why, ..new_row(&id, from.clone()) });
                        jobs.push(Job { id, uid, from, order: None });
                    }
                    Ok(None) => {}
                    Err(error) => {
                        let stays = Some(error.to_string());
                        rows.push(Row { why, stuck: true, stays, ..new_row(&id, Vec::new()) });
                    }
                }
            }
        }
        Ok((rows, jobs))
    }
}

fn new_row(id: &ServiceKey, from: Vec<IpAddr>) -> Row {
    Row { namespace: id.namespace.clone(), name: id.name.clone(), from, ..Row::default() }
}

fn method_of(reconciler: &Reconciler, service: &Value, to: &[IpAddr], is_seamless: bool) -> Method {
    let evaluator = &reconciler.evaluator;
    let endpoints = endpoints::stored(evaluator.stores(), &evaluator.settings().settings, service);
    match method(service, to, endpoints.ready > 0) {
        Method::Seamless if !is_seamless => Method::Plain(NOT_ASKED),
        method => method,
    }
}

/// The row of a Service, and its move if that is possible; `None` if the Service stays out of the list.
async fn row(
    reconciler: &Arc<Reconciler>,
    id: &ServiceKey,
    service: Value,
    inspection: Inspection,
) -> anyhow::Result<Option<(Row, Option<Job>)>> {
    let mut row = new_row(id, addresses(&service));
    let misplaced = match inspection {
        Inspection::InPlace => return Ok(None),
        Inspection::HalfMoved => {
            row.why = "it looks as if a move has begun".to_owned();
            let uid = text(&service, &["metadata", "uid"]).to_owned();
            let stays = match reconciler.mover.records.get(&uid, Size::Large).await {
                Ok(Some(_)) => None,
                Ok(None) => Some(Unmoved::NotRecorded.to_string()),
                Err(error) => Some(error.to_string()),
            };
            if stays.is_some() {
                return Ok(Some((Row { stays, ..row }, None)));
            }
            row.to = Some(Vec::new());
            let job = Job { id: id.clone(), uid, from: row.from.clone(), order: None };
            return Ok(Some((row, Some(job))));
        }
        Inspection::Misplaced(misplaced) => misplaced,
    };
    row.why.clone_from(&misplaced.why);
    let (stuck, stays) = match (reconciler.movable(id, &misplaced, Size::Large).await, &misplaced.stays) {
        // The Service was changed a moment ago: its author is working on it.
        (Ok(Movable::Changed), _) => return Ok(None),
        (Ok(Movable::SetByHand), _) => (false, BY_HAND.to_owned()),
        (Err(error), _) => (true, format!("it can't be read: {}", error_message(&error))),
        (Ok(Movable::Yes(_) | Movable::Larger(_)), Some((reason, detail))) => {
            (*reason == StayReason::PoolFull, detail.clone())
        }
        (Ok(Movable::Larger(_)), None) => (true, Unmoved::TooLarge.to_string()),
        // The addresses are reserved in this process alone, so that no two rows of the table name the same address.
        (Ok(Movable::Yes(live)), None) => match reconciler.reserve_targets(service).await {
            Ok((to, evaluation)) => {
                let size = Size::of(live.to_string().len()).unwrap_or(Size::Large);
                row.to = Some(to.clone());
                let (id, uid, from) = (id.clone(), misplaced.uid.clone(), misplaced.from.clone());
                let order = Some(Order { misplaced, size, to, evaluation });
                return Ok(Some((row, Some(Job { id, uid, from, order }))));
            }
            Err(reason) => (true, reason.to_string()),
        },
    };
    Ok(Some((Row { stuck, stays: Some(stays), ..row }, None)))
}
