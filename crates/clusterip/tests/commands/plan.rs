//! Runs `clusterip plan` as a user does, on the examples. `plan_input.rs` tests all other supported input.
//!
//! Whole plans are compared with the files in `golden`. After an intended change, `UPDATE_GOLDEN=1 cargo test -p
//! clusterip --test commands plan` writes them again: review the difference before you commit it.

use std::fs;
use std::path::Path;

use crate::command::{Done, Folder};
use serde_json::Value;

/// An example of the documentation: its name, the arguments for `clusterip plan` and the exit status.
struct Example {
    name: &'static str,
    args: &'static [&'static str],
    status: i32,
}

const EXAMPLES: [Example; 11] = [
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
    Example {
        name: "reservations",
        args: &[
            "examples/reservations/services.yaml",
            "--settings",
            "examples/settings/reservations.yaml",
            "--snapshot",
            "examples/reservations/cluster.yaml",
        ],
        status: 0,
    },
    Example {
        name: "changed-pools",
        args: &["examples/changed-pools", "--snapshot", "examples/audit/snapshot.yaml"],
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

pub fn plan<'a>(paths: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
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
