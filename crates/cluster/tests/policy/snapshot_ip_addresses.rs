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
    struct Case {
        name: &'static str,
        ip: &'static str,
        expected: Result<Value, String>,
    }
    let objects = [service("web", &["10.0.0.9", "fd00::9"]), service("quiet", &["None"]), service("none", &[])];
    let ip_object =
        |ip: &str| Ok(json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": ip}}));
    let rows = [
        Case { name: "the first address", ip: "10.0.0.9", expected: ip_object("10.0.0.9") },
        Case { name: "the second one", ip: "fd00::9", expected: ip_object("fd00::9") },
        Case { name: "one that no Service has", ip: "10.0.0.8", expected: no_ip_address("10.0.0.8") },
        Case { name: "one that is written another way", ip: "fd00:0::9", expected: no_ip_address("fd00:0::9") },
        Case { name: "none", ip: "None", expected: no_ip_address("None") },
    ];
    for Case { name, ip, expected } in rows {
        assert_eq!(ask(&objects, &ip_address(ip)), expected, "{name}");
    }
    let parent = json!({"parentRef": {"group": "", "resource": "services", "namespace": "shop", "name": "web"}});
    let whole = ask(&objects, &get("networking.k8s.io/v1/IPAddress", None, "10.0.0.9", None)).unwrap();
    assert_eq!(whole["spec"], parent);
}

#[test]
fn ip_address_object_exists_while_a_service_has_the_address() {
    struct Case {
        name: &'static str,
        objects: Vec<Value>,
        there: bool,
    }
    let (a, b) = (service("a", &["10.0.0.1"]), service("b", &["10.0.0.1"]));
    let (a_moved, b_moved) = (service("a", &["10.0.0.2"]), service("b", &["10.0.0.2"]));
    let mut alias = a.clone();
    alias["spec"]["type"] = "ExternalName".into();
    let of_another =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "10.0.0.1"}});
    let rows = [
        Case { name: "of one Service", objects: vec![a.clone()], there: true },
        Case { name: "of one that became an ExternalName", objects: vec![a.clone(), alias], there: false },
        Case { name: "of one that moved", objects: vec![a.clone(), a_moved.clone()], there: false },
        Case {
            name: "of one that moved and came back",
            objects: vec![a.clone(), a_moved.clone(), a.clone()],
            there: true,
        },
        Case { name: "of two, one of which moved", objects: vec![a.clone(), b.clone(), b_moved.clone()], there: true },
        Case {
            name: "of two, the other of which moved",
            objects: vec![a.clone(), b.clone(), a_moved.clone()],
            there: true,
        },
        Case { name: "of two that moved", objects: vec![a.clone(), b, a_moved.clone(), b_moved], there: false },
        Case {
            name: "of one that moved, but an object of its own",
            objects: vec![a, of_another, a_moved],
            there: true,
        },
    ];
    for Case { name, objects, there } in rows {
        assert_eq!(ask(&objects, &ip_address("10.0.0.1")).is_ok(), there, "{name}");
    }
}
