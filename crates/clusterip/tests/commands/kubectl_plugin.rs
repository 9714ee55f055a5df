//! The program under the name by which kubectl finds it as a plugin.
#![cfg(unix)]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The output and the error output of the program that is called by this name.
fn called_as(name: &str, args: &[&str]) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_clusterip")).arg0(name).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn usage_shows_the_name_by_which_the_program_was_called() {
    for (called, usage) in [
        ("clusterip", "Usage: clusterip "),
        ("/usr/local/bin/clusterip", "Usage: clusterip "),
        ("kubectl-clusterip", "Usage: kubectl clusterip "),
        ("/home/user/.krew/bin/kubectl-clusterip", "Usage: kubectl clusterip "),
    ] {
        let (help, _) = called_as(called, &["--help"]);
        assert!(help.contains(usage), "{called}: {help}");
        let (help, _) = called_as(called, &["audit", "--help"]);
        assert!(help.contains(&format!("{usage}audit ")), "{called}: {help}");
        let (_, error) = called_as(called, &["plan", "--unknown"]);
        assert!(error.contains(&format!("{usage}plan ")), "{called}: {error}");
    }
}

#[test]
fn plugin_has_the_name_and_the_version_of_the_program() {
    assert_eq!(called_as("kubectl-clusterip", &["--version"]), called_as("clusterip", &["--version"]));
    assert_eq!(called_as("kubectl-clusterip", &["version"]), called_as("clusterip", &["--version"]));
}

/// The platform is in the name of a released program, so that a script can download the same one of another version.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn version_is_printed_as_json() {
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "{{\n  \"version\": \"{version}\",\n  \"platform\": \"linux-amd64\",\n  \"apiVersion\": \"clusterip-policy.io/v1alpha1\"\n}}\n"
    );
    assert_eq!(called_as("clusterip", &["version", "-o", "json"]), (expected, String::new()));
}
