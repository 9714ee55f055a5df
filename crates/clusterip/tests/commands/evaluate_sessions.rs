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
        expected: String,
        asked: &'static str,
    }
    const DEPLOYMENTS: &str = r#"KubernetesListResourceAll {"api_version":"apps/v1","field_masks":["spec.template.metadata.labels","spec.template.spec.affinity.nodeAffinity","spec.template.spec.nodeSelector","spec.template.spec.os","spec.template.spec.runtimeClassName"],"field_selector":null,"kind":"Deployment","label_selector":null}"#;
    const ADDRESS: &str = r#"KubernetesGetResource {"api_version":"networking.k8s.io/v1","disable_cache":true,"field_masks":["metadata"],"kind":"IPAddress","name":"172.21.1.59","namespace":null}"#;
    let folder = copy_of("evaluate-mismatches", WEB);
    let recorded = read(&folder, "session.yml");
    let hint = "it was recorded with another request, other settings or another policy: record it again";
    let (first, second) = recorded.split_at(recorded.rfind("- type: Exchange").unwrap());
    // Masks are a set, and printed in order.
    let masks = (
        r#""spec.template.spec.nodeSelector","spec.template.spec.os""#,
        r#""spec.template.spec.cpu","spec.template.spec.nodeSelector""#,
    );
    let rows = [
        Case {
            name: "another mask",
            text: recorded.replacen("spec.template.spec.os'", "spec.template.spec.cpu'", 1),
            expected: format!("exchange 1 does not match\n  expected: {}", DEPLOYMENTS.replace(masks.0, masks.1)),
            asked: DEPLOYMENTS,
        },
        Case {
            name: "another address",
            text: recorded.replace("172.21.1.59", "172.21.1.60"),
            expected: format!("exchange 2 does not match\n  expected: {}", ADDRESS.replace("1.59", "1.60")),
            asked: ADDRESS,
        },
        Case {
            name: "another order",
            text: format!("{second}{first}"),
            expected: format!("exchange 1 does not match\n  expected: {ADDRESS}"),
            asked: DEPLOYMENTS,
        },
        Case {
            name: "the end is missing",
            text: first.to_owned(),
            expected: "exchange 2 is missing\n  expected: nothing".to_owned(),
            asked: ADDRESS,
        },
        Case {
            name: "everything is missing",
            text: "[]".to_owned(),
            expected: "exchange 1 is missing\n  expected: nothing".to_owned(),
            asked: DEPLOYMENTS,
        },
    ];
    const ARGS: &str = "evaluate --request request.json -s settings.json --session s.yml -o decoded";
    for Case { name, text, expected, asked } in rows {
        folder.write("s.yml", text);
        let message = format!("session: s.yml: {expected}\n  asked:    {asked}\n{hint}");
        assert_eq!(folder.clusterip(ARGS), Done::refused(message), "{name}");
    }

    let more = exchange(
        "!KubernetesGetResource\napi_version: v1\nkind: Node\nname: a\nnamespace: null\ndisable_cache: false\nfield_masks: null",
    );
    folder.write("s.yml", format!("{recorded}{more}{more}"));
    let warning = "warning: session: s.yml: the policy did not ask for the last 2 of its exchanges\n";
    let expected = Done { stderr: warning.to_owned(), ..Done::ok(response("windows")) };
    assert_eq!(folder.clusterip(ARGS), expected, "more than is asked for");
}

#[test]
fn unreadable_session_is_refused() {
    let folder = copy_of("evaluate-bad-sessions", WEB);
    let other = exchange("!DNSLookupHost\nhost: a");
    let rows = [
        ("- [", "line 2: while parsing a node, did not find expected node content"),
        ("a: b", "expected a list of exchanges"),
        ("- 5", "exchange 1: invalid type: integer `5`, expected struct Written"),
        (
            &other,
            "exchange 1: unknown variant `DNSLookupHost`, expected one of `KubernetesListResourceAll`, \
             `KubernetesListResourceNamespace`, `KubernetesGetResource`",
        ),
    ];
    for (text, message) in rows {
        folder.write("s.yml", text);
        let done = folder.clusterip("evaluate --request request.json --session s.yml");
        assert_eq!(done, Done::refused(format!("session: s.yml: {message}")), "{text}");
    }
}
