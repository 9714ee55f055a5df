//! Requests that the API server refuses, but only after its webhooks have answered.

use serde_json::{Value, json};

use super::support::{LINUX, NARROW, Scene};
use crate::support::process_usage::memory;
use crate::support::webhook_cluster::{addresses, service, within};

fn external_name(name: &str, address: &str) -> Value {
    service(name, json!({"type": "ExternalName", "externalName": "example.com", "clusterIP": address}))
}

#[tokio::test]
async fn long_names_take_no_memory_of_the_server() {
    /// What the server would keep in megabytes if it kept the names, and the most that it may keep.
    const SENT: usize = 80;
    const MOST: f64 = 40.0;
    let mut scene = Scene::without_server();
    scene.begin().await;
    let mallory = scene.tenant("long-names").await;
    let pid = scene.server.as_ref().unwrap().pid();
    let mut before = 0.0;
    for nth in 0..SENT * 5 / 2 + 4 {
        let long = external_name(&format!("{}{nth}", "n".repeat(400_000)), &format!("2001:db8::{nth}"));
        let refused = scene.create(&mallory.client, &mallory.namespace, &long, "").await.unwrap_err();
        assert!(refused.len() < 1000 && refused.contains("shorten metadata.name"), "{refused:.1000}");
        if nth == 3 {
            before = memory(pid);
        }
    }
    let kept = memory(pid) - before;
    assert!(kept < MOST, "{kept} MB");
    let short = external_name(&"n".repeat(300), "2001:db8::1");
    let refused = scene.create(&mallory.client, &mallory.namespace, &short, "").await.unwrap_err();
    assert!(refused.contains("has more than 253 bytes"), "{refused}");
    let log = scene.server.as_ref().unwrap().log();
    assert!(log.iter().all(|line| line.len() < 2000), "a line of the log has a whole name");
}

#[tokio::test]
async fn refused_requests_reserve_no_address_of_another_team() {
    let mut scene = Scene::without_server();
    scene.begin().await;
    let mallory = scene.tenant("refused").await;
    let mut spoilt: Vec<(String, Value)> = Vec::new();
    let mut add = |address: String| {
        let name = format!("web-{}", spoilt.len());
        let headless = service(&name, json!({"clusterIP": "None", "clusterIPs": ["None", address]}));
        spoilt.push((address.clone(), external_name(&name, &address)));
        spoilt.push((address, headless));
    };
    (0..64).for_each(|last| add(format!("172.21.9.{last}")));
    (16..32).for_each(|last| add(format!("192.0.2.{last}")));
    add("172.21.8.99".to_owned());
    let many: Vec<String> = (0..20_000).map(|nth| format!("172.21.9.{}", nth % 64)).collect();
    spoilt.push(("thousands".to_owned(), service("many", json!({"clusterIP": "172.21.9.0", "clusterIPs": many}))));
    for (address, refused) in &spoilt {
        let result = scene.create(&mallory.client, &mallory.namespace, refused, "").await;
        assert!(result.is_err(), "{address}: {result:?}");
    }
    let admin = scene.admin();
    for namespace in ["blue", "narrow"] {
        scene.plane.namespace(namespace).await;
    }
    let kept = scene.create(&admin, "blue", &service("kept", json!({})), "").await.unwrap();
    assert_eq!(kept["spec"]["clusterIP"], "172.21.8.99", "reserved for this Service");
    let narrow = scene.create(&admin, "narrow", &service("web", json!({})), "").await.unwrap();
    assert!(within(addresses(&narrow)[0], NARROW), "{narrow}");
    let balancer =
        json!({"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external", "ports": [{"port": 80}]});
    let balancer = scene.create(&admin, "blue", &service("balancer", balancer), "").await.unwrap();
    let record = balancer["metadata"]["annotations"]["clusterip-policy/external-addresses"].as_str();
    assert!(record.is_some_and(|address| address.starts_with("192.0.2.")), "{balancer}");
    // An address that the Service may have is accepted.
    let own = service("own", json!({"clusterIP": "172.21.0.5"}));
    let own = scene.create(&mallory.client, &mallory.namespace, &own, "").await.unwrap();
    assert!(within(addresses(&own)[0], LINUX), "{own}");
}
