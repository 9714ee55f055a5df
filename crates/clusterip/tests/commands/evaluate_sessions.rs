//! How `clusterip evaluate --session` handles a session that does not fit.

use crate::command::Done;
use crate::command::session_files::{WEB, copy_of, read, response};

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
    let (first, _) = recorded.split_at(recorded.rfind("- type: Exchange").unwrap());
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
            name: "the end is missing",
            text: first.to_owned(),
            expected: "exchange 2 is missing\n  expected: nothing".to_owned(),
            asked: ADDRESS,
        },
    ];
    const ARGS: &str = "evaluate --request request.json -s settings.json --session s.yml -o decoded";
    for Case { name, text, expected, asked } in rows {
        folder.write("s.yml", text);
        let message = format!("session: s.yml: {expected}\n  asked:    {asked}\n{hint}");
        assert_eq!(folder.clusterip(ARGS), Done::refused(message), "{name}");
    }

    let more = "- type: Exchange\n  request: |\n    !KubernetesGetResource\n    api_version: v1\n    kind: Node\n    \
                name: a\n    namespace: null\n    disable_cache: false\n    field_masks: null\n  response:\n    \
                type: Error\n    message: no\n";
    folder.write("s.yml", format!("{recorded}{more}{more}"));
    let warning = "warning: session: s.yml: the policy did not ask for the last 2 of its exchanges\n";
    let expected = Done { stderr: warning.to_owned(), ..Done::ok(response("windows")) };
    assert_eq!(folder.clusterip(ARGS), expected, "more than is asked for");
}
