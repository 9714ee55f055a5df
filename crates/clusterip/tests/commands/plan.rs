//! Runs `clusterip plan` as a user does, on the examples and on all other supported input.
//!
//! Whole plans are compared with the files in `golden`. After an intended change, `UPDATE_GOLDEN=1 cargo test -p
//! clusterip --test commands plan` writes them again: review the difference before you commit it.

use std::fs;
use std::path::Path;

use crate::command::{Done, Folder};
use serde_json::{Value, json};

/// An example of the documentation: its name, the arguments for `clusterip plan` and the exit status.
struct Example {
    name: &'static str,
    args: &'static [&'static str],
    status: i32,
}

const EXAMPLES: [Example; 9] = [
    Example { name: "shop", args: &["examples/shop", "--settings", "examples/settings/k2s.yaml"], status: 0 },
    Example { name: "teams", args: &["examples/teams", "--settings", "examples/settings/teams.yaml"], status: 0 },
    Example {
        name: "teams-denied",
        args: &["examples/teams-denied", "--settings", "examples/settings/teams.yaml"],
        status: 1,
    },
    Example {
        name: "dual-stack",
        args: &["examples/dual-stack", "--settings", "examples/settings/dual-stack.yaml"],
        status: 0,
    },
    Example {
        name: "dual-stack-denied",
        args: &["examples/dual-stack-denied", "--settings", "examples/settings/dual-stack.yaml"],
        status: 1,
    },
    Example {
        name: "static-band",
        args: &["examples/static-band", "--settings", "examples/settings/static-band.yaml"],
        status: 0,
    },
    Example { name: "nodes", args: &["examples/nodes", "--settings", "examples/settings/nodes.yaml"], status: 0 },
    Example {
        name: "external",
        args: &[
            "examples/external/services.yaml",
            "--settings",
            "examples/settings/external.yaml",
            "--snapshot",
            "examples/external/cluster.yaml",
        ],
        status: 0,
    },
    Example {
        name: "external-denied",
        args: &[
            "examples/external-denied",
            "--settings",
            "examples/settings/external.yaml",
            "--snapshot",
            "examples/external/cluster.yaml",
        ],
        status: 1,
    },
];

/// The output formats of a plan: the value of `--output`, and the extension of the golden file.
const OUTPUTS: [(&str, &str); 3] = [("table", "txt"), ("json", "json"), ("yaml", "yaml")];

fn plan<'a>(paths: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [&["plan"], paths, more].concat()
}

/// The addresses of each Service and the blocks of each Node by name, as `-o json` prints them.
fn addresses(plan: &Value) -> Vec<(String, Value)> {
    let of = |key: &str, given: &'static str| {
        let rows = plan[key].as_array().cloned().unwrap_or_default().into_iter();
        rows.map(move |row| (row["name"].as_str().unwrap().to_owned(), row[given].clone()))
    };
    of("services", "clusterIPs").chain(of("nodes", "podCIDRs")).collect()
}

fn service(name: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec: {spec}\n")
}

#[test]
fn plan_of_each_example_matches_golden_files() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut wrong = Vec::new();
    for Example { name, args, status } in EXAMPLES {
        for (output, end) in OUTPUTS {
            let done = Folder::workspace().run_with(&plan(args, &["-o", output]), "", &[("NO_COLOR", "1")]);
            let file = golden.join(format!("{name}.{end}"));
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                fs::write(&file, &done.stdout).unwrap();
            }
            let expected = Done { status, ..Done::ok(fs::read_to_string(&file).unwrap_or_default()) };
            if done != expected {
                wrong.push(format!("{name} -o {output}\n got {done:#?}\n expected {expected:#?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn filled_manifests_keep_their_addresses_when_planned_again() {
    for Example { name, args, status } in EXAMPLES.into_iter().filter(|example| example.status == 0) {
        let settings = &args[1..];
        let forecast = Folder::workspace().run(&plan(args, &["-o", "json"])).json();
        let filled = Folder::workspace().run(&plan(args, &["-o", "yaml"])).stdout;
        let again = Folder::workspace().run_with(&plan(&["-"], &[settings, &["-o", "json"]].concat()), &filled, &[]);
        assert_eq!(again.status, status, "{name}: {again:?}");
        assert_eq!(addresses(&again.json()), addresses(&forecast), "{name}");
        let twice = Folder::workspace().run_with(&plan(&["-"], &[settings, &["-o", "yaml"]].concat()), &filled, &[]);
        assert_eq!(twice.stdout, filled, "{name}: nothing is left to fill in");
    }
}

#[test]
fn default_settings_are_those_of_k2s() {
    let Example { args: with, .. } = EXAMPLES[0];
    for (output, _) in OUTPUTS {
        let workspace = Folder::workspace();
        assert_eq!(
            workspace.run(&plan(&["examples/shop"], &["-o", output])),
            workspace.run(&plan(with, &["-o", output])),
            "-o {output}"
        );
    }
}

#[test]
fn same_input_gives_the_same_bytes() {
    for Example { name, args, .. } in EXAMPLES {
        for (output, _) in OUTPUTS {
            let run = || Folder::workspace().run(&plan(args, &["-o", output]));
            assert_eq!(run(), run(), "{name} -o {output}");
        }
    }
}

#[test]
fn file_order_changes_rows_but_not_addresses() {
    let files = ["shop/storefront.yaml", "shop/checkout.yaml", "shop/invoices.yaml", "shop/cluster.yaml"];
    let paths = files.map(|file| format!("examples/{file}"));
    let run = |paths: &[&String]| {
        let paths: Vec<&str> = paths.iter().map(|path| path.as_str()).collect();
        let plan = Folder::workspace().run(&plan(&paths, &["-o", "json"])).json();
        let mut addresses = addresses(&plan);
        addresses.sort_by(|a, b| a.0.cmp(&b.0));
        addresses
    };
    let (forth, back) = (run(&paths.iter().collect::<Vec<_>>()), run(&paths.iter().rev().collect::<Vec<_>>()));
    assert_eq!(forth.len(), 3);
    assert_eq!(forth, back);
}

/// A manifest in every format; each must give the same plan.
#[test]
fn manifests_are_read_in_every_format() {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"nodeSelector": {"kubernetes.io/os": "windows"}},
        }},
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}},
    });
    let typeless = |object: &Value| {
        let mut object = object.clone();
        object.as_object_mut().unwrap().retain(|key, _| key != "apiVersion" && key != "kind");
        object
    };
    let list = |items: &[&Value]| json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let typed = |api_version: &str, kind: &str, item: Value| {
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"resourceVersion": "7"}, "items": [item]})
            .to_string()
    };
    let block = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n  selector:\n    app: web\n";
    let rows: [(&str, Vec<(&str, String)>); 9] = [
        ("a file each", vec![("in/a.yaml", block.to_owned()), ("in/b.json", deployment.to_string())]),
        ("JSON", vec![("in/a.json", service.to_string()), ("in/b.json", format!("{deployment:#}"))]),
        ("several documents", vec![("in/all.yml", format!("{block}---\n{deployment}\n---\n# nothing\n---\n"))]),
        ("a List", vec![("in/all.json", list(&[&service, &deployment]))]),
        (
            "a List in YAML",
            vec![("in/all.yaml", format!("apiVersion: v1\nkind: List\nitems:\n- {service}\n- {deployment}\n"))],
        ),
        (
            "typed lists, whose items have no type",
            vec![
                ("in/a.json", typed("v1", "ServiceList", typeless(&service))),
                ("in/b.json", typed("apps/v1", "DeploymentList", typeless(&deployment))),
            ],
        ),
        (
            "a list of lists",
            vec![(
                "in/all.json",
                list(&[
                    &serde_json::from_str(&list(&[&service])).unwrap(),
                    &serde_json::from_str(&typed("apps/v1", "DeploymentList", deployment.clone())).unwrap(),
                ]),
            )],
        ),
        ("folders in folders", vec![("in/x/y/a.yaml", block.to_owned()), ("in/z/b.yaml", deployment.to_string())]),
        (
            "files beside them that are none",
            vec![
                ("in/a.yaml", format!("{block}---\n{deployment}\n")),
                ("in/README.md", "{{{".to_owned()),
                ("in/.hidden.yaml", "{{{".to_owned()),
                ("in/.git/config.yaml", "{{{".to_owned()),
            ],
        ),
    ];
    let expected = Done::ok(
        "\
NAMESPACE  SERVICE  POOL     CLUSTER-IP    EVIDENCE
default    web      windows  172.21.1.173  os=windows (Deployment default/web)

1 Service: 1 allocated, 0 left, 0 denied; windows 1 of 205 used; linux 0 of 205 used
",
    );
    for (name, files) in rows {
        let folder = Folder::new("forms");
        for (file, text) in &files {
            folder.write(file, text);
        }
        assert_eq!(folder.run(&["plan", "in"]), expected, "{name}: a folder");
        if name != "files beside them that are none" {
            let paths: Vec<&str> = files.iter().map(|(file, _)| *file).collect();
            assert_eq!(folder.run(&plan(&paths, &[])), expected, "{name}: files");
        }
        if let [(_, text)] = &files[..] {
            assert_eq!(folder.run_with(&["plan", "-"], text, &[]), expected, "{name}: standard input");
        }
    }
}

#[test]
fn objects_without_namespace_get_the_given_one() {
    let own = "apiVersion: v1\nkind: Service\nmetadata: {name: own, namespace: there}\nspec: {}\n";
    let input = format!("{}---\n{own}", service("web", "{}"));
    let rows = [
        (&["plan", "-"][..], ["default", "there"]),
        (&["plan", "-", "-n", "here"], ["here", "there"]),
        (&["plan", "--namespace=here", "-"], ["here", "there"]),
    ];
    for (args, expected) in rows {
        let plan = Folder::new("namespaces").run_with(&[args, &["-o", "json"]].concat(), &input, &[]).json();
        assert_eq!(json!(expected), json!([plan["services"][0]["namespace"], plan["services"][1]["namespace"]]));
    }
    let filled = Folder::new("namespaces").run_with(&["plan", "-", "-n", "here", "-o", "yaml"], &input, &[]);
    assert!(!filled.stdout.contains("namespace: here"), "the manifests stay as they are: {}", filled.stdout);
}

#[test]
fn service_of_the_snapshot_keeps_its_address() {
    let web = Folder::new("snapshot-alone").run_with(&["plan", "-", "-o", "json"], &service("web", "{}"), &[]).json();
    let first_choice = web["services"][0]["clusterIPs"][0].as_str().unwrap().to_owned();
    let snapshot = json!({"apiVersion": "v1", "kind": "List", "items": [
        // It has the address that web would get.
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "squatter", "namespace": "other"},
         "spec": {"clusterIP": first_choice, "clusterIPs": [first_choice]}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": "default"},
         "spec": {"clusterIP": "172.21.0.7", "clusterIPs": ["172.21.0.7"], "selector": {"app": "old"}}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
         "spec": {"template": {"metadata": {"labels": {"app": "web"}},
                               "spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}}},
    ]});
    let input = service("web", "{selector: {app: web}}") + "---\n" + &service("db", "{selector: {app: db}}");
    let folder = Folder::new("snapshot");
    folder.write("snapshot.json", snapshot.to_string()).write("in.yaml", &input);
    let done = folder.run(&["plan", "in.yaml", "--snapshot", "snapshot.json"]);
    let expected = "\
NAMESPACE  SERVICE  POOL   CLUSTER-IP    EVIDENCE
default    web      linux  172.21.0.204  os=linux (Deployment default/web)
default    db       -      172.21.0.7    left: no new address

2 Services: 1 allocated, 1 left, 0 denied; windows 0 of 205 used; linux 2 of 205 used
";
    assert_eq!(done, Done::ok(expected));
    let filled = folder.run(&["plan", "in.yaml", "--snapshot", "snapshot.json", "-o", "yaml"]);
    let wanted = service("web", r#"{"clusterIP": "172.21.0.204", selector: {app: web}}"#)
        + "---\n"
        + &service("db", "{selector: {app: db}}");
    assert_eq!(filled, Done::ok(wanted));
}

#[test]
fn service_in_two_files_is_created_once_and_then_updated() {
    let folder = Folder::new("duplicate");
    folder.write("a.yaml", service("web", "{ports: [{port: 80}]}"));
    folder.write("b.yaml", format!("# again\n---\n{}", service("web", "{ports: [{port: 443}]}")));
    let expected = "\
NAMESPACE  SERVICE  POOL   CLUSTER-IP    EVIDENCE
default    web      linux  172.21.0.173  os=linux (assumption)
default    web      -      172.21.0.173  left: no new address
  warning: the same Service as in a.yaml: document 1, line 1

2 Services: 1 allocated, 1 left, 0 denied; windows 0 of 205 used; linux 1 of 205 used
";
    assert_eq!(folder.run(&["plan", "a.yaml", "b.yaml"]), Done::ok(expected));
}

#[test]
fn services_with_generated_names_get_different_addresses() {
    let one = "apiVersion: v1\nkind: Service\nmetadata: {generateName: worker-}\nspec: {}\n";
    let folder = Folder::new("generated");
    let done = folder.run_with(&["plan", "-"], &format!("{one}---\n{one}"), &[]);
    let expected = "\
NAMESPACE  SERVICE   POOL   CLUSTER-IP    EVIDENCE
default    worker-…  linux  172.21.0.155  os=linux (assumption)
default    worker-…  linux  172.21.0.94   os=linux (assumption)

2 Services: 2 allocated, 0 left, 0 denied; windows 0 of 205 used; linux 2 of 205 used
";
    assert_eq!(done, Done::ok(expected));
}

#[test]
fn unused_dns_address_in_a_pool_gives_a_warning() {
    struct Case {
        name: &'static str,
        settings: String,
        manifest: String,
        snapshot: String,
        warning: &'static str,
    }
    const SETTINGS: &str =
        "services: {order: lowest, serviceCIDRs: [10.96.0.0/16], pools: [{name: all, cidrs: [10.96.0.0/24]}]}\n";
    const WARNING: &str = "warning: services.pools[0]: pool \"all\" may hand out 10.96.0.10, the tenth address of the \
                           Service range 10.96.0.0/16: many installers give it to the cluster's DNS; exclude it from the \
                           pool, or reserve it\n";
    let dns = service("dns", "{clusterIP: 10.96.0.10}");
    let rows = [
        Case {
            name: "free",
            settings: SETTINGS.to_owned(),
            manifest: String::new(),
            snapshot: String::new(),
            warning: WARNING,
        },
        Case {
            name: "a manifest has it",
            settings: SETTINGS.to_owned(),
            manifest: dns.clone(),
            snapshot: String::new(),
            warning: "",
        },
        Case {
            name: "a Service of the snapshot has it",
            settings: SETTINGS.to_owned(),
            manifest: String::new(),
            snapshot: dns,
            warning: "",
        },
        Case {
            name: "reserved",
            settings: SETTINGS.replace("all,", "all, reserved: 11,"),
            manifest: String::new(),
            snapshot: String::new(),
            warning: "",
        },
        Case {
            name: "the range is not known",
            settings: SETTINGS.replace("[10.96.0.0/16]", "[]"),
            manifest: String::new(),
            snapshot: String::new(),
            warning: "",
        },
    ];
    for Case { name, settings, manifest, snapshot, warning } in rows {
        let folder = Folder::new("plan-dns");
        let input = service("web", "{}") + "---\n" + &manifest;
        folder.write("settings.yaml", settings).write("in.yaml", input).write("snapshot.yaml", snapshot);
        let done = folder.run(&["plan", "in.yaml", "--settings", "settings.yaml", "--snapshot", "snapshot.yaml"]);
        assert_eq!((done.status, done.stderr.as_str()), (0, warning), "{name}");
    }
}

#[test]
fn no_address_of_a_service_cidr_being_deleted_is_planned() {
    let folder = Folder::new("plan-deleted-range");
    let team = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: team, deletionTimestamp: \
                2026-01-02T03:04:05Z}\nspec: {cidrs: [10.2.0.0/16]}\n";
    let kubernetes = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\nspec: {cidrs: [10.1.0.0/16]}\n";
    folder
        .write("one.yaml", "services: {order: lowest, pools: [{name: all, cidrs: [10.2.0.0/24]}]}\n")
        .write("two.yaml", "services: {order: lowest, pools: [{name: all, cidrs: [10.2.0.0/24, 10.1.1.0/24]}]}\n")
        .write("in.yaml", service("web", "{}"))
        .write("snapshot.yaml", format!("{team}---\n{kubernetes}"));
    let plan = |settings: &str| folder.run(&["plan", "in.yaml", "--settings", settings, "--snapshot", "snapshot.yaml"]);
    let refused = "ServiceCIDR team (10.2.0.0/16) is being deleted: addresses of it are refused by the API server";
    let warning = |settings: &str| {
        format!(
            "warning: {settings}: services.pools[0].cidrs[0]: {refused}, and pool \"all\" assigns none of them meanwhile\n"
        )
    };
    let (one, two) = (plan("one.yaml"), plan("two.yaml"));
    assert!(one.stdout.contains(&format!("pool \"all\" (10.2.0.0/24) has no usable address: {refused}")), "{one:?}");
    assert_eq!((one.status, one.stderr), (1, warning("one.yaml")));
    assert!(two.stdout.contains(" 10.1.1.1 "), "{two:?}");
    assert_eq!((two.status, two.stderr), (0, warning("two.yaml")));
}

#[test]
fn service_ranges_are_read_from_service_cidrs() {
    struct Case<'a> {
        name: &'static str,
        objects: &'a str,
        expected: Done,
    }
    const SETTINGS: &str = "services: {order: lowest, pools: [{name: all, cidrs: [10.0.0.0/29]}]}\n";
    let cidr = |name: &str, cidrs: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {{name: {name}}}\nspec: {{cidrs: [{cidrs}]}}\n"
        )
    };
    let input = service("web", "{}");
    let outside = Done::refused(
        "settings: settings.yaml\n\
         services.pools[0].cidrs[0]: 10.0.0.0/29 lies outside serviceCIDRs (10.1.0.0/24): the API server would refuse its addresses",
    );
    let at = |address: &str| {
        let line = "1 Service: 1 allocated, 0 left, 0 denied; all 1 of";
        let usable = if address == "10.0.0.1" { 6 } else { 5 };
        Done::ok(format!(
            "NAMESPACE  SERVICE  POOL  CLUSTER-IP  EVIDENCE\ndefault    web      all   {address}    default\n\n{line} {usable} used\n"
        ))
    };
    let rows = [
        Case { name: "nothing is known", objects: "", expected: at("10.0.0.1") },
        Case {
            name: "the first address is that of default/kubernetes",
            objects: &cidr("kubernetes", "10.0.0.0/24"),
            expected: at("10.0.0.2"),
        },
        Case {
            name: "the range of the API server's flag comes first, whatever its place",
            objects: &(cidr("extra", "10.1.0.0/24") + "---\n" + &cidr("kubernetes", "10.0.0.0/24")),
            expected: at("10.0.0.2"),
        },
        Case {
            name: "a second range has no such address",
            objects: &(cidr("kubernetes", "10.1.0.0/24") + "---\n" + &cidr("extra", "10.0.0.0/24")),
            expected: at("10.0.0.1"),
        },
        Case { name: "a pool outside is a mistake", objects: &cidr("kubernetes", "10.1.0.0/24"), expected: outside },
    ];
    for Case { name, objects, expected } in rows {
        let folder = Folder::new("service-cidrs");
        folder.write("settings.yaml", SETTINGS).write("in.yaml", &input).write("objects.yaml", objects);
        let among = folder.run(&["plan", "in.yaml", "objects.yaml", "-s", "settings.yaml"]);
        assert_eq!(among, expected, "{name}: among the manifests");
        let snapshot = folder.run(&["plan", "in.yaml", "--snapshot", "objects.yaml", "-s", "settings.yaml"]);
        assert_eq!(snapshot, expected, "{name}: in the snapshot");
    }
    let written = SETTINGS.replace("order", "serviceCIDRs: [10.0.0.0/16], order");
    let folder = Folder::new("service-cidrs");
    folder.write("settings.yaml", written).write("in.yaml", input + "---\n" + &cidr("kubernetes", "10.1.0.0/24"));
    let done = folder.run(&["plan", "in.yaml", "-s", "settings.yaml"]);
    assert_eq!(done, at("10.0.0.2"), "what the settings say goes first");
}

#[test]
fn workload_of_a_removed_api_gives_a_warning_and_no_evidence() {
    let deployment = "apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  template:\n    \
                      metadata: {labels: {app: web}}\n    spec: {nodeSelector: {kubernetes.io/os: windows}}\n";
    let folder = Folder::new("retired");
    folder.write("in.yaml", service("web", "{selector: {app: web}}") + "---\n" + deployment);
    let expected = Done {
        status: 0,
        stdout: "\
NAMESPACE  SERVICE  POOL   CLUSTER-IP    EVIDENCE
default    web      linux  172.21.0.173  os=linux (assumption)

1 Service: 1 allocated, 0 left, 0 denied; windows 0 of 205 used; linux 1 of 205 used
"
        .to_owned(),
        stderr: "warning: in.yaml: document 2, line 7: Deployment default/web is not used as evidence: Kubernetes no \
                 longer serves extensions/v1beta1, but apps/v1\n"
            .to_owned(),
    };
    assert_eq!(folder.run(&["plan", "in.yaml"]), expected);
}

#[test]
fn address_outside_of_pools_and_folder_without_services_are_accepted() {
    struct Case {
        input: String,
        row: &'static str,
        totals: &'static str,
    }
    let rows = [
        Case {
            input: service("web", "{clusterIP: 10.0.0.9}"),
            row: "default    web      -     10.0.0.9    left: set by hand\n",
            totals: "1 Service: 0 allocated, 1 left, 0 denied",
        },
        Case { input: "# nothing\n".to_owned(), row: "", totals: "0 Services: 0 allocated, 0 left, 0 denied" },
    ];
    for Case { input, row, totals } in rows {
        let done = Folder::new("no-pool").run_with(&["plan", "-"], &input, &[]);
        let pools = "windows 0 of 205 used; linux 0 of 205 used";
        assert_eq!(
            done,
            Done::ok(format!("NAMESPACE  SERVICE  POOL  CLUSTER-IP  EVIDENCE\n{row}\n{totals}; {pools}\n"))
        );
    }
}

#[test]
fn large_pool_is_counted_in_powers_of_two() {
    let settings = r#"services: {pools: [{name: wide, cidrs: ["fd00::/64"]}], serviceCIDRs: ["fd00::/64"]}"#;
    let folder = Folder::new("wide");
    folder.write("settings.yaml", settings);
    let done = folder.run_with(&["plan", "-", "-s", "settings.yaml"], &service("web", "{}"), &[]);
    let totals = done.stdout.lines().last().unwrap();
    assert_eq!(totals, "1 Service: 1 allocated, 0 left, 0 denied; wide IPv6 1 of 2^64 used", "{done:?}");
}

#[test]
fn names_from_manifests_can_not_control_the_terminal() {
    struct Case {
        name: &'static str,
        input: String,
        status: i32,
    }
    // ESC, a C1 control character, a character that changes the direction of reading, a bell, and a line end.
    let evil = "\\u001b[31mred\\u009b2J\\u202egnp.exe\\u0007\\nx";
    let object = |kind: &str, spec: &str| {
        format!(
            r#"{{"apiVersion": "v1", "kind": "{kind}", "metadata": {{"name": "{evil}", "namespace": "{evil}"}}, "spec": {spec}}}"#
        )
    };
    let pod = object("Pod", r#"{"nodeSelector": {"kubernetes.io/os": "linux"}}"#).replacen(
        "metadata\": {",
        "metadata\": {\"labels\": {\"a\": \"b\"}, ",
        1,
    );
    let twice = object("Service", r#"{"selector": {"a": "b"}}"#);
    let cases = [
        Case { name: "names, evidence and warnings", input: format!("{twice}\n---\n{twice}\n---\n{pod}\n"), status: 0 },
        Case { name: "a kind", input: format!(r#"{{"apiVersion": "v1", "kind": "{evil}"}}"#), status: 2 },
        Case { name: "a key", input: format!(r#"{{"{evil}": 1, "{evil}": 2}}"#), status: 2 },
        Case {
            name: "an API that is gone",
            input: object("Deployment", "{}").replace(r#""v1""#, r#""apps/v1beta1""#),
            status: 0,
        },
    ];
    for Case { name, input, status } in cases {
        let done = Folder::new("controls").run_with(&["plan", "-"], &input, &[]);
        assert_eq!(done.status, status, "{name}: {done:?}");
        let shown = done.stdout + &done.stderr;
        assert!(shown.contains(r"\u{1b}[31mred\u{9b}2J\u{202e}gnp.exe\u{7}\nx"), "{name}: {shown}");
        let steering = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!shown.contains(steering), "{name}: {shown:?}");
    }
}

#[test]
fn colours_are_used_only_where_wanted() {
    let input = service("web", "{}");
    let run =
        |environment: &[(&str, &str)]| Folder::new("colours").run_with(&["plan", "-"], &input, environment).stdout;
    let plain = run(&[]);
    assert!(!plain.contains('\u{1b}'), "no terminal: {plain:?}");
    let coloured = run(&[("CLICOLOR_FORCE", "1")]);
    assert!(coloured.contains("\u{1b}[32m172.21.0.173\u{1b}[0m"), "{coloured:?}");
    assert_eq!(without_colours(&coloured), plain, "colours change no column");
    for environment in [&[("NO_COLOR", "1")][..], &[("CLICOLOR", "0")], &[("NO_COLOR", "1"), ("CLICOLOR", "1")]] {
        assert_eq!(run(environment), plain, "{environment:?}");
    }
    for output in ["json", "yaml"] {
        let forced = [("CLICOLOR_FORCE", "1")];
        let done = Folder::new("colours").run_with(&["plan", "-", "-o", output], &input, &forced);
        assert!(!done.stdout.contains('\u{1b}'), "-o {output}: {done:?}");
    }
}

fn without_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').expect("a whole sequence").1)
}

#[test]
fn completions_and_the_manual_name_the_command_and_its_options() {
    let rows: [(&[&str], &[&str]); 4] = [
        (&["completions", "bash"], &["_clusterip()", "plan", "--settings", "--snapshot", "complete -F"]),
        (&["completions", "zsh"], &["#compdef clusterip", "plan", "--settings", "--snapshot"]),
        (&["completions", "fish"], &["complete -c clusterip", "plan", "-l settings", "-l snapshot"]),
        (&["man"], &[".TH clusterip", "clusterip\\-plan", "\\-\\-settings", "Exit status"]),
    ];
    for (args, expected) in rows {
        let done = Folder::workspace().run(args);
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{args:?}");
        for part in expected {
            assert!(done.stdout.contains(part), "{args:?}: no {part:?} in\n{}", done.stdout);
        }
    }
}
