//! Services that the API server would refuse: `clusterip plan` denies them, too. `planner/api_server_rules` tests each
//! rule.

use crate::command::service_snapshot::service;
use crate::command::{Folder, service_cidr, service_manifest, snapshot_of};
use serde_json::json;

#[test]
fn service_that_the_api_server_refuses_is_denied_and_not_filled_in() {
    let folder = Folder::new("plan-refused");
    let web = service("web", "172.21.0.60", json!({"metadata": {"namespace": "default"}}));
    folder.write("snapshot.json", snapshot_of(&[service_cidr("kubernetes", "172.21.0.0/16", json!({})), web]));
    // Each Service, the address that it names, and why the API server refuses it.
    let rows = [
        ("web", "172.21.0.60", None),
        ("db", "172.21.0.61", None),
        (
            "cart",
            "172.21.0.61",
            Some("172.21.0.61 is already used by Service default/db (in.yaml: document 2, line 7)"),
        ),
        ("late", "172.21.0.60", Some("172.21.0.60 is already used by Service default/web in the cluster")),
        (
            "db",
            "172.21.0.62",
            Some(
                "spec.clusterIP can't change from 172.21.0.61 to 172.21.0.62: delete the Service, and create it again",
            ),
        ),
        ("far", "10.0.0.9", Some("10.0.0.9 can't be allocated from the Service ranges (172.21.0.0/16)")),
    ];
    let text = rows.map(|(name, ip, _)| service_manifest(name, &format!("{{clusterIP: {ip}}}"))).join("---\n");
    folder.write("in.yaml", &text);
    let plan = |output: &str| folder.clusterip(&format!("plan in.yaml --snapshot snapshot.json -o {output}"));
    let planned = plan("json");
    assert_eq!(planned.status, 1, "{planned:?}");
    for (row, (name, _, refusal)) in planned.json()["services"].as_array().unwrap().iter().zip(rows) {
        assert_eq!((row["clusterIPs"] == json!([]), &row["name"]), (refusal.is_some(), &json!(name)), "{row}");
        let message = refusal.map(|reason| format!("Service default/{name}: the API server refuses it: {reason}"));
        let found = (row["decision"] == "denied").then(|| row["message"].as_str().unwrap().to_owned());
        assert_eq!(found, message);
    }
    assert_eq!(plan("yaml").stdout, text, "nothing is filled in");
}
