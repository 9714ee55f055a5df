//! Runs `clusterip plan` as a user does, on the examples. `plan_input.rs` tests all other supported input.
//!
//! Whole plans are compared with the files in `golden`. After an intended change, `UPDATE_GOLDEN=1 cargo test -p
//! clusterip --test commands plan` writes them again: review the difference before you commit it.

use std::fs;
use std::path::Path;

use crate::audit_nodes::node;
use crate::command::external_snapshot::{has, service};
use crate::command::{Done, Folder, documents};
use serde_json::{Value, json};

/// An example of the documentation: its name, the manifests and further arguments for `clusterip plan`, and the exit
/// status.
struct Example {
    name: &'static str,
    manifests: &'static str,
    args: &'static str,
    status: i32,
}

/// External addresses of a cluster.
const EXTERNAL: &str = "--settings examples/settings/external.yaml --snapshot examples/external/cluster.yaml";

/// Addresses that are kept for Services of a cluster.
const RESERVATIONS: &str =
    "--settings examples/settings/reservations.yaml --snapshot examples/reservations/cluster.yaml";

const EXAMPLES: [Example; 12] = [
    Example { name: "shop", manifests: "examples/shop", args: "--settings examples/settings/k2s.yaml", status: 0 },
    Example { name: "teams", manifests: "examples/teams", args: "--settings examples/settings/teams.yaml", status: 0 },
    Example {
        name: "teams-denied",
        manifests: "examples/teams-denied",
        args: "--settings examples/settings/teams.yaml",
        status: 1,
    },
    Example {
        name: "dual-stack",
        manifests: "examples/dual-stack",
        args: "--settings examples/settings/dual-stack.yaml",
        status: 0,
    },
    Example {
        name: "dual-stack-denied",
        manifests: "examples/dual-stack-denied",
        args: "--settings examples/settings/dual-stack.yaml",
        status: 1,
    },
    Example {
        name: "static-band",
        manifests: "examples/static-band",
        args: "--settings examples/settings/static-band.yaml",
        status: 0,
    },
    Example { name: "reservations", manifests: "examples/reservations/services.yaml", args: RESERVATIONS, status: 0 },
    Example {
        name: "changed-pools",
        manifests: "examples/changed-pools",
        args: "--snapshot examples/audit/snapshot.yaml",
        status: 0,
    },
    Example { name: "nodes", manifests: "examples/nodes", args: "--settings examples/settings/nodes.yaml", status: 0 },
    Example { name: "external", manifests: "examples/external/services.yaml", args: EXTERNAL, status: 0 },
    Example {
        name: "announcers",
        manifests: "examples/announcers",
        args: "--settings examples/settings/announcers.yaml",
        status: 0,
    },
    Example { name: "external-denied", manifests: "examples/external-denied", args: EXTERNAL, status: 1 },
];

/// The output formats of a plan: the value of `--output`, and the extension of the golden file.
const OUTPUTS: [(&str, &str); 3] = [("table", "txt"), ("json", "json"), ("yaml", "yaml")];

/// The addresses of each Service and the blocks of each Node by name, as `-o json` prints them.
fn addresses(plan: &Value) -> Vec<(String, Value)> {
    let of = |key: &str, given: &'static str| {
        let rows = plan[key].as_array().cloned().unwrap_or_default().into_iter();
        rows.map(move |row| (row["name"].as_str().unwrap().to_owned(), row[given].clone()))
    };
    of("services", "clusterIPs").chain(of("nodes", "podCIDRs")).collect()
}

#[test]
fn plan_of_each_example_matches_golden_files() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut wrong = Vec::new();
    for Example { name, manifests, args, status } in EXAMPLES {
        for (output, end) in OUTPUTS {
            let done = Folder::workspace().clusterip(&format!("plan {manifests} {args} -o {output}"));
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
    for Example { name, manifests, args, status } in EXAMPLES.into_iter().filter(|example| example.status == 0) {
        let plan = |output: &str| Folder::workspace().clusterip(&format!("plan {manifests} {args} -o {output}"));
        let (forecast, filled) = (plan("json").json(), plan("yaml").stdout);
        let again = |output: &str| Folder::workspace().piped(&format!("plan - {args} -o {output}"), &filled);
        assert_eq!(again("json").status, status, "{name}");
        assert_eq!(addresses(&again("json").json()), addresses(&forecast), "{name}");
        assert_eq!(again("yaml").stdout, filled, "{name}: nothing is left to fill in");
    }
}

#[test]
fn default_settings_are_those_of_k2s() {
    let plan = |args: &str| Folder::workspace().clusterip(&format!("plan examples/shop -o json{args}"));
    assert_eq!(plan(""), plan(" --settings examples/settings/k2s.yaml"));
}

#[test]
fn file_order_changes_rows_but_not_addresses() {
    let run = |paths: &str| {
        let plan = Folder::workspace().clusterip(&format!("plan {paths} examples/shop/cluster.yaml -o json")).json();
        let mut addresses = addresses(&plan);
        addresses.sort_by(|a, b| a.0.cmp(&b.0));
        addresses
    };
    let forth = run("examples/shop/storefront.yaml examples/shop/checkout.yaml examples/shop/invoices.yaml");
    assert_eq!(forth.len(), 3);
    assert_eq!(run("examples/shop/invoices.yaml examples/shop/checkout.yaml examples/shop/storefront.yaml"), forth);
}

#[test]
fn no_output_about_nodes_and_external_addresses_without_pools_of_them() {
    let folder = Folder::new("plan-no-pools");
    let nodes = [node("a", "linux", &[]), node("b", "linux", &["10.0.0.0/24"])];
    let plan = |objects: &[Value], output: &str| folder.piped(&format!("plan - -o {output}"), &documents(objects));
    let expected = "NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP  EVIDENCE

0 Services: 0 allocated, 0 unchanged, 0 denied; windows 0 of 205 used; linux 0 of 205 used
";
    assert_eq!(plan(&nodes, "table"), Done::ok(expected));
    let pool = |name: &str| json!({"name": name, "family": "IPv4", "used": 0, "usable": 205});
    let expected = json!({
        "services": [],
        "pools": {"services": [pool("windows"), pool("linux")]},
        "summary": {"allocated": 0, "unchanged": 0, "denied": 0},
    });
    assert_eq!(plan(&nodes, "json").json(), expected);
    let external = [service("a", json!({"spec": {"clusterIP": "172.21.0.10"}})), has("b", "10.0.9.10")];
    for (output, word) in [("table", "EXTERNAL"), ("json", "\"external\"")] {
        let done = plan(&external, output);
        assert!(done.status == 0 && !done.stdout.contains(word), "-o {output}: {done:?}");
    }
}
