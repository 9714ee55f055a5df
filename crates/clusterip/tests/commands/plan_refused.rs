//! Services that the API server would refuse: `clusterip plan` denies them, too.

use crate::command::{Folder, service_manifest, snapshot_of};
use serde_json::{Value, json};

fn service(namespace: &str, name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name},
           "spec": {"clusterIP": address, "clusterIPs": [address]}})
}

fn service_cidr() -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
           "spec": {"cidrs": ["172.21.0.0/16"]}})
}

#[test]
fn service_that_the_api_server_refuses_is_denied() {
    struct Case {
        name: &'static str,
        snapshot: Vec<Value>,
        manifests: Vec<(&'static str, &'static str)>,
        /// The decision about the last Service, and its message.
        decision: &'static str,
        message: &'static str,
    }
    let cases = [
        Case {
            name: "the same address twice in the manifests",
            snapshot: vec![],
            manifests: vec![("web", "172.21.0.60"), ("db", "172.21.0.60")],
            decision: "denied",
            message: "172.21.0.60 is already used by Service default/web (in.yaml: document 1, line 1)",
        },
        Case {
            name: "the address of another Service of the cluster",
            snapshot: vec![service("shop", "db", "172.21.0.60")],
            manifests: vec![("web", "172.21.0.60")],
            decision: "denied",
            message: "172.21.0.60 is already used by Service shop/db in the cluster",
        },
        Case {
            name: "another address of an existing Service",
            snapshot: vec![service("default", "web", "172.21.0.60")],
            manifests: vec![("web", "172.21.0.61")],
            decision: "denied",
            message: "spec.clusterIP can't change from 172.21.0.60 to 172.21.0.61: delete the Service, and create it again",
        },
        Case {
            name: "another address of a Service of an earlier manifest",
            snapshot: vec![],
            manifests: vec![("web", "172.21.0.60"), ("web", "172.21.0.61")],
            decision: "denied",
            message: "spec.clusterIP can't change from 172.21.0.60 to 172.21.0.61: delete the Service, and create it again",
        },
        Case {
            name: "no address",
            snapshot: vec![],
            manifests: vec![("web", "banana")],
            decision: "denied",
            message: "spec.clusterIP: \"banana\" is not an IP address",
        },
        Case {
            name: "a name that is not a DNS label",
            snapshot: vec![],
            manifests: vec![("Web", "172.21.0.60")],
            decision: "denied",
            message: "metadata.name: \"Web\" is not a DNS label",
        },
        Case {
            name: "an address outside of the Service ranges",
            snapshot: vec![service_cidr()],
            manifests: vec![("web", "10.0.0.9")],
            decision: "denied",
            message: "10.0.0.9 can't be allocated from the Service ranges (172.21.0.0/16)",
        },
        Case {
            name: "the address that the Service has",
            snapshot: vec![service_cidr(), service("default", "web", "172.21.0.60")],
            manifests: vec![("web", "172.21.0.60")],
            decision: "unchanged",
            message: "no new address",
        },
    ];
    for Case { name, snapshot, manifests, decision, message } in cases {
        let folder = Folder::new("plan-refused");
        let text = manifests.iter().map(|(name, ip)| service_manifest(name, &format!("{{clusterIP: {ip}}}")));
        let text = text.collect::<Vec<_>>().join("---\n");
        folder.write("in.yaml", &text).write("snapshot.json", snapshot_of(&snapshot));
        let plan = |output: &str| folder.run(&["plan", "in.yaml", "--snapshot", "snapshot.json", "-o", output]);
        let (json, last) = (plan("json"), manifests.last().unwrap().0);
        let is_denied = decision == "denied";
        let message = match is_denied {
            true => format!("Service default/{last}: the API server refuses it: {message}"),
            false => message.to_owned(),
        };
        let planned = json.json();
        let row = &planned["services"][manifests.len() - 1];
        assert_eq!((&row["decision"], &row["message"]), (&json!(decision), &json!(message)), "{name}");
        assert_eq!((json.status, row["clusterIPs"] == json!([])), (i32::from(is_denied), is_denied), "{name}");
        assert_eq!(plan("yaml").stdout, text, "{name}: nothing is filled in");
    }
}
