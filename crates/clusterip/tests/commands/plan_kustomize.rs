//! `clusterip plan --kustomize`, with scripts in place of kubectl and kustomize (`programs`).

use std::iter;
use std::path::Path;

use crate::command::{Done, Folder};

/// A `PATH` with these folders of `programs` only.
fn path(programs: &[&str]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/programs");
    programs.iter().map(|name| folder.join(name).display().to_string()).collect::<Vec<_>>().join(":")
}

/// Runs the program in a folder of its own with only these programs in its `PATH`.
fn plan(programs: &[&str], args: &str) -> Done {
    let args: Vec<&str> = iter::once("plan").chain(args.split(' ')).collect();
    Folder::new("kustomize").run_with(&args, "", &[("PATH", &path(programs))])
}

#[test]
fn kustomization_is_built_with_kubectl_or_kustomize() {
    struct Case {
        programs: &'static [&'static str],
        args: &'static str,
        stderr: &'static str,
    }
    const KUBECTL: &str = "kubectl kustomize: kubectl kustomize -- overlay\n";
    const KUSTOMIZE: &str = "kustomize build: kustomize build -- -overlay\n";
    let cases = [
        Case { programs: &["kubectl"], args: "-k overlay", stderr: KUBECTL },
        Case { programs: &["kubectl", "kustomize"], args: "--kustomize overlay", stderr: KUBECTL },
        Case { programs: &["kustomize"], args: "--kustomize=-overlay", stderr: KUSTOMIZE },
        Case { programs: &["kubectl"], args: "-k overlay -q -n shop", stderr: "" },
    ];
    for Case { programs, args, stderr } in cases {
        let done = plan(programs, args);
        assert_eq!((done.status, done.stderr.as_str()), (0, stderr), "{args}");
        assert!(done.stdout.lines().any(|line| line.starts_with("shop ") && line.contains(" web ")), "{done:?}");
    }
    let filled = plan(&["kubectl"], "-k overlay -q -o yaml");
    assert!(filled.status == 0 && filled.stdout.contains("clusterIP"), "{filled:?}");
}

#[test]
fn kustomization_that_can_not_be_built_is_refused() {
    struct Case {
        name: &'static str,
        programs: &'static [&'static str],
        args: &'static str,
        message: &'static str,
    }
    let cases = [
        Case {
            name: "no program",
            programs: &["missing"],
            args: "-k overlay",
            message: "kustomization overlay: neither kubectl nor kustomize is installed: install one of them, or build \
                      the kustomization elsewhere and read the result with --filename",
        },
        Case {
            name: "a program that fails",
            programs: &["failing", "kustomize"],
            args: "-k overlay",
            message: "kustomization overlay: kubectl kustomize failed (exit status: 3):\nError: no kustomization file \
                      in overlay\nbecause of \\u{1b}[31mthis",
        },
        Case {
            name: "too much output",
            programs: &["endless"],
            args: "-k overlay",
            message: "kustomization overlay: kubectl kustomize printed more than 64 MiB",
        },
        Case {
            name: "output that is not YAML",
            programs: &["unusable"],
            args: "-k overlay",
            message: "kustomization overlay: document 1, line 2: while parsing a flow sequence, expected ',' or ']'",
        },
        Case {
            name: "output that is not UTF-8",
            programs: &["latin"],
            args: "-k overlay",
            message: "kustomization overlay: the output of kubectl kustomize is not UTF-8",
        },
    ];
    for Case { name, programs, args, message } in cases {
        assert_eq!(plan(programs, args), Done::refused(message), "{name}");
    }
}
