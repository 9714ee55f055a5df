//! Checks that the API server calls a webhook that is registered with a URL. The webhook fails open: if the API server
//! can't reach the URL, it creates Services without the webhook and reports no error to the user or to the server.

use std::time::Duration;

use clusterip_cluster::api_error::error_message;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::admission_metrics::AdmissionMetrics;

/// How long the API server may take to call the webhook for the first time. It learns of the registration by a watch.
const MAX_WAIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(500);
/// A namespace that every cluster has, and that the webhook configuration does not exclude.
const NAMESPACE: &str = "default";
const NAME: &str = "clusterip-trial";

/// Waits for the registration, and then creates a Service in dry runs until the webhook is called. Warns if it is not.
pub(crate) async fn check(
    client: Client,
    url: String,
    mut registered: watch::Receiver<String>,
    metrics: AdmissionMetrics,
) {
    if registered.wait_for(|bundle| !bundle.is_empty()).await.is_err() {
        return;
    }
    let deadline = Instant::now() + MAX_WAIT;
    let last = loop {
        let tried = try_create(&client).await;
        if metrics.has_answered() {
            tracing::info!("the API server calls the webhook at {url}");
            return;
        }
        if Instant::now() >= deadline {
            break tried;
        }
        sleep(PAUSE).await;
    };
    match last {
        Ok(()) => tracing::warn!(
            "the API server does not call the webhook at {url}, so Services are created without it: check that the API \
             server can connect to this host and port, that this server listens there, and that no proxy or other \
             server answers in its place"
        ),
        // The API server checks permissions before it calls webhooks.
        Err(error) => tracing::warn!(
            "it is unknown whether the API server can reach the webhook at {url}: a dry run that creates Service \
             {NAMESPACE}/{NAME} failed: {}",
            error_message(&error)
        ),
    }
}

async fn try_create(client: &Client) -> Result<(), kube::Error> {
    let ports = Some(vec![ServicePort { port: 80, ..ServicePort::default() }]);
    let service = Service {
        metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
        spec: Some(ServiceSpec { ports, ..ServiceSpec::default() }),
        ..Service::default()
    };
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    Api::<Service>::namespaced(client.clone(), NAMESPACE).create(&parameters, &service).await.map(drop)
}
