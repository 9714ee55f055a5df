//! Leader election: one process leads, and when the next one takes over. `leases.rs` of `crates/failover` decides when
//! a Lease is written.

use std::collections::BTreeSet;
use std::time::Duration;

use clusterip::leader::{Candidate, Leadership};
use clusterip_failover::leases::{Identity, LEASE, Role, Timing};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{MAX_WAIT, eventually};
use crate::support::stalling_connection::StallingConnection;

const RETRY: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

/// A Lease that does not expire during a test.
fn lasting() -> Timing {
    Timing { lease: 600 * SECOND, deadline: 500 * SECOND, retry: RETRY }
}

/// A Lease that expires soon.
fn short() -> Timing {
    Timing { lease: 3 * SECOND, deadline: 2 * SECOND, retry: RETRY }
}

/// A candidate that runs.
struct Running {
    me: Identity,
    state: watch::Receiver<Leadership>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    fn new(candidate: Candidate) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (me, state) = (candidate.me.clone(), candidate.subscribe());
        let task = tokio::spawn(candidate.run(async {
            let _ = stopped.await;
        }));
        Self { me, state, stop, task }
    }

    async fn is(&mut self, expected: Leadership) {
        let state = self.state.wait_for(|state| *state == expected);
        let state = tokio::time::timeout(MAX_WAIT, state).await;
        state.unwrap_or_else(|_| panic!("waited in vain for {expected:?}")).unwrap();
    }

    async fn leads(&mut self) {
        self.is(Leadership::Leading).await;
    }

    async fn follows(&mut self, holder: &Identity) {
        self.is(Leadership::Following { holder: Some(holder.clone()) }).await;
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }
}

fn candidate(client: &Client, namespace: &str, role: Role, timing: Timing) -> Candidate {
    Candidate::new(client.clone(), namespace, Identity::new(role), timing)
}

fn leases(client: &Client, namespace: &str) -> Api<Lease> {
    Api::namespaced(client.clone(), namespace)
}

/// The Lease without its times.
async fn lease(client: &Client, namespace: &str) -> (String, i32, i32) {
    let spec = leases(client, namespace).get(LEASE).await.unwrap().spec.unwrap();
    (spec.holder_identity.unwrap(), spec.lease_duration_seconds.unwrap(), spec.lease_transitions.unwrap())
}

#[tokio::test]
async fn stopping_leader_releases_the_lease() {
    let plane = ControlPlane::shared().await;
    let (client, namespace) = (plane.client(), plane.namespace("leader-stops").await);
    let mut first = Running::new(candidate(&client, &namespace, Role::Serve, lasting()));
    first.leads().await;
    assert_eq!(lease(&client, &namespace).await, (first.me.to_string(), 600, 0));
    let mut second = Running::new(candidate(&client, &namespace, Role::Serve, lasting()));
    second.follows(&first.me).await;
    let mut third = Running::new(candidate(&client, &namespace, Role::Serve, lasting()));
    third.follows(&first.me).await;
    third.stop().await;
    assert_eq!(lease(&client, &namespace).await.0, first.me.to_string(), "a follower leaves the Lease alone");

    let state = first.state.clone();
    first.stop().await;
    assert_eq!(*state.borrow(), Leadership::Following { holder: None });
    // Without the release, the second process would have to wait for 600 seconds.
    second.leads().await;
    assert_eq!(lease(&client, &namespace).await, (second.me.to_string(), 600, 1));

    second.stop().await;
    assert_eq!(lease(&client, &namespace).await, (String::new(), 1, 1));
}

#[tokio::test]
async fn processes_that_start_together_elect_one_leader() {
    let plane = ControlPlane::shared().await;
    let (client, namespace) = (plane.client(), plane.namespace("leader-race").await);
    let mut all: Vec<_> =
        (0..8).map(|_| Running::new(candidate(&client, &namespace, Role::Serve, lasting()))).collect();
    let holder = eventually("a holder", async || {
        let lease = leases(&client, &namespace).get_opt(LEASE).await.unwrap()?;
        lease.spec?.holder_identity
    })
    .await;
    for running in &mut all {
        if running.me.as_str() == holder { running.leads().await } else { running.state.changed().await.unwrap() }
    }
    let states: BTreeSet<_> = all.iter().map(|running| format!("{:?}", *running.state.borrow())).collect();
    let leading: Vec<_> = all.iter().filter(|running| running.state.borrow().leads()).map(|r| r.me.as_str()).collect();
    assert_eq!((leading, states.len()), (vec![holder.as_str()], 2), "one leads, the others know it: {states:?}");
    for running in all {
        running.stop().await;
    }
}

#[tokio::test]
async fn leader_notices_that_its_lease_was_taken() {
    let plane = ControlPlane::shared().await;
    let (client, namespace) = (plane.client(), plane.namespace("leader-taken").await);
    let mut running = Running::new(candidate(&client, &namespace, Role::Serve, lasting()));
    running.leads().await;
    let taken = json!({"spec": {"holderIdentity": "thief"}});
    leases(&client, &namespace).patch(LEASE, &PatchParams::default(), &Patch::Merge(taken)).await.unwrap();
    running.state.wait_for(|state| !state.leads()).await.unwrap();
    running.stop().await;
    assert_eq!(lease(&client, &namespace).await.0, "thief", "the Lease of another holder is not released");
}

#[tokio::test]
async fn deleted_lease_is_recreated() {
    let plane = ControlPlane::shared().await;
    let (client, namespace) = (plane.client(), plane.namespace("leader-deleted").await);
    let mut running = Running::new(candidate(&client, &namespace, Role::Serve, lasting()));
    running.leads().await;
    leases(&client, &namespace).delete(LEASE, &<_>::default()).await.unwrap();
    eventually("the Lease", async || leases(&client, &namespace).get_opt(LEASE).await.unwrap()).await;
    assert_eq!(lease(&client, &namespace).await, (running.me.to_string(), 600, 0));
    assert!(running.state.borrow_and_update().leads());
    running.stop().await;
}

#[tokio::test]
async fn leader_without_api_server_stops_before_another_starts() {
    let plane = ControlPlane::shared().await;
    let (client, namespace) = (plane.client(), plane.namespace("leader-cut-off").await);
    let connection = StallingConnection::new(&plane).await;
    let mut first = Running::new(candidate(&connection.client(&plane), &namespace, Role::Serve, short()));
    first.leads().await;
    let mut second = Running::new(candidate(&client, &namespace, Role::Serve, short()));
    second.follows(&first.me).await;

    connection.stall();
    second.leads().await;
    assert_eq!(*first.state.borrow(), Leadership::Following { holder: None }, "two would lead");
    assert_eq!(lease(&client, &namespace).await, (second.me.to_string(), 3, 1));

    // The former leader follows when it reaches the API server again.
    connection.resume();
    first.follows(&second.me).await;
    second.stop().await;
    first.leads().await;
    first.stop().await;
}

#[tokio::test]
async fn errors_name_the_lease() {
    let plane = ControlPlane::shared().await;
    let (client, namespace) = (plane.client(), plane.namespace("leader-errors").await);
    let error = candidate(&client, "nowhere", Role::Move, lasting()).try_acquire().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Lease nowhere/clusterip-leader can't be created: namespaces \"nowhere\" not found; without it nothing \
         is moved or assigned"
    );
    plane.kubectl(&["create", "serviceaccount", "without-permissions", "--namespace", &namespace]).await.ok();
    let without_permissions = plane.client_with(&plane.token(&namespace, "without-permissions").await);
    let error = candidate(&without_permissions, &namespace, Role::Move, lasting()).try_acquire().await.unwrap_err();
    let expected = format!(
        "Lease {namespace}/clusterip-leader can't be read: leases.coordination.k8s.io \"clusterip-leader\" is forbidden: \
         User \"system:serviceaccount:{namespace}:without-permissions\" cannot get resource \"leases\" in API group \
         \"coordination.k8s.io\" in the namespace \"{namespace}\"; without it nothing is moved or assigned"
    );
    assert_eq!(error.to_string(), expected);
    // A process that keeps trying leads as soon as it has the permission.
    let mut running = Running::new(candidate(&without_permissions, &namespace, Role::Serve, lasting()));
    plane.kubectl(&["create", "role", "all", "--verb=*", "--resource=leases", "--namespace", &namespace]).await.ok();
    let account = format!("--serviceaccount={namespace}:without-permissions");
    plane.kubectl(&["create", "rolebinding", "all", "--role=all", &account, "--namespace", &namespace]).await.ok();
    running.leads().await;
    running.stop().await;
}
