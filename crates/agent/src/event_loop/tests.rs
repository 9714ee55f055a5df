//! Tests of `event_loop`.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clusterip_failover::assignments::Assignment;
use clusterip_failover::claims::{EXTERNAL, HolderClaim};
use clusterip_failover::heartbeat_state::put_back;
use clusterip_failover::leases::{Identity, Role};
use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::json;
use tokio::time::advance;
use tower::service_fn;

use super::*;

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 9, 10));
const LEFT_CLAIMS: u32 = 5000;

/// The Lease as the API server returns it.
fn stored(mut lease: Lease, version: u32) -> Lease {
    lease.metadata.uid = Some(lease.name_any());
    lease.metadata.resource_version = Some(version.to_string());
    lease
}

fn claim(address: IpAddr, node: &str, number: u64, version: u32) -> Lease {
    let lease = json!({
        "metadata": {"name": HolderClaim::lease_name(address), "labels": {"clusterip-policy/lease": EXTERNAL},
                     "annotations": {"clusterip-policy/address": address.to_string()}},
        "spec": {"holderIdentity": Identity::with(node, Role::Agent, number).to_string()},
    });
    stored(serde_json::from_value(lease).unwrap(), version)
}

/// A client of an API server that deletes each Lease at once, lists only `listed`, and whose watch delivers nothing.
fn client(listed: &Lease, deletions: &Arc<AtomicUsize>) -> Client {
    let list = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "LeaseList",
                      "metadata": {"resourceVersion": "9"}, "items": [listed]});
    let (list, deletions) = (list.to_string(), Arc::clone(deletions));
    let service = service_fn(move |request: Request<Body>| {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let text = if request.method() == Method::DELETE {
            deletions.fetch_add(1, Ordering::Relaxed);
            json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}).to_string()
        } else {
            list.clone()
        };
        async move {
            if is_watch {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(Response::new(Body::from(text.into_bytes())))
        }
    });
    Client::new(service, "default")
}

/// With the token of an agent, an attacker creates thousands of claims, whose removal is due at once later.
#[tokio::test(start_paused = true)]
async fn answers_to_thousands_of_writes_delay_no_event() {
    let me = Identity::with("a", Role::Agent, 1);
    let begin = Instant::now();
    let mut state = AgentState::new("a", begin);
    let ended = stored(put_back("b", Timestamp::UNIX_EPOCH), 1);
    state.replace_all(&[ended, claim(ADDRESS, "a", 0, 1)], begin);
    let assignment = Assignment { nodes: Arc::new(["a".to_owned()].into()), ..Assignment::default() };
    let assignments: Arc<Assignments> = Arc::new([(ADDRESS, assignment)].into());
    let term = Term { identity: me.clone(), until: begin + Duration::from_secs(3600) };
    (state.assignments, _) = (Arc::clone(&assignments), state.set_term(Some(term.clone())));
    // This agent holds the address when the removal of all left claims is due.
    advance(Duration::from_secs(5)).await;
    let write = state.plan(Instant::now(), Timestamp::UNIX_EPOCH).writes.remove(0);
    assert_eq!(write.kind, WriteKind::Claim);
    state.written(&write, WriteOutcome::Written(Box::new(claim(ADDRESS, "a", 1, 2))), Instant::now());
    for number in 0..LEFT_CLAIMS {
        state.apply(&claim(Ipv4Addr::from(0x0a10_0000 + number).into(), "a", 0, 3), Instant::now());
    }
    assert!(state.plan(Instant::now(), Timestamp::UNIX_EPOCH).desired.held.contains_key(&ADDRESS));
    advance(Duration::from_secs(120)).await;
    let deletions = Arc::default();
    // The API server now has one claim: another agent has claimed the address.
    let client = client(&claim(ADDRESS, "b", 1, 4), &deletions);
    let leases: Api<Lease> = Api::namespaced(client, "agents");
    let (_, term) = watch::channel(Some(term));
    let (_, assignments) = watch::channel(assignments);
    let (_, observed) = watch::channel(ObservedState::default());
    let desired = watch::Sender::new(DesiredState::default());
    let mut held = desired.subscribe();
    let mut event_loop = EventLoop {
        own: heartbeat_name("a"),
        leases: leases.clone(),
        watched: leases,
        state,
        term,
        assignments,
        observed,
        desired,
        health: watch::Sender::new(Health::default()),
        metrics: AgentMetrics::default(),
        listing: Vec::new(),
        watch_silence: Duration::from_secs(12),
        own_heartbeat_seen: Instant::now(),
    };
    let released = async {
        held.wait_for(|desired| desired.held.contains_key(&ADDRESS)).await.map(drop).unwrap();
        held.wait_for(|desired| desired.held.is_empty()).await.map(drop).unwrap();
    };
    // Between two plans, the loop lets other work run.
    let (mut plans, mut running) = (0, pin!(event_loop.run()));
    tokio::select! {
        () = poll_fn(|context| { plans += 1; running.as_mut().poll(context) }) => {}
        () = released => {}
    }
    assert!(deletions.load(Ordering::Relaxed) > 0, "the writes are being answered");
    assert!(plans <= 16, "the event waited for {plans} plans");
}
