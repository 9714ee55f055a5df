//! Runs `clusterip evaluate` as a user does.
//!
//! The files in `golden/kwctl` are the output of `kwctl run` (1.36) for the session of that name, byte for byte. kwctl
//! writes audit annotations in any order; these files come from runs that wrote them ordered by name, as `clusterip`
//! always does.

use std::fs;

use crate::command::session_files::{WEB, copy_of, read, response, session};
use crate::command::{Done, Folder};
use serde_json::{Value, json};

/// Checks that this is the response that is stored beside a session.
#[track_caller]
fn assert_stored(workspace: &Folder, folder: &str, done: Done) {
    let response = read(workspace, &format!("{folder}/response.json"));
    let allowed = serde_json::from_str::<Value>(&response).unwrap()["allowed"] == true;
    assert_eq!(done, Done { status: i32::from(!allowed), ..Done::ok(response) }, "{folder}");
}

/// The arguments for a session without its look-ups.
fn evaluate(folder: &str) -> String {
    format!("evaluate --request {folder}/request.json --settings {folder}/settings.json")
}

/// `sessions.rs` in `crates/cluster` replays and records all sessions; this test has one for each kind of look-up.
#[test]
fn session_is_replayed_and_recorded_again_with_its_stored_response() {
    let records = Folder::new("evaluate-records");
    let workspace = Folder::workspace();
    for name in [
        "leave-headless",
        "evidence-from-the-node-of-a-pod",
        "evidence-from-a-runtime-class",
        "evidence-from-a-custom-kind",
        "evidence-by-look-ups-of-one-namespace",
        "spread-lists-after-sixteen-taken-addresses",
        "full-is-denied",
        "evidence-from-the-annotation",
        "pool-named-by-the-annotation",
    ] {
        let folder = session(name);
        let cluster = format!("{folder}/cluster.yaml");
        let snapshot = if workspace.path(&cluster).exists() { format!(" --snapshot {cluster}") } else { String::new() };
        let record = records.path(name).display().to_string();
        for look_ups in [
            format!("--session {folder}/session.yml"),
            format!("--session {folder}/session.yml --module policy.wasm"),
            format!("--record {record}{snapshot}"),
        ] {
            let done = workspace.clusterip(&format!("{} -o decoded {look_ups}", evaluate(&folder)));
            assert_stored(&workspace, &folder, done);
        }
        let (expected, found) = (read(&workspace, &format!("{folder}/session.yml")), read(&records, name));
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn module_is_given_by_its_file_and_its_look_ups_are_recorded_and_listed() {
    let workspace = Folder::workspace();
    let folder = copy_of("evaluate-module", WEB);
    folder.write("policy.wasm", fs::read(workspace.path("policy.wasm")).expect("`make policy.wasm` builds it"));
    let run = |args: &str| folder.clusterip(&format!("{} --module policy.wasm {args}", evaluate(".")));
    let recorded = run("--snapshot cluster.yaml --record new.yml -o decoded");
    assert_eq!(recorded, Done::ok(response("windows")));
    assert_eq!(read(&folder, "new.yml"), read(&folder, "session.yml"));
    let text = "\
2 look-ups
  1. list apps/v1/Deployment: 3 found
  2. get networking.k8s.io/v1/IPAddress 172.21.1.59: not found
allowed
  add /spec/clusterIP \"172.21.1.59\"
  decision: allocated
  evidence: {\"source\":\"Deployment shop/web\",\"labels\":{\"kubernetes.io/os\":\"windows\"}}
  pool: windows
";
    assert_eq!(run("--session new.yml -o text"), Done::ok(text));

    folder.write("settings.json", r#"{"services": {"oder": "lowest"}}"#);
    let mistake = "settings: ./settings.json: services.oder: unknown key \"oder\": did you mean order?";
    assert_eq!(run("-o text"), Done::refused(mistake), "mistakes in settings");
}

#[test]
fn denial_is_listed_with_its_message() {
    let workspace = Folder::workspace();
    let folder = session("full-is-denied");
    let done = workspace.clusterip(&format!("{} --session {folder}/session.yml -o text", evaluate(&folder)));
    let stored: Value = serde_json::from_str(&read(&workspace, &format!("{folder}/response.json"))).unwrap();
    let message = stored["status"]["message"].as_str().unwrap();
    assert_eq!(done.status, 1);
    assert!(done.stdout.contains(&format!("\ndenied\n  {message}\n  decision: denied\n")), "{}", done.stdout);
}

#[test]
fn module_that_can_not_be_used_is_refused() {
    let folder = copy_of("evaluate-bad-modules", WEB);
    folder.write("empty.wasm", "");
    let loops = r#"(module (memory (export "memory") 1)
        (func (export "__guest_call") (param i32 i32) (result i32) (call 0 (local.get 0) (local.get 1))))"#;
    folder.write("recurses.wasm", wat::parse_str(loops).unwrap());
    for (file, message) in [
        ("none.wasm", "No such file or directory (os error 2): `make policy.wasm` builds the module"),
        ("empty.wasm", "it is not a WebAssembly module that can be run: unexpected end-of-file (at offset 0x0)"),
        ("recurses.wasm", "its calls are nested too deep"),
    ] {
        let done = folder.clusterip(&format!("evaluate --module {file} --request request.json"));
        assert_eq!(done, Done::refused(format!("module {file}: {message}")), "{file}");
    }
}

#[test]
fn response_has_the_format_of_kwctl() {
    let workspace = Folder::workspace();
    let rows = [
        ("leave-headless", 0),
        ("evidence-from-a-deployment", 0),
        ("evidence-that-disagrees-warns", 0),
        ("full-is-denied", 1),
        ("fails-forbidden-by-rbac", 1),
    ];
    for (name, status) in rows {
        let folder = session(name);
        let done = workspace.clusterip(&format!("{} --session {folder}/session.yml", evaluate(&folder)));
        let by_kwctl = read(&workspace, &format!("crates/clusterip/tests/golden/kwctl/{name}.json"));
        assert_eq!(done, Done { status, stdout: by_kwctl, stderr: String::new() }, "{name}");
    }
}

#[test]
fn request_may_be_in_a_review_on_standard_input_or_in_yaml() {
    let folder = copy_of("evaluate-requests", WEB);
    let request = read(&folder, "request.json");
    let value: Value = serde_json::from_str(&request).unwrap();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": value});
    let yaml = "\
# written by hand
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
            let done = folder.piped(&format!("evaluate --request {file} -o decoded"), stdin);
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
    assert_eq!(folder.clusterip("evaluate --request request.json"), expected);
}

#[test]
fn missing_service_ranges_give_a_warning_for_kubewarden() {
    let ranges = "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\n\
                  spec: {cidrs: [172.21.0.0/16, 'fd00::/108']}\n";
    let warning = "services.serviceCIDRs is not set: plan, serve and move take it from the cluster (172.21.0.0/16, \
                   fd00::/108), Kubewarden can't\n";
    let folder = copy_of("evaluate-ranges", WEB);
    folder.write("cluster.yaml", read(&folder, "cluster.yaml") + ranges);
    folder.write("set.yaml", "services: {serviceCIDRs: [172.21.0.0/16]}");
    let rows = [
        ("-o decoded", format!("warning: the default settings: {warning}")),
        ("-o decoded -s settings.json", format!("warning: settings.json: {warning}")),
        ("-o decoded -s set.yaml", String::new()),
    ];
    for (args, stderr) in rows {
        let done = folder.clusterip(&format!("evaluate --request request.json --snapshot cluster.yaml {args}"));
        assert_eq!(done, Done { stderr, ..Done::ok(response("windows")) }, "{args}");
    }
}
