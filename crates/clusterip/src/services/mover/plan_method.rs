//! Chooses how to make an ordered move, and finds out whether a seamless move can be prepared.

use std::net::IpAddr;

use clusterip_cluster::permissions;
use clusterip_core::address_set_by_hand::MANAGER;
use clusterip_core::annotations::TEMPORARY_LABEL;
use http::Method as HttpMethod;
use serde_json::Value;

use super::move_error::MoveError;
use super::refusal::Refusal;
use super::seamless::method::{Method, method};
use super::seamless::request::{Request, request};
use super::seamless::temporary::Role;
use super::seamless::{Observed, Plan, SeamlessStep, quota};
use super::seamless_run::items;
use super::{MoveOrder, Run, step};

/// How a move is made.
pub(super) enum PlannedMethod {
    /// No seamless move was ordered, or the Service can't move seamlessly.
    Plain,
    /// With these temporary Services.
    Seamless(Plan),
    /// Not at all: the reason why the seamless move can't be prepared.
    Prevented(String),
}

impl Run<'_> {
    /// Chooses how to make the ordered move. Changes no Service.
    pub(super) async fn plan_method(
        &mut self,
        service: &Value,
        to: &[IpAddr],
        order: &MoveOrder,
    ) -> Result<PlannedMethod, MoveError> {
        let Some(options) = &order.seamless else { return Ok(PlannedMethod::Plain) };
        let ready = self.ready_endpoints(self.name).await?;
        if method(service, to, !ready.is_empty()) != Method::Seamless {
            return Ok(PlannedMethod::Plain);
        }
        if let Err(error) = permissions::require(&self.mover.client, &permissions::seamless_moves()).await {
            return Ok(PlannedMethod::Prevented(error.to_string()));
        }
        if let Some(reason) = quota::without_room(&self.quotas().await?) {
            return Ok(PlannedMethod::Prevented(reason));
        }
        let server = self.mover.records.namespace();
        let grace = i64::from(options.grace_period);
        let plan = Plan::new(self.namespace, self.uid, server, &options.cluster_domain, grace);
        match self.refusal_of_new(service, to, &plan).await {
            Some(reason) => Ok(PlannedMethod::Prevented(reason)),
            None => Ok(PlannedMethod::Seamless(plan)),
        }
    }

    /// Why the API server refuses the temporary Service with the new addresses; `None` if it accepts the Service, or if
    /// it may accept the Service later.
    async fn refusal_of_new(&self, service: &Value, to: &[IpAddr], plan: &Plan) -> Option<String> {
        let seen = Observed { service: Some(service.clone()), ..Observed::default() };
        let journal = step::beginning(service, to, "");
        let creation = request(&SeamlessStep::Create(Role::New), &seen, &journal, plan, 0);
        let Some(Request::Create { namespace, body }) = creation else { return None };
        let path = format!("/api/v1/namespaces/{namespace}/services?dryRun=All&fieldManager={MANAGER}");
        match self.request(HttpMethod::POST, &path, Some(&body)).await {
            Err(Refusal::Refused(reason)) => Some(format!(
                "the API server refuses the temporary Service {namespace}/{}: {reason}; it has the label \
                 {TEMPORARY_LABEL}, and none of the labels of the Service: exempt Services with this label from the \
                 policy that refuses it, or move without --seamless",
                plan.new
            )),
            _ => None,
        }
    }

    async fn quotas(&mut self) -> Result<Vec<Value>, MoveError> {
        let path = format!("/api/v1/namespaces/{}/resourcequotas", self.namespace);
        Ok(items(&mut self.list(&path).await?))
    }
}
