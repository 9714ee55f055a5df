//! Creates that name an address which the webhook gave to the same Service before.

use serde_json::json;

use crate::support::control_plane::Options;
use crate::support::eventually::eventually;
use crate::support::webhook_cluster::{WebhookCluster, annotated, service};

const SETTINGS: &str = "
services:
  pools:
  - {name: all, cidrs: [172.21.0.0/24], reserved: 50}
  explicit: deny
external:
  pools:
  - {name: edge, cidrs: [10.0.9.10-10.0.9.40]}
";
const CONTESTED: &str = "10.0.9.20";

#[tokio::test]
async fn external_address_of_a_repeated_create_is_reserved() {
    let cluster = WebhookCluster::start(Options::default(), SETTINGS).await;
    let tenant = cluster.plane.namespace("tenant").await;
    let shop = cluster.plane.namespace("shop").await;
    let address = cluster.released_address(&tenant, &service("web", json!({}))).await;
    let probe = service("probe", json!({"clusterIP": address}));
    eventually("the address to be free", async || cluster.dry_run(&tenant, &probe).await.ok()).await;
    // The API server refuses these creates because of their families, after the webhook has answered.
    let families = json!(["IPv4", "IPv4"]);
    let spec = json!({"ipFamilies": families, "clusterIP": address, "externalIPs": [CONTESTED]});
    for spec in [json!({"ipFamilies": families}), spec] {
        let refused = cluster.create(&tenant, &service("web", spec)).await.unwrap_err();
        assert!(refused.contains("spec.ipFamilies"), "{refused}");
    }
    let wanted = annotated(
        "web",
        json!({"clusterip-policy/external-address": CONTESTED}),
        json!({"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external"}),
    );
    let refused = cluster.create(&shop, &wanted).await.unwrap_err();
    assert!(refused.contains(&format!("is held by {tenant}/web")), "{refused}");
}
