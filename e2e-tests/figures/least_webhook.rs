//! Runs the example `least_webhook` of the package clusterip, and makes the API server call it as it calls `clusterip
//! serve`.

use std::net::Ipv4Addr;
use std::process::{Child, Command};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip::webhook::issuer::CaCertificate;
use clusterip_cluster::yaml;
use http::Method;
use jiff::Timestamp;
use serde_json::json;

use super::bench::Bench;
use super::support::move_helpers::send;
use super::support::program;
use super::support::serve_process::{free_port, spawn_from_lasting_thread};

/// The configuration that `clusterip serve` registers too, with another URL.
const SHIPPED: &str = include_str!("../../deploy/webhook/webhook-configuration.yaml");
const PATH: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const NAME: &str = "least-webhook";
/// The addresses that it gives. No pool has them.
const RANGE: &str = "172.21.240.0/20";
const FIRST: Ipv4Addr = Ipv4Addr::new(172, 21, 240, 1);
/// As long as `clusterip serve` answers after its configuration was deleted: the API server sees this later.
const LINGER: Duration = Duration::from_secs(3);

/// A running webhook. It is killed when this value is dropped.
pub struct LeastWebhook {
    child: Child,
    // The process reads the certificate from this folder.
    _folder: tempfile::TempDir,
}

impl LeastWebhook {
    /// Starts the webhook, and waits until the API server calls it.
    pub async fn start(bench: &Bench) -> Self {
        let (authority, folder) = (CaCertificate::generate(Timestamp::now()).unwrap(), tempfile::tempdir().unwrap());
        let leaf = authority.issue(&["127.0.0.1".to_owned()], Timestamp::now()).unwrap();
        let [certificate, key] = ["certificate.pem", "key.pem"].map(|file| folder.path().join(file));
        std::fs::write(&certificate, leaf.certificate).unwrap();
        std::fs::write(&key, leaf.key).unwrap();
        let example = program().with_file_name("examples").join("least_webhook");
        assert!(example.is_file(), "{} is missing: `make bench-cluster` builds it", example.display());
        let listen = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(example);
        command.arg(&listen).args([certificate, key]).arg(FIRST.to_string());
        let webhook = Self { child: spawn_from_lasting_thread(command).unwrap(), _folder: folder };
        let mut configuration = yaml::single(SHIPPED).unwrap();
        configuration["metadata"]["name"] = NAME.into();
        for shipped in configuration["webhooks"].as_array_mut().unwrap() {
            let bundle = STANDARD.encode(&authority.certificate);
            shipped["clientConfig"] = json!({"url": format!("https://{listen}/mutate"), "caBundle": bundle});
        }
        bench.create(PATH, &configuration).await.unwrap();
        bench.wait_for_addresses_in(RANGE).await;
        webhook
    }

    /// Stops the webhook, and waits until the API server no longer calls it.
    pub async fn end(self, bench: &Bench) {
        send(bench.client(), Method::DELETE, &format!("{PATH}/{NAME}"), None).await.unwrap();
        tokio::time::sleep(LINGER).await;
    }
}

impl Drop for LeastWebhook {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
