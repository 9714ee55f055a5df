//! An agent writes only the Leases of its own node.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use clusterip_agent::agent_metrics::AgentMetrics;
use clusterip_agent::event_loop::AddressAgent;
use clusterip_agent::heartbeat::Health;
use clusterip_core::service_key::ServiceKey;
use clusterip_failover::assignments::{Assignment, Assignments, Protocol};
use clusterip_failover::heartbeat_state;
use clusterip_failover::timing::Failover;
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use super::support::{AGENTS, deployed, outcome};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{eventually, eventually_within};
use crate::support::fake_network::FakeNetwork;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::service_webhook_rules::{Call, assert_calls, call};

const AGENT: &str = "clusterip-agent";

/// A client of the agent on the node of this name.
async fn agent_on(plane: &ControlPlane, node: &str) -> Client {
    plane.client_with(&plane.token_on(node, AGENTS, AGENT).await)
}

fn heartbeat(node: &str, holder: &str, second: u32) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": format!("clusterip-agent-{node}"), "labels": {"clusterip-policy/lease": "agent"},
            "annotations": {"clusterip-policy/node": node}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 20,
            "renewTime": format!("2026-01-01T00:00:{second:02}.000000Z")},
    })
}

/// The same Lease, with the label of a heartbeat that its own agent has written.
fn labelled(mut lease: Value) -> Value {
    lease["metadata"]["labels"]["clusterip-policy/heartbeat"] = json!("own");
    lease
}

fn claim(last: u8, holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": format!("clusterip-external-10-0-9-{last}"), "labels": {"clusterip-policy/lease": "external"},
            "annotations": {"clusterip-policy/address": format!("10.0.9.{last}")}},
        "spec": {"holderIdentity": holder},
    })
}

/// The same Lease, as if the field managers with these names had written these fields at this time.
fn managed(mut lease: Value, managers: &[&str], time: &str, fields: &Value) -> Value {
    let entry = |manager: &&str| {
        json!({"manager": manager, "operation": "Update", "apiVersion": "coordination.k8s.io/v1", "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": fields})
    };
    lease["metadata"]["managedFields"] = managers.iter().map(entry).collect();
    lease
}

/// The same Lease with this value in this field of its `metadata` or `spec`.
fn with(mut lease: Value, part: &str, field: &str, value: Value) -> Value {
    lease[part][field] = value;
    lease
}

async fn create(leases: &Api<Lease>, lease: Value) -> String {
    outcome(leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await)
}

/// Replaces the existing Lease by this one.
async fn replace(leases: &Api<Lease>, lease: Value) -> String {
    replace_with(leases, lease, &PostParams::default()).await
}

async fn replace_with(leases: &Api<Lease>, lease: Value, parameters: &PostParams) -> String {
    let mut lease: Lease = serde_json::from_value(lease).unwrap();
    let name = lease.metadata.name.clone().unwrap();
    lease.metadata.resource_version = leases.get(&name).await.unwrap().metadata.resource_version;
    outcome(leases.replace(&name, parameters, &lease).await)
}

async fn delete(leases: &Api<Lease>, name: &str) -> String {
    outcome(leases.delete(name, &DeleteParams::default()).await)
}

// The name of one Node is a prefix of the other.
const ME: &str = "policy-node_agent_0123456789abcdef";
const OTHER: &str = "policy-node-2_agent_fedcba9876543210";
const IMPOSSIBLE: &str = "policy-node_agent_x_agent_0123456789abcdef";
const FUTURE: &str = "2099-01-01T00:00:00Z";
const HEARTBEAT_OF_OTHER: &str = "clusterip-agent-policy-node-2";

/// The Leases of the agents' namespace, as these accounts may write them.
struct Agents {
    /// The agent on the node `policy-node`.
    me: Api<Lease>,
    /// The agent on the node `policy-node-2`.
    other: Api<Lease>,
    /// The agent on the node `policy-node-3`.
    forger: Api<Lease>,
    /// The account of the agents, with a token that names no node.
    unbound: Api<Lease>,
}

async fn writes_of_heartbeats(agents: &Agents) -> Vec<Call<'static>> {
    let renamed = with(heartbeat("policy-node", ME, 0), "metadata", "name", json!(HEARTBEAT_OF_OTHER));
    let forged = async |managers: &[&str], fields: Value| {
        let ended = heartbeat("policy-node-2", "", 2);
        replace(&agents.me, managed(ended, managers, FUTURE, &fields)).await
    };
    let any = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "any"},
        "spec": {"holderIdentity": ME}});
    let (me, other) = (|holder, second| heartbeat("policy-node", holder, second), &agents.other);
    let of_other = |holder: &str, second: u32| heartbeat("policy-node-2", holder, second);
    let of_holder = json!({"f:spec": {"f:holderIdentity": {}, "f:renewTime": {}}});
    let below_holder = json!({"f:spec": {"f:holderIdentity": {".": {}, "f:x": {}}}});
    // So many managers that the API server merges them.
    let many = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let label = json!({"f:metadata": {"f:labels": {"f:clusterip-policy/lease": {}}}});
    vec![
        call("its heartbeat", create(&agents.me, labelled(me(ME, 0))).await, "allowed"),
        call("its heartbeat, renewed", replace(&agents.me, labelled(me(ME, 1))).await, "allowed"),
        call("its heartbeat, for another", replace(&agents.me, me(OTHER, 2)).await, "refused"),
        call("any Lease", create(&agents.me, any).await, "refused"),
        call("its heartbeat, by the name of another", create(&agents.me, renamed.clone()).await, "refused"),
        call("a new heartbeat of another", create(&agents.me, of_other(OTHER, 0)).await, "refused"),
        call("the other's own", create(other, labelled(of_other(OTHER, 0))).await, "allowed"),
        call("the heartbeat of another, renewed", replace(&agents.me, of_other(OTHER, 1)).await, "refused"),
        call("the heartbeat of another, taken", replace(&agents.me, of_other(ME, 1)).await, "refused"),
        call("the heartbeat of another, renamed", replace(&agents.me, renamed).await, "refused"),
        call("the same, ended while it lives", replace(&agents.me, of_other("", 2)).await, "refused"),
        call("the same, with a forged time of the holder", forged(&["forged"], of_holder).await, "refused"),
        call("the same, of a field below the holder", forged(&["forged"], below_holder).await, "refused"),
        call("the same, of many managers", forged(&many, label).await, "refused"),
        call("the heartbeat of another, deleted", delete(&agents.me, HEARTBEAT_OF_OTHER).await, "refused"),
    ]
}

async fn writes_of_claims(agents: &Agents) -> Vec<Call<'static>> {
    let unlabelled = with(claim(19, ME), "metadata", "labels", json!({}));
    let renamed = with(claim(14, ME), "metadata", "name", json!("clusterip-external-10-0-9-15"));
    let ipv6 = |address: &str| {
        let lease = with(claim(10, ME), "metadata", "annotations", json!({"clusterip-policy/address": address}));
        with(lease, "metadata", "name", json!("clusterip-external-fd00-0000-0000-0000-0000-0000-0000-0001"))
    };
    vec![
        call("an address for a node that can't exist", create(&agents.me, claim(14, IMPOSSIBLE)).await, "refused"),
        call("an address by the name of another", create(&agents.me, renamed).await, "refused"),
        call("an IPv6 address by the name of another", create(&agents.me, ipv6("fd00::2")).await, "refused"),
        call("an IPv6 address", create(&agents.me, ipv6("fd00::1")).await, "allowed"),
        call("an address with the label of heartbeats", create(&agents.me, labelled(claim(10, ME))).await, "refused"),
        call("an address", create(&agents.me, claim(10, ME)).await, "allowed"),
        call("an address, again", replace(&agents.me, claim(10, ME)).await, "allowed"),
        call("an address for another", create(&agents.me, claim(11, OTHER)).await, "refused"),
        call("an address for another later", replace(&agents.me, claim(10, OTHER)).await, "refused"),
        call("an address without the label", create(&agents.me, unlabelled).await, "refused"),
        call("the other's address", create(&agents.other, claim(12, OTHER)).await, "allowed"),
        call("the address of another that lives", replace(&agents.me, claim(12, ME)).await, "refused"),
        call("the address of another, given back", replace(&agents.me, claim(12, "")).await, "refused"),
        call("the address of another, deleted", delete(&agents.me, "clusterip-external-10-0-9-12").await, "refused"),
        call("an address, given back", replace(&agents.me, claim(10, "")).await, "allowed"),
        call("an address that was given back", replace(&agents.other, claim(10, OTHER)).await, "allowed"),
        call("without a node", create(&agents.unbound, claim(13, "_agent_0123456789abcdef")).await, "refused"),
    ]
}

/// A heartbeat that is valid for 4 seconds may be ended sooner than one that is valid for 20 seconds.
async fn writes_of_a_short_heartbeat(agents: &Agents) -> Vec<Call<'static>> {
    const NAME: &str = "clusterip-agent-policy-node-3";
    // As agents write it.
    let lease = |seconds: u32, holder: &str, second| {
        let lease = with(heartbeat("policy-node-3", holder, second), "spec", "leaseDurationSeconds", json!(seconds));
        managed(lease, &["clusterip-agent"], "1970-01-01T00:00:00Z", &json!({}))
    };
    let own = |seconds, second| lease(seconds, &format!("policy-node-3_agent_{second:016}"), second);
    let mut calls = vec![
        call("its heartbeat, for 5 s", create(&agents.forger, own(5, 0)).await, "refused"),
        call("its heartbeat, for 4 s", create(&agents.forger, own(4, 0)).await, "allowed"),
        call("its heartbeat, renewed", replace(&agents.forger, own(4, 1)).await, "allowed"),
        call("the same, ended while it lives", replace(&agents.me, lease(20, "", 2)).await, "refused"),
    ];
    // The API server writes the time of a renewal in whole seconds. It rounds most at the end of a second.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    tokio::time::sleep(Duration::from_millis((1900 - u64::from(now.subsec_millis())) % 1000)).await;
    let before = Instant::now();
    calls.push(call("its heartbeat, renewed again", replace(&agents.forger, own(4, 2)).await, "allowed"));
    let ended = eventually_within(Duration::from_secs(10), "the end of a silent heartbeat", async || {
        Some(replace(&agents.me, lease(20, "", 3)).await).filter(|ended| ended != "refused")
    });
    calls.push(call("the same, ended after a silence", ended.await, "allowed"));
    let silence = before.elapsed();
    assert!(silence > Duration::from_secs(2), "a healthy agent may be silent for {silence:?}");
    calls.push(call("its heartbeat, for 20 s", replace(&agents.forger, own(20, 4)).await, "allowed"));
    tokio::time::sleep(Duration::from_millis(3500)).await;
    calls.extend([
        call("the same, ended after a silence of 3 s", replace(&agents.me, lease(20, "", 5)).await, "refused"),
        call("its heartbeat, deleted", delete(&agents.forger, NAME).await, "allowed"),
    ]);
    calls
}

/// Writes after the other agents have not renewed their heartbeats for more than ten seconds: these may be ended, and
/// then the addresses taken over.
async fn writes_after_a_silence(agents: &Agents) -> Vec<Call<'static>> {
    let mut calls = Vec::new();
    let own = || heartbeat("policy-node-3", "policy-node-3_agent_0123456789abcdef", 0);
    let managers = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let label = json!({"f:metadata": {"f:labels": {"f:clusterip-policy/lease": {}}}});
    let mut of_future = managed(own(), &managers, FUTURE, &label);
    of_future["metadata"]["managedFields"][8].as_object_mut().unwrap().remove("time");
    calls.push(call("its heartbeat, from the future", create(&agents.forger, of_future).await, "allowed"));
    let long = json!({"a": "a".repeat(4000), "clusterip-policy/node": "policy-node-3"});
    let deep = managed(own(), &["a"], FUTURE, &json!({"f:spec": {"f:a": {"f:b": {"f:c": {}}}}}));
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]);
    for (request, part, field, value) in [
        ("for 68 years", "spec", "leaseDurationSeconds", json!(i32::MAX)),
        ("without a duration", "spec", "leaseDurationSeconds", json!(null)),
        ("of a node that can't exist", "spec", "holderIdentity", json!(IMPOSSIBLE)),
        ("with a long annotation", "metadata", "annotations", long),
        ("with deep managed fields", "metadata", "managedFields", deep["metadata"]["managedFields"].clone()),
        ("with a finalizer", "metadata", "finalizers", json!(["example.com/a"])),
        ("with an owner", "metadata", "ownerReferences", owner),
    ] {
        let outcome = replace(&agents.forger, with(own(), part, field, value)).await;
        calls.push(call(format!("its heartbeat, {request}"), outcome, "refused"));
    }
    tokio::time::sleep(Duration::from_secs(12)).await;
    // As agents write it: the API server forgets the times of the forger.
    let ended = managed(heartbeat("policy-node-3", "", 3), &["clusterip-agent"], "1970-01-01T00:00:00Z", &json!({}));
    let unknown_field = json!({"f:spec": {"f:holderIdentity": {"f:x": {}}}});
    let until_future = |lease: Value| managed(lease, &["forged"], FUTURE, &unknown_field);
    let of_other = |holder: &str, second: u32| heartbeat("policy-node-2", holder, second);
    // Otherwise no agent could end the heartbeat later.
    let ended_in_future = until_future(of_other("", 3));
    calls.extend([
        call("a silent heartbeat, taken", replace(&agents.me, of_other(ME, 3)).await, "refused"),
        call("a silent heartbeat, deleted", delete(&agents.me, HEARTBEAT_OF_OTHER).await, "refused"),
        call("its address, before that is ended", replace(&agents.me, claim(12, ME)).await, "refused"),
        call("a silent heartbeat from the future, ended", replace(&agents.me, ended).await, "allowed"),
        call("a silent heartbeat, ended in the future", replace(&agents.me, ended_in_future).await, "refused"),
        call("the same, with the label of its agent", replace(&agents.me, labelled(of_other("", 3))).await, "refused"),
        call("a silent heartbeat, ended", replace(&agents.me, of_other("", 3)).await, "allowed"),
    ]);
    let taken = eventually("the policy to see the end of the heartbeat", async || {
        Some(replace(&agents.me, claim(12, ME)).await).filter(|taken| taken != "refused")
    });
    let put_back = of_other("policy-node-2_agent_0000000000000000", 4);
    let from_future = until_future(put_back.clone());
    // Every takeover would be compared with each of these, of any number of nodes that do not exist.
    let as_its_own = labelled(put_back.clone());
    calls.extend([
        call("its address", taken.await, "allowed"),
        call("a heartbeat without a holder, written again", replace(&agents.me, of_other("", 4)).await, "refused"),
        call("a heartbeat without a holder, deleted", delete(&agents.me, HEARTBEAT_OF_OTHER).await, "allowed"),
        call("a heartbeat that was missing, from the future", create(&agents.me, from_future).await, "refused"),
        call("the same, with the label of its agent", create(&agents.me, as_its_own).await, "refused"),
        call("a heartbeat that was missing", create(&agents.me, put_back).await, "allowed"),
        call("the same, renewed by its agent", replace(&agents.other, labelled(of_other(OTHER, 5))).await, "allowed"),
    ]);
    let left = eventually("the policy to see the heartbeat", async || {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        Some(replace_with(&agents.me, claim(10, ME), &dry).await).filter(|left| left == "refused")
    });
    calls.extend([
        call("its address that is left", left.await, "refused"),
        call("its own address, deleted", delete(&agents.me, "clusterip-external-10-0-9-12").await, "allowed"),
    ]);
    calls
}

#[tokio::test]
async fn agent_writes_only_the_leases_of_its_own_node() {
    let plane = deployed().await;
    let leases = |client: Client| -> Api<Lease> { Api::namespaced(client, AGENTS) };
    let agents = Agents {
        me: leases(agent_on(&plane, "policy-node").await),
        other: leases(agent_on(&plane, "policy-node-2").await),
        forger: leases(agent_on(&plane, "policy-node-3").await),
        unbound: leases(plane.client_with(&plane.token(AGENTS, AGENT).await)),
    };
    eventually("the policies to be in force", async || {
        (create(&agents.unbound, heartbeat("unbound", "unbound_agent_0", 0)).await == "refused").then_some(())
    })
    .await;

    let mut seen = writes_of_heartbeats(&agents).await;
    seen.extend(writes_of_claims(&agents).await);
    seen.extend(writes_of_a_short_heartbeat(&agents).await);
    seen.extend(writes_after_a_silence(&agents).await);
    assert_calls(seen);

    // The policies apply only to agents.
    let admin = leases(plane.client());
    assert_eq!(replace(&admin, heartbeat("policy-node-2", "", 5)).await, "allowed");
    assert_eq!(delete(&admin, HEARTBEAT_OF_OTHER).await, "allowed");
}

/// One Lease with such a time made every list of Leases unreadable, for all agents and for the server.
#[tokio::test]
async fn agent_writes_no_time_that_others_can_not_read() {
    let plane = deployed().await;
    let client = agent_on(&plane, "late-node").await;
    let late = "9999-12-31T00:00:00.000000Z";
    let own = || heartbeat("late-node", "late-node_agent_0123456789abcdef", 0);
    for (name, lease, expected) in [
        ("renewTime", with(own(), "spec", "renewTime", json!(late)), "refused"),
        ("acquireTime", with(own(), "spec", "acquireTime", json!(late)), "refused"),
        (
            "a time that is in the year 10000 in UTC",
            with(own(), "spec", "renewTime", json!("9999-12-31T23:59:59.000000-01:00")),
            "refused",
        ),
        (
            "managedFields",
            managed(own(), &["late"], late, &json!({"f:spec": {"f:renewTime": {"f:below": {}}}})),
            "refused",
        ),
        (
            "the last year that others can read",
            with(own(), "spec", "renewTime", json!("9998-12-31T23:59:59.000000Z")),
            "allowed",
        ),
    ] {
        // The typed client can't write these times.
        let create = async || {
            let request = Request::post(format!("/apis/coordination.k8s.io/v1/namespaces/{AGENTS}/leases?dryRun=All"));
            let request = request.header("content-type", "application/json").body(lease.to_string().into_bytes());
            outcome(client.request::<Value>(request.unwrap()).await)
        };
        // The policies may not be in force yet.
        eventually(name, async || (create().await == expected).then_some(())).await;
    }
}

/// Agents with bound tokens on a fake network. The simulation of `crates/failover` has their faults, and `external/cases`
/// has real processes and packets.
#[tokio::test]
async fn agents_write_only_heartbeats_at_rest_and_take_over_from_a_dead_agent() {
    const NODES: [&str; 2] = ["takes-over-1", "takes-over-2"];
    let plane = deployed().await;
    let proxy = Proxy::start(&plane).await;
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorded = Arc::clone(&requests);
    // The rule records every request and matches none.
    proxy.on(
        move |seen| {
            recorded.lock().unwrap().push(format!("{} {}", seen.method, seen.path.rsplit('/').next().unwrap()));
            false
        },
        Fault::CutBefore,
    );
    let client = async |node: &str| {
        let token = plane.token_on(node, AGENTS, AGENT).await;
        Client::try_from(plane.config(proxy.url(), &token)).unwrap()
    };
    let assigned = |nodes_of: &dyn Fn(usize) -> &'static [&'static str]| -> Arc<Assignments> {
        let assignment = |number: u8| Assignment {
            service: ServiceKey::new("shop", "web"),
            ports: [(Protocol::Tcp, 443)].into(),
            nodes: Arc::new(nodes_of(number.into()).iter().map(|node| (*node).to_owned()).collect()),
        };
        let address = |number: u8| IpAddr::from(Ipv4Addr::new(10, 0, 8, number));
        Arc::new((0..8).map(|number| (address(number), assignment(number))).collect())
    };
    // At first each address belongs to one node: an agent that begins earlier would keep all that both may have.
    let (network, assignments) =
        (FakeNetwork::default(), watch::Sender::new(assigned(&|number| &NODES[number % 2..][..1])));
    let mut running = Vec::new();
    for node in NODES {
        let agent = AddressAgent {
            client: client(node).await,
            heartbeat: client(node).await,
            namespace: AGENTS.to_owned(),
            node: node.to_owned(),
            failover: Failover::Within25s,
            assignments: assignments.subscribe(),
            network: network.node(node),
            metrics: AgentMetrics::default(),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (health, _seen) = watch::channel(Health::default());
        let work = agent.run(health, async {
            let _ = stopped.await;
        });
        running.push((tokio::spawn(work), stop));
    }
    let held_by = async |within: u64, nodes: &[&str]| {
        eventually_within(Duration::from_secs(within), &format!("all addresses on {nodes:?}"), async || {
            let held = network.holders();
            let mut holders: Vec<&str> = held.values().map(String::as_str).collect();
            holders.sort_unstable();
            holders.dedup();
            (held.len() == 8 && holders == nodes).then_some(())
        })
        .await;
        network.assert_no_conflicts();
    };
    held_by(60, &NODES).await;
    requests.lock().unwrap().clear();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let asked: BTreeSet<String> = std::mem::take(&mut *requests.lock().unwrap()).into_iter().collect();
    assert_eq!(asked, NODES.iter().map(|node| format!("PUT {}", heartbeat_state::name(node))).collect());
    assignments.send_replace(assigned(&|_| &NODES));
    // As SIGKILL does. The API server may learn a moment later that the heartbeat was ended.
    running[0].0.abort();
    held_by(28, &NODES[1..]).await;
    drop(running);
}
