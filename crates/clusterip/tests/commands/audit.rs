//! Runs `clusterip audit` as a user does, on snapshots.
//!
//! The audit of the example is compared with the files in `golden`. After an intended change, `UPDATE_GOLDEN=1 cargo
//! test -p clusterip --test commands audit` writes them again: review the difference before you commit it.

use std::fs;
use std::path::Path;

use crate::command::service_snapshot::{SETTINGS, audit, cluster, findings, list, on, service};
use crate::command::{Done, Folder, headless, service_manifest};
use serde_json::{Value, json};

const EXAMPLE: [&str; 5] =
    ["audit", "--snapshot", "examples/audit/snapshot.yaml", "--settings", "examples/settings/audit.yaml"];

/// Nodes and their blocks, which `plan` shows too.
const NODES: [&str; 5] =
    ["audit", "--snapshot", "examples/nodes/nodes.yaml", "--settings", "examples/settings/nodes.yaml"];

/// External addresses, with a `plan` of the same cluster.
const EXTERNAL: [&str; 5] =
    ["audit", "--snapshot", "examples/external/cluster.yaml", "--settings", "examples/settings/external.yaml"];

/// Addresses that a pool keeps for single Services, with a `plan` of the same cluster.
const RESERVATIONS: [&str; 5] =
    ["audit", "--snapshot", "examples/reservations/cluster.yaml", "--settings", "examples/settings/reservations.yaml"];

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
        Case { file: "audit-wide.txt", example: EXAMPLE, args: vec!["-o", "wide"] },
        Case { file: "audit-no-headers.txt", example: EXAMPLE, args: vec!["-o", "wide", "--no-headers"] },
        Case { file: "audit-name.txt", example: EXAMPLE, args: vec!["-o", "name"] },
        Case { file: "audit.junit.xml", example: EXAMPLE, args: vec!["-o", "junit"] },
        Case { file: "audit.md", example: EXAMPLE, args: vec!["-o", "markdown"] },
        Case { file: "audit-checkout.txt", example: EXAMPLE, args: one("shop/checkout") },
        Case { file: "audit-returns.txt", example: EXAMPLE, args: one("shop/returns") },
        Case { file: "audit-pricing.txt", example: EXAMPLE, args: one("shop/pricing") },
        Case { file: "audit-search.json", example: EXAMPLE, args: vec!["--service", "shop/search", "-o", "json"] },
        Case { file: "audit-dns.txt", example: EXAMPLE, args: one("kube-system/dns") },
        Case { file: "audit-nodes.txt", example: NODES, args: vec![] },
        Case { file: "audit-nodes.json", example: NODES, args: vec!["-o", "json"] },
        Case { file: "audit-nodes-wide.txt", example: NODES, args: vec!["-o", "wide"] },
        Case { file: "audit-nodes.junit.xml", example: NODES, args: vec!["-o", "junit"] },
        Case { file: "audit-nodes.md", example: NODES, args: vec!["-o", "markdown"] },
        Case { file: "audit-external.txt", example: EXTERNAL, args: vec![] },
        Case { file: "audit-external.junit.xml", example: EXTERNAL, args: vec!["-o", "junit"] },
        Case { file: "audit-external.md", example: EXTERNAL, args: vec!["-o", "markdown"] },
        Case { file: "audit-external.json", example: EXTERNAL, args: vec!["-o", "json"] },
        Case { file: "audit-reservations.txt", example: RESERVATIONS, args: vec![] },
        Case { file: "audit-reservations.md", example: RESERVATIONS, args: vec!["-o", "markdown"] },
        Case { file: "audit-reservations.json", example: RESERVATIONS, args: vec!["-o", "json"] },
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

/// The Deployment `shop/web`, for Windows.
fn deployment() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "web"}, "spec": {"template": {
        "metadata": {"labels": {"app": "web"}}, "spec": {"nodeSelector": {"kubernetes.io/os": "windows"}}}}})
}

#[test]
fn missing_kinds_of_evidence_are_noted() {
    let folder = Folder::new("audit-missing-kinds");
    let notes = |done: &Done| done.json()["notes"].as_array().unwrap().clone();
    let done = audit(&folder, vec![cluster(), service("web", "172.21.0.70", json!({})), deployment()], &["-o", "json"]);
    let missing = "the snapshot has no objects of the kinds StatefulSet, DaemonSet, ReplicaSet, ReplicationController, \
                   Job, CronJob, Pod, Namespace, Node, RuntimeClass: if the cluster has some, the evidence about nodes is \
                   incomplete; `clusterip snapshot` writes a snapshot of a cluster, with all kinds";
    assert!(notes(&done).contains(&json!(missing)), "{done:?}");
}

#[test]
fn only_a_cluster_can_be_watched_and_only_as_tables_or_lines() {
    struct Case {
        args: &'static [&'static str],
        /// Parts of the message.
        parts: &'static [&'static str],
    }
    let cases = [
        Case {
            args: &["--snapshot", "examples/audit/snapshot.yaml"],
            parts: &["'--watch'", "cannot be used with", "'--snapshot <FILE>'"],
        },
        Case {
            args: &["--service", "shop/web"],
            parts: &["'--watch'", "cannot be used with", "'--service <NAMESPACE/NAME>'"],
        },
        Case {
            args: &["-o", "html"],
            parts: &["error: --watch can't be printed as html: use -o table, wide, name or json\n"],
        },
    ];
    for Case { args, parts } in cases {
        let done = Folder::workspace().run(&[&["audit", "-w"][..], args].concat());
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{args:?}");
        for part in parts {
            assert!(done.stderr.contains(part), "{args:?}: no {part:?} in {}", done.stderr);
        }
    }
}

#[test]
fn commands_in_the_help_survive_copy_and_paste() {
    for command in ["audit", "snapshot"] {
        let help = Folder::workspace().run(&[command, "--help"]).stdout;
        let examples = help.split("\nExamples:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
        let commands: Vec<&str> = examples.lines().filter_map(|line| line.strip_prefix("    ")).collect();
        assert!(commands.len() > 2, "{command}: {help}");
        for line in examples.lines() {
            assert!(line.starts_with("  ") && line.chars().count() <= 80, "{command}: a wrapped line: {line}");
        }
        for example in commands {
            assert!(example.starts_with("clusterip ") && !example.ends_with('\\'), "{command}: {example}");
        }
    }
}

#[test]
fn same_cluster_in_any_format_gives_the_same_audit() {
    let folder = Folder::new("audit-forms");
    let items = vec![
        cluster(),
        service("web", "172.21.0.70", json!({"spec": {"selector": {"app": "web"}}})),
        deployment(),
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
        ("JSON objects", items.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
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
        .write("good.json", list(vec![cluster(), headless()]))
        .write("empty.yaml", "# nothing\n")
        .write("empty.json", list(vec![]))
        .write("deployment.json", list(vec![deployment()]))
        .write("manifests.yaml", service_manifest("web", "{}"))
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
            expected: "error: snapshot: other.yaml: document 1, line 4: expected a Kubernetes object, found a \
                       number\n",
        },
        Case {
            name: "labels that are none",
            args: on("labels.yaml"),
            expected: "error: snapshot: labels.yaml: document 1, line 1: ",
        },
        Case {
            name: "nothing",
            args: on("empty.yaml"),
            expected: "error: snapshot: empty.yaml: no Kubernetes objects: `clusterip snapshot` writes a snapshot of a \
                       cluster\n",
        },
        Case {
            name: "an empty list",
            args: on("empty.json"),
            expected: "error: snapshot: empty.json: no Kubernetes objects: `clusterip snapshot` writes a snapshot of a \
                       cluster\n",
        },
        Case {
            name: "manifests without Services",
            args: on("deployment.json"),
            expected: "error: snapshot: deployment.json: no Services, but every cluster has some: `clusterip snapshot` \
                       writes a snapshot of a cluster\n",
        },
        Case {
            name: "manifests of Services",
            args: on("manifests.yaml"),
            expected: "error: snapshot: manifests.yaml: no Service has an address, but those of a cluster have: \
                       `clusterip plan` takes manifests, and `clusterip snapshot` writes a snapshot of a cluster\n",
        },
        Case {
            name: "a plan with a snapshot without Services",
            args: vec!["plan", "good.json", "--settings", "settings.yaml", "--snapshot", "deployment.json"],
            expected: "error: snapshot: deployment.json: no Services, but every cluster has some: `clusterip snapshot` \
                       writes a snapshot of a cluster\n",
        },
        Case {
            name: "a plan with an empty snapshot",
            args: vec!["plan", "good.json", "--settings", "settings.yaml", "--snapshot", "empty.yaml"],
            expected: "error: snapshot: empty.yaml: no Kubernetes objects: `clusterip snapshot` writes a snapshot of a \
                       cluster\n",
        },
        Case {
            name: "wrong settings",
            args: vec!["audit", "--snapshot", "good.json", "--settings", "pools.yaml"],
            expected: "error: settings: pools.yaml: services.pools[0].cidrs[0]: ",
        },
        Case {
            name: "no such Service",
            args: more(&["--service", "shop/web"]),
            expected: "error: there is no Service shop/web\n",
        },
        Case {
            name: "a name in a namespace",
            args: more(&["--service", "web", "-n", "shop"]),
            expected: "error: there is no Service shop/web\n",
        },
        Case {
            name: "another namespace",
            args: more(&["--service", "shop/web", "-n", "bank"]),
            expected: "error: Service shop/web is not in namespace bank: remove --namespace\n",
        },
        Case {
            name: "no namespace of a Service",
            args: more(&["--service", "web"]),
            expected: "error: --service web needs the namespace of the Service: --namespace NAMESPACE\n",
        },
        Case {
            name: "no kind",
            args: more(&["--fail-on", "sloppy"]),
            expected: "error: invalid value 'sloppy' for '--fail-on <KIND>'\n  \
                       [possible values: any, half-moved, misplaced, by-hand, no-pool, unmatched, denied, mixed-nodes, \
                       not-ready, full, outside-ranges, unusable-range, over-kubernetes, over-dns, lowest-order, \
                       other-webhook, shared-block, wrong-node-pool, outside-node-pool, withheld-block, no-block, \
                       full-node-pool, shared-external, refused-external, foreign-external, not-held, no-external, wrong-ingress, \
                       idle-claim, full-external-pool]\n",
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
