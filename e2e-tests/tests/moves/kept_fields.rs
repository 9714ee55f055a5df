//! A move changes only the addresses of a Service: its other fields, their owners and its endpoints stay the same.

use axum::http::Method;
use clusterip_core::service::may_be_set_by_hand;
use serde_json::{Value, json};

use super::support::{again, apply_server_side, manifest, move_to};
use crate::support::eventually::eventually;
use crate::support::move_helpers::{addresses, but_addresses, create, fresh, path, plane, send, stored};
use crate::support::webhook_cluster::all;

/// A Service that is moved. A name that ends with `first` or `second` moves only this address.
struct Case {
    name: &'static str,
    metadata: Value,
    spec: Value,
}

fn http() -> Value {
    json!([{"port": 80}])
}

fn all_ports() -> Value {
    json!([
        {"name": "tcp", "port": 80, "targetPort": "http", "protocol": "TCP", "appProtocol": "http"},
        {"name": "udp", "port": 80, "targetPort": 53, "protocol": "UDP"},
        {"name": "sctp", "port": 81, "protocol": "SCTP"},
    ])
}

/// A load balancer with all fields of its type.
fn load_balancer() -> Value {
    json!({
        "type": "LoadBalancer", "selector": {"app": "web"}, "ports": all_ports(), "externalTrafficPolicy": "Local",
        "internalTrafficPolicy": "Local", "loadBalancerClass": "example.com/lb", "loadBalancerIP": "192.0.2.9",
        "loadBalancerSourceRanges": ["10.0.0.0/8"], "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 77}}, "publishNotReadyAddresses": true,
        "trafficDistribution": "PreferClose", "externalIPs": ["192.0.2.7"],
    })
}

fn case(name: &'static str, metadata: Value, spec: Value) -> Case {
    Case { name, metadata, spec }
}

/// Services with one address.
fn plain_services(owned: Value) -> Vec<Case> {
    let (http, bare) = (http(), || json!({}));
    let metadata = json!({"labels": {"a": "b"}, "annotations": {"c": "d"}});
    let external_ips = json!({"externalIPs": ["192.0.2.8"], "externalTrafficPolicy": "Local", "ports": http});
    let node_ports = json!({"type": "NodePort", "ports": all_ports(), "externalTrafficPolicy": "Local"});
    vec![
        case("plain", bare(), json!({"selector": {"app": "web"}, "ports": http})),
        case("without-a-selector", bare(), json!({"ports": http})),
        case("labels-and-annotations", metadata, json!({"ports": http})),
        case("node-ports", bare(), node_ports),
        case("external-ips", bare(), external_ips),
        case("finalizer", json!({"finalizers": ["example.com/keep"]}), json!({"ports": http})),
        case("owned", owned, json!({"ports": http})),
        case("session-affinity", bare(), json!({"sessionAffinity": "ClientIP", "ports": http})),
        case("an-old-external-name", bare(), json!({"externalName": "old.example.com", "ports": http})),
    ]
}

fn load_balancers() -> Vec<Case> {
    let source_ranges =
        json!({"annotations": {"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"}});
    let balancer = json!({"type": "LoadBalancer", "ports": http()});
    let mut without_node_ports = balancer.clone();
    without_node_ports["allocateLoadBalancerNodePorts"] = false.into();
    vec![
        case("load-balancer", json!({}), load_balancer()),
        case("load-balancer-with-source-ranges", source_ranges, balancer),
        case("load-balancer-without-node-ports", json!({}), without_node_ports),
    ]
}

/// Services with addresses of both families, or of IPv6.
fn families() -> Vec<Case> {
    let http = http();
    let dual = |policy: &str| json!({"ipFamilyPolicy": policy, "selector": {"app": "web"}, "ports": http});
    let six_first = json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"], "ports": http});
    let six = json!({"ipFamilies": ["IPv6"], "ports": http});
    let mut dual_load_balancer = load_balancer();
    dual_load_balancer["ipFamilyPolicy"] = "RequireDualStack".into();
    vec![
        case("dual-required", json!({}), dual("RequireDualStack")),
        case("dual-preferred", json!({}), dual("PreferDualStack")),
        case("dual-second", json!({}), dual("RequireDualStack")),
        case("dual-first", json!({}), dual("RequireDualStack")),
        case("dual-load-balancer-second", json!({}), dual_load_balancer),
        case("ipv6-first", json!({}), six_first),
        case("ipv6", json!({}), six),
    ]
}

#[tokio::test]
async fn moved_service_keeps_every_other_field() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("fields").await;
    let owner = create(&client, &namespace, "owner", json!({"ports": [{"port": 1}]})).await;
    let owned = json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "owner", "uid": owner["metadata"]["uid"]}]});
    let mut applied = Vec::new();
    let cases = plain_services(owned).into_iter().chain(load_balancers()).chain(families());
    for Case { name: row, metadata, spec } in cases {
        for method in ["client-side", "server-side", "replaced"] {
            let name = format!("{row}-{method}");
            let manifest = manifest(&name, &namespace, metadata.clone(), spec.clone());
            let at = path(&namespace, &name);
            match method {
                "client-side" => plane.apply(&manifest.to_string()).await,
                "server-side" => apply_server_side(&client, "kubectl", &manifest).await,
                _ => {
                    let all = format!("/api/v1/namespaces/{namespace}/services?fieldManager=kubectl-create");
                    send(&client, Method::POST, &all, Some(&manifest)).await.unwrap();
                    let replaced = format!("{at}?fieldManager=kubectl-replace");
                    send(&client, Method::PUT, &replaced, Some(&manifest)).await.unwrap();
                }
            }
            if spec["type"] == "LoadBalancer" {
                let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10", "ipMode": "VIP"}]}}});
                send(&client, Method::PATCH, &format!("{at}/status?fieldManager=cloud"), Some(&status)).await.unwrap();
            }
            let before = stored(&client, &namespace, &name).await.unwrap();
            let [four, other] = fresh();
            let from = addresses(&before);
            let to = match (row.rsplit('-').next(), from.as_slice()) {
                (Some("second"), [first, _]) => vec![*first, other],
                (Some("first"), [first, second]) if first.is_ipv4() => vec![four, *second],
                (_, list) => list.iter().map(|old| if old.is_ipv4() { four } else { other }).collect(),
            };
            let after = move_to(&client, &before, &to).await;
            assert_eq!(addresses(&after), to, "{name}");
            assert_eq!(but_addresses(&after), but_addresses(&before), "{name}");
            assert!(!may_be_set_by_hand(&after), "{name}");
            if method == "server-side" {
                apply_server_side(&client, "kubectl", &manifest).await;
            }
            applied.push((manifest, after));
        }
    }
    // The owners can apply the manifests again, without a difference or a conflict.
    let is_client_side = |manifest: &Value| manifest["metadata"]["name"].as_str().unwrap().ends_with("client-side");
    let manifests = applied.iter().map(|(manifest, _)| manifest.clone()).filter(is_client_side);
    plane.kubectl_with(&["apply", "-f", "-"], &all(&namespace, manifests)).await.ok();
    for (manifest, after) in applied {
        let name = manifest["metadata"]["name"].as_str().unwrap();
        assert_eq!(again(&client, &after).await, after, "{name}: applied again");
    }
}

#[tokio::test]
async fn owner_can_change_the_type_after_a_move() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("retype").await;
    let manifest = |of| manifest("web", &namespace, json!({}), json!({"type": of, "ports": [{"port": 80}]}));
    apply_server_side(&client, "owner", &manifest("ClusterIP")).await;
    let [to, _] = fresh();
    let before = stored(&client, &namespace, "web").await.unwrap();
    move_to(&client, &before, &[to]).await;
    apply_server_side(&client, "owner", &manifest("NodePort")).await;
    let after = again(&client, &before).await;
    assert_eq!((&after["spec"]["type"], addresses(&after)), (&json!("NodePort"), vec![to]));
}

#[tokio::test]
async fn endpoints_stay_the_same_objects() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("endpoints").await;
    let before = create(&client, &namespace, "web", json!({"selector": {"app": "web"}, "ports": [{"port": 80}]})).await;
    let slices = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io/service-name=web"
    );
    let list = async || {
        let list = send(&client, Method::GET, &slices, None).await.unwrap();
        list["items"].as_array().cloned().filter(|items| !items.is_empty())
    };
    let slices_before = eventually("an EndpointSlice", list).await;
    let hand_made = create(&client, &namespace, "hand", json!({"ports": [{"port": 80}]})).await;
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "hand"},
        "subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]});
    let all = format!("/api/v1/namespaces/{namespace}/endpoints");
    let endpoints = send(&client, Method::POST, &all, Some(&endpoints)).await.unwrap();
    move_to(&client, &before, &fresh()[..1]).await;
    move_to(&client, &hand_made, &fresh()[..1]).await;
    let uids = |items: &[Value]| items.iter().map(|item| item["metadata"]["uid"].clone()).collect::<Vec<_>>();
    assert_eq!(uids(&list().await.unwrap()), uids(&slices_before));
    let now = send(&client, Method::GET, &format!("{all}/hand"), None).await.unwrap();
    assert_eq!((&now["metadata"]["uid"], &now["subsets"]), (&endpoints["metadata"]["uid"], &endpoints["subsets"]));
}

#[tokio::test]
async fn moved_address_that_was_set_by_hand_still_counts_as_set_by_hand() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("by-hand").await;
    let [address, _] = fresh();
    let set = create(&client, &namespace, "set", json!({"clusterIP": address, "ports": [{"port": 80}]})).await;
    let mut unknown = set.clone();
    unknown["metadata"].as_object_mut().unwrap().remove("managedFields");
    assert_eq!([may_be_set_by_hand(&set), may_be_set_by_hand(&unknown)], [true, true]);
    let set_moved = move_to(&client, &set, &fresh()[..1]).await;
    assert!(may_be_set_by_hand(&set_moved), "the owner of the address has changed");
}
