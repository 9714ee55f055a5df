//! Runs `clusterip audit` as a user does: the findings about pools, Service ranges and webhooks.

use crate::command::service_snapshot::{SETTINGS, audit, cluster, on, service};
use crate::command::{Done, Folder, service_cidr, snapshot_of};
use serde_json::{Value, json};

fn ip_address(address: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": address}})
}

fn webhook_configuration(kind: &str, webhooks: Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "k2s-webhook"},
           "webhooks": webhooks})
}

#[test]
fn each_problem_of_pools_and_ranges_is_a_finding() {
    struct Case {
        name: &'static str,
        settings: &'static str,
        items: Vec<Value>,
        expected: &'static [&'static str],
    }
    const OPEN: &str = "services: {pools: [{name: all, cidrs: [172.21.0.0/24]}]}\n";
    const MUTATING: &str = "MutatingWebhookConfiguration";
    const FULL: &[&str] =
        &["full | - |  | windows | pool windows (172.21.1.0/29) is full: all 5 addresses are used, 1 \
                             more are reserved"];
    const OVER_DNS: &[&str] = &["over-dns | - | 172.21.0.10 | all | pool \"all\" may hand out 172.21.0.10, the tenth \
                                 address of the Service range 172.21.0.0/16: many installers give it to the cluster's DNS"];
    const OTHER_WEBHOOK: &[&str] =
        &["other-webhook | - |  | - | MutatingWebhookConfiguration k2s-webhook: the webhook \
                                      of K2s also gives addresses to Services, and it deletes Services of Windows \
                                      workloads and creates them again"];
    let case = |name, items, expected| Case { name, settings: SETTINGS, items, expected };
    let open = |name, items, expected| Case { name, settings: OPEN, items, expected };
    let four: Vec<Value> =
        (3..7).map(|last| service(&format!("s{last}"), &format!("172.21.1.{last}"), on("windows"))).collect();
    let kubernetes = |address| vec![service("kubernetes", address, json!({"metadata": {"namespace": "default"}}))];
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}});
    let deleted = service_cidr("deleted", "172.21.1.0/24", deleted);
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let ranges = vec![
        service_cidr("kubernetes", "172.21.0.0/24", json!({})),
        deleted.clone(),
        service_cidr("elsewhere", "10.0.0.0/24", not_ready),
    ];
    let never = json!([{"name": "never", "expression": "false"}]);
    let both = json!([{"name": "clusterip.k2s.io"}, {"name": "workload.clusterip.k2s.io"}]);
    let one = json!([{"name": "clusterip.k2s.io", "matchConditions": never}, {"name": "workload.clusterip.k2s.io"}]);
    let none = json!([{"name": "clusterip.k2s.io", "matchConditions": never}]);
    let webhook = |kind, webhooks: &Value| vec![cluster(), webhook_configuration(kind, webhooks.clone())];
    let cases = [
        case("nothing", vec![], &[]),
        case("one address is free", four.clone(), &[]),
        case(
            "an IPAddress object without a Service uses the last one",
            [four, vec![ip_address("172.21.1.2")]].concat(),
            FULL,
        ),
        case(
            "default/kubernetes in a pool, in a cluster that does not tell its ranges",
            kubernetes("172.21.0.60"),
            &["over-kubernetes | - | 172.21.0.60 | linux | pool linux: 172.21.0.60, the address of \
               default/kubernetes, lies in 172.21.0.0/24 and is neither reserved nor excluded: while that Service is \
               being created, another Service could get it"],
        ),
        case("the same in the reserved part", kubernetes("172.21.0.1"), &[]),
        case("in a ServiceCIDR that is being deleted, and in another one", vec![cluster(), deleted], &[]),
        case(
            "in a ServiceCIDR that is being deleted, and in no other",
            ranges,
            &[
                "full | - |  | windows | pool windows (172.21.1.0/29) has no address to hand out: the API server \
                 refuses all of them",
                "unusable-range | - |  | - | ServiceCIDR elsewhere (10.0.0.0/24) is not ready: addresses of it are \
                 refused by the API server",
                "unusable-range | - |  | windows | ServiceCIDR deleted (172.21.1.0/24) is being deleted: addresses of \
                 it are refused by the API server; pool windows (172.21.1.0/29) has addresses of it",
            ],
        ),
        open("the address of DNS", vec![cluster()], OVER_DNS),
        open("used by a Service", vec![cluster(), service("dns", "172.21.0.10", json!({}))], &[]),
        open("used by an IPAddress", vec![cluster(), ip_address("172.21.0.10")], &[]),
        case("webhooks of K2s", webhook(MUTATING, &both), OTHER_WEBHOOK),
        case("one of them is called", webhook(MUTATING, &one), OTHER_WEBHOOK),
        case("none is called", webhook(MUTATING, &none), &[]),
        case("of another kind", webhook("ValidatingWebhookConfiguration", &both), &[]),
    ];
    let folder = Folder::new("audit-pools");
    for Case { name, settings, items, expected } in cases {
        let done = folder.audit(settings, &items, &["-o", "json"]);
        // The settings give a warning for each pool in an unusable range.
        let warned = expected.iter().any(|line| line.starts_with("unusable-range | - |  | windows"));
        assert_eq!((done.status, !done.stderr.is_empty()), (0, warned), "{name}: {}", done.stderr);
        assert_eq!(done.findings(), expected, "{name}");
    }

    let told = |args: &[&str]| audit(&folder, webhook(MUTATING, &both), args);
    assert_eq!(told(&["-o", "name"]).stdout, "mutatingwebhookconfiguration/k2s-webhook\n");
    assert_eq!(told(&["-o", "json"]).json()["findings"][0]["webhookConfiguration"], "k2s-webhook");
    let table = told(&["--fail-on", "other-webhook"]);
    let (problem, remedy) =
        ("\n  MutatingWebhookConfiguration k2s-webhook: the webhook of K2s also ", "\n  => if `clusterip` ");
    assert!(table.stdout.contains(problem) && table.stdout.contains(remedy), "{}", table.stdout);
    assert_eq!(table.status, 1);
}

#[test]
fn pool_object_that_is_not_in_use_is_found() {
    let pool = |name: &str, cidr: &str| {
        json!({"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": name},
               "spec": {"cidrs": [cidr], "match": {"namespaces": [name]}}})
    };
    let folder = Folder::new("audit-not-ready");
    folder.write("snapshot.json", snapshot_of(&[pool("a", "10.0.0.0/24"), pool("b", "10.0.0.128/25")]));
    let done = folder.clusterip("audit --snapshot snapshot.json --quiet -o json --fail-on not-ready");
    let expected = json!([{
        "kind": "not-ready", "namespace": null, "name": null, "object": "ServicePool b", "pool": "b", "evidence": null,
        "message": "ServicePool b: Overlaps: spec.cidrs[0]: 10.0.0.128/25 overlaps 10.0.0.0/24 of pool \"a\"",
        "remedy": "correct the object, or the other one that the message names",
    }]);
    assert_eq!((done.status, &done.json()["findings"]), (1, &expected));
    let names = folder.clusterip("audit --snapshot snapshot.json --quiet -o name");
    assert_eq!(names, Done::ok("servicepool/b\n"));
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
    let services = [("web", "172.21.2.10"), ("basket", "172.21.2.12")].map(|(name, ip)| service(name, ip, json!({})));
    let items = [&services[..], &[cluster(), ip_address("172.21.2.13"), pool]].concat();
    let folder = Folder::new("audit-reservations");
    let table = "
RESERVED     POOL  FOR         STATE                                             SINCE
172.21.2.10  shop  shop/web    held                                              2026-01-01T00:00:00Z
172.21.2.11  shop  shop/db     free                                              2026-01-02T00:00:00Z
172.21.2.12  shop  shop/cart   taken by shop/basket                              -
172.21.2.13  shop  shop/stock  taken by an IPAddress object without its Service  -
";
    let done = folder.audit(SETTINGS, &items, &[]);
    assert!(done.stdout.contains(&format!("\n{table}\n")), "{done:?}");
}
