//! The cluster and the load of a fault.

use std::time::Instant;

use axum::http::Method;
use kube::Client;

use super::load::{Planned, Tally, plan};
use super::outcome::{Row, settled};
use super::pools::{Pools, WINDOWS, settings};
use crate::support::control_plane::ControlPlane;
use crate::support::move_helpers::{path, send};
use crate::support::replicas::{Kind, Replicas};

/// The cluster and the load of a fault.
pub struct FaultCluster<'p> {
    pub replicas: Replicas<'p>,
    pub namespace: String,
    pub planned: Vec<Planned>,
    pub client: Client,
}

impl<'p> FaultCluster<'p> {
    pub async fn new(plane: &'p ControlPlane, count: usize, policy: &str, kinds: Vec<Kind>) -> Self {
        Self::with(Replicas::start(plane, &settings(WINDOWS, ""), policy, kinds).await, count).await
    }

    pub async fn with(replicas: Replicas<'p>, count: usize) -> Self {
        let plane = replicas.plane;
        let namespace = plane.namespace("load").await;
        Self { replicas, namespace, planned: plan(count), client: plane.client() }
    }

    pub async fn row(self, fault: impl Into<String>, tally: Tally, since: Instant) -> Row {
        self.row_in(Pools::First, fault, tally, since).await
    }

    pub async fn row_in(self, pools: Pools, fault: impl Into<String>, tally: Tally, since: Instant) -> Row {
        let state = settled(&self.client, &self.namespace, &self.planned, pools).await;
        let seconds = since.elapsed().as_secs_f64();
        for planned in &self.planned {
            send(&self.client, Method::DELETE, &path(&self.namespace, &planned.name), None).await;
        }
        Row { fault: fault.into(), tally, state, seconds, most: None, away: false, reached: false, wrong: Vec::new() }
    }
}
