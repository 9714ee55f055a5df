//! How `clusterip evaluate --session` handles a session that does not fit or can not be read.

use crate::command::Done;
use crate::command::session_files::{WEB, copy_of, read, response};

/// An exchange of a session, as `--record` writes it.
fn exchange(request: &str) -> String {
    format!("- type: Exchange\n  request: |\n    {}\n", request.replace('\n', "\n    "))
        + "  response:\n    type: Error\n    message: no\n"
}

#[test]
fn session_mismatch_names_expected_and_actual_look_up() {
    struct Case {
        name: &'static str,
        text: String,
        message: String,
    }
    let folder = copy_of("evaluate-mismatches", WEB);
    let recorded = read(&folder, "session.yml");
    let exchanges = recorded.split("- type: Exchange").count() - 1;
    assert_eq!(exchanges, 2, "{recorded}");
    let deployments = r#"KubernetesListResourceAll {"api_version":"apps/v1","field_masks":["spec.template.metadata.labels","spec.template.spec.affinity.nodeAffinity","spec.template.spec.nodeSelector","spec.template.spec.os","spec.template.spec.runtimeClassName"],"field_selector":null,"kind":"Deployment","label_selector":null}"#;
    let address = r#"KubernetesGetResource {"api_version":"networking.k8s.io/v1","disable_cache":true,"field_masks":["metadata"],"kind":"IPAddress","name":"172.21.1.59","namespace":null}"#;
    let hint = "it was recorded with another request, other settings or another policy: record it again";
    let (first, second) = recorded.split_at(recorded.rfind("- type: Exchange").unwrap());
    let rows = [
        Case {
            name: "another kind",
            text: recorded.replacen("'Deployment'", "'Job'", 1),
            message: format!(
                "exchange 1 does not match\n  expected: {}\n  asked:    {deployments}",
                deployments.replace("Deployment", "Job")
            ),
        },
        Case {
            name: "another mask",
            text: recorded.replacen("spec.template.spec.os'", "spec.template.spec.cpu'", 1),
            message: format!(
                "exchange 1 does not match\n  expected: {}\n  asked:    {deployments}",
                // Masks are a set, and printed in order.
                deployments.replace(
                    r#""spec.template.spec.nodeSelector","spec.template.spec.os""#,
                    r#""spec.template.spec.cpu","spec.template.spec.nodeSelector""#
                )
            ),
        },
        Case {
            name: "another address",
            text: recorded.replace("172.21.1.59", "172.21.1.60"),
            message: format!(
                "exchange 2 does not match\n  expected: {}\n  asked:    {address}",
                address.replace("172.21.1.59", "172.21.1.60")
            ),
        },
        Case {
            name: "another order",
            text: format!("{second}{first}"),
            message: format!("exchange 1 does not match\n  expected: {address}\n  asked:    {deployments}"),
        },
        Case {
            name: "the end is missing",
            text: first.to_owned(),
            message: format!("exchange 2 is missing\n  expected: nothing\n  asked:    {address}"),
        },
        Case {
            name: "everything is missing",
            text: "[]".to_owned(),
            message: format!("exchange 1 is missing\n  expected: nothing\n  asked:    {deployments}"),
        },
    ];
    let args = ["evaluate", "--request", "request.json", "-s", "settings.json", "--session", "s.yml"];
    for Case { name, text, message } in rows {
        folder.write("s.yml", text);
        assert_eq!(folder.run(&args), Done::refused(format!("session: s.yml: {message}\n{hint}")), "{name}");
    }

    let more = exchange(
        "!KubernetesGetResource\napi_version: v1\nkind: Node\nname: a\nnamespace: null\ndisable_cache: false\nfield_masks: null",
    );
    folder.write("s.yml", format!("{recorded}{more}{more}"));
    let warning = "warning: session: s.yml: the policy did not ask for the last 2 of its exchanges\n";
    let expected = Done { stderr: warning.to_owned(), ..Done::ok(response("windows")) };
    assert_eq!(folder.run(&[&args[..], &["-o", "decoded"]].concat()), expected, "more than is asked for");
}

#[test]
fn unreadable_session_is_refused() {
    struct Case<'a> {
        name: &'static str,
        text: &'a str,
        message: &'static str,
    }
    let folder = copy_of("evaluate-bad-sessions", WEB);
    let rows = [
        Case {
            name: "no YAML",
            text: "- [",
            message: "s.yml: line 2: while parsing a node, did not find expected node content",
        },
        Case { name: "no list", text: "a: b", message: "s.yml: expected a list of exchanges" },
        Case {
            name: "no exchange",
            text: "- 5",
            message: "s.yml: exchange 1: invalid type: integer `5`, expected struct Written",
        },
        Case {
            name: "a call that is not offered",
            text: &exchange("!DNSLookupHost\nhost: a"),
            message: "s.yml: exchange 1: unknown variant `DNSLookupHost`, expected one of \
                      `KubernetesListResourceAll`, `KubernetesListResourceNamespace`, `KubernetesGetResource`",
        },
    ];
    for Case { name, text, message } in rows {
        folder.write("s.yml", text);
        let done = folder.run(&["evaluate", "--request", "request.json", "--session", "s.yml"]);
        assert_eq!(done, Done::refused(format!("session: {message}")), "{name}");
    }
}
