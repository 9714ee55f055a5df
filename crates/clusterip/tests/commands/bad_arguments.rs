//! Arguments and settings that are refused, each with one message that says where and why.

use crate::bad_input::SERVICE;
use crate::command::session_files::{WEB, copy_of};
use crate::command::{Done, Folder, kubeconfig};

#[test]
fn wrong_url_or_certificate_is_refused_before_a_cluster_is_needed() {
    struct Case {
        args: &'static str,
        message: &'static str,
    }
    let folder = Folder::new("bad-serve-arguments");
    folder.write("text.pem", "no PEM\n");
    let cases = [
        Case {
            args: "--register-url http://127.0.0.1:1",
            message: "--register-url http://127.0.0.1:1: it must be https://HOST:PORT, without a path",
        },
        Case {
            args: "--register-url 127.0.0.1:1",
            message: "--register-url 127.0.0.1:1: it must be https://HOST:PORT, without a path",
        },
        Case {
            args: "--register-url https://",
            message: "--register-url https://: it must be https://HOST:PORT, without a path",
        },
        Case { args: "--register-url=", message: "--register-url : it must be https://HOST:PORT, without a path" },
        Case {
            args: "--register-url https://127.0.0.1:1/mutate",
            message: "--register-url https://127.0.0.1:1/mutate: it must be https://HOST:PORT, without a path",
        },
        // The password is not printed.
        Case {
            args: "--register-url https://me:secret@127.0.0.1:1",
            message: "--register-url https://127.0.0.1:1: it must be https://HOST:PORT, without a path",
        },
        Case {
            args: "--tls-cert gone.crt --tls-key text.pem",
            message: "reading gone.crt failed: No such file or directory (os error 2)",
        },
        Case {
            args: "--tls-cert text.pem --tls-key gone.key",
            message: "reading gone.key failed: No such file or directory (os error 2)",
        },
        Case {
            args: "--tls-cert text.pem --tls-key text.pem",
            message: "text.pem and text.pem: not a certificate: no items found; it must be PEM, the server's own \
                      certificate first",
        },
    ];
    for Case { args, message } in cases {
        let done = folder.clusterip(&format!("serve --kubeconfig gone --listen 127.0.0.1:0 {args}"));
        assert_eq!(done, Done::refused(message), "{args}");
    }
}

/// Checks that each of these commands fails, prints nothing but an error, and names this reason.
#[track_caller]
fn check_reasons<'a>(cases: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let folder = copy_of("bad-arguments", WEB);
    folder.write("m.yaml", SERVICE);
    for (args, reason) in cases {
        let done = folder.clusterip(args);
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{args}: {done:?}");
        assert!(done.stderr.starts_with("error: ") && done.stderr.contains(reason), "{args}: {}", done.stderr);
    }
}

#[test]
fn empty_name_is_refused() {
    let cases = [
        ("agent --node=", "--node <NAME>"),
        ("agent --node a --namespace=", "--namespace <NAMESPACE>"),
        ("serve --service=", "--service <NAME>"),
        ("serve --no-webhook --policy=", "--policy <NAME>"),
        ("agent --node a --policy=", "--policy <NAME>"),
        ("audit --namespace=", "--namespace <NAMESPACE>"),
        ("audit --context=", "--context <NAME>"),
        ("move --server-namespace=", "--server-namespace <NAMESPACE>"),
        ("plan - --namespace=", "--namespace <NAMESPACE>"),
    ];
    let reasons = cases.map(|(_, option)| format!("a value is required for '{option}' but none was supplied"));
    check_reasons(cases.iter().zip(&reasons).map(|((args, _), reason)| (*args, reason.as_str())));
}

#[test]
fn value_of_a_wrong_form_is_refused_with_the_expected_form() {
    const TIME: &str = "invalid value 'soon' for '--request-timeout <TIME>': expected a number with a unit, such as \
                        500ms, 10s, 2m or 1h, or 0 for no limit\n";
    const SELECTOR: &str = "invalid value 'app=web,tier~front' for '--selector <SELECTOR>': at character 9: unable to \
                            parse requirement \"tier~front\": invalid label key\n";
    check_reasons([
        ("serve --request-timeout soon", TIME),
        ("audit --request-timeout soon", TIME),
        ("audit -l app=web,tier~front", SELECTOR),
        ("move -l app=web,tier~front", SELECTOR),
        ("serve --listen :18443", "expected ADDR:PORT such as 0.0.0.0:8443"),
        ("serve --ui 127.0.0.1", "expected ADDR:PORT such as 127.0.0.1:8080"),
        ("agent --node a --listen localhost:8443", "expected ADDR:PORT such as 127.0.0.1:9634"),
    ]);
    let done = Folder::workspace().run(&["plan", "-l", "app=web,tier like front"]);
    let operator = "unable to parse requirement \"tier like front\": an operator is expected: =, ==, !=, in, notin\n";
    assert!(done.stderr.contains(operator), "{done:?}");
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
    assert_eq!(folder.clusterip("plan m.yaml -s s.yaml"), Done::refused(message));
}

#[test]
fn invalid_command_line_is_refused() {
    check_reasons([
        ("plan", "<PATHS>"),
        ("plan a.yaml -o xml", "[possible values: "),
        ("place", "unrecognized subcommand"),
        ("plan a --snapshot b --cluster", "cannot be used with"),
        ("plan -k overlay web.yaml", "'--kustomize <DIR>' cannot be used with"),
        ("plan -k overlay -fweb.yaml", "cannot be used with"),
        ("serve --policy clusterip", "required arguments were not provided"),
        ("serve --no-webhook --policy clusterip --settings a.yaml", "cannot be used with"),
        ("audit -w --snapshot a.yaml", "the argument '--watch' cannot be used with '--snapshot <FILE>'\n"),
        ("audit -w --service shop/web", "the argument '--watch' cannot be used with '--service <NAMESPACE/NAME>'\n"),
        ("audit -w -o html", "--watch can't be printed as html: use -o table, wide, name or json\n"),
        ("evaluate", "required arguments were not provided"),
        ("evaluate --request r --session a --snapshot b", "cannot be used with"),
        ("evaluate --request r --session a --cluster", "cannot be used with"),
        ("evaluate --request r --snapshot a --cluster", "cannot be used with"),
        ("evaluate --request r --session a --record b", "cannot be used with"),
        ("evaluate --request r -o yaml", "[possible values: "),
        // The arguments of seamless moves change nothing about plain moves.
        ("move -A --grace-period 40", "required arguments were not provided:\n  --seamless\n"),
        ("move -A --cluster-domain example.org", "required arguments were not provided:\n  --seamless\n"),
        ("move -A --wait", "required arguments were not provided:\n  --seamless\n"),
        ("serve --grace-period 40", "required arguments were not provided:\n  --seamless-moves\n"),
        ("serve --cluster-domain example.org", "required arguments were not provided:\n  --seamless-moves\n"),
    ]);
}

#[test]
fn standard_input_is_read_for_one_argument_only() {
    let cases = [
        ("plan - --settings -", "PATHS and for --settings"),
        ("plan -f - --snapshot -", "--filename and for --snapshot"),
        ("plan - -f -", "PATHS and for --filename"),
        ("audit --snapshot - --settings -", "--settings and for --snapshot"),
        ("evaluate --request - --settings -", "--request and for --settings"),
        ("evaluate --request r -s - --snapshot -", "--settings and for --snapshot"),
        ("validate - -", "FILE and for FILE"),
    ];
    for (args, given) in cases {
        let message =
            format!("standard input can be read only once, but - is given for {given}: use files for all but one");
        assert_eq!(Folder::new("standard-input").clusterip(args), Done::refused(message), "{args}");
    }
}

#[test]
fn kubeconfig_and_context_imply_the_cluster() {
    const KUBECONFIG: &str = "'--snapshot <FILE>' cannot be used with '--kubeconfig <FILE>'\n";
    check_reasons([
        ("plan m.yaml --kubeconfig gone", "kubeconfig gone: "),
        ("plan m.yaml --kubeconfig gone --context prod", "kubeconfig gone: "),
        ("evaluate --request request.json --kubeconfig gone", "kubeconfig gone: "),
        ("plan m.yaml --snapshot s --kubeconfig c", KUBECONFIG),
        ("audit --snapshot s --kubeconfig c", KUBECONFIG),
        ("plan m.yaml --snapshot s --context c", "'--snapshot <FILE>' cannot be used with '--context <NAME>'\n"),
        ("evaluate --request request.json --snapshot s --kubeconfig c", KUBECONFIG),
        (
            "evaluate --request request.json --session s --context c",
            "'--session <FILE>' cannot be used with '--context <NAME>'\n",
        ),
    ]);
}

/// Every command names the API server in the same words.
#[test]
fn api_server_that_can_not_be_reached_is_reported() {
    let folder = copy_of("no-cluster", WEB);
    folder.write("config", kubeconfig("http://127.0.0.1:1")).write("m.yaml", SERVICE).write("s.yaml", "{}");
    let commands = [
        "evaluate --request request.json --cluster",
        "plan m.yaml --cluster --settings s.yaml",
        "audit",
        "audit --settings s.yaml -q",
        "audit --watch",
        "snapshot",
        "init",
        "init --service-cidr 10.96.0.0/12",
        "validate --cluster s.yaml",
        "move --dry-run",
        "serve --log-level error --settings s.yaml",
        "serve --log-level error --no-webhook --policy clusterip",
    ];
    let expected = Done::refused(
        "the API server http://127.0.0.1:1 (context a) can't be reached: Connection refused (os error 111); check \
         that it runs, and that --kubeconfig and --context name the right cluster",
    );
    for args in commands {
        let done = folder.run_with(&args.split(' ').collect::<Vec<_>>(), "", &[("KUBECONFIG", "config")]);
        assert_eq!(done, expected, "{args}");
    }
}

#[test]
fn api_server_that_hangs_is_given_up_after_the_request_timeout() {
    let folder = copy_of("hanging-cluster", WEB);
    // The kernel accepts the connection, and no program answers the request.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    folder.write("config", kubeconfig(&url));
    let begin = std::time::Instant::now();
    let message = format!(
        "the API server {url} (context a) can't be reached: no answer within 500ms (--request-timeout); check that it \
         runs, and that --kubeconfig and --context name the right cluster"
    );
    let args = "evaluate --request request.json --cluster --kubeconfig config --request-timeout 500ms";
    assert_eq!(folder.clusterip(args), Done::refused(message));
    assert!(begin.elapsed() < std::time::Duration::from_secs(20));
}
