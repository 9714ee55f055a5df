//! The numbers in the status of pools, and how kubectl prints them.

use serde_json::json;

use super::support::{PoolCluster, pool_of};
use crate::support::pools::pool;
use crate::support::webhook_cluster::service;

#[tokio::test]
async fn status_counts_the_addresses_of_each_family() {
    const IPV4: &str = "172.21.80.0/28";
    const IPV6: &str = "fd00:21::800/124";
    let cluster = PoolCluster::shared().await;
    let namespace = cluster.plane.namespace("counted").await;
    let other = cluster.plane.namespace("counted-other").await;
    let matches = json!({"namespaces": [namespace]});
    cluster
        .apply(&[
            pool("ServicePool", "counted", json!({"cidrs": [IPV4, IPV6], "match": matches})),
            pool_of("counted-other", "172.21.81.0/28", &other),
        ])
        .await;
    let empty = cluster.until_reason("ServicePool", "counted", "InUse", "").await;
    assert_eq!(empty["status"]["ranges"], json!([IPV4, IPV6]));
    assert_eq!(empty["status"]["rangeSummary"], format!("{IPV4},{IPV6}"));
    assert_eq!(empty["status"]["for"], "namespace=counted");
    cluster.serves(&namespace, &json!({}), IPV4).await;
    cluster.serves(&other, &json!({}), "172.21.81.0/28").await;

    // A Service that belongs to the other pool. Its address was set by hand, so the policy only warns about it.
    cluster.create(&other, &service("misplaced", json!({"clusterIP": "172.21.80.9"}))).await.unwrap();
    cluster.create(&namespace, &service("one", json!({}))).await.unwrap();
    cluster.create(&namespace, &service("two", json!({"ipFamilyPolicy": "RequireDualStack"}))).await.unwrap();
    // A Service that does not follow its review: its address is in flight for 65 s.
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1", "operation": "CREATE", "namespace": namespace, "name": "in-flight",
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"},
        "object": service("in-flight", json!({})),
    }});
    let (_, answer) = cluster.server.post("/mutate", &review).await.unwrap();
    assert_eq!(answer["response"]["allowed"], true, "{answer}");

    let expected = json!({
        "used": 4, "free": 10, "misplaced": 1,
        "ipv4": {"usable": 14, "used": 3, "free": 10, "inFlight": 1, "misplaced": 1},
        "ipv6": {"usable": 15, "used": 1, "free": 14, "inFlight": 0, "misplaced": 0},
    });
    cluster.status_of("ServicePool", "counted", |object| object["status"]["addresses"] == expected).await;

    struct Case {
        args: &'static [&'static str],
        head: &'static str,
        row: &'static str,
    }
    let cases = [
        Case {
            args: &["get", "servicepools", "counted"],
            head: "NAME RANGES FOR USED FREE MISPLACED READY CHECKED AGE",
            row: "counted 172.21.80.0/28,fd00:21::800/124 namespace=counted 4 10 1 True",
        },
        Case {
            args: &["get", "spool", "counted", "-o", "wide"],
            head: "NAME PRIORITY RANGES FOR USED FREE MISPLACED FENCE READY REASON CHECKED AGE",
            row: "counted 0 172.21.80.0/28,fd00:21::800/124 namespace=counted 4 10 1 Allow True InUse",
        },
    ];
    for Case { args, head, row } in cases {
        let printed = cluster.plane.kubectl(args).await.ok();
        let lines: Vec<String> =
            printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[0], head, "{printed}");
        // The age changes.
        assert!(lines[1].starts_with(row), "{printed}");
    }
}
