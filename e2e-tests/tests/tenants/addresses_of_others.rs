//! Requests and objects with addresses of other teams, which take none of these addresses: creates that the API server
//! refuses, but only after its webhooks have answered; Services of type ExternalName, whose address fields the API server
//! brings in line after the webhooks; journals in annotations.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{BLUE, LINUX, MALLORY, MOVING, NARROW, Scene, Tenant};
use crate::support::eventually::eventually;
use crate::support::move_helpers::{path, send};
use crate::support::process_usage::memory;
use crate::support::webhook_cluster::{addresses, service, within};

const DRY: &str = "?dryRun=All";

fn external_name(name: &str, address: &str) -> Value {
    service(name, json!({"type": "ExternalName", "externalName": "example.com", "clusterIP": address}))
}

fn balancer() -> Value {
    let class = "clusterip-policy/external";
    service("balancer", json!({"type": "LoadBalancer", "loadBalancerClass": class, "ports": [{"port": 80}]}))
}

/// Checks that Services of other teams get their addresses: one that is reserved, one of a small pool, and an external one.
async fn others_get_theirs(scene: &Scene, after: &str, query: &str) {
    let admin = scene.admin();
    let create = async |namespace: &str, object: &Value| {
        let created = scene.create(&admin, namespace, object, query).await;
        created.unwrap_or_else(|error| panic!("after {after}: {error}"))
    };
    let kept = create("blue", &service("kept", json!({}))).await;
    assert_eq!(kept["spec"]["clusterIP"], "172.21.8.99", "after {after}: reserved for this Service");
    let narrow = create("narrow", &service("web", json!({}))).await;
    assert!(within(addresses(&narrow)[0], NARROW), "after {after}: {narrow}");
    let balancer = create("blue", &balancer()).await;
    let record = balancer["metadata"]["annotations"]["clusterip-policy/external-addresses"].as_str();
    assert!(record.is_some_and(|address| address.starts_with("192.0.2.")), "after {after}: {balancer}");
}

/// Deletes the Services that [`others_get_theirs`] has created, and waits until the server knows that.
async fn delete_theirs(scene: &Scene) {
    let admin = scene.admin();
    // The server sees the deletions in this order, so it has seen all when it has seen the last one.
    for (namespace, name) in [("narrow", "web"), ("blue", "balancer"), ("blue", "kept")] {
        send(&admin, Method::DELETE, &path(namespace, name), None).await.unwrap();
    }
    eventually("the reserved address to be free again", async || {
        let kept = scene.create(&admin, "blue", &service("kept", json!({})), DRY).await.ok()?;
        (kept["spec"]["clusterIP"] == "172.21.8.99").then_some(())
    })
    .await;
}

async fn sends_long_names(scene: &Scene, mallory: &Tenant<'_>) {
    /// What the server would keep in megabytes if it kept the names, and the most that it may keep.
    const SENT: usize = 80;
    const MOST: f64 = 40.0;
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
    assert!(kept < MOST, "{kept} MB are kept of long names");
    let short = external_name(&"n".repeat(300), "2001:db8::1");
    let refused = scene.create(&mallory.client, &mallory.namespace, &short, "").await.unwrap_err();
    assert!(refused.contains("has more than 253 bytes"), "{refused}");
    let log = scene.server.as_ref().unwrap().log();
    assert!(log.iter().all(|line| line.len() < 2000), "a line of the log has a whole name");
}

async fn sends_refused_requests(scene: &Scene, mallory: &Tenant<'_>) {
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
    // An address that the Service may have is accepted.
    let own = service("own", json!({"clusterIP": "172.21.0.5"}));
    let own = mallory.creates(&own).await;
    assert!(within(addresses(&own)[0], LINUX), "{own}");
}

impl Tenant<'_> {
    async fn replaces(&self, name: &str, spec: Value) -> Result<Value, String> {
        let mut written = service(name, spec);
        written["metadata"]["namespace"] = self.namespace.as_str().into();
        self.request(Method::PUT, &path(&self.namespace, name), &written).await
    }

    /// Creates a Service, and makes it an ExternalName with this address, of which the API server stores any.
    async fn leaves(&self, name: &str, left: &str) {
        self.creates(&service(name, json!({}))).await;
        let alias = json!({"type": "ExternalName", "externalName": "example.com", "clusterIP": left});
        self.replaces(name, alias).await.unwrap();
    }
}

async fn sends_contradicting_updates(mallory: &Tenant<'_>) {
    struct Case {
        name: &'static str,
        /// The address of the Service while it is an ExternalName.
        left: &'static str,
        /// The address in the update back to a ClusterIP Service, empty if it names none.
        wanted: &'static str,
        /// Whether the update repeats the old address in `clusterIPs`.
        repeats: bool,
    }
    for Case { name, left, wanted, repeats } in [
        Case { name: "headless", left: "None", wanted: "172.21.8.77", repeats: true },
        Case { name: "own-address", left: "172.21.0.77", wanted: "172.21.8.78", repeats: true },
        Case { name: "reserved", left: "None", wanted: "172.21.8.99", repeats: true },
        Case { name: "headless-then-any", left: "None", wanted: "", repeats: true },
        Case { name: "own-then-any", left: "172.21.0.79", wanted: "", repeats: true },
        Case { name: "headless-then-unnamed", left: "None", wanted: "", repeats: false },
        Case { name: "own-then-unnamed", left: "172.21.0.80", wanted: "", repeats: false },
    ] {
        mallory.leaves(name, left).await;
        let listed = if repeats { vec![left] } else { Vec::new() };
        match mallory.replaces(name, json!({"type": "ClusterIP", "clusterIP": wanted, "clusterIPs": listed})).await {
            Ok(stored) => {
                let addresses = addresses(&stored);
                assert!(addresses.iter().all(|address| !within(*address, BLUE)), "{name}: {stored}");
                assert!(wanted.is_empty() && addresses.len() == 1, "{name}: {stored}");
            }
            Err(refusal) => assert!(!wanted.is_empty(), "{name}: {refusal}"),
        }
    }
}

/// Writes all addresses of the small pool into annotations, again and again, while `creating`.
async fn rewrites_annotations<T>(mallory: &Tenant<'_>, creating: impl Future<Output = T>) -> T {
    let all: Vec<String> = (0..64).map(|last| format!("172.21.9.{last}")).collect();
    let fits = |addresses: &[String]| {
        json!({"phase": "released", "way": "externalName", "from": addresses, "to": addresses,
            "spec": {"ports": [{"port": 80}]}, "managedFields": []})
    };
    // Many addresses in one annotation, and one address in each of many annotations.
    for (nth, address) in all.iter().enumerate() {
        mallory.forges(&format!("one-{nth}"), &fits(std::slice::from_ref(address)), json!({})).await;
    }
    mallory.creates(&service("all", json!({}))).await;
    let begun = tokio::sync::Notify::new();
    let rewriting = async {
        for count in 0_u32.. {
            let mut journal = fits(&all);
            journal["why"] = count.to_string().into();
            // A merge patch has no conflict with the writes of the server.
            mallory.annotates("all", json!({MOVING: journal.to_string()})).await.unwrap();
            if count == 5 {
                begun.notify_one();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let creating = async {
        begun.notified().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        creating.await
    };
    tokio::select! {
        done = creating => done,
        () = rewriting => unreachable!(),
    }
}

#[tokio::test]
async fn requests_and_objects_of_a_tenant_take_no_address_of_another_team() {
    let scene = Scene::start().await;
    let mallory = scene.tenant(MALLORY).await;
    for namespace in ["blue", "narrow"] {
        scene.plane.namespace(namespace).await;
    }
    sends_long_names(&scene, &mallory).await;
    sends_refused_requests(&scene, &mallory).await;
    // These are no dry runs, which reserve no address.
    others_get_theirs(&scene, "refused requests", "").await;
    delete_theirs(&scene).await;
    sends_contradicting_updates(&mallory).await;
    others_get_theirs(&scene, "contradicting updates", DRY).await;

    mallory.leaves("kept", "172.21.8.99").await;
    for nth in 0..64 {
        mallory.leaves(&format!("narrow-{nth}"), &format!("172.21.9.{nth}")).await;
    }
    // So that the server has seen them.
    tokio::time::sleep(Duration::from_secs(2)).await;
    others_get_theirs(&scene, "ExternalName Services", DRY).await;

    let creating = async {
        let mut refused = Vec::new();
        for nth in 0..50 {
            match scene.create(&scene.admin(), "narrow", &service(&format!("web-{nth}"), json!({})), "").await {
                Ok(created) => assert!(within(addresses(&created)[0], NARROW), "{created}"),
                Err(error) => refused.push(error),
            }
        }
        refused
    };
    assert_eq!(rewrites_annotations(&mallory, creating).await, [""; 0]);
    others_get_theirs(&scene, "journals in annotations", "").await;
}
