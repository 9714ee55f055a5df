//! Runs `clusterip audit` as a user does, on snapshots.
//!
//! The audit of the example is compared with the files in `golden`. After an intended change, `UPDATE_GOLDEN=1 cargo
//! test -p clusterip --test commands audit` writes them again: review the difference before you commit it.

use std::fs;
use std::path::Path;

use crate::command::{Done, Folder};
use serde_json::{Value, json};

const EXAMPLE: [&str; 5] =
    ["audit", "--snapshot", "examples/audit/snapshot.yaml", "--settings", "examples/settings/audit.yaml"];

/// Nodes and their blocks, which `plan` shows too.
const NODES: [&str; 5] =
    ["audit", "--snapshot", "examples/nodes/nodes.yaml", "--settings", "examples/settings/nodes.yaml"];

/// External addresses, with a `plan` of the same cluster.
const EXTERNAL: [&str; 5] =
    ["audit", "--snapshot", "examples/external/cluster.yaml", "--settings", "examples/settings/external.yaml"];

/// Two pools; the cluster's range is 172.21.0.0/16.
const SETTINGS: &str = "
services:
  pools:
  - {name: windows, cidrs: [172.21.1.0/29], reserved: 2, match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24], reserved: 50, match: {os: linux}}
";

fn service(name: &str, address: &str, more: Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": name, "managedFields": [{"manager": "helm"}]},
        "spec": {"clusterIP": address},
    });
    json_patch::merge(&mut service, &more);
    service
}

fn on(os: &str) -> Value {
    json!({"metadata": {"annotations": {"clusterip-policy/os": os}}})
}

fn by_hand(os: &str) -> Value {
    let fields = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}]);
    json!({"metadata": {"annotations": {"clusterip-policy/os": os}, "managedFields": fields}})
}

fn service_cidr(name: &str, cidr: &str, more: Value) -> Value {
    let mut object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name}, "spec": {"cidrs": [cidr]}});
    json_patch::merge(&mut object, &more);
    object
}

fn cluster() -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
           "spec": {"cidrs": ["172.21.0.0/16"]}})
}

fn list(items: Vec<Value>) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn audit(folder: &Folder, items: Vec<Value>, args: &[&str]) -> Done {
    folder.audit(SETTINGS, &items, args)
}

#[test]
fn audit_of_the_example_matches_golden_files() {
    struct Case {
        file: &'static str,
        example: [&'static str; 5],
        args: Vec<&'static str>,
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let one = |name: &'static str| vec!["--service", name];
    let rows = [
        Case { file: "audit.txt", example: EXAMPLE, args: vec![] },
        Case { file: "audit.json", example: EXAMPLE, args: vec!["-o", "json"] },
        Case { file: "audit-checkout.txt", example: EXAMPLE, args: one("shop/checkout") },
        Case { file: "audit-returns.txt", example: EXAMPLE, args: one("shop/returns") },
        Case { file: "audit-pricing.txt", example: EXAMPLE, args: one("shop/pricing") },
        Case { file: "audit-search.json", example: EXAMPLE, args: vec!["--service", "shop/search", "-o", "json"] },
        Case { file: "audit-dns.txt", example: EXAMPLE, args: one("kube-system/dns") },
        Case { file: "audit-nodes.txt", example: NODES, args: vec![] },
        Case { file: "audit-nodes.json", example: NODES, args: vec!["-o", "json"] },
        Case { file: "audit-external.txt", example: EXTERNAL, args: vec![] },
        Case { file: "audit-external.json", example: EXTERNAL, args: vec!["-o", "json"] },
        Case { file: "audit-orders.txt", example: EXTERNAL, args: one("shop/orders") },
    ];
    let mut wrong = Vec::new();
    for Case { file, example, args } in rows {
        let done = Folder::workspace().run(&[&example[..], &args].concat());
        let file = golden.join(file);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&file, &done.stdout).unwrap();
        }
        let expected = Done::ok(fs::read_to_string(&file).unwrap_or_default());
        if done != expected {
            wrong.push(format!("{}\n got {done:#?}\n expected {expected:#?}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each finding as its kind, its subject, its addresses and its message.
fn findings(done: &Done) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let line = |finding: &Value| {
        let addresses: Vec<String> = finding["addresses"].as_array().into_iter().flatten().map(text).collect();
        let [kind, pool, message] = ["kind", "pool", "message"].map(|key| text(&finding[key]));
        format!("{kind} | {} | {pool} | {message}", addresses.join(","))
    };
    done.json()["findings"].as_array().unwrap().iter().map(line).collect()
}

#[test]
fn service_findings() {
    struct Case {
        name: &'static str,
        service: Value,
        expected: Vec<String>,
    }
    let folder = Folder::new("audit-found");
    let unowned = json!({"metadata": {"annotations": {"clusterip-policy/os": "windows"}, "managedFields": null}});
    let deleted = json!({"metadata": {"annotations": {"clusterip-policy/os": "windows"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let exempt = json!({"metadata": {"namespace": "kube-system", "annotations": {"clusterip-policy/os": "windows"}}});
    let dual = json!({
        "metadata": {"annotations": {"clusterip-policy/os": "windows"}},
        "spec": {"clusterIPs": ["172.21.1.3", "fd00::5"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"},
    });
    let stub = json!({"metadata": {"annotations": null}, "spec": {"clusterIP": null, "type": "ExternalName", "externalName": "moving.invalid"}});
    let torn = json!({"metadata": {"annotations": {"clusterip-policy/moving": "{"}}});
    let windows = |verb: &str, address: &str| {
        format!(
            "Service shop/web: {address} {verb}, and it belongs to pool windows (172.21.1.0/29): kubernetes.io/os=windows \
             (annotation clusterip-policy/os)"
        )
    };
    let rows = [
        Case { name: "where it belongs", service: service("web", "172.21.1.3", on("windows")), expected: vec![] },
        Case {
            name: "in the reserved part of its pool",
            service: service("web", "172.21.1.1", by_hand("windows")),
            expected: vec![],
        },
        Case {
            name: "in another pool",
            service: service("web", "172.21.0.70", on("windows")),
            expected: vec![format!(
                "misplaced | 172.21.0.70 | windows | {}",
                windows("lies in pool linux (172.21.0.0/24)", "172.21.0.70")
            )],
        },
        Case {
            name: "in another pool, set by hand",
            service: service("web", "172.21.0.70", by_hand("windows")),
            expected: vec![format!(
                "by-hand | 172.21.0.70 | windows | {}",
                windows("lies in pool linux (172.21.0.0/24)", "172.21.0.70")
            )],
        },
        Case {
            name: "in another pool, without a known author",
            service: service("web", "172.21.0.70", unowned),
            expected: vec![format!(
                "misplaced | 172.21.0.70 | windows | {}",
                windows("lies in pool linux (172.21.0.0/24)", "172.21.0.70")
            )],
        },
        Case {
            name: "in no pool",
            service: service("web", "172.21.9.9", on("windows")),
            expected: vec![format!("no-pool | 172.21.9.9 | windows | {}", windows("lies in no pool", "172.21.9.9"))],
        },
        Case {
            name: "in no pool, set by hand",
            service: service("web", "172.21.9.9", by_hand("windows")),
            expected: vec![format!(
                "no-pool | 172.21.9.9 | windows | {}; the address was set by hand",
                windows("lies in no pool", "172.21.9.9")
            )],
        },
        Case {
            name: "in a pool other than the one that is assumed",
            service: service("web", "172.21.1.3", json!({})),
            expected: vec![],
        },
        Case {
            name: "without a pool, in one",
            service: service("web", "172.21.1.3", on("darwin")),
            expected: vec![
                "squatter | 172.21.1.3 | windows | Service shop/web: 172.21.1.3 lies in pool windows (172.21.1.0/29), \
                 and no \
                 pool is for it: kubernetes.io/os=darwin (annotation clusterip-policy/os)"
                    .to_owned(),
            ],
        },
        Case { name: "without a pool, in none", service: service("web", "172.21.9.9", on("darwin")), expected: vec![] },
        Case { name: "exempt", service: service("web", "172.21.0.70", exempt), expected: vec![] },
        Case { name: "being deleted", service: service("web", "172.21.0.70", deleted), expected: vec![] },
        Case { name: "headless", service: service("web", "None", on("windows")), expected: vec![] },
        Case {
            name: "in two families, of which its pool has one",
            service: service("web", "172.21.1.3", dual),
            expected: vec![
                "denied | 172.21.1.3,fd00::5 | windows | Service shop/web: it would be denied if it were created now: \
                 pool \
                 \"windows\" has no IPv6 range; chosen by kubernetes.io/os=windows (annotation clusterip-policy/os); \
                 add an \
                 IPv6 range to the pool, or set services.whenFull: unmanaged"
                    .to_owned(),
            ],
        },
        Case {
            name: "left by a move whose annotation is gone",
            service: service("web", "None", stub),
            expected: vec![
                "half-moved |  | - | Service shop/web: it looks as if a move has begun and has not ended".to_owned(),
            ],
        },
        Case {
            name: "with an annotation that is torn",
            service: service("web", "172.21.1.3", torn),
            expected: vec![
                "half-moved | 172.21.1.3 | - | Service shop/web: it looks as if a move has begun and has not ended"
                    .to_owned(),
            ],
        },
    ];
    for Case { name, service, expected } in rows {
        let done = audit(&folder, vec![cluster(), service], &["-o", "json"]);
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{name}");
        assert_eq!(findings(&done), expected, "{name}");
    }
}

#[test]
fn pool_findings() {
    struct Case {
        name: &'static str,
        items: Vec<Value>,
        expected: &'static [&'static str],
    }
    let folder = Folder::new("audit-pools");
    let kubernetes = |address: &str| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "kubernetes"}, "spec": {"clusterIP": address}});
    let full: Vec<Value> =
        (2..7).map(|last| service(&format!("s{last}"), &format!("172.21.1.{last}"), on("windows"))).collect();
    let room = full[1..].to_vec();
    let orphan = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "172.21.1.2"}});
    let filled = [&room[..], &[orphan]].concat();
    const FULL: &[&str] =
        &["full |  | windows | pool windows (172.21.1.0/29) is full: all 5 addresses are used, 1 more are reserved"];
    let other = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["172.21.1.0/24"]}});
    let rows = [
        Case { name: "nothing", items: vec![], expected: &[] },
        Case { name: "full", items: full, expected: FULL },
        Case { name: "one is free", items: room, expected: &[] },
        Case { name: "the last one has an IPAddress object without a Service", items: filled, expected: FULL },
        Case {
            name: "outside of the cluster's range",
            items: vec![other],
            expected: &["outside-ranges |  | linux | pool linux: 172.21.0.0/24 lies outside of the cluster's Service \
                 ranges \
               (172.21.1.0/24): the API server refuses its addresses"],
        },
        Case {
            name: "over default/kubernetes, in a cluster that does not tell its ranges",
            items: vec![kubernetes("172.21.0.60")],
            expected: &[
                "over-kubernetes | 172.21.0.60 | linux | pool linux: 172.21.0.60, the address of default/kubernetes, \
                 lies in \
               172.21.0.0/24 and is neither reserved nor excluded: while that Service is being created, another \
               Service could get it",
            ],
        },
        Case { name: "the same in the reserved part", items: vec![kubernetes("172.21.0.1")], expected: &[] },
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
                 refused by the \
                 API server",
                "unusable-range |  | windows | ServiceCIDR deleted (172.21.1.0/24) is being deleted: addresses of it \
                 are \
                 refused by the API server; pool windows (172.21.1.0/29) has addresses of it",
            ],
        },
    ];
    for Case { name, items, expected } in rows {
        let done = audit(&folder, items, &["-o", "json"]);
        // The settings give a warning for each pool in an unusable range.
        let warned = expected.iter().any(|line| line.starts_with("unusable-range |  | windows"));
        assert_eq!((done.status, !done.stderr.is_empty()), (0, warned), "{name}: {}", done.stderr);
        assert_eq!(findings(&done), expected, "{name}");
    }
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
    const FOUND: &str = "over-dns | 172.21.0.10 | all | pool all: 172.21.0.10, the tenth address of the Service range \
                         172.21.0.0/16, is neither reserved nor excluded, and nothing uses it yet: many installers give it \
                         to the cluster's DNS";
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
fn callers_of_a_misplaced_service_are_named_in_the_finding() {
    let folder = Folder::new("audit-called");
    let webhooks = json!([{"clientConfig": {"service": {"namespace": "shop", "name": "web"}}}]);
    let hook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                      "metadata": {"name": "web-hook"}, "webhooks": webhooks});
    let own = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.apps"}, "spec": {}});
    struct Row {
        name: &'static str,
        service: Value,
        more: Vec<Value>,
        called: bool,
        way_out: &'static str,
        notes: usize,
    }
    let by_option = "`clusterip move --called-by-control-plane NAMESPACE/NAME` moves it: the control plane can't call it for a moment";
    let rows = [
        Row {
            name: "called",
            service: service("web", "172.21.0.70", on("windows")),
            more: vec![hook.clone(), own.clone()],
            called: true,
            way_out: by_option,
            notes: 0,
        },
        Row {
            name: "called, in a snapshot without APIServices",
            service: service("web", "172.21.0.70", on("windows")),
            more: vec![hook.clone()],
            called: true,
            way_out: by_option,
            notes: 1,
        },
        Row {
            name: "another one is called",
            service: service("other", "172.21.0.70", on("windows")),
            more: vec![hook.clone(), own.clone()],
            called: false,
            way_out: "`clusterip move` moves it",
            notes: 0,
        },
        Row {
            name: "its address was set by hand",
            service: service("web", "172.21.0.70", by_hand("windows")),
            more: vec![hook],
            called: false,
            way_out: "nothing moves it: remove clusterIP from its manifest, or set an address of its pool, and create \
                      it again",
            notes: 0,
        },
    ];
    for row in rows {
        let items = [vec![cluster(), row.service], row.more].concat();
        let done = audit(&folder, items, &["-o", "json"]);
        let told: Value = serde_json::from_str(&done.stdout).unwrap();
        let message = told["findings"][0]["message"].as_str().unwrap();
        let called = message.ends_with("; it is called by ValidatingWebhookConfiguration web-hook");
        assert_eq!(called, row.called, "{}: {message}", row.name);
        assert_eq!(told["findings"][0]["wayOut"], row.way_out, "{}", row.name);
        assert_eq!(told["notes"].as_array().unwrap().len(), row.notes, "{}: {}", row.name, told["notes"]);
    }
}

#[test]
fn audit_fails_only_for_the_selected_findings() {
    struct Case {
        name: &'static str,
        items: Vec<Value>,
        args: &'static [&'static str],
        status: i32,
    }
    let folder = Folder::new("audit-fails");
    let misplaced = || vec![cluster(), service("web", "172.21.0.70", on("windows"))];
    let rows = [
        Case { name: "nothing is asked for", items: misplaced(), args: &[], status: 0 },
        Case { name: "its kind", items: misplaced(), args: &["--fail-on", "misplaced"], status: 1 },
        Case { name: "one of several", items: misplaced(), args: &["--fail-on", "full,misplaced"], status: 1 },
        Case { name: "others", items: misplaced(), args: &["--fail-on", "full,by-hand"], status: 0 },
        Case { name: "any", items: misplaced(), args: &["--fail-on", "any"], status: 1 },
        Case { name: "any, and there is none", items: vec![cluster()], args: &["--fail-on", "any"], status: 0 },
    ];
    for Case { name, items, args, status } in rows {
        assert_eq!(audit(&folder, items, args).status, status, "{name}");
    }
}

#[test]
fn same_cluster_in_any_format_gives_the_same_audit() {
    let folder = Folder::new("audit-forms");
    let items = vec![
        cluster(),
        service("web", "172.21.0.70", json!({"spec": {"selector": {"app": "web"}}})),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "web"}, "spec": {"template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"nodeSelector": {"kubernetes.io/os": "windows"}}}}}),
        // Fields that are not used may have any value.
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "shop", "name": "web", "labels": {"a": 5}}}),
    ];
    let expected = audit(&folder, items.clone(), &["-o", "json"]);
    assert_eq!(findings(&expected).len(), 1, "{expected:?}");
    let typeless = |item: &Value| {
        let mut item = item.clone();
        item.as_object_mut().unwrap().retain(|key, _| key != "apiVersion" && key != "kind");
        item
    };
    let typed = |kind: &str, item: &Value| {
        // The type after the items, as kubectl prints it.
        format!("{{\"items\": [{}], \"apiVersion\": {}, \"kind\": \"{kind}List\"}}", typeless(item), item["apiVersion"])
    };
    let mut reversed = items.clone();
    reversed.reverse();
    let lists = items.iter().map(|item| typed(item["kind"].as_str().unwrap(), item)).collect::<Vec<_>>();
    let rows = [
        ("documents", items.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n")),
        ("another order", list(reversed)),
        ("lists of one kind each", lists.join("\n---\n")),
        ("a list with an anchor", format!("items: &all {}\nkind: List\napiVersion: v1\n", Value::from(items.clone()))),
    ];
    for (name, text) in rows {
        folder.write("other.yaml", text);
        let done = folder.run(&["audit", "--snapshot", "other.yaml", "--settings", "settings.yaml", "-o", "json"]);
        assert_eq!(done, expected, "{name}");
    }
}

#[test]
fn bad_input_is_refused_with_its_position() {
    struct Case {
        name: &'static str,
        args: Vec<&'static str>,
        expected: &'static str,
    }
    let folder = Folder::new("audit-bad");
    folder
        .write("settings.yaml", SETTINGS)
        .write("good.json", list(vec![cluster()]))
        .write("torn.json", "{\"kind\": \"List\", \"items\": [")
        .write("other.yaml", "apiVersion: v1\nkind: List\nitems:\n- 5\n")
        .write("labels.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web, labels: {a: [5]}}\n")
        .write("pools.yaml", "services: {pools: [{name: a, cidrs: [10.0.0.0/33]}]}");
    let on = |snapshot: &'static str| vec!["audit", "--settings", "settings.yaml", "--snapshot", snapshot];
    let more = |args: &[&'static str]| [&on("good.json")[..], args].concat();
    let rows = [
        Case {
            name: "no such file",
            args: on("none.json"),
            expected: "error: snapshot: none.json: No such file or directory (os error 2)\n",
        },
        Case {
            name: "torn",
            args: on("torn.json"),
            expected: "error: snapshot: torn.json: document 1, line 2: while parsing a node",
        },
        Case {
            name: "no object",
            args: on("other.yaml"),
            expected: "error: snapshot: other.yaml: document 1, line 4: expected an object of Kubernetes, found a \
                       number\n",
        },
        Case {
            name: "labels that are none",
            args: on("labels.yaml"),
            expected: "error: snapshot: labels.yaml: document 1, line 1: ",
        },
        Case {
            name: "wrong settings",
            args: vec!["audit", "--snapshot", "good.json", "--settings", "pools.yaml"],
            expected: "error: settings: pools.yaml\nservices.pools[0].cidrs[0]: ",
        },
        Case {
            name: "no such Service",
            args: more(&["--service", "shop/web"]),
            expected: "error: there is no service shop/web\n",
        },
        Case {
            name: "no name of a Service",
            args: more(&["--service", "web"]),
            expected: "error: invalid value 'web' for '--service <NAMESPACE/NAME>': expected NAMESPACE/NAME, such as \
                       shop/web\n",
        },
        Case {
            name: "no kind",
            args: more(&["--fail-on", "sloppy"]),
            expected: "error: invalid value 'sloppy' for '--fail-on <KIND>'\n  \
                       [possible values: any, half-moved, misplaced, by-hand, no-pool, squatter, denied, mixed-nodes, \
                       full, outside-ranges, unusable-range, over-kubernetes, over-dns, lowest-order, shared-block, \
                       wrong-node-pool, outside-node-pool, withheld-block, no-block, full-node-pool, shared-external, \
                       refused-external, foreign-external, not-held, no-external, wrong-ingress, idle-claim, \
                       full-external-pool]\n",
        },
        Case {
            name: "two clusters",
            args: more(&["--kubeconfig", "x"]),
            expected: "error: the argument '--snapshot <FILE>' cannot be used with '--kubeconfig <FILE>'\n",
        },
    ];
    for Case { name, args, expected } in rows {
        let done = folder.run(&args);
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{name}: {}", done.stderr);
        assert!(done.stderr.starts_with(expected), "{name}: {}", done.stderr);
    }
}
