//! Updates of Services of type ExternalName whose address fields contradict each other: the API server brings them in
//! line after the webhooks have answered.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{MALLORY, NARROW, Scene};
use crate::support::move_helpers::path;
use crate::support::webhook_cluster::{addresses, service, within};

/// The range of the pool of another team.
const BLUE: &str = "172.21.8.0/24";

#[tokio::test]
async fn contradicting_address_fields_of_an_update_get_no_address_of_another_pool() {
    struct Case {
        name: &'static str,
        /// The address of the Service while it is an ExternalName.
        left: &'static str,
        /// The address in the update back to a ClusterIP Service, empty if it names none.
        wanted: &'static str,
        /// Whether the update repeats the old address in `clusterIPs`.
        repeats: bool,
    }
    let scene = Scene::start().await;
    let mallory = scene.tenant(MALLORY).await;
    for Case { name, left, wanted, repeats } in [
        Case { name: "headless", left: "None", wanted: "172.21.8.77", repeats: true },
        Case { name: "own", left: "172.21.0.77", wanted: "172.21.8.78", repeats: true },
        Case { name: "reserved", left: "None", wanted: "172.21.8.99", repeats: true },
        Case { name: "headless-then-any", left: "None", wanted: "", repeats: true },
        Case { name: "own-then-any", left: "172.21.0.79", wanted: "", repeats: true },
        Case { name: "headless-then-unnamed", left: "None", wanted: "", repeats: false },
        Case { name: "own-then-unnamed", left: "172.21.0.80", wanted: "", repeats: false },
    ] {
        let write = async |spec: Value| {
            let at = path(&mallory.namespace, name);
            let mut written = service(name, spec);
            written["metadata"]["namespace"] = mallory.namespace.as_str().into();
            mallory.request(Method::PUT, &at, &written).await
        };
        scene.create(&mallory.client, &mallory.namespace, &service(name, json!({})), "").await.unwrap();
        let alias = json!({"type": "ExternalName", "externalName": "example.com", "clusterIP": left});
        write(alias).await.unwrap();
        let listed = if repeats { vec![left] } else { Vec::new() };
        match write(json!({"type": "ClusterIP", "clusterIP": wanted, "clusterIPs": listed})).await {
            Ok(stored) => {
                let addresses = addresses(&stored);
                assert!(addresses.iter().all(|address| !within(*address, BLUE)), "{name}: {stored}");
                assert!(wanted.is_empty() && addresses.len() == 1, "{name}: {stored}");
            }
            Err(refusal) => assert!(!wanted.is_empty(), "{name}: {refusal}"),
        }
    }
}

/// The API server stores any `clusterIP` of an ExternalName Service, and allocates none.
#[tokio::test]
async fn addresses_that_external_name_services_keep_are_free() {
    let scene = Scene::start().await;
    let mallory = scene.tenant(MALLORY).await;
    let leave = async |name: &str, left: &str| {
        mallory.creates(&service(name, json!({}))).await;
        let mut alias =
            service(name, json!({"type": "ExternalName", "externalName": "example.com", "clusterIP": left}));
        alias["metadata"]["namespace"] = mallory.namespace.as_str().into();
        mallory.request(Method::PUT, &path(&mallory.namespace, name), &alias).await.unwrap();
    };
    leave("kept", "172.21.8.99").await;
    for nth in 0..64 {
        leave(&format!("narrow-{nth}"), &format!("172.21.9.{nth}")).await;
    }
    // So that the server has seen them.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for (namespace, name, pool) in [("blue", "kept", "172.21.8.99/32"), ("narrow", "web", NARROW)] {
        scene.plane.namespace(namespace).await;
        let created = scene.create(&scene.admin(), namespace, &service(name, json!({})), "").await.unwrap();
        assert!(within(addresses(&created)[0], pool), "{created}");
    }
}
