//! Many Services at once: every Service gets its own address, in its own pool.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use serde_json::{Value, json};

use crate::support::eventually::eventually;
use crate::support::webhook_cluster::{WebhookCluster, address, all, annotated, deployment, on, place, service};

/// The number of concurrent requests.
const AT_ONCE: usize = 60;

fn places(services: &BTreeMap<String, Value>) -> BTreeMap<String, &'static str> {
    services.iter().map(|(name, service)| (name.clone(), place(address(service)))).collect()
}

fn uids(services: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    services.iter().map(|(name, service)| (name.clone(), service["metadata"]["uid"].clone())).collect()
}

#[tokio::test]
async fn services_created_before_their_deployments_are_moved() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("helm").await;
    let names: Vec<(String, &str)> =
        (0..20).map(|number| (format!("web-{number:02}"), if number % 2 == 0 { "windows" } else { "linux" })).collect();
    cluster.plane.apply(&all(&namespace, names.iter().map(|(name, _)| service(name, json!({}))))).await;
    let before = cluster.list(&namespace).await;
    assert_eq!(places(&before), names.iter().map(|(name, _)| (name.clone(), "linux")).collect());
    cluster.plane.apply(&all(&namespace, names.iter().map(|(name, os)| deployment(name, on(os))))).await;
    let expected: BTreeMap<String, &str> = names.iter().cloned().collect();
    let finished = async || {
        let services = cluster.list(&namespace).await;
        // A Service has no address during its move, whose last step removes its annotation.
        let at_rest = |service: &Value| {
            service["spec"]["type"] == "ClusterIP" && !service.to_string().contains("clusterip-policy/moving")
        };
        (services.values().all(at_rest) && places(&services) == expected).then_some(services)
    };
    let after = eventually("all Services to be in their pools", finished).await;
    assert_eq!(uids(&after), uids(&before));
    assert_eq!(cluster.duplicates(&namespace), [""; 0]);
    for (name, os) in &names {
        let spec = |services: &BTreeMap<String, Value>| {
            let mut spec = services[name]["spec"].clone();
            for field in ["clusterIP", "clusterIPs"] {
                spec.as_object_mut().unwrap().remove(field);
            }
            spec
        };
        assert_eq!(spec(&after), spec(&before), "{name}");
        let stayed = address(&after[name]) == address(&before[name]);
        assert_eq!(stayed, *os == "linux", "{name}");
    }
}

#[tokio::test]
async fn hundred_services_at_once_get_distinct_addresses() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("parallel").await;
    let create = async |number: usize| {
        let os = if number.is_multiple_of(2) { "windows" } else { "linux" };
        let service = annotated(&format!("web-{number:03}"), json!({"clusterip-policy/os": os}), json!({}));
        cluster.create(&namespace, &service).await.map(|service| (place(address(&service)) == os, address(&service)))
    };
    let created: Vec<_> = stream::iter((0..100).map(create)).buffer_unordered(AT_ONCE).collect().await;
    let failed: Vec<_> = created.iter().filter_map(|created| created.as_ref().err()).collect();
    assert_eq!(failed, [""; 0]);
    let wrong: Vec<IpAddr> =
        created.iter().flatten().filter(|(right, _)| !right).map(|(_, address)| *address).collect();
    assert_eq!(wrong, Vec::<IpAddr>::new());
    assert_eq!(created.iter().flatten().count(), 100);
    for name in cluster.list(&namespace).await.keys() {
        cluster.delete(&namespace, name).await;
    }
}

#[tokio::test]
async fn services_with_generate_name_get_distinct_addresses() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("generated").await;
    let mut unnamed = annotated("web", json!({"clusterip-policy/os": "linux"}), json!({}));
    let metadata = unnamed["metadata"].as_object_mut().unwrap();
    metadata.remove("name");
    metadata.insert("generateName".to_owned(), json!("web-"));
    let created = join_all((0..30).map(|_| cluster.create(&namespace, &unnamed))).await;
    // A create fails if its address was handed out twice.
    let places: BTreeSet<&str> = created.into_iter().map(|created| place(address(&created.unwrap()))).collect();
    assert_eq!(places, BTreeSet::from(["linux"]));
}

/// Both requests get an address, and the Service that is created keeps the one that it was given.
#[tokio::test]
async fn two_creates_with_the_same_name() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("twice").await;
    let twice = async |number: usize| {
        let name = format!("web-{number}");
        let web = annotated(&name, json!({"clusterip-policy/os": "linux"}), json!({}));
        let created = join_all((0..2).map(|_| cluster.create(&namespace, &web))).await;
        let (made, refused): (Vec<_>, Vec<_>) = created.into_iter().partition(Result::is_ok);
        let made: Vec<IpAddr> = made.into_iter().map(|made| address(&made.unwrap())).collect();
        let stored = address(&cluster.get(&namespace, &name).await);
        assert_eq!((made, place(stored)), (vec![stored], "linux"));
        let refused: Vec<String> = refused.into_iter().map(Result::unwrap_err).collect();
        assert_eq!(refused, [format!("services \"{name}\" already exists")]);
    };
    join_all((0..20).map(twice)).await;
    assert_eq!(cluster.duplicates(&namespace), [""; 0]);
}

/// As many Services as the pool has addresses are created, and the others are refused with the reason.
#[tokio::test]
async fn last_address_of_a_pool_is_used() {
    const USABLE: usize = 13;
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("exhaustion").await;
    let create = async |number: usize| {
        let name = format!("web-{number:02}");
        (name.clone(), cluster.create(&namespace, &service(&name, json!({}))).await)
    };
    let created = join_all((0..40).map(create)).await;
    let (made, refused): (Vec<_>, Vec<_>) = created.into_iter().partition(|(_, result)| result.is_ok());
    let full = |name: &str| {
        format!(
            "admission webhook \"services.clusterip-policy.io\" denied the request: Service exhaustion/{name}: pool \
             \"small\" (172.21.40.0/28) is full: 13 of 13 addresses used, the first 2 of each range reserved; chosen by \
             namespace exhaustion; add a range to the pool, delete Services that are not needed, or set \
             services.whenFull: unmanaged"
        )
    };
    for (name, result) in refused {
        assert_eq!(result.unwrap_err(), full(&name));
    }
    let addresses: Vec<IpAddr> = made.iter().map(|(_, result)| address(result.as_ref().unwrap())).collect();
    let all: Vec<IpAddr> = (2..15).map(|last| IpAddr::from([172, 21, 40, last])).collect();
    let mut sorted = addresses.clone();
    sorted.sort();
    assert_eq!(sorted, all);
    assert_eq!(all.len(), USABLE);

    // When a Service is deleted, the next one gets its address.
    let (gone, last) = (&made[0].0, &addresses[0]);
    cluster.delete(&namespace, gone).await;
    let next = async || cluster.create(&namespace, &service("next", json!({}))).await.ok();
    assert_eq!(address(&eventually("an address that is free again", next).await), *last);
    assert_eq!(cluster.create(&namespace, &service("more", json!({}))).await.unwrap_err(), full("more"));
}

/// The address of a Service that the API server refuses is free again.
#[tokio::test]
async fn invalid_services_reserve_no_address() {
    let cluster = WebhookCluster::shared().await;
    // The pool of this namespace has three addresses.
    let namespace = cluster.plane.namespace("invalid").await;
    let broken = service("broken", json!({"ports": [{"port": 80, "name": "No_Name"}]}));
    for _ in 0..10 {
        let asked = async || {
            let refused = cluster.create(&namespace, &broken).await.unwrap_err();
            // The last address was reserved a moment ago.
            (!refused.contains("is full")).then_some(refused)
        };
        let refused = eventually("an address", asked).await;
        assert!(refused.contains("spec.ports[0].name"), "{refused}");
    }
    if !cluster.plane.tells_addresses() {
        // An IPAddress that is deleted frees the address. Without IPAddress, the reservation lasts 65 s.
        return cluster.plane.does_not_apply("an address is free again at once");
    }
    for name in ["a", "b", "c"] {
        let create = async || cluster.create(&namespace, &service(name, json!({}))).await.ok();
        eventually("an address that is free again", create).await;
    }
}

#[tokio::test]
async fn dry_runs_reserve_no_address() {
    let cluster = WebhookCluster::shared().await;
    // The pool of this namespace has one address.
    let namespace = cluster.plane.namespace("dry-run").await;
    let forecast = "172.21.40.18";
    for name in ["a", "b", "c"] {
        let manifest = all(&namespace, [service(name, json!({}))]);
        let args =
            ["apply", "--dry-run=server", "-o", "jsonpath={.items[0].spec.clusterIP}{.spec.clusterIP}", "-f", "-"];
        assert_eq!(cluster.plane.kubectl_with(&args, &manifest).await.ok(), forecast, "{name}");
    }
    let made = cluster.create(&namespace, &service("d", json!({}))).await.unwrap();
    assert_eq!(address(&made).to_string(), forecast);
    // A dry run respects addresses that are in use.
    let full = cluster.dry_run(&namespace, &service("e", json!({}))).await.unwrap_err();
    assert!(full.contains("pool \"once\" (172.21.40.16/30) is full: 1 of 1 addresses used"), "{full}");
}
