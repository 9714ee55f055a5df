//! `deploy/reservations`: the API server itself gives a Service the addresses that a ServicePool reserves for it,
//! before it calls `clusterip serve`, which decides as if the policy had done nothing.

use clusterip_core::service::is_set_by_hand;
use kube::Client;
use serde_json::{Value, json};

use crate::fence::support::{create, patch, send};
use crate::pools::support::PoolCluster;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::move_helpers::path;
use crate::support::pools::pool;
use crate::support::webhook_cluster::{addresses, annotated, service};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/reservations");

/// Applies `deploy/reservations`, and returns whether the API server has its kinds. kubectl says if it has not.
async fn installed(plane: &ControlPlane) -> bool {
    let applied = plane.kubectl(&["apply", "-k", FOLDER]).await;
    if plane.mutates_by_policy() {
        applied.ok();
        return true;
    }
    let expected = "no matches for kind \"MutatingAdmissionPolicy\" in version \"admissionregistration.k8s.io/v1\"";
    assert!(applied.stderr.contains(expected), "{}", applied.stderr);
    false
}

fn reserving(name: &str, mut spec: Value, reservations: &[(&str, &str, &str)]) -> Value {
    let entry = |(address, namespace, name): &(&str, &str, &str)| json!({"address": address, "namespace": namespace, "name": name});
    spec["reservations"] = reservations.iter().map(entry).collect();
    pool("ServicePool", name, spec)
}

/// Creates a Service and deletes it, and returns its addresses, and whether a manager owns one.
async fn tried(client: &Client, namespace: &str, service: &Value) -> (Vec<String>, Option<bool>) {
    let created = create(client, namespace, service).await.unwrap_or_else(|error| panic!("{service}: {error}"));
    let name = created["metadata"]["name"].as_str().unwrap();
    send(client, axum::http::Method::DELETE, &path(namespace, name), &Value::Null).await.unwrap();
    (addresses(&created).iter().map(ToString::to_string).collect(), is_set_by_hand(&created))
}

struct Case {
    name: &'static str,
    namespace: &'static str,
    service: Value,
    /// The first addresses; others are picked by the API server. Empty if the API server picks all of them.
    expected: &'static [&'static str],
}

fn case(name: &'static str, namespace: &'static str, service: Value, expected: &'static [&'static str]) -> Case {
    Case { name, namespace, service, expected }
}

#[tokio::test]
async fn api_server_gives_reserved_addresses_without_any_server() {
    let plane = ControlPlane::start(Options { audit: false, ..Options::dual_stack() });
    plane.install_pools().await;
    let (shop, bank) = ("shop", "bank");
    for namespace in [shop, bank] {
        plane.namespace(namespace).await;
    }
    if !installed(&plane).await {
        return;
    }
    let selector = json!({"matchLabels": {"tier": "gold"}});
    let pools = [
        reserving(
            "nodes",
            json!({"cidrs": ["172.21.50.0/24"], "match": {"os": "linux"}}),
            &[("172.21.50.7", shop, "web"), ("172.21.50.8", shop, "annotated")],
        ),
        reserving(
            "both",
            json!({"cidrs": ["172.21.51.0/24", "fd00:21::5100/120"], "match": {"namespaces": [shop]}}),
            &[
                ("172.21.51.7", shop, "dual"),
                ("fd00:21::5107", shop, "dual"),
                ("fd00:21::5108", shop, "six"),
                ("172.21.51.9", bank, "foreign"),
                ("172.21.52.9", shop, "outside"),
            ],
        ),
        reserving("six", json!({"cidrs": ["fd00:21::5300/120"]}), &[("fd00:21::5307", shop, "only-six")]),
        reserving(
            "selected",
            json!({"cidrs": ["172.21.54.0/24"], "match": {"serviceSelector": selector}}),
            &[("172.21.54.7", shop, "gold")],
        ),
        // One pool for each family.
        reserving("pair-4", json!({"cidrs": ["172.21.55.0/24"]}), &[("172.21.55.7", shop, "pair")]),
        reserving("pair-6", json!({"cidrs": ["fd00:21::5500/120"]}), &[("fd00:21::5507", shop, "pair")]),
    ];
    for pool in &pools {
        plane.apply(&pool.to_string()).await;
    }
    let client = plane.client();
    eventually("the reservations to be in force", async || {
        (tried(&client, shop, &service("pair", json!({"ipFamilies": ["IPv6"]}))).await.0 == ["fd00:21::5507"])
            .then_some(())
    })
    .await;

    let families = |families: &[&str], policy: &str| json!({"ipFamilies": families, "ipFamilyPolicy": policy});
    let labelled = |name: &str, tier: &str| {
        let mut labelled = service(name, json!({}));
        labelled["metadata"]["labels"] = json!({"tier": tier});
        labelled
    };
    let generated = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"generateName": "web"},
        "spec": {"ports": [{"port": 80}]}});
    let named_pool = |pool: &str| annotated("annotated", json!({"clusterip-policy/pool": pool}), json!({}));
    let cases = [
        case("a pool of one family", shop, service("web", json!({})), &["172.21.50.7"]),
        case("again", shop, service("web", json!({})), &["172.21.50.7"]),
        case("of type LoadBalancer", shop, service("web", json!({"type": "LoadBalancer"})), &["172.21.50.7"]),
        case("another name", shop, service("web-2", json!({})), &[]),
        case("another namespace", bank, service("web", json!({})), &[]),
        case("a name that the API server generates", shop, generated, &[]),
        case("headless", shop, service("web", json!({"clusterIP": "None"})), &[]),
        case("an IPv6 pool", shop, service("only-six", json!({})), &["fd00:21::5307"]),
        case("the other family", shop, service("only-six", families(&["IPv4"], "SingleStack")), &[]),
        case("a family that is not certain", shop, service("dual", json!({})), &[]),
        case("IPv4", shop, service("dual", families(&["IPv4"], "SingleStack")), &["172.21.51.7"]),
        case("IPv6", shop, service("dual", families(&["IPv6"], "SingleStack")), &["fd00:21::5107"]),
        case(
            "dual-stack",
            shop,
            service("dual", families(&["IPv6", "IPv4"], "RequireDualStack")),
            &["fd00:21::5107", "172.21.51.7"],
        ),
        case(
            "dual-stack, preferred",
            shop,
            service("dual", families(&["IPv4"], "PreferDualStack")),
            &["172.21.51.7", "fd00:21::5107"],
        ),
        case(
            "dual-stack, one reserved",
            shop,
            service("six", families(&["IPv6"], "PreferDualStack")),
            &["fd00:21::5108"],
        ),
        case("dual-stack, the second reserved", shop, service("six", families(&["IPv4"], "PreferDualStack")), &[]),
        case(
            "a pool for each family, IPv4",
            shop,
            service("pair", families(&["IPv4"], "SingleStack")),
            &["172.21.55.7"],
        ),
        case(
            "a pool for each family, IPv6",
            shop,
            service("pair", families(&["IPv6"], "SingleStack")),
            &["fd00:21::5507"],
        ),
        case(
            "a pool that does not admit the namespace",
            bank,
            service("foreign", families(&["IPv4"], "SingleStack")),
            &[],
        ),
        case("an address outside of the pool", shop, service("outside", families(&["IPv4"], "SingleStack")), &[]),
        case("labels that match", shop, labelled("gold", "gold"), &["172.21.54.7"]),
        case("labels that do not match", shop, labelled("gold", "silver"), &[]),
        case("the annotation names the pool", shop, named_pool("nodes"), &["172.21.50.8"]),
        case("the annotation names another pool", shop, named_pool("both"), &[]),
    ];
    let is_reserved = |address: &String| {
        ["172.21.5", "fd00:21::5"].iter().any(|begin| address.starts_with(begin))
            && pools.iter().any(|pool| {
                pool["spec"]["reservations"].as_array().unwrap().iter().any(|it| it["address"] == **address)
            })
    };
    let mut wrong = Vec::new();
    for Case { name, namespace, service, expected } in cases {
        let (found, by_hand) = tried(&client, namespace, &service).await;
        let (first, others) = found.split_at(expected.len().min(found.len()));
        let by_hand_expected = service["spec"]["clusterIP"] == "None";
        if first != expected || others.iter().any(is_reserved) || by_hand != Some(by_hand_expected) {
            wrong.push(format!("{name}: {found:?}, expected {expected:?}; set by hand: {by_hand:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");

    // A Service that leaves `type: ExternalName` gets its address like a new one.
    let alias = service("web", json!({"type": "ExternalName", "externalName": "example.com"}));
    create(&client, shop, &alias).await.unwrap();
    let back = json!({"spec": {"type": "ClusterIP", "externalName": null}});
    assert_eq!(patch(&client, shop, "web", back).await.unwrap()["spec"]["clusterIP"], "172.21.50.7");

    // The reservation of an address that another Service has can't be fulfilled: the API server says so.
    create(&client, bank, &service("thief", json!({"clusterIP": "172.21.54.7"}))).await.unwrap();
    let refused = create(&client, shop, &labelled("gold", "gold")).await.unwrap_err();
    assert!(refused.contains("provided IP is already allocated"), "{refused}");
}

/// With a variable that names the primary family of the cluster, the family of every Service is certain.
#[tokio::test]
async fn primary_family_can_be_configured() {
    let plane = ControlPlane::start(Options { audit: false, ..Options::dual_stack() });
    plane.install_pools().await;
    let shop = plane.namespace("shop").await;
    if !installed(&plane).await {
        return;
    }
    let both = reserving(
        "both",
        json!({"cidrs": ["172.21.51.0/24", "fd00:21::5100/120"]}),
        &[("172.21.51.7", &shop, "dual"), ("fd00:21::5107", &shop, "dual")],
    );
    plane.apply(&both.to_string()).await;
    // The command of the README.
    let change = r#"[{"op": "replace", "path": "/spec/variables/0/expression", "value": "\"IPv4\""}]"#;
    assert!(std::fs::read_to_string(format!("{FOLDER}/README.md")).unwrap().contains(change));
    let name = "reservations.clusterip-policy.io";
    plane.kubectl(&["patch", "mutatingadmissionpolicy", name, "--type=json", "--patch", change]).await.ok();
    let client = plane.client();
    eventually("the reservation to be in force", async || {
        (tried(&client, &shop, &service("dual", json!({}))).await.0 == ["172.21.51.7"]).then_some(())
    })
    .await;
    let required = service("dual", json!({"ipFamilyPolicy": "RequireDualStack"}));
    assert_eq!(tried(&client, &shop, &required).await.0, ["172.21.51.7", "fd00:21::5107"]);
}

/// The webhook decides about a Service as if the policy had done nothing, and the address does not count as set by
/// hand.
#[tokio::test]
async fn server_decides_as_without_the_policy() {
    let cluster = PoolCluster::lent().await;
    let plane = &cluster.plane;
    let shop = plane.namespace("shop").await;
    if !installed(plane).await {
        return;
    }
    let kept = "172.21.60.7";
    cluster
        .apply(&[
            reserving(
                "kept",
                json!({"cidrs": ["172.21.60.0/24"], "match": {"namespaces": [shop]}}),
                &[(kept, &shop, "web"), ("172.21.60.8", &shop, "silver")],
            ),
            pool(
                "ServicePool",
                "first",
                json!({"cidrs": ["172.21.61.0/24"], "priority": 10,
                "match": {"namespaces": [shop], "serviceSelector": {"matchLabels": {"tier": "silver"}}}}),
            ),
        ])
        .await;
    cluster.serves(&shop, &json!({}), "172.21.60.0/24").await;
    cluster.serves(&shop, &json!({"tier": "silver"}), "172.21.61.0/24").await;
    let created = cluster.create(&shop, &service("web", json!({}))).await.unwrap();
    assert_eq!((&created["spec"]["clusterIP"], is_set_by_hand(&created)), (&json!(kept), Some(false)));
    // Only the server knows that another pool comes first.
    let mut silver = service("silver", json!({}));
    silver["metadata"]["labels"] = json!({"tier": "silver"});
    let created = cluster.create(&shop, &silver).await.unwrap();
    assert!(created["spec"]["clusterIP"].as_str().unwrap().starts_with("172.21.61."), "{created}");

    let audit = eventually("an audit with the Service", async || {
        let audit = cluster.audit().await?;
        let held = audit["reservations"].as_array()?.iter().any(|it| it["address"] == kept && it["state"] == "held");
        held.then_some(audit)
    })
    .await;
    assert_eq!(audit["findings"], json!([]), "{audit:#}");
    let each = |value: &Value| value.as_array().unwrap().clone();
    let ranges = each(&audit["pools"]).into_iter().flat_map(|pool| each(&pool["ranges"]));
    let mut addresses = ranges.flat_map(|range| each(&range["addresses"]));
    let found = addresses.find(|address| address["address"] == kept).unwrap();
    assert_eq!((&found["state"], &found["byHand"]), (&json!("used"), &json!(false)), "{found}");
}
