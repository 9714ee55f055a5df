//! Which IPAddress objects a snapshot has: one for each ClusterIP.

use clusterip_cluster::policy::host_calls::HostCall;
use serde_json::{Value, json};

use crate::support::snapshots::{ask, get, masks, service};

fn ip_address(name: &str) -> HostCall {
    get("networking.k8s.io/v1/IPAddress", None, name, masks(&["metadata"]))
}

fn no_ip_address(name: &str) -> Result<Value, String> {
    Err(format!("Cannot find networking.k8s.io/v1/IPAddress named '{name}' inside of namespace 'None'"))
}

#[test]
fn every_address_of_a_service_has_an_ip_address_object() {
    let objects = [service("web", &["10.0.0.9", "fd00::9"]), service("quiet", &["None"]), service("none", &[])];
    let ip_object =
        |ip: &str| Ok(json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": ip}}));
    for (name, ip, expected) in [
        ("the first address", "10.0.0.9", ip_object("10.0.0.9")),
        ("the second one", "fd00::9", ip_object("fd00::9")),
        ("one that no Service has", "10.0.0.8", no_ip_address("10.0.0.8")),
        ("one that is written another way", "fd00:0::9", no_ip_address("fd00:0::9")),
        ("none", "None", no_ip_address("None")),
    ] {
        assert_eq!(ask(&objects, &ip_address(ip)), expected, "{name}");
    }
    let parent = json!({"parentRef": {"group": "", "resource": "services", "namespace": "shop", "name": "web"}});
    let whole = ask(&objects, &get("networking.k8s.io/v1/IPAddress", None, "10.0.0.9", None)).unwrap();
    assert_eq!(whole["spec"], parent);
}

#[test]
fn ip_address_object_exists_while_a_service_has_the_address() {
    let (a, b) = (service("a", &["10.0.0.1"]), service("b", &["10.0.0.1"]));
    let a_moved = service("a", &["10.0.0.2"]);
    let mut alias = a.clone();
    alias["spec"]["type"] = "ExternalName".into();
    let own = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "10.0.0.1"}});
    for (name, objects, there) in [
        ("of one that became an ExternalName", vec![&a, &alias], false),
        ("of one that moved", vec![&a, &a_moved], false),
        ("of one that moved and came back", vec![&a, &a_moved, &a], true),
        ("of two, one of which moved", vec![&a, &b, &a_moved], true),
        ("of one that moved, but an object of its own", vec![&a, &own, &a_moved], true),
    ] {
        let objects: Vec<Value> = objects.into_iter().cloned().collect();
        assert_eq!(ask(&objects, &ip_address("10.0.0.1")).is_ok(), there, "{name}");
    }
}
