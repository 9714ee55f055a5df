//! Several replicas claim addresses in flight, so that no two of them give the same address.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::stream::{self, StreamExt as _};
use serde_json::{Value, json};

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::{MAX_WAIT, eventually, eventually_within};
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{addresses, send};
use crate::support::replicas::{Kind, Replicas, leases};
use crate::support::serve_process::Server;

/// Pools for single tests, and those of the K2s distribution.
pub const SETTINGS: &str = "
services:
  pools:
  - {name: dead, cidrs: [172.21.40.0/30], reserved: 2, match: {namespaces: [dead-holder]}}
  - {name: fought, cidrs: [172.21.40.4/30], reserved: 2, match: {namespaces: [takeover]}}
  - {name: foreign, cidrs: [172.21.40.8/29], reserved: 4, match: {namespaces: [foreign-lease]}}
  - {name: slow, cidrs: [172.21.40.16/30], reserved: 2, match: {namespaces: [slow-clock]}}
  - {name: fast, cidrs: [172.21.40.20/30], reserved: 2, match: {namespaces: [fast-clock]}}
  - {name: windows, cidrs: [172.21.1.0/24], reserved: 50, match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24], reserved: 50, match: {os: linux}}
  explicit: deny
";

/// The Lease of a claim of another replica.
fn claim(address: &str, service: &str, holder: &str, seconds: u32, renewed: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": format!("ip-{}", address.replace('.', "-")),
            "labels": {"clusterip-policy/lease": "claim"},
            "annotations": {"clusterip-policy/address": address, "clusterip-policy/service": service},
        },
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds, "acquireTime": renewed, "renewTime": renewed},
    })
}

const LONG_AGO: &str = "2020-01-01T00:00:00.000000Z";
const FAR_AHEAD: &str = "2099-01-01T00:00:00.000000Z";

async fn write(replicas: &Replicas<'_>, lease: &Value) {
    send(&replicas.client, Method::POST, &leases(&replicas.namespace), Some(lease)).await.unwrap();
}

/// Waits until a replica reports that the pool of a namespace is full.
async fn is_full(replicas: &Replicas<'_>, namespace: &str, nth: usize) {
    eventually(&format!("replica {nth} to know of the claim"), async || {
        let trial = Replicas::service(nth, "trial", None);
        let tried = crate::support::replicas::create(&replicas.client, namespace, &trial, "?dryRun=All").await;
        tried.err().filter(|refused| refused.contains("is full"))
    })
    .await;
}

fn uses(made: &Value) -> Vec<String> {
    addresses(made).iter().map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_never_give_an_address_away_twice() {
    let plane = ControlPlane::start(Options::default());
    three_replicas_never_give_an_address_away_twice(&plane).await;
    late_and_lost_answers_to_a_claim_are_handled(&plane).await;
}

async fn three_replicas_never_give_an_address_away_twice(plane: &ControlPlane) {
    let replicas = Replicas::start(plane, SETTINGS, "Fail", vec![Kind::usual(); 3]).await;
    let failed = parallel_creates(plane, &replicas).await;
    claims_of_the_dead(plane, &replicas).await;
    clocks_that_are_wrong(plane, &replicas).await;
    leases_that_are_not_claims(plane, &replicas).await;
    asked_again_elsewhere(&replicas).await;
    // Claims are deleted 45 s after their Services are seen, or when they expire. Only the claim of a Service that was
    // never created may remain.
    eventually_within(2 * MAX_WAIT, "the claims to be removed", async || {
        let claims = replicas.leases("claim").await;
        let may_come = |claim: &Value| claim["metadata"]["annotations"]["clusterip-policy/service"] == "default/again";
        claims.iter().all(may_come).then_some(())
    })
    .await;
    assert_eq!(replicas.metric("clusterip_claims_total{result=\"failed\"}").await, failed);
    stops_in_order(replicas).await;
}

/// Returns how many claims could not be written in time: on a busy machine that happens, and the Service is refused.
async fn parallel_creates(plane: &ControlPlane, replicas: &Replicas<'_>) -> u64 {
    const COUNT: usize = 150;
    let failed = AtomicU64::new(0);
    let namespace = plane.namespace("parallel").await;
    let create = async |number: usize| {
        let os = ["linux", "windows"][number % 2];
        let service = Replicas::service(number % 3, &format!("web-{number:03}"), Some(os));
        let created = eventually(&format!("an answer about Service {number}"), async || {
            let created = replicas.create(&namespace, &service).await;
            let in_time = !created.as_ref().is_err_and(|refused| refused.contains("no answer within"));
            failed.fetch_add(u64::from(!in_time), Ordering::Relaxed);
            in_time.then_some(created)
        })
        .await;
        created.map(|made| (os, addresses(&made)))
    };
    let made: Vec<_> = stream::iter((0..COUNT).map(create)).buffer_unordered(60).collect().await;
    let refused: Vec<_> = made.iter().filter_map(|made| made.as_ref().err()).collect();
    assert_eq!(refused, [""; 0]);
    let unique: BTreeSet<&Vec<IpAddr>> = made.iter().flatten().map(|(_, addresses)| addresses).collect();
    assert_eq!(unique.len(), COUNT);
    let pool = |os: &str| if os == "linux" { "172.21.0." } else { "172.21.1." };
    let astray: Vec<_> =
        made.iter().flatten().filter(|(os, addresses)| !addresses[0].to_string().starts_with(pool(os))).collect();
    assert_eq!(astray, Vec::<&(&str, Vec<IpAddr>)>::new());
    // All three replicas were called, and each claimed the addresses that it gave.
    for nth in 0..3 {
        let (_, metrics) = replicas.server(nth).get("/metrics").await.unwrap();
        let claimed = metrics.lines().find_map(|line| line.strip_prefix("clusterip_claims_total{result=\"claimed\"} "));
        assert!(claimed.unwrap().parse::<usize>().unwrap() >= COUNT / 3, "{nth}: {claimed:?}");
    }
    let mut replicas_known: Vec<Value> =
        replicas.leases("replica").await.iter().map(|lease| lease["spec"]["leaseDurationSeconds"].clone()).collect();
    replicas_known.dedup();
    assert_eq!(replicas_known, [json!(20)]);
    assert_eq!(replicas.metric("clusterip_replicas{settings=\"same\"}").await, 9);
    failed.into_inner()
}

async fn claims_of_the_dead(plane: &ControlPlane, replicas: &Replicas<'_>) {
    const ADDRESS: &str = "172.21.40.2";
    let namespace = plane.namespace("dead-holder").await;
    let dead = claim(ADDRESS, "dead-holder/gone", "gone_serve_0000000000000001", 5, LONG_AGO);
    write(replicas, &dead).await;
    for nth in 0..3 {
        is_full(replicas, &namespace, nth).await;
    }
    let make = async || replicas.create(&namespace, &Replicas::service(1, "web", None)).await.ok();
    let made = eventually("the claim to be taken over", make).await;
    assert_eq!(uses(&made), [ADDRESS]);
    assert_eq!(replicas.metric("clusterip_claims_total{result=\"taken_over\"}").await, 1);

    // If two replicas take over an expired claim, exactly one succeeds.
    let namespace = plane.namespace("takeover").await;
    write(replicas, &claim("172.21.40.6", "takeover/gone", "gone_serve_0000000000000001", 3, LONG_AGO)).await;
    for nth in 0..3 {
        is_full(replicas, &namespace, nth).await;
    }
    let made = eventually("the claim to be taken over by one", async || {
        let both = [0, 1, 2].map(|nth| {
            let service = Replicas::service(nth, &format!("web-{nth}"), None);
            let namespace = &namespace;
            async move { replicas.create(namespace, &service).await }
        });
        let made = futures::future::join_all(both).await;
        made.iter().any(Result::is_ok).then_some(made)
    })
    .await;
    let (made, refused): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
    assert_eq!(made.iter().flatten().map(uses).collect::<Vec<_>>(), [["172.21.40.6"]]);
    for refused in refused {
        assert!(refused.as_ref().unwrap_err().contains("pool \"fought\" (172.21.40.4/30) is full"), "{refused:?}");
    }
}

/// The times in a Lease come from another clock, which may be wrong.
async fn clocks_that_are_wrong(plane: &ControlPlane, replicas: &Replicas<'_>) {
    let (slow, fast) = (plane.namespace("slow-clock").await, plane.namespace("fast-clock").await);
    write(replicas, &claim("172.21.40.18", "slow-clock/a", "slow_serve_0000000000000001", 600, LONG_AGO)).await;
    write(replicas, &claim("172.21.40.22", "fast-clock/a", "fast_serve_0000000000000001", 3, FAR_AHEAD)).await;
    is_full(replicas, &slow, 0).await;
    let make = async || replicas.create(&fast, &Replicas::service(0, "web", None)).await.ok();
    assert_eq!(uses(&eventually("a claim with a time in the future to end", make).await), ["172.21.40.22"]);
    let refused = replicas.create(&slow, &Replicas::service(1, "web", None)).await.unwrap_err();
    assert!(refused.contains("is full"), "{refused}");
    let path = format!("{}/ip-172-21-40-18", leases(&replicas.namespace));
    send(&replicas.client, Method::DELETE, &path, None).await.unwrap();
    let make = async || replicas.create(&slow, &Replicas::service(1, "web", None)).await.ok();
    assert_eq!(uses(&eventually("a claim that is deleted to end", make).await), ["172.21.40.18"]);
}

/// The pool has four addresses. Two of them can't be claimed because of foreign Leases, and other objects do not count.
async fn leases_that_are_not_claims(plane: &ControlPlane, replicas: &Replicas<'_>) {
    let namespace = plane.namespace("foreign-lease").await;
    let mut malformed = claim("172.21.40.12", "foreign-lease/a", "someone", 600, LONG_AGO);
    malformed["metadata"]["annotations"]["clusterip-policy/address"] = "not an address".into();
    let mut foreign = claim("172.21.40.13", "foreign-lease/a", "someone", 600, LONG_AGO);
    foreign["metadata"].as_object_mut().unwrap().remove("labels");
    // The name of the Lease does not match its address.
    let mut elsewhere = claim("172.21.40.14", "foreign-lease/a", "someone", 600, LONG_AGO);
    elsewhere["metadata"]["name"] = "another-name".into();
    for lease in [&malformed, &foreign, &elsewhere] {
        write(replicas, lease).await;
    }
    let made = replicas.create(&namespace, &Replicas::service(0, "web", None)).await.unwrap();
    assert_eq!(uses(&made), ["172.21.40.14"]);
    for lease in [&malformed, &foreign, &elsewhere] {
        let path = format!("{}/{}", leases(&replicas.namespace), lease["metadata"]["name"].as_str().unwrap());
        send(&replicas.client, Method::DELETE, &path, None).await.unwrap();
    }
}

/// The answer to a review of a create: the address of the Service, or the reason of the denial.
async fn answer(server: &Server, service: &Value) -> Result<String, String> {
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "00000000-0000-0000-0000-000000000001", "operation": "CREATE",
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"},
        "namespace": "default", "name": service["metadata"]["name"], "object": service,
    }});
    let (_, answer) = server.post("/mutate", &review).await.unwrap();
    let response = &answer["response"];
    if response["allowed"] != true {
        return Err(response["status"]["message"].as_str().unwrap().to_owned());
    }
    let mut service = service.clone();
    if let Some(patch) = response["patch"].as_str() {
        let patch: json_patch::Patch = serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
        json_patch::patch(&mut service, &patch).unwrap();
    }
    Ok(service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned())
}

/// Another webhook changes the Service, and another replica is called again.
async fn asked_again_elsewhere(replicas: &Replicas<'_>) {
    let without = Replicas::service(0, "again", Some("linux"));
    let given = answer(replicas.server(0), &without).await.unwrap();
    assert!(given.starts_with("172.21.0."), "{given}");
    let mut with = without.clone();
    with["spec"]["clusterIP"] = given.clone().into();
    with["metadata"]["labels"]["changed"] = "yes".into();
    assert_eq!(answer(replicas.server(1), &with).await, Ok(given.clone()), "the address is kept");
    with["metadata"]["annotations"]["clusterip-policy/os"] = "windows".into();
    let other = answer(replicas.server(2), &with).await.unwrap();
    assert!(other.starts_with("172.21.1."), "the Service belongs to another pool now: {other}");
    // An address without a claim was set by hand.
    let mut by_hand = Replicas::service(0, "by-hand", Some("windows"));
    by_hand["spec"]["clusterIP"] = "172.21.0.250".into();
    let refused = answer(replicas.server(1), &by_hand).await.unwrap_err();
    assert!(refused.contains("172.21.0.250"), "{refused}");
}

async fn stops_in_order(mut replicas: Replicas<'_>) {
    for server in replicas.servers.iter().flatten() {
        server.signal("TERM");
    }
    for server in replicas.servers.iter_mut().flatten() {
        assert_eq!(server.ended().await.code(), Some(0));
    }
    assert_eq!(replicas.leases("replica").await, Vec::<Value>::new());
}

/// One replica, behind a proxy that delays or loses requests and answers.
async fn late_and_lost_answers_to_a_claim_are_handled(plane: &ControlPlane) {
    let proxy = Proxy::start(plane).await;
    let kubeconfig = plane.write_kubeconfig("claims.kubeconfig", proxy.url(), plane.admin_token());
    let replicas =
        Replicas::start(plane, SETTINGS, "Fail", vec![Kind { kubeconfig: Some(kubeconfig), ..Kind::usual() }]).await;
    let namespace = plane.namespace("unanswered").await;
    let claims = |seen: &crate::support::fault_proxy::Seen| {
        seen.method == Method::POST && seen.body["metadata"]["labels"]["clusterip-policy/lease"] == "claim"
    };
    struct Case {
        name: &'static str,
        fault: Fault,
        /// Whether the replica gets the claim.
        claimed: bool,
    }
    let cases = [
        Case { name: "the answer is late", fault: Fault::PauseAfter, claimed: true },
        Case { name: "the answer is lost", fault: Fault::CutAfter, claimed: true },
        Case { name: "the request is lost", fault: Fault::CutBefore, claimed: false },
        Case { name: "the request is late", fault: Fault::PauseBefore, claimed: false },
        Case {
            name: "it is refused",
            fault: Fault::Answer(500, "InternalError", "etcdserver: request timed out".to_owned()),
            claimed: false,
        },
    ];
    for (nth, Case { name: row, fault, claimed }) in cases.into_iter().enumerate() {
        let gate = proxy.on(claims, fault);
        let made = replicas.create(&namespace, &Replicas::service(0, &format!("web-{nth}"), Some("linux"))).await;
        gate.release();
        match made {
            Ok(made) => {
                assert!(claimed, "{row}: {made}");
                let name = format!("ip-{}", uses(&made)[0].replace('.', "-"));
                let path = format!("{}/{name}", leases(&replicas.namespace));
                let lease = send(&replicas.client, Method::GET, &path, None).await.expect(row);
                let service = format!("{namespace}/web-{nth}");
                assert_eq!(lease["metadata"]["annotations"]["clusterip-policy/service"], service, "{row}");
            }
            Err(refused) => {
                assert!(!claimed, "{row}: {refused}");
                assert!(refused.contains("can't be claimed: Lease"), "{row}: {refused}");
            }
        }
        // The next request succeeds after each fault.
        let next = Replicas::service(0, &format!("next-{nth}"), Some("linux"));
        replicas.create(&namespace, &next).await.unwrap_or_else(|refused| panic!("{row}: {refused}"));
    }
    let failed = replicas.metric("clusterip_claims_total{result=\"failed\"}").await;
    assert_eq!(failed, 3);
    // The API server has executed the delayed request, whose claim is deleted because no Service needs it.
    let late = format!("{namespace}/web-3");
    let removed = async || {
        let claims = replicas.leases("claim").await;
        claims.iter().all(|claim| claim["metadata"]["annotations"]["clusterip-policy/service"] != *late).then_some(())
    };
    eventually_within(2 * MAX_WAIT, "the claim of the refused Service to be removed", removed).await;
}
