//! What `clusterip evaluate` says about invalid input.

use crate::command::session_files::{WEB, copy_of};
use crate::command::{Done, Folder};
use serde_json::json;

/// Checks that each of these texts is refused with its message.
#[track_caller]
fn check<'a>(rows: impl IntoIterator<Item = (&'a str, &'a str)>) {
    for (text, message) in rows {
        let done = Folder::new("evaluate-bad-request").piped("evaluate --request -", text);
        assert_eq!(done, Done::refused(format!("request: -: {message}")), "{text}");
    }
}

#[test]
fn file_that_is_not_a_request_is_refused() {
    let expected = "expected an AdmissionRequest, or an AdmissionReview with one, found";
    let [null, list, text] = ["null", "a list", "the string \"hello\""].map(|found| format!("{expected} {found}"));
    let unanswered = "save the review as received, before it is answered";
    let [missing, is_null] =
        ["missing", "null"].map(|what| format!("an AdmissionReview whose `request` is {what}: {unanswered}"));
    check([
        ("", null.as_str()),
        ("[]", &list),
        ("hello", &text),
        ("uid: [\n", "line 2: while parsing a node, did not find expected node content"),
        ("{\"uid\": \"a\",\n", "line 2: while parsing a node, did not find expected node content"),
        ("a: 1\n---\nb: 2\n", "line 3: more than one document"),
        (
            "{apiVersion: v1, kind: Service, metadata: {name: web}}",
            "expected an AdmissionRequest, found an object of kind \"Service\": `clusterip plan` takes manifests",
        ),
        (r#"{"kind": "AdmissionReview", "response": {"uid": "a", "allowed": true}}"#, &missing),
        (r#"{"kind": "AdmissionReview", "request": null}"#, &is_null),
    ]);
}

#[test]
fn request_without_a_required_field_is_refused() {
    let whole = json!({
        "uid": "u", "operation": "CREATE", "userInfo": {},
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"},
    });
    let rows = [
        ("uid", "missing, expected a string"),
        ("kind", "missing, expected an object with group, version and kind"),
        ("resource", "missing, expected an object with group, version and resource"),
        ("operation", "missing, expected a string such as CREATE"),
        ("userInfo", "missing, expected an object, possibly empty"),
    ];
    for (field, problem) in rows {
        let mut request = whole.clone();
        request.as_object_mut().unwrap().remove(field);
        check([(request.to_string().as_str(), format!("not an AdmissionRequest: `{field}` is {problem}").as_str())]);
    }
    check([
        (r#"{"request": {}}"#, "not an AdmissionRequest: `uid` is missing, expected a string"),
        (
            r#"{"uid": "u", "kind": null}"#,
            "not an AdmissionRequest: `kind` is null, expected an object with group, version and kind",
        ),
    ]);
}

#[test]
fn unusable_files_are_named() {
    let folder = copy_of("evaluate-bad-files", WEB);
    folder.write("latin-1.json", b"caf\xe9").write("s.yaml", "services: {ordr: lowest}").write("c.yaml", "- 1");
    let rows = [
        ("--request gone", "request: gone: No such file or directory (os error 2)"),
        ("--request .", "request: .: Is a directory (os error 21)"),
        ("--request latin-1.json", "request: latin-1.json: line 1: not UTF-8 (byte 0xe9)"),
        ("--request request.json -s gone", "settings: gone: No such file or directory (os error 2)"),
        (
            "--request request.json -s s.yaml",
            "settings: s.yaml: services.ordr: unknown key \"ordr\": did you mean order?",
        ),
        ("--request request.json --snapshot gone", "snapshot: gone: No such file or directory (os error 2)"),
        (
            "--request request.json --snapshot c.yaml",
            "snapshot: c.yaml: document 1, line 1: expected a Kubernetes object, found a list",
        ),
        ("--request request.json --session gone", "session: gone: No such file or directory (os error 2)"),
        ("--request request.json --session s.yaml", "session: s.yaml: expected a list of exchanges"),
        (
            "--request request.json --session c.yaml",
            "session: c.yaml: exchange 1: invalid type: integer `1`, expected struct Written",
        ),
        ("--request request.json --record gone/s.yml", "record: gone/s.yml: No such file or directory (os error 2)"),
    ];
    for (args, message) in rows {
        assert_eq!(folder.clusterip(&format!("evaluate {args}")), Done::refused(message), "{args}");
    }
}
