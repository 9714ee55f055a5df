//! Kills the process at each step of a move, and under load. The next process finishes the moves, and nothing is lost.
//! `CHAOS` sets the number of rounds, and `CHAOS_SEED` the seed; a run that fails prints its seed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use axum::http::Method;
use clusterip_core::annotations::{MOVING_ANNOTATION, MOVING_NAME};
use futures::future::join_all;
use serde_json::{Value, json};

use crate::settings_brake::free_the_lease;
use crate::support::cluster::{Cluster, Place, pool_of, services};
use crate::support::eventually::{eventually, eventually_within};
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{addresses, but_addresses, is_step, path, send};
use crate::support::serve_process::free_port;

/// The moment at which the process is killed: a request for one of the Services, and whether the API server executes
/// it.
const STEPS: [(&str, &str); 10] = [
    ("before", "try"),
    ("after", "try"),
    ("before", "release"),
    ("after", "release"),
    ("before", "assign"),
    ("after", "assign"),
    ("before", "status"),
    ("after", "status"),
    ("before", "cleanup"),
    ("after", "cleanup"),
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// SplitMix64: the same numbers for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// A Service of the load, and its Deployment.
struct Planned {
    name: String,
    os: &'static str,
    spec: Value,
    /// Milliseconds before the Service, and before the Deployment, are created.
    pauses: [u64; 2],
}

fn plan(random: &mut Random) -> Vec<Planned> {
    let count = 8 + random.below(8);
    let mut planned = Vec::new();
    for number in 0..count {
        let name = format!("load-{number}");
        let kind = ["ClusterIP", "NodePort", "LoadBalancer"][random.below(3) as usize];
        let spec = json!({"type": kind, "selector": {"app": name}, "sessionAffinity": "ClientIP"});
        let os = ["linux", "windows"][random.below(2) as usize];
        planned.push(Planned { name, os, spec, pauses: [random.below(400), random.below(400)] });
    }
    planned
}

/// Creates Services and Deployments, in any order.
async fn load(place: &Place, planned: &[Planned]) -> Vec<Value> {
    join_all(planned.iter().map(async |planned| {
        let pause = |number: usize| tokio::time::sleep(Duration::from_millis(planned.pauses[number]));
        let service = async {
            pause(0).await;
            place.service_named(&planned.name, json!({}), planned.spec.clone()).await
        };
        let deployment = async {
            pause(1).await;
            place.deployment(&planned.name, json!({"nodeSelector": {"kubernetes.io/os": planned.os}})).await;
        };
        let (service, ()) = tokio::join!(service, deployment);
        service
    }))
    .await
}

/// The Services that are not in their final state yet.
fn wrong(service: &Value, os: &str) -> Option<String> {
    let name = service["metadata"]["name"].as_str().unwrap();
    let traces = service.to_string();
    if traces.contains(MOVING_ANNOTATION) || traces.contains(MOVING_NAME) || traces.contains("ExternalName") {
        return Some(format!("{name} is on the move"));
    }
    let pool = pool_of(addresses(service)[0]);
    (pool != os).then(|| format!("{name} belongs to {os}, and is in {pool}"))
}

/// The node ports of a Service, with the one at which a load balancer asks for its health.
fn take_node_ports(service: &mut Value) -> Vec<Value> {
    let mut taken = vec![service["spec"]["healthCheckNodePort"].take()];
    let ports = service["spec"]["ports"].as_array_mut().into_iter().flatten();
    taken.extend(ports.map(|port| port["nodePort"].take()));
    taken
}

/// A Service as a list shows it, without its addresses. A list has the kind of all items only once.
fn of_a_list(service: &Value) -> Value {
    let mut service = but_addresses(service);
    service.as_object_mut().unwrap().retain(|field, _| field != "apiVersion" && field != "kind");
    service
}

#[tokio::test]
async fn killed_process_loses_nothing() {
    let rounds = number("CHAOS").unwrap_or(10);
    let seed = number("CHAOS_SEED").unwrap_or_else(|| RandomState::new().hash_one(0) % 1_000_000);
    println!("CHAOS={rounds} CHAOS_SEED={seed}");
    let mut random = Random(seed);
    let cluster = Cluster::alone().await;
    let port = free_port();
    let start = async |proxy: &Proxy| {
        cluster.server(proxy, &json!({})).port(port).registered().arg("--move-load-balancers").start().await
    };
    let mut proxy = Proxy::start(&cluster.plane).await;
    let mut server = start(&proxy).await;
    for round in 0..rounds {
        let (when, step) = STEPS[round as usize % STEPS.len()];
        let about = format!("round {round}, seed {seed}, killed {when} {step}");
        cluster.webhook_in_force().await;
        let place = cluster.place("chaos").await;
        let planned = plan(&mut random);

        // A Service whose move is known to be at this step when the process is killed.
        let victim = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["10.0.0.0/8"]});
        place.service(json!({}), victim).await;
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10", "ipMode": "VIP"}]}}});
        let status_path = format!("{}/status?fieldManager=cloud", path(&place.namespace, "web"));
        let victim = send(&cluster.client, Method::PATCH, &status_path, Some(&status)).await.unwrap();
        let fault = if when == "before" { Fault::PauseBefore } else { Fault::PauseAfter };
        let gate = proxy.on(is_step(&place.namespace, "web", step), fault);
        let kill = async {
            place.workload("windows").await;
            gate.arrived().await;
            server.kill();
            server.log()
        };
        let (mut created, killed) = tokio::join!(load(&place, &planned), kill);
        gate.discard();
        created.push(victim);

        free_the_lease(&cluster).await;
        proxy = Proxy::start(&cluster.plane).await;
        server = start(&proxy).await;
        let mut belongs: BTreeMap<&str, &str> = planned.iter().map(|one| (one.name.as_str(), one.os)).collect();
        belongs.insert("web", "windows");
        let own = async || -> Vec<Value> {
            let all = services(&cluster.client).await;
            all.into_iter().filter(|service| service["metadata"]["namespace"] == place.namespace).collect()
        };
        eventually(&format!("{about}: all to be in their pools"), async || {
            let found = own().await;
            let wrong = found.iter().find_map(|one| wrong(one, belongs[one["metadata"]["name"].as_str().unwrap()]));
            wrong.is_none().then_some(())
        })
        .await;

        // The Services are the same objects, with the same UIDs and owners of fields. Only a node port may differ:
        // another Service can have taken it, or a request of the killed process that the API server did not execute and
        // whose port it keeps reserved. The log says so after the last write of the move.
        let name = |service: &Value| service["metadata"]["name"].as_str().unwrap().to_owned();
        let mut found = own().await;
        found.sort_by_key(name);
        created.sort_by_key(name);
        for (found, created) in found.iter_mut().zip(&mut created) {
            if take_node_ports(found) != take_node_ports(created) {
                let line = |line: &String| {
                    line.contains(&format!("name={}", found["metadata"]["name"]))
                        && line.contains("was replaced by another")
                };
                let what = format!("{about}: the log to say that a node port of {} was replaced", name(found));
                eventually(&what, async || killed.iter().chain(&server.log()).any(line).then_some(())).await;
            }
        }
        let stored: Vec<Value> = found.iter().map(of_a_list).collect();
        assert_eq!(stored, created.iter().map(of_a_list).collect::<Vec<_>>(), "{about}");

        // The API server guarantees that no address belongs to two Services: the test above fails if it refuses a
        // create.
        let used: BTreeSet<IpAddr> = services(&cluster.client).await.iter().flat_map(addresses).collect();
        // The API server releases what it allocated for a request of the killed process that it did not execute: after
        // a minute, in a check every three minutes.
        let left_over = format!("{about}: no reserved address without a Service");
        eventually_within(Duration::from_secs(300), &left_over, async || {
            if !cluster.plane.tells_addresses() {
                return Some(());
            }
            let list =
                send(&cluster.client, Method::GET, "/apis/networking.k8s.io/v1/ipaddresses", None).await.unwrap();
            let known = list["items"].as_array().unwrap().iter();
            let known: BTreeSet<IpAddr> =
                known.map(|address| address["metadata"]["name"].as_str().unwrap().parse().unwrap()).collect();
            (known == used).then_some(())
        })
        .await;
        for service in &created {
            let name = service["metadata"]["name"].as_str().unwrap();
            send(&cluster.client, Method::DELETE, &path(&place.namespace, name), None).await;
        }
    }
    assert_eq!(server.terminate().await, 0);
}
