//! What `clusterip evaluate` says about invalid input.

use crate::command::session_files::{WEB, copy_of};
use crate::command::{Done, Folder};
use serde_json::json;

struct Case {
    name: &'static str,
    text: String,
    message: String,
}

#[track_caller]
fn check(test: &str, rows: Vec<Case>) {
    let folder = Folder::new(test);
    for Case { name, text, message } in rows {
        folder.write("r.json", text);
        let done = folder.run(&["evaluate", "--request", "r.json"]);
        assert_eq!(done, Done::refused(format!("request: r.json: {message}")), "{name}");
    }
}

fn part(field: &str, found: &str, expected: &str) -> String {
    format!("not an AdmissionRequest: `{field}` is {found}, expected {expected}")
}

#[test]
fn file_that_is_not_a_request_is_refused() {
    let expected = "expected an AdmissionRequest, or an AdmissionReview with one, found";
    check(
        "evaluate-no-request",
        vec![
            Case { name: "nothing", text: String::new(), message: format!("{expected} null") },
            Case { name: "a list", text: "[]".to_owned(), message: format!("{expected} a list") },
            Case { name: "text", text: "hello".to_owned(), message: format!(r#"{expected} the string "hello""#) },
            Case {
                name: "no YAML",
                text: "uid: [\n".to_owned(),
                message: "line 2: while parsing a node, did not find expected node content".to_owned(),
            },
            Case {
                name: "half a JSON",
                text: "{\"uid\": \"a\",\n".to_owned(),
                message: "line 2: while parsing a node, did not find expected node content".to_owned(),
            },
            Case {
                name: "two documents",
                text: "a: 1\n---\nb: 2\n".to_owned(),
                message: "line 3: more than one document".to_owned(),
            },
            Case {
                name: "a manifest",
                text: "{apiVersion: v1, kind: Service, metadata: {name: web}}".to_owned(),
                message: "expected an AdmissionRequest, found an object of kind \"Service\": `clusterip plan` takes \
                          manifests"
                    .to_owned(),
            },
            Case {
                name: "an answer",
                text: r#"{"kind": "AdmissionReview", "response": {"uid": "a", "allowed": true}}"#.to_owned(),
                message: "an AdmissionReview whose `request` is missing: save the review as received, before it is \
                          answered"
                    .to_owned(),
            },
            Case {
                name: "a review of nothing",
                text: r#"{"kind": "AdmissionReview", "request": null}"#.to_owned(),
                message:
                    "an AdmissionReview whose `request` is null: save the review as received, before it is answered"
                        .to_owned(),
            },
        ],
    );
}

#[test]
fn request_without_a_required_field_is_refused() {
    let whole = json!({
        "uid": "u", "operation": "CREATE", "userInfo": {},
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"},
    });
    let without = |field: &str| {
        let mut request = whole.clone();
        request.as_object_mut().unwrap().remove(field);
        request.to_string()
    };
    let kind = "an object with group, version and kind";
    check(
        "evaluate-incomplete-request",
        vec![
            Case { name: "an empty object", text: "{}".to_owned(), message: part("uid", "missing", "a string") },
            Case {
                name: "a request in vain",
                text: r#"{"request": {}}"#.to_owned(),
                message: part("uid", "missing", "a string"),
            },
            Case { name: "no uid", text: without("uid"), message: part("uid", "missing", "a string") },
            Case { name: "no kind", text: without("kind"), message: part("kind", "missing", kind) },
            Case {
                name: "kind null",
                text: r#"{"uid": "u", "kind": null}"#.to_owned(),
                message: part("kind", "null", kind),
            },
            Case {
                name: "no resource",
                text: without("resource"),
                message: part("resource", "missing", "an object with group, version and resource"),
            },
            Case {
                name: "no operation",
                text: without("operation"),
                message: part("operation", "missing", "a string such as CREATE"),
            },
            Case {
                name: "no userInfo",
                text: without("userInfo"),
                message: part("userInfo", "missing", "an object, possibly empty"),
            },
        ],
    );
}

#[test]
fn unusable_files_are_named() {
    struct FileCase {
        name: &'static str,
        args: &'static [&'static str],
        message: String,
    }
    let folder = copy_of("evaluate-bad-files", WEB);
    folder.write("latin-1.json", b"caf\xe9").write("s.yaml", "services: {ordr: lowest}").write("c.yaml", "- 1");
    let none = "No such file or directory (os error 2)";
    let rows = [
        FileCase { name: "a missing request", args: &["--request", "gone"], message: format!("request: gone: {none}") },
        FileCase {
            name: "a folder",
            args: &["--request", "."],
            message: "request: .: Is a directory (os error 21)".to_owned(),
        },
        FileCase {
            name: "Latin-1",
            args: &["--request", "latin-1.json"],
            message: "request: latin-1.json: line 1: not UTF-8 (byte 0xe9)".to_owned(),
        },
        FileCase { name: "missing settings", args: &["-s", "gone"], message: format!("settings: gone: {none}") },
        FileCase {
            name: "wrong settings",
            args: &["-s", "s.yaml"],
            message: "settings: s.yaml: services.ordr: unknown key \"ordr\": did you mean order?".to_owned(),
        },
        FileCase {
            name: "a missing snapshot",
            args: &["--snapshot", "gone"],
            message: format!("snapshot: gone: {none}"),
        },
        FileCase {
            name: "a snapshot of something else",
            args: &["--snapshot", "c.yaml"],
            message: "snapshot: c.yaml: document 1, line 1: expected a Kubernetes object, found a list".to_owned(),
        },
        FileCase { name: "a missing session", args: &["--session", "gone"], message: format!("session: gone: {none}") },
        FileCase {
            name: "a record that can't be written",
            args: &["--record", "gone/s.yml"],
            message: format!("record: gone/s.yml: {none}"),
        },
    ];
    for FileCase { name, args, message } in rows {
        let request: &[&str] = if args[0] == "--request" { &[] } else { &["--request", "request.json"] };
        assert_eq!(folder.run(&[&["evaluate"], request, args].concat()), Done::refused(message), "{name}");
    }
}

#[test]
fn cluster_that_hangs_is_given_up_after_the_request_timeout() {
    let folder = copy_of("evaluate-hanging-cluster", WEB);
    // The kernel accepts the connection, and no program answers the request.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
                  contexts: [{name: a, context: {cluster: a, user: a}}]\n\
                  clusters: [{name: a, cluster: {server: 'URL'}}]\n\
                  users: [{name: a, user: {}}]\n";
    folder.write("config", config.replace("URL", &url));
    let request = ["--request", "request.json", "--cluster", "--kubeconfig", "config", "--request-timeout", "500ms"];
    let begin = std::time::Instant::now();
    let message = format!(
        "the API server {url} (context a) can't be reached: no answer within 500ms (--request-timeout); check that it \
         runs, and that --kubeconfig and --context name the right cluster"
    );
    assert_eq!(folder.run(&[&["evaluate"], &request[..]].concat()), Done::refused(message));
    assert!(begin.elapsed() < std::time::Duration::from_secs(20));
}

#[test]
fn invalid_command_line_is_refused() {
    let rows: [&[&str]; 6] = [
        &[],
        &["--request", "r", "--session", "a", "--snapshot", "b"],
        &["--request", "r", "--session", "a", "--cluster"],
        &["--request", "r", "--snapshot", "a", "--cluster"],
        &["--request", "r", "--session", "a", "--record", "b"],
        &["--request", "r", "-o", "yaml"],
    ];
    for args in rows {
        let done = Folder::workspace().run(&[&["evaluate"], args].concat());
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{args:?}");
        assert!(done.stderr.starts_with("error: "), "{args:?}: {done:?}");
    }
}
