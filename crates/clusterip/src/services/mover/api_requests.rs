//! The requests of a move to the API server, which are repeated after errors that pass.

use std::net::IpAddr;

use clusterip_cluster::api_error::error_message;
use clusterip_core::address_set_by_hand::MANAGER;
use http::{Method, Request};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::move_error::MoveError;
use super::refusal::Refusal;
use super::{MAX_PAUSE, Run};

impl Run<'_> {
    /// The first of the new addresses that is allocated already.
    pub(super) async fn first_taken(&mut self, from: &[IpAddr], to: &[IpAddr]) -> Result<Option<IpAddr>, MoveError> {
        for address in to.iter().filter(|address| !from.contains(address)) {
            loop {
                match self
                    .request(Method::GET, &format!("/apis/networking.k8s.io/v1/ipaddresses/{address}"), None)
                    .await
                {
                    Ok(_) => return Ok(Some(*address)),
                    // This is also the answer if there is no such API. Then the API server decides when the address
                    // is written.
                    Err(Refusal::Gone) => break,
                    Err(refusal) => self.wait("look up", &refusal).await?,
                }
            }
        }
        Ok(None)
    }

    /// Reads the stored Service; `None` if it is gone, or if another Service has its name.
    pub(super) async fn read(&mut self, step: &'static str) -> Result<Option<Value>, MoveError> {
        loop {
            match self.request(Method::GET, &self.path(), None).await {
                Ok(service) => return Ok(self.same_service(service)),
                Err(Refusal::Gone) => return Ok(None),
                Err(refusal) => self.wait(step, &refusal).await?,
            }
        }
    }

    /// The Service, unless it is another one of the same name.
    pub(super) fn same_service(&self, service: Value) -> Option<Value> {
        let uid = service.pointer("/metadata/uid").and_then(Value::as_str);
        (uid == Some(self.uid)).then_some(service)
    }

    /// Waits before the next try. Gives up if the request was refused, or if the time is over.
    pub(super) async fn wait(&mut self, step: &'static str, refusal: &Refusal) -> Result<(), MoveError> {
        let limit = self.mover.limits.total;
        let (service, reason) = (self.label(), refusal.to_string());
        match refusal {
            Refusal::Refused(_) | Refusal::Address { .. } | Refusal::Port { .. } => {
                let untouched = matches!(step, "read" | "look up" | "release");
                return Err(MoveError::Refused { service, step, reason, untouched });
            }
            _ if self.since.elapsed() + self.pause > limit => {
                return Err(MoveError::Unfinished { service, step, reason, limit });
            }
            _ => {}
        }
        tracing::debug!(service, step, reason, "trying again");
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Ok(())
    }

    pub(super) async fn put(&self, suffix: &str, service: &Value) -> Result<Value, Refusal> {
        let separator = if suffix.contains('?') { '&' } else { '?' };
        let path = format!("{}{suffix}{separator}fieldManager={MANAGER}", self.path());
        self.request(Method::PUT, &path, Some(service)).await
    }

    pub(super) async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Refusal> {
        let invalid = |error: &dyn std::fmt::Display| Refusal::Refused(error.to_string());
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| invalid(&error))?,
            None => Vec::new(),
        };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body);
        self.send(request.map_err(|error| invalid(&error))?).await
    }

    pub(super) async fn send(&self, request: Request<Vec<u8>>) -> Result<Value, Refusal> {
        match timeout(self.mover.limits.request, self.mover.client.request::<Value>(request)).await {
            Ok(answer) => answer.map_err(|error| refusal_of(&error)),
            Err(_) => {
                let limit = self.mover.limits.request.as_secs_f32();
                Err(Refusal::Trouble(format!("no answer within {limit} s")))
            }
        }
    }
}

/// Interprets the error of a request for a Service.
pub(super) fn refusal_of(error: &kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) => Refusal::answer(status.code, &status.message),
        other => Refusal::Trouble(error_message(other)),
    }
}
