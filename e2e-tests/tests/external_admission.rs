//! External addresses that `clusterip serve` gives and checks as the webhook of a real API server.

use std::collections::BTreeSet;

use axum::http::Method;
use clusterip::webhook::registration;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Service;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::{path, request, send};
use crate::support::serve_process::{Server, ServerBuilder};
use crate::support::webhook_cluster::message;

pub const SETTINGS: &str = "
services:
  serviceCIDRs: [172.21.0.0/16]
external:
  pools:
  - name: shop
    cidrs: [10.0.9.10-10.0.9.209]
    match: {namespaces: [shop]}
  - name: bank
    cidrs: [10.0.10.0/29]
    match: {namespaces: [bank]}
";

pub struct Placed {
    pub client: Client,
    server: Server,
    pub plane: LentControlPlane,
}

impl Placed {
    async fn new() -> Self {
        Self::with(SETTINGS).await
    }

    pub async fn with(settings: &str) -> Self {
        let plane = LentControlPlane::get().await;
        for name in ["shop", "bank"] {
            plane.kubectl(&["create", "namespace", name]).await.ok();
        }
        let server = ServerBuilder::new(&plane).settings(settings).registered().start().await;
        let placed = Self { client: plane.client(), plane, server };
        eventually("the webhook to be called", async || {
            let created = placed.create("shop", "trial", json!({})).await.unwrap();
            placed.plane.kubectl(&["delete", "service", "--namespace", "shop", "trial"]).await.ok();
            record(&created)
        })
        .await;
        placed
    }

    /// Creates a Service of our class: returns the Service, or the message of the API server.
    pub async fn create(&self, namespace: &str, name: &str, more: Value) -> Result<Value, String> {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external",
                "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}],
            },
        });
        json_patch::merge(&mut service, &more);
        let services: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        match services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await {
            Ok(created) => Ok(serde_json::to_value(created).unwrap()),
            Err(kube::Error::Api(status)) => Err(status.message),
            Err(error) => panic!("{error}"),
        }
    }

    /// Changes a Service of the namespace `shop`: returns the Service, or the message of the API server.
    pub async fn patch(&self, name: &str, patch: &Value) -> Result<Value, String> {
        let request = request(Method::PATCH, &path("shop", name), patch);
        self.client.request(request).await.map_err(|error| message(&error))
    }
}

/// The external addresses that a Service has recorded.
fn record(service: &Value) -> Option<String> {
    let record = service.pointer("/metadata/annotations/clusterip-policy~1external-addresses")?;
    Some(record.as_str().unwrap().to_owned())
}

fn recorded(address: &str) -> Value {
    json!({"metadata": {"annotations": {"clusterip-policy/external-addresses": address}}})
}

fn asking(address: &str) -> Value {
    json!({"metadata": {"annotations": {"clusterip-policy/external-address": address}}})
}

/// Changes a Service of our class into a Service without a class.
fn plain() -> Value {
    json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null, "allocateLoadBalancerNodePorts": null}})
}

fn merged(one: &Value, other: &Value) -> Value {
    let mut merged = one.clone();
    json_patch::merge(&mut merged, other);
    merged
}

#[tokio::test]
async fn each_service_gets_its_own_address_and_keeps_it() {
    let placed = Placed::new().await;
    let names: Vec<String> = (0..100).map(|number| format!("web-{number}")).collect();
    let created = join_all(names.iter().map(|name| placed.create("shop", name, json!({})))).await;
    let records: Vec<String> = created.iter().map(|created| record(created.as_ref().unwrap()).unwrap()).collect();
    let different: BTreeSet<&String> = records.iter().collect();
    assert_eq!(different.len(), names.len(), "{records:?}");
    assert!(records.iter().all(|record| record.starts_with("10.0.9.")), "{records:?}");
    // The same Service again gets the same address.
    placed.plane.kubectl(&["delete", "service", "--namespace", "shop", "web-7"]).await.ok();
    eventually("the address to be free", async || {
        let again = placed.create("shop", "web-7", json!({})).await.unwrap();
        let same = record(&again).as_ref() == Some(&records[7]);
        if !same {
            placed.plane.kubectl(&["delete", "service", "--namespace", "shop", "web-7"]).await.ok();
        }
        same.then_some(())
    })
    .await;

    // The API server calls the webhook for external addresses with the record that the other one wrote, and generates
    // the name after both.
    let generated = json!({"metadata": {"name": null, "generateName": "web-"}});
    let created = join_all((0..20).map(|_| placed.create("shop", "web", generated.clone()))).await;
    let records: BTreeSet<String> = created.iter().map(|created| record(created.as_ref().unwrap()).unwrap()).collect();
    assert_eq!(records.len(), 20, "{records:?}");
}

/// A pool that MetalLB announces, for Services without a class.
pub const OF_METALLB: &str = "
  - name: metal
    cidrs: [10.0.11.10-10.0.11.40]
    match: {namespaces: [shop, kube-system]}
    announcer: metallb
    loadBalancerClass: \"\"
";

const ANNOUNCED: &str = "metallb.io/loadBalancerIPs";

/// The record of a Service, and what MetalLB reads.
pub fn announced(service: &Value) -> [Option<String>; 2] {
    let announced = service["metadata"]["annotations"].get(ANNOUNCED).map(|text| text.as_str().unwrap().to_owned());
    [record(service), announced]
}

pub fn of_metallb(annotations: Value, port: u16) -> Value {
    json!({"metadata": {"annotations": annotations}, "spec": {"loadBalancerClass": null, "ports": [{"port": port}]}})
}

#[tokio::test]
async fn address_that_metallb_announces_is_written_as_it_reads_it() {
    let placed = Placed::with(&format!("{}{}", SETTINGS.trim_end(), OF_METALLB)).await;
    let web = placed.create("shop", "web", of_metallb(json!({}), 80)).await.unwrap();
    let [Some(own), Some(same)] = announced(&web) else { panic!("{web}") };
    assert!(own.starts_with("10.0.11.") && own == same, "{web}");

    // A tenant gets nothing else, and may ask for another address of the pool.
    let ask = |address: &str| json!({"metadata": {"annotations": {ANNOUNCED: address}}});
    for (address, refusal) in [
        ("10.0.10.3", "lies in pool \"bank\""),
        ("10.0.9.77", "lies in pool \"shop\", which is for Services of another loadBalancerClass"),
        ("192.0.2.7", "lies in no pool"),
    ] {
        let refused = placed.patch("web", &ask(address)).await.unwrap_err();
        assert!(refused.contains(&format!("annotation {ANNOUNCED}: {address} {refusal}")), "{refused}");
    }
    let moved = placed.patch("web", &ask("10.0.11.40")).await.unwrap();
    assert_eq!(announced(&moved), [Some("10.0.11.40".to_owned()), Some("10.0.11.40".to_owned())]);
    let restored = placed.patch("web", &json!({"metadata": {"annotations": {ANNOUNCED: null}}})).await.unwrap();
    assert_eq!(announced(&restored), announced(&moved));

    // MetalLB would choose an address of the named pool.
    let named = of_metallb(json!({"metallb.io/address-pool": "metal"}), 80);
    let stray = placed.create("bank", "stray", named).await.unwrap();
    assert_eq!(announced(&stray), [None, Some("0.0.0.0".to_owned())]);

    let shared = |port| of_metallb(json!({"metallb.io/allow-shared-ip": "front"}), port);
    let first = announced(&placed.create("shop", "front", shared(80)).await.unwrap());
    eventually("the server to see the first Service", async || {
        let second = placed.create("shop", "front-tls", shared(443)).await.unwrap();
        let is_shared = announced(&second) == first;
        if !is_shared {
            placed.plane.kubectl(&["delete", "service", "--namespace", "shop", "front-tls"]).await.ok();
        }
        is_shared.then_some(())
    })
    .await;
    let third = announced(&placed.create("shop", "front-too", shared(80)).await.unwrap());
    assert_ne!(third, first, "the port is taken");

    // MetalLB writes the status, and the controller gives addresses to Services that no webhook has seen.
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.11.40", "ipMode": "VIP"}]}}});
    let shown = request(Method::PATCH, &format!("{}/status", path("shop", "web")), &status);
    placed.client.request::<Value>(shown).await.unwrap();
    placed.create("kube-system", "late", of_metallb(json!({}), 80)).await.unwrap();
    let late = path("kube-system", "late");
    eventually("the controller to record the address and its announcement", async || {
        let service: Value = placed.client.request(request(Method::GET, &late, &Value::Null)).await.unwrap();
        let [record, announced] = announced(&service);
        (record.is_some() && record == announced).then_some(())
    })
    .await;
    let web: Value = placed.client.request(request(Method::GET, &path("shop", "web"), &Value::Null)).await.unwrap();
    assert_eq!(web["status"]["loadBalancer"], status["status"]["loadBalancer"]);
    let late: Value = placed.client.request(request(Method::GET, &late, &Value::Null)).await.unwrap();
    assert_eq!(late["status"]["loadBalancer"], json!({}));
}

#[tokio::test]
async fn addresses_go_only_to_services_that_may_have_them() {
    let mut placed = Placed::new().await;
    requested_address_goes_to_one_service_and_refusals_name_the_holder(&placed).await;
    updates_take_no_address_of_another_service(&placed).await;
    service_reviewed_by_both_webhooks_gets_one_address(&placed).await;
    claims_need_the_server_while_the_settings_have_external_pools(&mut placed).await;
}

/// The holder of 10.0.9.77 is one of the Services `shop/web-…` afterwards.
async fn requested_address_goes_to_one_service_and_refusals_name_the_holder(placed: &Placed) {
    let names: Vec<String> = (0..100).map(|number| format!("web-{number}")).collect();
    let created = join_all(names.iter().map(|name| placed.create("shop", name, asking("10.0.9.77")))).await;
    let holders: Vec<&Value> = created.iter().filter_map(|created| created.as_ref().ok()).collect();
    assert_eq!(holders.len(), 1, "{created:?}");
    assert_eq!(record(holders[0]).as_deref(), Some("10.0.9.77"));
    let holder = format!("shop/{}", holders[0]["metadata"]["name"].as_str().unwrap());
    for refused in created.iter().filter_map(|created| created.as_ref().err()) {
        assert!(refused.contains("10.0.9.77") && refused.contains(&holder), "{refused}");
    }
}

/// The claims of all fields, and the updates of records, are rows in `external_claims.rs` and `external_updates.rs` of
/// `crates/core/tests/core`.
async fn updates_take_no_address_of_another_service(placed: &Placed) {
    placed.create("shop", "claims", plain()).await.unwrap();
    let external_ips = |address: &str| json!({"spec": {"externalIPs": [address]}});
    let taken = placed.patch("claims?dryRun=All", &external_ips("10.0.9.77")).await.unwrap_err();
    assert!(taken.contains("of pool \"shop\" is held by shop/web"), "{taken}");
    let free = placed.patch("claims", &external_ips("10.0.9.22")).await.unwrap();
    assert_eq!(free["spec"]["externalIPs"], json!(["10.0.9.22"]));
    // The webhook puts the record of a Service back.
    let made = placed.create("shop", "recorded", recorded("10.0.9.100")).await.unwrap();
    assert_eq!(record(&made).as_deref(), Some("10.0.9.100"), "restored");
    let dropped = json!({"metadata": {"annotations": {"clusterip-policy/external-addresses": null}}});
    let kept = placed.patch("recorded", &dropped).await.unwrap();
    assert_eq!(record(&kept).as_deref(), Some("10.0.9.100"), "put back");
    let released = placed.patch("recorded", &plain()).await.unwrap();
    assert_eq!(record(&released), None, "released");
    // With other pools, the controller would move these Services.
    for name in ["claims", "recorded"] {
        send(&placed.client, Method::DELETE, &path("shop", name), None).await.unwrap();
    }
}

/// Two webhooks of ours review a Service that claims an external address.
async fn service_reviewed_by_both_webhooks_gets_one_address(placed: &Placed) {
    let pools = "services:\n  pools: [{name: small, cidrs: [172.21.64.0/29]}]";
    let settings = SETTINGS.replacen("services:", pools, 1);
    std::fs::write(placed.server.folder().join("settings.yaml"), settings).unwrap();
    // This is a dry run, because the controller moves a Service that is created too early, and reserves an address
    // during the move.
    let services: Api<Service> = Api::namespaced(placed.client.clone(), "shop");
    let trial: Service =
        serde_json::from_value(json!({"metadata": {"name": "trial"}, "spec": {"ports": [{"port": 80}]}})).unwrap();
    eventually("the new settings", async || {
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let created = services.create(&params, &trial).await.unwrap();
        created.spec?.cluster_ip?.starts_with("172.21.64.").then_some(())
    })
    .await;
    // The pool has six addresses, and each is given once.
    for number in 0..6 {
        let name = format!("both-{number}");
        let claims = json!({"spec": {"externalIPs": [format!("10.0.9.1{number}")]}});
        let created = placed.create("shop", &name, merged(&plain(), &claims)).await.unwrap();
        let address = created["spec"]["clusterIP"].as_str().unwrap();
        assert!(address.starts_with("172.21.64."), "{name}: {address}");
    }
    let full = placed.create("shop", "one-more", plain()).await.unwrap_err();
    assert!(full.contains("is full: 6 of 6 addresses used"), "{full}");
}

async fn claims_need_the_server_while_the_settings_have_external_pools(placed: &mut Placed) {
    const SERVICES: &str = "services.clusterip-policy.io";
    const EXTERNAL: &str = "external.clusterip-policy.io";
    let is = async |placed: &Placed, expected: &[&str]| {
        eventually("the webhook configuration to follow", async || {
            let names = ["get", "mutatingwebhookconfiguration", registration::NAME, "--output"];
            let names = placed.plane.kubectl(&[&names[..], &["jsonpath={.webhooks[*].name}"]].concat()).await.ok();
            (names.split_whitespace().collect::<Vec<_>>() == expected).then_some(())
        })
        .await;
    };
    let settings = placed.server.folder().join("settings.yaml");
    is(placed, &[SERVICES, EXTERNAL]).await;
    std::fs::write(
        &settings,
        "services: {serviceCIDRs: [172.21.0.0/16], pools: [{name: all, cidrs: [172.21.64.0/24]}]}",
    )
    .unwrap();
    is(placed, &[SERVICES]).await;
    std::fs::write(&settings, SETTINGS).unwrap();
    is(placed, &[SERVICES, EXTERNAL]).await;

    // Without the server, Services that claim external addresses are refused, and all others are created.
    placed.server.kill();
    let claims = merged(&plain(), &json!({"spec": {"externalIPs": ["10.0.9.77"]}}));
    let refused = placed.create("bank", "hijack", claims).await.unwrap_err();
    assert!(refused.contains(&format!("failed calling webhook {EXTERNAL:?}")), "{refused}");
    placed.create("bank", "plain", plain()).await.unwrap();
    assert_eq!(record(&placed.create("bank", "waits", json!({})).await.unwrap()), None);
}
