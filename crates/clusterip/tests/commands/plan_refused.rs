//! Services that the API server would refuse: `clusterip plan` denies them, too. `planner/api_server_rules` tests each
//! rule.

use crate::command::service_snapshot::service;
use crate::command::{Folder, service_cidr, service_manifest, snapshot_of};
use serde_json::json;

#[test]
fn service_that_the_api_server_refuses_is_denied() {
    struct Case {
        /// The Services of the manifests, each with its address.
        manifests: &'static [(&'static str, &'static str)],
        /// Why the API server refuses the last one.
        refusal: Option<&'static str>,
    }
    let cases = [
        Case {
            manifests: &[("db", "172.21.0.61"), ("cart", "172.21.0.61")],
            refusal: Some("172.21.0.61 is already used by Service default/db (in.yaml: document 1, line 1)"),
        },
        Case {
            manifests: &[("db", "172.21.0.60")],
            refusal: Some("172.21.0.60 is already used by Service default/web in the cluster"),
        },
        Case {
            manifests: &[("web", "172.21.0.61")],
            refusal: Some(
                "spec.clusterIP can't change from 172.21.0.60 to 172.21.0.61: delete the Service, and create it again",
            ),
        },
        Case {
            manifests: &[("db", "172.21.0.61"), ("db", "172.21.0.62")],
            refusal: Some(
                "spec.clusterIP can't change from 172.21.0.61 to 172.21.0.62: delete the Service, and create it again",
            ),
        },
        Case {
            manifests: &[("db", "10.0.0.9")],
            refusal: Some("10.0.0.9 can't be allocated from the Service ranges (172.21.0.0/16)"),
        },
        Case { manifests: &[("web", "172.21.0.60")], refusal: None },
    ];
    let folder = Folder::new("plan-refused");
    let web = service("web", "172.21.0.60", json!({"metadata": {"namespace": "default"}}));
    folder.write("snapshot.json", snapshot_of(&[service_cidr("kubernetes", "172.21.0.0/16", json!({})), web]));
    for Case { manifests, refusal } in cases {
        let text = manifests.iter().map(|(name, ip)| service_manifest(name, &format!("{{clusterIP: {ip}}}")));
        let text = text.collect::<Vec<_>>().join("---\n");
        folder.write("in.yaml", &text);
        let plan = |output: &str| folder.clusterip(&format!("plan in.yaml --snapshot snapshot.json -o {output}"));
        let (json, last) = (plan("json"), manifests.last().unwrap().0);
        let (decision, message) = match refusal {
            Some(reason) => ("denied", format!("Service default/{last}: the API server refuses it: {reason}")),
            None => ("unchanged", "no new address".to_owned()),
        };
        let planned = json.json();
        let row = &planned["services"][manifests.len() - 1];
        assert_eq!((&row["decision"], &row["message"]), (&json!(decision), &json!(message)), "{manifests:?}");
        let is_denied = refusal.is_some();
        assert_eq!((json.status, row["clusterIPs"] == json!([])), (i32::from(is_denied), is_denied), "{manifests:?}");
        assert_eq!(plan("yaml").stdout, text, "{manifests:?}: nothing is filled in");
    }
}
