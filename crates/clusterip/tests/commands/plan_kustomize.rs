//! `clusterip plan --kustomize`, with scripts in place of kubectl and kustomize (`programs`).

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::command::{Done, Folder};

/// A `PATH` with these folders of `programs` only.
fn path(programs: &[&str]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/programs");
    programs.iter().map(|name| folder.join(name).display().to_string()).collect::<Vec<_>>().join(":")
}

/// Runs the program in a folder of its own with only these programs in its `PATH`.
fn run(programs: &[&str], args: &[&str]) -> Done {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let folder = Folder::new(&format!("kustomize-{}", RUNS.fetch_add(1, Ordering::Relaxed)));
    folder.run_with(args, "", &[("PATH", &path(programs))])
}

#[test]
fn kustomization_is_built_with_kubectl_or_kustomize() {
    struct Case {
        programs: &'static [&'static str],
        args: &'static [&'static str],
        stderr: &'static str,
    }
    let cases = [
        Case {
            programs: &["kubectl"],
            args: &["-k", "overlay"],
            stderr: "kubectl kustomize: kubectl kustomize -- overlay\n",
        },
        Case {
            programs: &["kubectl", "kustomize"],
            args: &["--kustomize", "overlay"],
            stderr: "kubectl kustomize: kubectl kustomize -- overlay\n",
        },
        Case {
            programs: &["kustomize"],
            args: &["--kustomize=-overlay"],
            stderr: "kustomize build: kustomize build -- -overlay\n",
        },
        Case { programs: &["kubectl"], args: &["-k", "overlay", "-q", "-n", "shop"], stderr: "" },
    ];
    for Case { programs, args, stderr } in cases {
        let done = run(programs, &[&["plan"][..], args].concat());
        assert_eq!((done.status, done.stderr.as_str()), (0, stderr), "{args:?}");
        assert!(done.stdout.lines().any(|line| line.starts_with("shop ") && line.contains(" web ")), "{done:?}");
    }
}

#[test]
fn manifests_of_a_kustomization_are_printed_with_their_addresses() {
    let done = run(&["kubectl"], &["plan", "-k", "overlay", "-q", "-o", "yaml"]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""));
    assert!(done.stdout.contains("clusterIP"), "{done:?}");
}

#[test]
fn kustomization_that_can_not_be_built_is_refused() {
    struct Case {
        name: &'static str,
        programs: &'static [&'static str],
        args: &'static [&'static str],
        message: &'static str,
    }
    let cases = [
        Case {
            name: "no program",
            programs: &["missing"],
            args: &[],
            message: "kustomization overlay: neither kubectl nor kustomize is installed: install one of them, or build \
                      the kustomization elsewhere and read the result with --filename",
        },
        Case {
            name: "a program that fails",
            programs: &["failing", "kustomize"],
            args: &[],
            message: "kustomization overlay: kubectl kustomize failed (exit status: 3):\nError: no kustomization file \
                      in overlay\nbecause of \\u{1b}[31mthis",
        },
        Case {
            name: "too much output",
            programs: &["endless"],
            args: &[],
            message: "kustomization overlay: kubectl kustomize printed more than 64 MiB",
        },
        Case {
            name: "output that is not YAML",
            programs: &["unusable"],
            args: &[],
            message: "kustomization overlay: document 1, line 2: while parsing a flow sequence, expected ',' or ']'",
        },
        Case {
            name: "output that is not UTF-8",
            programs: &["latin"],
            args: &[],
            message: "kustomization overlay: the output of kubectl kustomize is not UTF-8",
        },
        Case {
            name: "another namespace",
            programs: &["kubectl"],
            args: &["-q", "-n", "bank"],
            message: "kustomization overlay: document 1, line 1: Service web is in namespace shop, but --namespace \
                      is bank: remove one of the two",
        },
    ];
    for Case { name, programs, args, message } in cases {
        let done = run(programs, &[&["plan", "-k", "overlay"][..], args].concat());
        assert_eq!(done, Done::refused(message), "{name}");
    }
}

#[test]
fn kustomization_and_files_are_not_planned_together() {
    for args in [["plan", "-k", "overlay", "web.yaml"], ["plan", "-k", "overlay", "-fweb.yaml"]] {
        let done = run(&["kubectl"], &args);
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{args:?}");
        assert!(done.stderr.contains("'--kustomize <DIR>'") && done.stderr.contains("cannot be used with"), "{done:?}");
    }
}
