//! With `--client-ca`, only the API server gets reviews answered. It shows a client certificate, configured as in
//! `docs/serve.md`.

use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::serve_process::{ServerBuilder, free_port};

const SETTINGS: &str = "services: {pools: [{name: all, cidrs: [172.21.64.0/24]}]}";

#[tokio::test]
async fn only_the_api_server_gets_reviews_answered() {
    let port = free_port();
    let options = Options { webhook_client: Some(format!("127.0.0.1:{port}")), audit: false, ..Options::default() };
    let plane = ControlPlane::start(options);
    let authority = plane.folder().join("webhook-client-ca.crt");
    let server =
        ServerBuilder::new(&plane).port(port).settings(SETTINGS).registered().arg("--client-ca").arg(authority);
    let server = server.start().await;

    let services: Api<Service> = Api::default_namespaced(plane.client());
    let web = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    let web: Service = serde_json::from_value(web).unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the API server to be answered", async || {
        let created = services.create(&dry_run, &web).await.unwrap();
        created.spec?.cluster_ip?.starts_with("172.21.64.").then_some(())
    })
    .await;

    let other = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
    let review = other.post(format!("{}/mutate", server.url())).header("content-type", "application/json").body("{}");
    let refused = review.send().await.unwrap();
    assert_eq!(refused.status(), 403);
    let expected = "/mutate needs a client certificate of the authority in --client-ca\n";
    assert_eq!(refused.text().await.unwrap(), expected);
}
