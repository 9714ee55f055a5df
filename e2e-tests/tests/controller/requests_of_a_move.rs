//! How many requests to the API server a move causes.

use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Proxy, Seen};

/// A request in a namespace, without what differs from move to move.
fn shown(seen: &Seen, uid: &str) -> String {
    let (_, inside) = seen.path.split_once("/namespaces/").unwrap();
    let (_, object) = inside.split_once('/').unwrap();
    let tries = if seen.is_dry_run() { " as a dry run" } else { "" };
    format!("{} {}{tries}", seen.method, object.replace(uid, "UID"))
}

#[tokio::test]
async fn move_causes_at_most_nine_requests() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(&cluster.plane).await;
    struct Case<'c> {
        name: &'static str,
        args: &'static [&'static str],
        expected: &'c [&'static str],
    }
    // Sorted, because requests that are sent at once arrive in any order.
    const PLAIN: [&str; 8] = [
        "DELETE controllerrevisions/clusterip-move-UID",
        "GET services/web",
        "POST controllerrevisions",
        "POST events",
        "PUT services/web",
        "PUT services/web",
        "PUT services/web",
        "PUT services/web as a dry run",
    ];
    let mut asks_for_endpoints = [&["GET endpointslices"][..], &PLAIN].concat();
    asks_for_endpoints.sort_unstable();
    let cases = [
        Case { name: "without-ready-endpoints", args: &[], expected: &asks_for_endpoints },
        Case { name: "whatever-its-endpoints", args: &["--move", "always"], expected: &PLAIN },
    ];
    for Case { name, args, expected } in cases {
        let server = cluster.server(&proxy, &json!({})).arg("--no-webhook").args(args).start().await;
        let place = cluster.place(name).await;
        let web = place.service_at("web", [172, 21, 1, 20], json!({}), json!({})).await;
        let uid = web["metadata"]["uid"].as_str().unwrap();
        let begin = proxy.requests().len();
        place.workload("linux").await;
        eventually("the Event of the move", async || place.events("web").await.into_iter().next()).await;
        let is_of_move = |seen: &&Seen| {
            let names_it = [&place.namespace, uid].iter().any(|name| seen.path.contains(*name));
            let records_it = seen.body["metadata"]["name"].as_str().is_some_and(|name| name.contains(uid));
            names_it || records_it
        };
        let seen = proxy.requests().split_off(begin);
        let mut seen: Vec<String> = seen.iter().filter(is_of_move).map(|seen| shown(seen, uid)).collect();
        seen.sort_unstable();
        assert_eq!(seen, expected, "{name}");
        drop(server);
    }
}
