//! Kubewarden's audit scanner asks the policy about existing Services.

use std::collections::BTreeMap;
use std::time::Duration;

use e2e_tests::support::documented_steps::steps_of;
use e2e_tests::support::eventually::eventually_within;
use e2e_tests::support::installation::service;
use e2e_tests::support::whole_cluster::WholeCluster;
use serde_json::{Value, json};

use crate::installation::{install, uninstall};
use crate::kubewarden_cluster::{KUBEWARDEN, operator};
use crate::registry::PAGE;

/// The time limit of a change of the policy: policy-server starts again and compiles the module, which takes minutes on a
/// busy machine if it is a debug build, and the previous one ends after 30 seconds.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// With `explicit: deny` and `backgroundAudit: true`, an address in the wrong pool fails, and all others pass.
pub async fn reports_what_the_policy_denies(cluster: &WholeCluster) {
    let operator = operator(cluster);
    install(cluster, &operator).await;
    let namespace = &cluster.namespace("audited").await;
    let by_hand = |address: &str| json!({"clusterIP": address});
    for (name, fields) in
        [("placed", json!({})), ("linux-by-hand", by_hand("172.21.0.7")), ("windows-by-hand", by_hand("172.21.1.7"))]
    {
        cluster.apply(&service(namespace, name, fields).to_string()).await;
    }

    let deny = json!({"spec": {"backgroundAudit": true, "settings": {"services": {"explicit": "deny"}}}}).to_string();
    let policy = "clusteradmissionpolicy/clusterip-policy";
    cluster.kubectl(&["patch", policy, "--type=merge", "--patch", &deny]).await.ok();
    let denied = service(namespace, "denied", by_hand("172.21.1.8")).to_string();
    eventually_within(MAX_WAIT, "policy-server to deny addresses", async || {
        let created = cluster.kubectl_with(&["apply", "--dry-run=server", "-f", "-"], &denied).await;
        (created.status != 0).then_some(())
    })
    .await;

    operator.does_all(&steps_of(PAGE, "Audit scanner")).await;
    let results = results(cluster, namespace).await;
    let expected = [("linux-by-hand", "pass"), ("placed", "pass"), ("windows-by-hand", "fail")];
    assert_eq!(results, BTreeMap::from(expected.map(|(name, result)| (name.to_owned(), result.to_owned()))));

    cluster.kubectl(&["delete", "job/audit", "--namespace", KUBEWARDEN]).await.ok();
    cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.ok();
    uninstall(cluster, &operator).await;
}

/// The result of the policy for each Service of a namespace.
async fn results(cluster: &WholeCluster, namespace: &str) -> BTreeMap<String, String> {
    let get = ["get", "reports.openreports.io", "--namespace", namespace, "--output", "json"];
    let list: Value = serde_json::from_str(&cluster.kubectl(&get).await.ok()).unwrap();
    let reports = list["items"].as_array().unwrap().iter();
    let services = reports.filter(|report| report["scope"]["kind"] == "Service");
    let results = services.map(|report| {
        let [result] = report["results"].as_array().unwrap().as_slice() else { panic!("{report}") };
        (report["scope"]["name"].as_str().unwrap().to_owned(), result["result"].as_str().unwrap().to_owned())
    });
    results.collect()
}
