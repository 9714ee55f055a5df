//! `clusterip serve --ui`: the map of the cluster.

use serde_json::{Value, json};

use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::serve_process::Server;
use crate::support::serve_process::ServerBuilder;

const SETTINGS: &str = "services: {pools: [{name: all, cidrs: [172.21.0.0/24], reserved: 50}]}";

#[tokio::test]
async fn map_shows_the_current_state() {
    let plane = LentControlPlane::get().await;
    let settings = ServerBuilder::new(&plane).settings(SETTINGS);
    let mut server: Server = settings.args(&["--no-webhook", "--ui", "127.0.0.1:0"]).spawn();
    server.ready().await;
    let line = server.logged("showing the map").await;
    let begin = line.find("http://127.0.0.1:").expect("the URL in the log");
    let url = line[begin..].split(['"', ' ']).next().unwrap().trim_end_matches('/').to_owned();
    let http = reqwest::Client::new();
    let get = async |path: &str| {
        let answer = http.get(format!("{url}{path}")).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };

    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "shown", "namespace": "default"},
        "spec": {"ports": [{"port": 80}], "clusterIP": "172.21.0.77"},
    });
    plane.apply(&service.to_string()).await;
    let shown = eventually("the Service in the audit", async || {
        let (status, audit) = get("/audit.json").await;
        assert_eq!(status, 200, "{audit}");
        let audit: Value = serde_json::from_str(&audit).unwrap();
        let used = audit["pools"][0]["ranges"][0]["addresses"].as_array().unwrap().clone();
        used.into_iter().find(|used| used["name"] == "shown")
    });
    assert_eq!(shown.await["address"], "172.21.0.77");

    let (status, page) = get("/").await;
    assert_eq!(status, 200);
    assert!(page.starts_with("<!doctype html>") && page.contains("172.21.0.77"), "{}", &page[..200]);
    assert_eq!(server.terminate().await, 0);
}
