//! Runs `clusterip audit` as a user does: the findings about pools and Service ranges.

use crate::command::service_snapshot::{SETTINGS, audit, cluster, findings, on, service, service_cidr};
use crate::command::{Done, Folder, snapshot_of};
use serde_json::{Value, json};

struct Case {
    name: &'static str,
    items: Vec<Value>,
    expected: &'static [&'static str],
}

#[track_caller]
fn check(test: &str, rows: Vec<Case>) {
    let folder = Folder::new(test);
    for Case { name, items, expected } in rows {
        let done = audit(&folder, items, &["-o", "json"]);
        // The settings give a warning for each pool in an unusable range.
        let warned = expected.iter().any(|line| line.starts_with("unusable-range |  | windows"));
        assert_eq!((done.status, !done.stderr.is_empty()), (0, warned), "{name}: {}", done.stderr);
        assert_eq!(findings(&done), expected, "{name}");
    }
}

#[test]
fn full_pool_is_a_finding() {
    let full: Vec<Value> =
        (2..7).map(|last| service(&format!("s{last}"), &format!("172.21.1.{last}"), on("windows"))).collect();
    let room = full[1..].to_vec();
    let orphan = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "172.21.1.2"}});
    let filled = [&room[..], &[orphan]].concat();
    const FULL: &[&str] =
        &["full |  | windows | pool windows (172.21.1.0/29) is full: all 5 addresses are used, 1 more are reserved"];
    check(
        "audit-pools-full",
        vec![
            Case { name: "nothing", items: vec![], expected: &[] },
            Case { name: "full", items: full, expected: FULL },
            Case { name: "one is free", items: room, expected: &[] },
            Case { name: "the last one has an IPAddress object without a Service", items: filled, expected: FULL },
        ],
    );
}

#[test]
fn pool_outside_of_the_service_range_or_over_default_kubernetes_is_a_finding() {
    let kubernetes = |address: &str| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "kubernetes"}, "spec": {"clusterIP": address}});
    let other = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["172.21.1.0/24"]}});
    check(
        "audit-pools-ranges",
        vec![
            Case {
                name: "outside of the cluster's range",
                items: vec![other],
                expected: &[
                    "outside-ranges |  | linux | pool linux: 172.21.0.0/24 lies outside of the cluster's Service \
                     ranges (172.21.1.0/24): the API server refuses its addresses",
                ],
            },
            Case {
                name: "over default/kubernetes, in a cluster that does not tell its ranges",
                items: vec![kubernetes("172.21.0.60")],
                expected: &["over-kubernetes | 172.21.0.60 | linux | pool linux: 172.21.0.60, the address of \
                             default/kubernetes, lies in 172.21.0.0/24 and is neither reserved nor excluded: while \
                             that Service is being created, another Service could get it"],
            },
            Case { name: "the same in the reserved part", items: vec![kubernetes("172.21.0.1")], expected: &[] },
        ],
    );
}

#[test]
fn service_cidr_that_is_deleted_or_not_ready_is_a_finding() {
    check(
        "audit-pools-deleted",
        vec![
            Case {
                name: "in a ServiceCIDR that is being deleted",
                items: vec![
                    cluster(),
                    service_cidr(
                        "deleted",
                        "172.21.1.0/24",
                        json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}),
                    ),
                ],
                expected: &[],
            },
            Case {
                name: "in a ServiceCIDR that is being deleted, and in no other",
                items: vec![
                    service_cidr("kubernetes", "172.21.0.0/24", json!({})),
                    service_cidr(
                        "deleted",
                        "172.21.1.0/24",
                        json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}),
                    ),
                    service_cidr(
                        "elsewhere",
                        "10.0.0.0/24",
                        json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
                    ),
                ],
                expected: &[
                    "full |  | windows | pool windows (172.21.1.0/29) has no address to hand out: the API server refuses \
                     all of them",
                    "unusable-range |  | - | ServiceCIDR elsewhere (10.0.0.0/24) is not ready: addresses of it are \
                     refused by the API server",
                    "unusable-range |  | windows | ServiceCIDR deleted (172.21.1.0/24) is being deleted: addresses of \
                     it are refused by the API server; pool windows (172.21.1.0/29) has addresses of it",
                ],
            },
        ],
    );
}

#[test]
fn pool_with_unused_dns_address_is_found() {
    struct Case {
        name: &'static str,
        settings: &'static str,
        items: Vec<Value>,
        expected: &'static [&'static str],
    }
    const OPEN: &str = "services: {pools: [{name: all, cidrs: [172.21.0.0/24]}]}\n";
    const FOUND: &str = "over-dns | 172.21.0.10 | all | pool \"all\" may hand out 172.21.0.10, the tenth address of the \
                         Service range 172.21.0.0/16: many installers give it to the cluster's DNS";
    let orphan =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "172.21.0.10"}});
    let rows = [
        Case { name: "free", settings: OPEN, items: vec![cluster()], expected: &[FOUND] },
        Case {
            name: "used by a Service",
            settings: OPEN,
            items: vec![cluster(), service("dns", "172.21.0.10", json!({}))],
            expected: &[],
        },
        Case { name: "used by an IPAddress", settings: OPEN, items: vec![cluster(), orphan], expected: &[] },
        Case { name: "reserved", settings: SETTINGS, items: vec![cluster()], expected: &[] },
        Case { name: "the range is not known", settings: OPEN, items: vec![], expected: &[] },
    ];
    for Case { name, settings, items, expected } in rows {
        let folder = Folder::new("audit-dns");
        let done = folder.audit(settings, &items, &["-o", "json"]);
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{name}");
        assert_eq!(findings(&done), expected, "{name}");
    }
}

#[test]
fn pool_object_that_is_not_in_use_is_found() {
    let pool = |name: &str, cidr: &str| {
        json!({"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": name},
               "spec": {"cidrs": [cidr], "match": {"namespaces": [name]}}})
    };
    let folder = Folder::new("audit-not-ready");
    folder.write("snapshot.json", snapshot_of(&[pool("a", "10.0.0.0/24"), pool("b", "10.0.0.128/25")]));
    let audit = |args: &[&str]| folder.run(&[&["audit", "--snapshot", "snapshot.json", "--quiet"], args].concat());
    let done = audit(&["-o", "json", "--fail-on", "not-ready"]);
    assert_eq!(
        (done.status, &done.json()["findings"]),
        (
            1,
            &json!([{
                "kind": "not-ready", "namespace": null, "name": null, "object": "ServicePool b", "pool": "b",
                "evidence": null,
                "message": "ServicePool b: Overlaps: spec.cidrs[0]: 10.0.0.128/25 overlaps 10.0.0.0/24 of pool \"a\"",
                "remedy": "correct the object, or the other one that the message names",
            }])
        )
    );
    assert_eq!(audit(&["-o", "name"]), Done::ok("servicepool/b\n"));
}

#[test]
fn webhook_of_k2s_is_found_unless_it_is_never_called() {
    let configuration = |kind: &str, webhooks: Value| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "k2s-webhook"},
               "webhooks": webhooks})
    };
    let never = json!([{"name": "never", "expression": "false"}]);
    let mutating = "MutatingWebhookConfiguration";
    const FOUND: &[&str] = &[
        "other-webhook |  | - | MutatingWebhookConfiguration k2s-webhook: the webhook of K2s also gives addresses to \
         Services, and it deletes Services of Windows workloads and creates them again",
    ];
    let both = json!([{"name": "clusterip.k2s.io"}, {"name": "workload.clusterip.k2s.io"}]);
    let one = json!([{"name": "clusterip.k2s.io", "matchConditions": never}, {"name": "workload.clusterip.k2s.io"}]);
    let none = json!([{"name": "clusterip.k2s.io", "matchConditions": never}]);
    let rows = vec![
        Case { name: "both", items: vec![cluster(), configuration(mutating, both.clone())], expected: FOUND },
        Case { name: "one of them", items: vec![cluster(), configuration(mutating, one)], expected: FOUND },
        Case { name: "never called", items: vec![cluster(), configuration(mutating, none)], expected: &[] },
        Case {
            name: "of another kind",
            items: vec![cluster(), configuration("ValidatingWebhookConfiguration", both.clone())],
            expected: &[],
        },
    ];
    check("audit-other-webhook", rows);

    let folder = Folder::new("audit-other-webhook-output");
    let told = |args: &[&str]| audit(&folder, vec![cluster(), configuration(mutating, both.clone())], args);
    assert_eq!(told(&["-o", "name"]).stdout, "mutatingwebhookconfiguration/k2s-webhook\n");
    assert_eq!(told(&["-o", "json"]).json()["findings"][0]["webhookConfiguration"], "k2s-webhook");
    let table = told(&["--fail-on", "other-webhook"]);
    let (problem, remedy) =
        ("\n  MutatingWebhookConfiguration k2s-webhook: the webhook of K2s also ", "\n  => if `clusterip` ");
    assert!(table.stdout.contains(problem) && table.stdout.contains(remedy), "{}", table.stdout);
    assert_eq!(table.status, 1);
}

#[test]
fn reservations_show_who_has_their_addresses() {
    const SETTINGS: &str = "
services:
  pools:
  - name: shop
    cidrs: [172.21.2.0/24]
    reservations:
    - {address: 172.21.2.10, namespace: shop, name: web}
    - {address: 172.21.2.11, namespace: shop, name: db}
    - {address: 172.21.2.12, namespace: shop, name: cart}
    - {address: 172.21.2.13, namespace: shop, name: stock}
";
    let orphan =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "172.21.2.13"}});
    let items = || {
        vec![
            cluster(),
            service("web", "172.21.2.10", json!({})),
            service("basket", "172.21.2.12", json!({})),
            orphan.clone(),
        ]
    };
    let observed =
        |address: &str, holder: &str, since: &str| json!({"address": address, "holder": holder, "since": since});
    let pool = json!({
        "apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": "shop"}, "spec": {},
        "status": {"reservations": [
            observed("172.21.2.10", "Owner", "2026-01-01T00:00:00Z"),
            observed("172.21.2.11", "Nobody", "2026-01-02T00:00:00Z"),
            // The Service was deleted, and another one got the address, after this was written.
            observed("172.21.2.12", "Owner", "2026-01-03T00:00:00Z"),
        ]},
    });
    struct Case {
        name: &'static str,
        pools: Vec<Value>,
        expected: Value,
        table: [&'static str; 5],
    }
    let reservation = |address: &str, name: &str, more: Value| {
        let mut expected = json!({"address": address, "pool": "shop", "namespace": "shop", "name": name});
        json_patch::merge(&mut expected, &more);
        expected
    };
    let cases = [
        Case {
            name: "without objects",
            pools: vec![],
            expected: json!([
                reservation("172.21.2.10", "web", json!({"state": "held"})),
                reservation("172.21.2.11", "db", json!({"state": "free"})),
                reservation("172.21.2.12", "cart", json!({"state": "taken", "takenBy": "shop/basket"})),
                reservation("172.21.2.13", "stock", json!({"state": "taken"})),
            ]),
            table: [
                "RESERVED     POOL  FOR         STATE",
                "172.21.2.10  shop  shop/web    held",
                "172.21.2.11  shop  shop/db     free",
                "172.21.2.12  shop  shop/cart   taken by shop/basket",
                "172.21.2.13  shop  shop/stock  taken by an IPAddress object without its Service",
            ],
        },
        Case {
            name: "with the status of a ServicePool",
            pools: vec![pool],
            expected: json!([
                reservation("172.21.2.10", "web", json!({"state": "held", "since": "2026-01-01T00:00:00Z"})),
                reservation("172.21.2.11", "db", json!({"state": "free", "since": "2026-01-02T00:00:00Z"})),
                reservation("172.21.2.12", "cart", json!({"state": "taken", "takenBy": "shop/basket"})),
                reservation("172.21.2.13", "stock", json!({"state": "taken"})),
            ]),
            table: [
                "RESERVED     POOL  FOR         STATE                                             SINCE",
                "172.21.2.10  shop  shop/web    held                                              2026-01-01T00:00:00Z",
                "172.21.2.11  shop  shop/db     free                                              2026-01-02T00:00:00Z",
                "172.21.2.12  shop  shop/cart   taken by shop/basket                              -",
                "172.21.2.13  shop  shop/stock  taken by an IPAddress object without its Service  -",
            ],
        },
    ];
    let folder = Folder::new("audit-reservations");
    for Case { name, pools, expected, table } in cases {
        let items = [items(), pools].concat();
        let done = folder.audit(SETTINGS, &items, &["-o", "json"]);
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{name}");
        assert_eq!(done.json()["reservations"], expected, "{name}");
        let done = folder.audit(SETTINGS, &items, &[]);
        assert!(done.stdout.contains(&format!("\n\n{}\n\n", table.join("\n"))), "{name}: {done:?}");
    }
}
