//! Arguments and settings that are refused, each with one message that says where and why.

use crate::bad_input::SERVICE;
use crate::command::session_files::{WEB, copy_of};
use crate::command::{Done, Folder};

#[test]
fn wrong_register_url_is_refused_before_a_cluster_is_needed() {
    let folder = Folder::new("bad-register-url");
    for url in ["http://127.0.0.1:1", "127.0.0.1:1", "https://127.0.0.1:1/mutate", ""] {
        let message = format!("--register-url {url}: it must be https://HOST:PORT, without a path");
        let args = ["serve", "--kubeconfig", "gone", "--listen", "127.0.0.1:0", "--register-url", url];
        assert_eq!(folder.run(&args), Done::refused(message), "{url}");
    }
    let url = "https://me:secret@127.0.0.1:1";
    let args = ["serve", "--kubeconfig", "gone", "--listen", "127.0.0.1:0", "--register-url", url];
    let message = "--register-url https://127.0.0.1:1: it must be https://HOST:PORT, without a path";
    assert_eq!(folder.run(&args), Done::refused(message), "a password");
}

#[test]
fn unusable_certificate_files_are_refused_before_a_cluster_is_needed() {
    struct Case {
        name: &'static str,
        certificate: &'static str,
        key: &'static str,
        message: &'static str,
    }
    let folder = Folder::new("bad-certificate-files");
    folder.write("text.pem", "no PEM\n");
    let cases = [
        Case {
            name: "no certificate file",
            certificate: "gone.crt",
            key: "text.pem",
            message: "reading gone.crt failed: No such file or directory (os error 2)",
        },
        Case {
            name: "no key file",
            certificate: "text.pem",
            key: "gone.key",
            message: "reading gone.key failed: No such file or directory (os error 2)",
        },
        Case {
            name: "no certificate in the file",
            certificate: "text.pem",
            key: "text.pem",
            message: "text.pem and text.pem: not a certificate: no items found; it must be PEM, the server's own \
                      certificate first",
        },
    ];
    for Case { name, certificate, key, message } in cases {
        let args = ["serve", "--kubeconfig", "gone", "--listen", "127.0.0.1:0", "--tls-cert", certificate];
        let args = [&args[..], &["--tls-key", key]].concat();
        assert_eq!(folder.run(&args), Done::refused(message), "{name}");
    }
}

#[test]
fn empty_name_is_refused() {
    let commands: [(&[&str], &str); 9] = [
        (&["agent", "--node", ""], "--node <NAME>"),
        (&["agent", "--node", "a", "--namespace", ""], "--namespace <NAMESPACE>"),
        (&["serve", "--service", ""], "--service <NAME>"),
        (&["serve", "--no-webhook", "--policy", ""], "--policy <NAME>"),
        (&["agent", "--node", "a", "--policy", ""], "--policy <NAME>"),
        (&["audit", "-n", ""], "--namespace <NAMESPACE>"),
        (&["audit", "--context", ""], "--context <NAME>"),
        (&["move", "--server-namespace", ""], "--server-namespace <NAMESPACE>"),
        (&["plan", "-", "-n", ""], "--namespace <NAMESPACE>"),
    ];
    for (args, option) in commands {
        let done = Folder::new("empty-name").run(args);
        let reason = format!("error: a value is required for '{option}' but none was supplied");
        assert!(done.status == 2 && done.stderr.contains(&reason), "{args:?}: {done:?}");
    }
}

#[test]
fn wrong_request_timeout_is_refused() {
    let folder = Folder::new("bad-request-timeout");
    for command in ["serve", "move", "audit"] {
        let done = folder.run(&[command, "--request-timeout", "soon"]);
        let expected = "error: invalid value 'soon' for '--request-timeout <TIME>': expected a number with a unit, \
                        such as 500ms, 10s, 2m or 1h, or 0 for no limit\n";
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{command}");
        assert!(done.stderr.starts_with(expected), "{command}: {}", done.stderr);
    }
}

#[test]
fn wrong_selector_is_refused_with_its_position() {
    let folder = Folder::new("bad-selector");
    for command in ["plan", "audit", "move"] {
        let done = folder.run(&[command, "-l", "app=web,tier like front"]);
        let expected = "error: invalid value 'app=web,tier like front' for '--selector <SELECTOR>': at character 9: \
                        unable to parse requirement \"tier like front\": an operator is expected: =, ==, !=, in, \
                        notin\n";
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{command}");
        assert!(done.stderr.starts_with(expected), "{command}: {}", done.stderr);
    }
}

#[test]
fn all_mistakes_in_settings_are_reported_at_once() {
    let folder = Folder::new("bad-settings");
    folder.write("m.yaml", SERVICE).write(
        "s.yaml",
        "services:
  pools:
  - {name: Linux, cidrs: [172.21.0.5/24], match: {os: linux}}
  - name: windows
    cidr: [172.21.1.0/24]
    reserved: -1
  - {name: rest, cidrs: [172.21.0.0/16, fd00::/64, 172.21.3.0/24]}
  order: fastest
  whenful: deny
  evidence: {kinds: [Deploymnet]}
",
    );
    let message = r#"settings: s.yaml: services.whenful: unknown key "whenful": did you mean whenFull?
settings: s.yaml: services.pools[0].name: "Linux" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end
settings: s.yaml: services.pools[0].cidrs[0]: 172.21.0.5/24 has host bits set: did you mean 172.21.0.0/24?
settings: s.yaml: services.pools[1].cidr: unknown key "cidr": did you mean cidrs?
settings: s.yaml: services.pools[1].cidrs: missing: a pool needs at least one range
settings: s.yaml: services.pools[1].reserved: expected a number of addresses, 0 or more, found the number -1
settings: s.yaml: services.evidence.kinds[0]: unknown kind "Deploymnet": did you mean Deployment?; write a custom resource as group/version/Kind
settings: s.yaml: services.order: unknown value "fastest": known are spread, lowest
settings: s.yaml: services.pools[2].cidrs[2]: 172.21.3.0/24 overlaps 172.21.0.0/16 of the same pool"#;
    assert_eq!(folder.run(&["plan", "m.yaml", "-s", "s.yaml"]), Done::refused(message));
}

#[test]
fn text_that_is_not_a_settings_document_is_refused() {
    struct Case {
        name: &'static str,
        settings: &'static str,
        message: &'static str,
    }
    let rows = [
        Case {
            name: "no YAML",
            settings: "services: [",
            message: "settings: s.yaml: line 2: while parsing a node, did not find expected node content",
        },
        Case {
            name: "nothing",
            settings: "",
            message: "settings: s.yaml: the file is empty: write {} for the pools of K2s",
        },
        Case {
            name: "only comments",
            settings: "# services: {}\n",
            message: "settings: s.yaml: the file is empty: write {} for the pools of K2s",
        },
        Case {
            name: "two documents",
            settings: "a: 1\n---\nb: 2\n",
            message: "settings: s.yaml: line 3: more than one document",
        },
        Case {
            name: "a list",
            settings: "[]",
            message: "settings: s.yaml: settings: expected an object, found a list",
        },
        Case {
            name: "another key",
            settings: "service: {}",
            message: "settings: s.yaml: service: unknown key \"service\": did you mean services?",
        },
    ];
    for Case { name, settings, message } in rows {
        let folder = Folder::new("bad-settings-files");
        folder.write("m.yaml", SERVICE).write("s.yaml", settings);
        assert_eq!(folder.run(&["plan", "m.yaml", "-s", "s.yaml"]), Done::refused(message), "{name}");
    }
}

#[test]
fn invalid_command_line_is_refused() {
    let commands: [&[&str]; 6] = [
        &["plan"],
        &["plan", "a.yaml", "-o", "xml"],
        &["place"],
        &["plan", "a", "--snapshot", "b", "--cluster"],
        &["serve", "--policy", "clusterip"],
        &["serve", "--no-webhook", "--policy", "clusterip", "--settings", "a.yaml"],
    ];
    for args in commands {
        let done = Folder::workspace().run(args);
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{args:?}");
        assert!(done.stderr.starts_with("error: "), "{args:?}: {done:?}");
    }
}

/// The arguments of seamless moves change nothing about plain moves.
#[test]
fn argument_of_seamless_moves_without_a_seamless_move_is_refused() {
    struct Case {
        args: &'static [&'static str],
        needed: &'static str,
    }
    let cases = [
        Case { args: &["move", "-A", "--grace-period", "40"], needed: "--seamless" },
        Case { args: &["move", "-A", "--cluster-domain", "example.org"], needed: "--seamless" },
        Case { args: &["move", "-A", "--wait"], needed: "--seamless" },
        Case { args: &["serve", "--grace-period", "40"], needed: "--seamless-moves" },
        Case { args: &["serve", "--cluster-domain", "example.org"], needed: "--seamless-moves" },
    ];
    for Case { args, needed } in cases {
        let done = Folder::workspace().run(args);
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{args:?}");
        let is_named = done.stderr.split_whitespace().any(|word| word == needed);
        assert!(done.stderr.contains("required arguments were not provided") && is_named, "{args:?}: {done:?}");
    }
}

#[test]
fn standard_input_is_read_for_one_argument_only() {
    struct Case {
        args: &'static [&'static str],
        given: &'static str,
    }
    let cases = [
        Case { args: &["plan", "-", "--settings", "-"], given: "PATHS and for --settings" },
        Case { args: &["plan", "-f", "-", "--snapshot", "-"], given: "--filename and for --snapshot" },
        Case { args: &["plan", "-", "-f", "-"], given: "PATHS and for --filename" },
        Case { args: &["audit", "--snapshot", "-", "--settings", "-"], given: "--settings and for --snapshot" },
        Case { args: &["evaluate", "--request", "-", "--settings", "-"], given: "--request and for --settings" },
        Case {
            args: &["evaluate", "--request", "r", "-s", "-", "--snapshot", "-"],
            given: "--settings and for --snapshot",
        },
        Case { args: &["validate", "-", "-"], given: "FILE and for FILE" },
    ];
    for Case { args, given } in cases {
        let message =
            format!("standard input can be read only once, but - is given for {given}: use files for all but one");
        assert_eq!(Folder::new("standard-input").run(args), Done::refused(message), "{args:?}");
    }
}

#[test]
fn address_to_listen_on_needs_a_host_and_a_port() {
    let commands: [(&[&str], &str); 3] = [
        (&["serve", "--listen"], "0.0.0.0:8443"),
        (&["serve", "--ui"], "127.0.0.1:8080"),
        (&["agent", "--node", "a", "--listen"], "127.0.0.1:9634"),
    ];
    for (command, example) in commands {
        for address in [":18443", "127.0.0.1", "localhost:8443"] {
            let args = [command, &[address]].concat();
            let done = Folder::new("listen").run(&args);
            let reason = format!("expected ADDR:PORT such as {example}");
            assert!(done.status == 2 && done.stderr.contains(&reason), "{args:?}: {done:?}");
        }
    }
}

#[test]
fn kubeconfig_and_context_imply_the_cluster() {
    const PLAN: &[&str] = &["plan", "m.yaml"];
    const EVALUATE: &[&str] = &["evaluate", "--request", "request.json"];
    struct Case {
        name: &'static str,
        command: &'static [&'static str],
        args: &'static [&'static str],
        /// A part of the message.
        expected: &'static str,
    }
    let cases = [
        Case { name: "plan", command: PLAN, args: &["--kubeconfig", "gone"], expected: "kubeconfig gone: " },
        Case {
            name: "plan, context",
            command: PLAN,
            args: &["--kubeconfig", "gone", "--context", "prod"],
            expected: "kubeconfig gone: ",
        },
        Case { name: "evaluate", command: EVALUATE, args: &["--kubeconfig", "gone"], expected: "kubeconfig gone: " },
        Case {
            name: "plan, kubeconfig and snapshot",
            command: PLAN,
            args: &["--snapshot", "s", "--kubeconfig", "c"],
            expected: "error: the argument '--snapshot <FILE>' cannot be used with '--kubeconfig <FILE>'\n",
        },
        Case {
            name: "plan, context and snapshot",
            command: PLAN,
            args: &["--snapshot", "s", "--context", "c"],
            expected: "error: the argument '--snapshot <FILE>' cannot be used with '--context <NAME>'\n",
        },
        Case {
            name: "evaluate, kubeconfig and snapshot",
            command: EVALUATE,
            args: &["--snapshot", "s", "--kubeconfig", "c"],
            expected: "error: the argument '--snapshot <FILE>' cannot be used with '--kubeconfig <FILE>'\n",
        },
        Case {
            name: "evaluate, context and session",
            command: EVALUATE,
            args: &["--session", "s", "--context", "c"],
            expected: "error: the argument '--session <FILE>' cannot be used with '--context <NAME>'\n",
        },
    ];
    let folder = copy_of("implied-cluster", WEB);
    folder.write("m.yaml", SERVICE);
    for Case { name, command, args, expected } in cases {
        let done = folder.run(&[command, args].concat());
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{name}: {done:?}");
        assert!(done.stderr.contains(expected), "{name}: {}", done.stderr);
    }
}

/// Every command names the API server in the same words.
#[test]
fn api_server_that_can_not_be_reached_is_reported() {
    let folder = copy_of("no-cluster", WEB);
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
                  contexts: [{name: a, context: {cluster: a, user: a}}]\n\
                  clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\n\
                  users: [{name: a, user: {}}]\n";
    folder.write("config", config).write("m.yaml", SERVICE).write("s.yaml", "{}");
    let commands: [&[&str]; 12] = [
        &["evaluate", "--request", "request.json", "--cluster"],
        &["plan", "m.yaml", "--cluster", "--settings", "s.yaml"],
        &["audit"],
        &["audit", "--settings", "s.yaml", "-q"],
        &["audit", "--watch"],
        &["snapshot"],
        &["init"],
        &["init", "--service-cidr", "10.96.0.0/12"],
        &["validate", "--cluster", "s.yaml"],
        &["move", "--dry-run"],
        &["serve", "--log-level", "error", "--settings", "s.yaml"],
        &["serve", "--log-level", "error", "--no-webhook", "--policy", "clusterip"],
    ];
    let expected = Done::refused(
        "the API server http://127.0.0.1:1 (context a) can't be reached: Connection refused (os error 111); check \
         that it runs, and that --kubeconfig and --context name the right cluster",
    );
    for args in commands {
        let done = folder.run_with(args, "", &[("KUBECONFIG", folder.path("config").to_str().unwrap())]);
        assert_eq!(done, expected, "{args:?}");
    }
    let config = folder.path("config").display().to_string();
    for list in [format!("/nosuch:{config}"), format!("{config}:/nosuch")] {
        assert_eq!(folder.run_with(&["snapshot"], "", &[("KUBECONFIG", &list)]), expected, "{list}");
    }
}
