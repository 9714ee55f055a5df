//! Runs `clusterip audit` as a user does, on snapshots.
//!
//! The audit of the example is compared with the files in `golden`. After an intended change, `UPDATE_GOLDEN=1 cargo
//! test -p clusterip --test commands audit` writes them again: review the difference before you commit it.

use std::fs;
use std::path::Path;

use crate::audit_nodes::node;
use crate::command::external_snapshot::{A1, claim, has};
use crate::command::service_snapshot::{SETTINGS, audit, cluster, deployment, list, service};
use crate::command::{Done, Folder, check_fail_on, headless, service_cidr, service_manifest};
use serde_json::{Value, json};

const EXAMPLE: &str = "audit --snapshot examples/audit/snapshot.yaml --settings examples/settings/audit.yaml";

/// Nodes and their blocks, which `plan` shows too.
const NODES: &str = "audit --snapshot examples/nodes/nodes.yaml --settings examples/settings/nodes.yaml";

/// External addresses, with a `plan` of the same cluster.
const EXTERNAL: &str = "audit --snapshot examples/external/cluster.yaml --settings examples/settings/external.yaml";

/// Addresses that a pool keeps for single Services, with a `plan` of the same cluster.
const RESERVATIONS: &str =
    "audit --snapshot examples/reservations/cluster.yaml --settings examples/settings/reservations.yaml";

#[test]
fn audit_of_the_example_matches_golden_files() {
    struct Case {
        file: &'static str,
        example: &'static str,
        args: &'static str,
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let rows = [
        Case { file: "audit.txt", example: EXAMPLE, args: "-o table" },
        Case { file: "audit.json", example: EXAMPLE, args: "-o json" },
        Case { file: "audit-wide.txt", example: EXAMPLE, args: "-o wide" },
        Case { file: "audit-no-headers.txt", example: EXAMPLE, args: "-o wide --no-headers" },
        Case { file: "audit-name.txt", example: EXAMPLE, args: "-o name" },
        Case { file: "audit.junit.xml", example: EXAMPLE, args: "-o junit" },
        Case { file: "audit.md", example: EXAMPLE, args: "-o markdown" },
        Case { file: "audit-checkout.txt", example: EXAMPLE, args: "--service shop/checkout" },
        Case { file: "audit-returns.txt", example: EXAMPLE, args: "--service shop/returns" },
        Case { file: "audit-pricing.txt", example: EXAMPLE, args: "--service shop/pricing" },
        Case { file: "audit-search.json", example: EXAMPLE, args: "--service shop/search -o json" },
        Case { file: "audit-dns.txt", example: EXAMPLE, args: "--service kube-system/dns" },
        Case { file: "audit-nodes.txt", example: NODES, args: "-o table" },
        Case { file: "audit-nodes.json", example: NODES, args: "-o json" },
        Case { file: "audit-nodes-wide.txt", example: NODES, args: "-o wide" },
        Case { file: "audit-nodes.junit.xml", example: NODES, args: "-o junit" },
        Case { file: "audit-nodes.md", example: NODES, args: "-o markdown" },
        Case { file: "audit-external.txt", example: EXTERNAL, args: "-o table" },
        Case { file: "audit-external.junit.xml", example: EXTERNAL, args: "-o junit" },
        Case { file: "audit-external.md", example: EXTERNAL, args: "-o markdown" },
        Case { file: "audit-external.json", example: EXTERNAL, args: "-o json" },
        Case { file: "audit-reservations.txt", example: RESERVATIONS, args: "-o table" },
        Case { file: "audit-reservations.md", example: RESERVATIONS, args: "-o markdown" },
        Case { file: "audit-reservations.json", example: RESERVATIONS, args: "-o json" },
        Case { file: "audit-orders.txt", example: EXTERNAL, args: "--service shop/orders" },
    ];
    let mut wrong = Vec::new();
    for Case { file, example, args } in rows {
        let done = Folder::workspace().clusterip(&format!("{example} {args}"));
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

#[test]
fn audit_fails_only_for_the_selected_findings() {
    let workspace = Folder::workspace();
    for example in [EXAMPLE, NODES, EXTERNAL, RESERVATIONS] {
        let example: Vec<&str> = example.split(' ').collect();
        check_fail_on(|args| workspace.run(&[&example, args].concat()));
    }
    let folder = Folder::new("audit-fails");
    let none = vec![cluster(), headless()];
    let some = [
        none.clone(),
        vec![service_cidr("extra", "10.0.0.0/24", json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}))],
    ]
    .concat();
    struct Case {
        name: &'static str,
        items: Vec<Value>,
        fail_on: &'static str,
        status: i32,
    }
    let rows = [
        Case { name: "one of several", items: some.clone(), fail_on: "full,unusable-range", status: 1 },
        Case { name: "others", items: some.clone(), fail_on: "full,by-hand", status: 0 },
        Case { name: "any", items: some, fail_on: "any", status: 1 },
        Case { name: "any, and there is none", items: none, fail_on: "any", status: 0 },
    ];
    for Case { name, items, fail_on, status } in rows {
        assert_eq!(audit(&folder, items, &["--fail-on", fail_on]).status, status, "{name}");
    }
}

#[test]
fn order_and_lists_of_a_snapshot_change_nothing_in_an_audit() {
    let folder = Folder::new("audit-forms");
    let items = vec![
        cluster(),
        service("web", "172.21.0.70", json!({"spec": {"selector": {"app": "web"}}})),
        deployment(),
        // Fields that are not used may have any value.
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "shop", "name": "web", "labels": {"a": 5}}}),
    ];
    let expected = audit(&folder, items.clone(), &["-o", "json"]);
    assert_eq!(expected.findings().len(), 1, "{expected:?}");
    let missing = "the snapshot has no objects of the kinds StatefulSet, DaemonSet, ReplicaSet, ReplicationController, \
                   Job, CronJob, Pod, Namespace, Node, RuntimeClass: if the cluster has some, the evidence about nodes \
                   is incomplete; `clusterip snapshot` writes a snapshot of a cluster, with all kinds";
    assert!(expected.json()["notes"].as_array().unwrap().contains(&json!(missing)), "{expected:?}");
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
    let rows = [("another order", list(reversed)), ("lists of one kind each", lists.join("\n---\n"))];
    for (name, text) in rows {
        folder.write("other.yaml", text);
        let done = folder.clusterip("audit --snapshot other.yaml --settings settings.yaml -o json");
        assert_eq!(done, expected, "{name}");
    }
}

#[test]
fn no_output_about_nodes_and_external_addresses_without_pools_of_them() {
    let folder = Folder::new("audit-no-pools");
    let web = has("web", "10.0.9.10");
    let nodes =
        [node("a", "linux", &[]), node("b", "linux", &["172.21.0.0/24"]), node("c", "linux", &["172.21.0.0/24"])];
    let others = [has("twin", "10.0.9.10"), claim("10.0.9.10", A1)];
    let run = |items: &[Value], output: &str| {
        folder.write("snapshot.json", list(items.to_vec()));
        folder.clusterip(&format!("audit --snapshot snapshot.json -o {output}"))
    };
    // The map names the time of the audit.
    let undated = |done: Done| {
        let (before, after) = done.stdout.split_once(" · Audited: ").unwrap_or((done.stdout.as_str(), ""));
        let after = after.split_once(" UTC").map_or(after, |(_, after)| after);
        Done { stdout: format!("{before}{after}"), ..done.clone() }
    };
    for output in ["table", "wide", "name", "json", "html", "junit", "markdown"] {
        let one = run(&[web.clone(), node("d", "linux", &[])], output);
        assert_eq!(undated(run(&[&[web.clone()][..], &nodes].concat(), output)), undated(one.clone()), "-o {output}");
        for done in [one, run(&[&[web.clone()][..], &others].concat(), output)] {
            let is_told = ["\"nodes\"", "\"external\":", "EXTERNAL"].iter().any(|word| done.stdout.contains(word));
            assert!(done.status == 0 && !is_told, "-o {output}: {done:?}");
        }
    }
}

#[test]
fn bad_input_is_refused_with_its_position() {
    struct Case {
        args: &'static str,
        expected: &'static str,
    }
    let folder = Folder::new("audit-bad");
    folder
        .write("settings.yaml", SETTINGS)
        .write("good.json", list(vec![cluster(), headless()]))
        .write("empty.yaml", "# nothing\n")
        .write("deployment.json", list(vec![deployment()]))
        .write("manifests.yaml", service_manifest("web", "{}"))
        .write("other.yaml", "apiVersion: v1\nkind: List\nitems:\n- 5\n")
        .write("labels.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web, labels: {a: [5]}}\n");
    let rows = [
        Case {
            args: "--snapshot none.json",
            expected: "snapshot: none.json: No such file or directory (os error 2)\n",
        },
        Case {
            args: "--snapshot other.yaml",
            expected: "snapshot: other.yaml: document 1, line 4: expected a Kubernetes object, found a number\n",
        },
        Case { args: "--snapshot labels.yaml", expected: "snapshot: labels.yaml: document 1, line 1: " },
        Case {
            args: "--snapshot empty.yaml",
            expected: "snapshot: empty.yaml: no Kubernetes objects: `clusterip snapshot` writes a snapshot of a \
                       cluster\n",
        },
        Case {
            args: "--snapshot deployment.json",
            expected: "snapshot: deployment.json: no Services, but every cluster has some: `clusterip snapshot` writes \
                       a snapshot of a cluster\n",
        },
        Case {
            args: "--snapshot manifests.yaml",
            expected: "snapshot: manifests.yaml: no Service has an address, but those of a cluster have: \
                       `clusterip plan` takes manifests, and `clusterip snapshot` writes a snapshot of a cluster\n",
        },
        Case { args: "--snapshot good.json --service shop/web", expected: "there is no Service shop/web\n" },
        Case { args: "--snapshot good.json --service web -n shop", expected: "there is no Service shop/web\n" },
        Case {
            args: "--snapshot good.json --service shop/web -n bank",
            expected: "Service shop/web is not in namespace bank: remove --namespace\n",
        },
        Case {
            args: "--snapshot good.json --service web",
            expected: "--service web needs the namespace of the Service: --namespace NAMESPACE\n",
        },
    ];
    for Case { args, expected } in rows {
        let done = folder.clusterip(&format!("audit {args} --settings settings.yaml"));
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{args}: {}", done.stderr);
        assert!(done.stderr.starts_with(&format!("error: {expected}")), "{args}: {}", done.stderr);
    }
    // A plan reads its snapshot in the same way.
    let plan = folder.clusterip("plan good.json --settings settings.yaml --snapshot deployment.json");
    assert_eq!(plan, folder.clusterip("audit --settings settings.yaml --snapshot deployment.json"));
}
