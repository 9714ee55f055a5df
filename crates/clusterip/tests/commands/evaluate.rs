//! Runs `clusterip evaluate` as a user does.
//!
//! The files in `golden/kwctl` are the output of `kwctl run` (1.36) for the session of that name, byte for byte. kwctl
//! writes audit annotations in any order; these files come from runs that wrote them ordered by name, as `clusterip`
//! always does.

use std::fs;
use std::sync::Mutex;

use crate::command::{Done, Folder};
use serde_json::{Value, json};

const SESSIONS: &str = "e2e-tests/sessions";

/// The folder of a session, relative to the workspace.
fn session(name: &str) -> String {
    format!("{SESSIONS}/{name}")
}

/// A test folder with the files of a session.
fn copy_of(test: &str, name: &str) -> Folder {
    let folder = Folder::new(test);
    for file in ["request.json", "settings.json", "session.yml", "cluster.yaml"] {
        if let Ok(text) = fs::read(Folder::workspace().path(&format!("{}/{file}", session(name)))) {
            folder.write(file, text);
        }
    }
    folder
}

fn read(folder: &Folder, file: &str) -> String {
    fs::read_to_string(folder.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// One session out of this many is tested: each needs a process of its own that compiles the policy, and `sessions.rs`
/// replays all of them in one process.
const ONE_IN: usize = 8;

/// Every eighth session by name, divided among as many threads as the machine has.
fn for_sessions_of_each_kind(check: impl Fn(&Folder, &str) -> Vec<String> + Sync) {
    let workspace = Folder::workspace();
    let entries = fs::read_dir(workspace.path(SESSIONS)).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = entries
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert!(names.len() >= 200, "{} folders", names.len());
    names.sort();
    let names: Vec<String> = names.into_iter().step_by(ONE_IN).collect();
    let problems = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for part in names.chunks(names.len().div_ceil(4)) {
            let (problems, check, workspace) = (&problems, &check, &workspace);
            scope.spawn(move || {
                for name in part {
                    let found = check(workspace, &session(name));
                    problems.lock().unwrap().extend(found.into_iter().map(|problem| format!("{name}: {problem}")));
                }
            });
        }
    });
    let problems = problems.into_inner().unwrap();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The differences from the response that is stored beside a session.
fn differences(workspace: &Folder, folder: &str, done: &Done) -> Vec<String> {
    let response = read(workspace, &format!("{folder}/response.json"));
    let allowed = serde_json::from_str::<Value>(&response).unwrap()["allowed"] == true;
    // Some sessions have settings with warnings: those are tested for `plan`.
    let about_settings = format!("warning: {folder}/settings.json: services.");
    let stderr = done.stderr.lines().filter(|line| !line.starts_with(&about_settings)).collect::<String>();
    let seen = (done.status, done.stdout.as_str(), stderr.as_str());
    let expected = (i32::from(!allowed), response.as_str(), "");
    if seen == expected { Vec::new() } else { vec![format!("expected {expected:?}, found {seen:?}")] }
}

#[test]
fn session_gets_its_stored_response() {
    for_sessions_of_each_kind(|workspace, folder| {
        let [request, settings, session] =
            ["request.json", "settings.json", "session.yml"].map(|file| format!("{folder}/{file}"));
        let args = ["evaluate", "--request", &request, "--settings", &settings, "--session", &session];
        differences(workspace, folder, &workspace.run(&[&args[..], &["--output", "decoded"]].concat()))
    });
}

/// All sessions are recorded again in `sessions.rs`; this test records one for each kind of look-up.
#[test]
fn recording_a_snapshot_gives_the_stored_session() {
    let records = Folder::new("evaluate-records");
    let workspace = Folder::workspace();
    for name in [
        "06-leave-headless",
        "29-evidence-from-the-node-of-a-pod",
        "34-evidence-from-a-runtime-class",
        "40-evidence-from-a-custom-kind",
        "41-evidence-by-look-ups-of-one-namespace",
        "54-spread-lists-after-sixteen-taken-addresses",
        "63-full-is-denied",
    ] {
        let folder = session(name);
        let [request, settings, cluster] =
            ["request.json", "settings.json", "cluster.yaml"].map(|file| format!("{folder}/{file}"));
        let record = records.path(name);
        let args = ["evaluate", "--request", &request, "-s", &settings, "-o", "decoded"];
        let cluster: &[&str] = if workspace.path(&cluster).exists() { &["--snapshot", &cluster] } else { &[] };
        let done = workspace.run(&[&args[..], cluster, &["--record", record.to_str().unwrap()]].concat());
        assert_eq!(differences(&workspace, &folder, &done), Vec::<String>::new(), "{name}");
        let (expected, found) = (read(&workspace, &format!("{folder}/session.yml")), read(&records, name));
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn response_has_the_format_of_kwctl() {
    let workspace = Folder::workspace();
    let rows = [
        ("06-leave-headless", 0),
        ("21-evidence-from-a-deployment", 0),
        ("39-evidence-that-disagrees-warns", 0),
        ("63-full-is-denied", 1),
        ("89-fails-forbidden-by-rbac", 1),
    ];
    for (name, status) in rows {
        let folder = session(name);
        let [request, settings, session] =
            ["request.json", "settings.json", "session.yml"].map(|file| format!("{folder}/{file}"));
        let done = workspace.run(&["evaluate", "--request", &request, "--settings", &settings, "--session", &session]);
        let by_kwctl = read(&workspace, &format!("crates/clusterip/tests/golden/kwctl/{name}.json"));
        assert_eq!(done, Done { status, stdout: by_kwctl, stderr: String::new() }, "{name}");
    }
}

/// The Service of session 21, which selects a Deployment for Windows.
const WEB: &str = "21-evidence-from-a-deployment";

/// The response to it: for Windows if the Deployment exists, otherwise for Linux.
fn response(os: &str) -> String {
    let (address, source) = match os {
        "windows" => ("172.21.1.59", "Deployment shop/web"),
        _ => ("172.21.0.59", "assumption"),
    };
    let response = json!({
        "uid": "00000000-0000-4000-8000-000000000021",
        "allowed": true,
        "patchType": "JSONPatch",
        "patch": [{"op": "add", "path": "/spec/clusterIP", "value": address}],
        "auditAnnotations": {
            "decision": "allocated",
            "evidence": format!(r#"{{"source":"{source}","labels":{{"kubernetes.io/os":"{os}"}}}}"#),
            "pool": os,
        },
        "warnings": null,
    });
    format!("{response:#}\n")
}

#[test]
fn look_ups_use_the_selected_source() {
    struct Case {
        name: &'static str,
        args: &'static [&'static str],
        os: &'static str,
    }
    let folder = copy_of("evaluate-sources", WEB);
    let rows = [
        Case { name: "an empty cluster", args: &[], os: "linux" },
        Case { name: "a snapshot", args: &["--snapshot", "cluster.yaml"], os: "windows" },
        Case { name: "a session", args: &["--session", "session.yml", "--settings", "settings.json"], os: "windows" },
    ];
    for Case { name, args, os } in rows {
        let done = folder.run(&[&["evaluate", "--request", "request.json", "-o", "decoded"], args].concat());
        assert_eq!(done, Done::ok(response(os)), "{name}");
    }
}

#[test]
fn request_may_be_in_a_review_on_standard_input_or_in_yaml() {
    let folder = copy_of("evaluate-requests", WEB);
    let request = read(&folder, "request.json");
    let value: Value = serde_json::from_str(&request).unwrap();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": value});
    let yaml = "\
# as somebody wrote it
uid: 00000000-0000-4000-8000-000000000021
kind: {group: '', version: v1, kind: Service}
resource: {group: '', version: v1, resource: services}
operation: CREATE
userInfo: {}
namespace: shop
name: web
object: {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}
";
    // An escape that JSON allows and YAML does not.
    let escaped = request.replacen("\"alice\"", r#""\ud83d\ude00""#, 1);
    let rows = [
        ("an AdmissionRequest", request),
        ("an AdmissionReview", review.to_string()),
        ("a review that does not say so", json!({ "request": value }).to_string()),
        ("YAML", yaml.to_owned()),
        ("a surrogate pair", escaped),
    ];
    for (name, text) in rows {
        folder.write("r", &text);
        for (file, stdin) in [("r", ""), ("-", text.as_str())] {
            let done = folder.run_with(&["evaluate", "--request", file, "-o", "decoded"], stdin, &[]);
            assert_eq!(done, Done::ok(response("linux")), "{name}, {file}");
        }
    }
}

/// A request that the policy can't read is denied, as it is for a client of the API server.
#[test]
fn request_without_object_is_denied_by_the_policy() {
    let folder = copy_of("evaluate-no-object", WEB);
    let mut request: Value = serde_json::from_str(&read(&folder, "request.json")).unwrap();
    request.as_object_mut().unwrap().remove("object");
    folder.write("request.json", request.to_string());
    let message = "the request can't be read: request.object: expected a Service, found nothing";
    let stdout = format!(
        "{{\"uid\":\"00000000-0000-4000-8000-000000000021\",\"allowed\":false,\"status\":{{\"message\":\"{message}\",\
         \"code\":400}},\"auditAnnotations\":{{\"decision\":\"denied\",\"reason\":\"{message}\"}},\"warnings\":null}}\n"
    );
    let expected = Done { status: 1, stdout, stderr: String::new() };
    assert_eq!(folder.run(&["evaluate", "--request", "request.json"]), expected);
}

#[test]
fn missing_service_ranges_give_a_warning_for_kubewarden() {
    struct Case {
        name: &'static str,
        args: &'static [&'static str],
        stderr: String,
    }
    let ranges = "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\n\
                  spec: {cidrs: [172.21.0.0/16, 'fd00::/108']}\n";
    let warning = "services.serviceCIDRs is not set: plan, serve and move take it from the cluster (172.21.0.0/16, \
                   fd00::/108), Kubewarden can't\n";
    let folder = copy_of("evaluate-ranges", WEB);
    folder.write("cluster.yaml", read(&folder, "cluster.yaml") + ranges);
    folder.write("set.yaml", "services: {serviceCIDRs: [172.21.0.0/16]}");
    let rows = [
        Case { name: "the default settings", args: &[], stderr: format!("warning: the default settings: {warning}") },
        Case {
            name: "settings without them",
            args: &["-s", "settings.json"],
            stderr: format!("warning: settings.json: {warning}"),
        },
        Case { name: "settings with them", args: &["-s", "set.yaml"], stderr: String::new() },
    ];
    for Case { name, args, stderr } in rows {
        let args =
            [&["evaluate", "--request", "request.json", "--snapshot", "cluster.yaml", "-o", "decoded"], args].concat();
        assert_eq!(folder.run(&args), Done { stderr, ..Done::ok(response("windows")) }, "{name}");
    }
}

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
    let folder = copy_of("evaluate-misfits", WEB);
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

#[test]
fn file_without_request_is_refused() {
    struct Case {
        name: &'static str,
        text: String,
        message: String,
    }
    let folder = Folder::new("evaluate-bad-requests");
    let part = |field: &str, found: &str, expected: &str| {
        format!("not an AdmissionRequest: `{field}` is {found}, expected {expected}")
    };
    let expected = "expected an AdmissionRequest, or an AdmissionReview with one, found";
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
    let rows = [
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
            message: "an AdmissionReview whose `request` is null: save the review as received, before it is answered"
                .to_owned(),
        },
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
            name: "nobody",
            text: without("userInfo"),
            message: part("userInfo", "missing", "an object, possibly empty"),
        },
    ];
    for Case { name, text, message } in rows {
        folder.write("r.json", text);
        let done = folder.run(&["evaluate", "--request", "r.json"]);
        assert_eq!(done, Done::refused(format!("request: r.json: {message}")), "{name}");
    }
}

#[test]
fn unusable_files_are_named() {
    struct Case {
        name: &'static str,
        args: &'static [&'static str],
        message: String,
    }
    let folder = copy_of("evaluate-bad-files", WEB);
    folder.write("latin-1.json", b"caf\xe9").write("s.yaml", "services: {ordr: lowest}").write("c.yaml", "- 1");
    let none = "No such file or directory (os error 2)";
    let rows = [
        Case { name: "a missing request", args: &["--request", "gone"], message: format!("request: gone: {none}") },
        Case {
            name: "a folder",
            args: &["--request", "."],
            message: "request: .: Is a directory (os error 21)".to_owned(),
        },
        Case {
            name: "Latin-1",
            args: &["--request", "latin-1.json"],
            message: "request: latin-1.json: line 1: not UTF-8 (byte 0xe9)".to_owned(),
        },
        Case { name: "missing settings", args: &["-s", "gone"], message: format!("settings: gone: {none}") },
        Case {
            name: "wrong settings",
            args: &["-s", "s.yaml"],
            message: "settings: s.yaml\nservices.ordr: unknown key \"ordr\": did you mean order?".to_owned(),
        },
        Case { name: "a missing snapshot", args: &["--snapshot", "gone"], message: format!("snapshot: gone: {none}") },
        Case {
            name: "a snapshot of something else",
            args: &["--snapshot", "c.yaml"],
            message: "snapshot: c.yaml: document 1, line 1: expected an object of Kubernetes, found a list".to_owned(),
        },
        Case { name: "a missing session", args: &["--session", "gone"], message: format!("session: gone: {none}") },
        Case {
            name: "a record that can't be written",
            args: &["--record", "gone/s.yml"],
            message: format!("record: gone/s.yml: {none}"),
        },
    ];
    for Case { name, args, message } in rows {
        let request: &[&str] = if args[0] == "--request" { &[] } else { &["--request", "request.json"] };
        assert_eq!(folder.run(&[&["evaluate"], request, args].concat()), Done::refused(message), "{name}");
    }
}

#[test]
fn missing_cluster_is_reported() {
    let folder = copy_of("evaluate-no-cluster", WEB);
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n\
                  clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: a, user: {}}]\n";
    folder.write("config", config);
    let done = folder.run_with(
        &["evaluate", "--request", "request.json", "--cluster"],
        "",
        &[("KUBECONFIG", folder.path("config").to_str().unwrap())],
    );
    let message = "no cluster: ServiceError: client error (Connect): tcp connect error: Connection refused (os error \
                   111); check KUBECONFIG and the current context";
    assert_eq!(done, Done::refused(message));
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
