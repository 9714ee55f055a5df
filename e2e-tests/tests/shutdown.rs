//! A signal ends `clusterip serve` in each of its states, in an orderly way and soon. SIGTERM and SIGINT take turns.

use std::time::{Duration, Instant};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::serve_process::{Server, ServerBuilder};
use crate::support::stalling_connection::StallingConnection;

/// The longest time that a stop may take: the requests in flight, and two requests about the Lease without an answer.
const SOON: Duration = Duration::from_secs(20);

/// A server in this namespace that reaches the API server through this URL.
fn server_at(plane: &ControlPlane, url: &str, namespace: &str) -> ServerBuilder {
    let file = format!("{namespace}-{}.kubeconfig", url.rsplit(':').next().unwrap());
    let kubeconfig = plane.write_kubeconfig(&file, url, plane.admin_token());
    ServerBuilder::as_user(&kubeconfig).args(&["--namespace", namespace])
}

/// Sends a signal, and checks that the server ends soon with status 0.
async fn stops(state: &str, mut server: Server, signal: &str) {
    let begin = Instant::now();
    server.signal(signal);
    assert_eq!(server.ended().await.code(), Some(0), "{state}: the exit status after SIG{signal}");
    let took = begin.elapsed();
    assert!(took < SOON, "{state}: it took {took:?}");
}

/// The holder of the leader's Lease; empty if the Lease was given back.
async fn holder(plane: &ControlPlane, namespace: &str) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(plane.client(), namespace);
    leases.get_opt("clusterip-leader").await.unwrap()?.spec?.holder_identity
}

/// One signal in each state: both end the same wait of the program.
#[tokio::test]
async fn server_stops_in_each_state() {
    let plane = LentControlPlane::get().await;
    let namespace = plane.namespace("stops").await;

    // Each gate holds back a request until the end of the proxy.
    let proxy = Proxy::start(&plane).await;
    let asked = proxy.on(|seen| seen.path.ends_with("/servicepools"), Fault::PauseBefore);
    let server = server_at(&plane, proxy.url(), "default").pools().spawn();
    asked.arrived().await;
    stops("reading the settings", server, "INT").await;
    assert_eq!(holder(&plane, "default").await, None, "no Lease was taken");

    let listed = proxy.on(|seen| seen.path == "/api/v1/nodes", Fault::PauseBefore);
    let server = server_at(&plane, proxy.url(), &namespace).registered().spawn();
    listed.arrived().await;
    server.logged(" leading").await;
    stops("waiting for the stores", server, "TERM").await;
    assert_eq!(holder(&plane, &namespace).await, None, "a server with --register-url deletes the Lease that it made");

    let server = ServerBuilder::new(&plane).args(&["--namespace", &namespace]);
    let server = server.args(&["--webhook-configuration", "missing"]).spawn();
    server.logged("MutatingWebhookConfiguration missing does not exist").await;
    stops("waiting for the webhook configuration", server, "INT").await;

    let leader = ServerBuilder::new(&plane).args(&["--namespace", &namespace, "--no-webhook"]).start().await;
    leader.logged(" leading").await;
    let server = ServerBuilder::new(&plane).args(&["--namespace", &namespace]).registered().spawn();
    server.logged("another process leads").await;
    stops("beside another leader", server, "TERM").await;
    stops("leading without a webhook", leader, "INT").await;

    let server = ServerBuilder::new(&plane).args(&["--namespace", &namespace]).registered().start().await;
    server.logged("the webhook configuration was written").await;
    stops("leading", server, "TERM").await;
    assert_eq!(holder(&plane, &namespace).await.as_deref(), Some(""), "the Lease was given back");
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(plane.client());
    assert!(configurations.get_opt("clusterip-policy").await.unwrap().is_none(), "the webhook was removed");
}

#[tokio::test]
async fn server_stops_while_the_api_server_is_away() {
    let plane = ControlPlane::start(Options::default());
    let away = plane.namespace("api-server-away").await;
    let hangs = plane.namespace("api-server-hangs").await;
    let connection = StallingConnection::new(&plane).await;
    let hanging = server_at(&plane, connection.server(), &hangs).arg("--no-webhook").start().await;
    let refused = ServerBuilder::new(&plane).args(&["--namespace", &away, "--no-webhook"]).start().await;
    hanging.logged(" leading").await;
    refused.logged(" leading").await;

    connection.stall();
    stops("leading, and the API server hangs", hanging, "TERM").await;
    // The server does not get an answer to its first request.
    let starting = server_at(&plane, connection.server(), &hangs).arg("--no-webhook").spawn();
    // The signal is handled once the process runs: before that, it would end without an exit status.
    tokio::time::sleep(Duration::from_secs(1)).await;
    stops("starting, and the API server hangs", starting, "INT").await;

    // A server that leaves its webhook configuration behind says so.
    let mut registered = ServerBuilder::new(&plane).registered().start().await;
    registered.logged("the webhook configuration was written").await;
    plane.stop_api_server();
    refused.logged("watch failed, trying again").await;
    stops("leading, and the API server is away", refused, "TERM").await;
    assert_ne!(registered.terminate().await, 0);
    let error = registered.logged("error: MutatingWebhookConfiguration clusterip-policy can't be read: ").await;
    let remedy = "; it was left behind: delete it with `kubectl delete mutatingwebhookconfiguration clusterip-policy`";
    assert!(error.ends_with(remedy), "{error}");
}
