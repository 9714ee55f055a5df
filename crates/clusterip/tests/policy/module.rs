//! The policy module, and guests that misbehave: what the module imports, how it answers invalid input, and that no
//! guest exceeds its limits.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Arc, LazyLock};

use crate::support::{NoCluster, call, guest};
use clusterip::policy::host_calls::{HostCall, HostCalls};
use clusterip::policy::module::{EMBEDDED, Module, ModuleError};
use clusterip_core::answer::Answer;
use serde_json::{Value, json};

static MODULE: LazyLock<Module> = LazyLock::new(|| Module::new(EMBEDDED).unwrap());

fn request(object: Value) -> Value {
    json!({
        "uid": "00000000-0000-4000-8000-000000000001",
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"},
        "name": "web",
        "namespace": "shop",
        "operation": "CREATE",
        "userInfo": {"username": "alice"},
        "object": object,
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    })
}

#[test]
fn module_imports_only_wapc() {
    const WAPC: [&str; 9] = [
        "__console_log",
        "__guest_error",
        "__guest_request",
        "__guest_response",
        "__host_call",
        "__host_error",
        "__host_error_len",
        "__host_response",
        "__host_response_len",
    ];
    let imports: BTreeSet<(&str, &str)> =
        MODULE.imports().iter().map(|(module, name)| (module.as_str(), name.as_str())).collect();
    let known: BTreeSet<(&str, &str)> = WAPC.iter().map(|name| ("wapc", *name)).collect();
    assert!(imports.contains(&("wapc", "__host_call")), "{imports:?}");
    assert_eq!(imports.difference(&known).collect::<Vec<_>>(), Vec::<&(&str, &str)>::new());
}

#[test]
fn module_is_at_most_400_kb() {
    // Every replica of a policy-server pulls and compiles it.
    const MOST: u64 = 400_000;
    let bytes = WASM_SIZE.parse::<u64>().unwrap();
    assert!(bytes <= MOST, "{bytes} bytes");
}

#[test]
fn module_speaks_version_1_of_the_kubewarden_protocol() {
    assert_eq!(call("protocol_version", b"", Arc::new(NoCluster)), Ok(br#""v1""#.to_vec()));
}

#[test]
fn unknown_operation_is_an_error() {
    let error = call("mutate", b"{}", Arc::new(NoCluster)).unwrap_err();
    assert!(error.contains("mutate"), "{error}");
}

// --- Guests that misbehave

fn evaluate(name: &str) -> Result<Answer, ModuleError> {
    Module::new(guest(name)).unwrap().validate(&request(service()), &json!({}), Arc::new(NoCluster))
}

#[test]
fn misbehaving_policy_fails_within_its_limits() {
    struct Case {
        guest: &'static str,
        reason: &'static str,
    }
    let rows = [
        Case { guest: "loops for ever", reason: "deadline" },
        Case { guest: "grows for ever", reason: "deadline" },
        Case { guest: "loops for ever as it begins", reason: "deadline" },
        Case { guest: "traps", reason: "unreachable" },
        Case { guest: "recurses for ever", reason: "call stack exhausted" },
        Case { guest: "reads outside its memory", reason: "out of bounds memory access" },
        Case { guest: "answers from outside its memory", reason: "misused the waPC interface" },
        Case { guest: "gives an error", reason: "no way" },
        Case { guest: "gives nothing", reason: "neither an answer nor an error" },
    ];
    for Case { guest, reason } in rows {
        match evaluate(guest) {
            Err(ModuleError::Call(text)) => assert!(text.contains(reason), "{guest}: {text}"),
            other => panic!("{guest}: {other:?}"),
        }
    }
}

#[test]
fn invalid_answer_is_an_error() {
    for text in ["hello", "", "5", r#"{"accepted": "yes"}"#, r#"{"accepted": true"#] {
        match evaluate(&format!("answers {text}")) {
            Err(ModuleError::Answer(_)) => {}
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[test]
fn memory_can_not_grow_beyond_the_limit() {
    // The guests start with one page of 64 KiB. The limit is 256 MiB.
    let refused = Answer { message: Some("refused".to_owned()), ..Answer::default() };
    assert_eq!(evaluate("traps with 4096 more pages").unwrap(), refused);
    match evaluate("traps with 4095 more pages") {
        Err(ModuleError::Call(text)) => assert!(text.contains("unreachable"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn evaluation_works_after_a_failed_one() {
    for bad in ["loops for ever in validate", "traps in validate", "recurses for ever in validate"] {
        let module = Module::new(guest(bad)).unwrap();
        for _ in 0..2 {
            let failed = module.validate(&request(service()), &json!({}), Arc::new(NoCluster));
            assert!(matches!(failed, Err(ModuleError::Call(_))), "{bad}: {failed:?}");
            assert!(module.validate_settings(&json!({})).unwrap().valid, "{bad}");
        }
    }
}

#[test]
fn every_evaluation_gets_a_fresh_instance() {
    let module = Module::new(guest("answers once")).unwrap();
    for _ in 0..3 {
        assert!(module.validate_settings(&json!({})).unwrap().valid);
    }
}

#[test]
fn module_that_is_not_a_policy_is_not_loaded() {
    for name in ["an import from elsewhere", "no function to call", "an import of WASI"] {
        match Module::new(guest(name)) {
            Err(ModuleError::Load(_)) => {}
            Err(other) => panic!("{name}: {other:?}"),
            Ok(_) => panic!("{name}: loaded"),
        }
    }
}

// --- Invalid requests

/// The module's answer to the bytes of a payload.
fn answer(payload: &[u8]) -> Answer {
    serde_json::from_slice(&call("validate", payload, Arc::new(NoCluster)).unwrap()).unwrap()
}

fn payload(request: Value) -> Vec<u8> {
    serde_json::to_vec(&json!({"request": request, "settings": {}})).unwrap()
}

/// `request` with `value` at `pointer`.
fn with(pointer: &str, value: Value) -> Value {
    let mut request = request(service());
    request["oldObject"] = Value::Null;
    *request.pointer_mut(pointer).unwrap() = value;
    request
}

/// Nested lists.
fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

#[test]
fn invalid_payloads_are_denied_with_the_reason() {
    struct Case {
        name: &'static str,
        payload: Vec<u8>,
        reason: &'static str,
    }
    let rows = [
        Case {
            name: "nothing",
            payload: b"".to_vec(),
            reason: "the request is not a JSON document with request and settings: EOF",
        },
        Case {
            name: "no JSON",
            payload: b"hello".to_vec(),
            reason: "the request is not a JSON document with request and settings: expected value",
        },
        Case {
            name: "not UTF-8",
            payload: b"{\"request\": \"\xff\"}".to_vec(),
            reason: "the request is not a JSON document with request and settings: invalid unicode",
        },
        Case {
            name: "half a document",
            payload: payload(request(service()))[..200].to_vec(),
            reason: "the request is not a JSON document with request and settings: EOF",
        },
        Case {
            name: "more than a document",
            payload: b"{} {}".to_vec(),
            reason: "the request is not a JSON document with request and settings: trailing characters",
        },
        Case {
            name: "a number",
            payload: b"5".to_vec(),
            reason: "the request is not a JSON document with request and settings: found the number 5",
        },
        Case {
            name: "a list",
            payload: b"[{}, {}]".to_vec(),
            reason: "the request is not a JSON document with request and settings: found a list",
        },
        Case {
            name: "10,000 levels",
            payload: format!("{{\"request\": {}}}", nested(10_000)).into_bytes(),
            reason: "the request is not a JSON document with request and settings: recursion limit exceeded",
        },
        Case {
            name: "no request",
            payload: b"{}".to_vec(),
            reason: "the request can't be read: request: expected an object, found null",
        },
        Case {
            name: "request: null",
            payload: payload(Value::Null),
            reason: "the request can't be read: request: expected an object, found null",
        },
        Case {
            name: "request: []",
            payload: payload(json!([])),
            reason: "the request can't be read: request: expected an object, found a list",
        },
        Case {
            name: "an empty request",
            payload: payload(json!({})),
            reason: "the request can't be read: request.operation: expected an operation, found nothing",
        },
        Case {
            name: "no kind",
            payload: payload(with("/kind", Value::Null)),
            reason: "the request can't be read: request.kind: expected a kind, found nothing",
        },
        Case {
            name: "operation: 5",
            payload: payload(with("/operation", json!(5))),
            reason: "the request can't be read: request.operation: expected a string, found the number 5",
        },
        Case {
            name: "object: null",
            payload: payload(with("/object", Value::Null)),
            reason: "the request can't be read: request.object: expected a Service, found nothing",
        },
        Case {
            name: "object: []",
            payload: payload(with("/object", json!([]))),
            reason: "the request can't be read: request.object: expected an object, found a list",
        },
        Case {
            name: "no oldObject",
            payload: payload(with("/operation", json!("UPDATE"))),
            reason: "the request can't be read: request.oldObject: expected a Service, found nothing",
        },
        Case {
            name: "metadata: []",
            payload: payload(with("/object/metadata", json!([]))),
            reason: "the request can't be read: request.object.metadata: expected an object, found a list",
        },
        Case {
            name: "spec: 5",
            payload: payload(with("/object/spec", json!(5))),
            reason: "the request can't be read: request.object.spec: expected an object, found the number 5",
        },
        Case {
            name: "selector: [web]",
            payload: payload(with("/object/spec/selector", json!(["web"]))),
            reason: "the request can't be read: request.object.spec.selector: expected an object, found a list",
        },
        Case {
            name: "selector: {app: 5}",
            payload: payload(with("/object/spec/selector/app", json!(5))),
            reason: "the request can't be read: request.object.spec.selector.app: expected a string, found the number \
                     5",
        },
        Case {
            name: "a selector of 100 levels",
            payload: payload(with("/object/spec/selector/app", serde_json::from_str(&nested(100)).unwrap())),
            reason: "the request can't be read: request.object.spec.selector.app: expected a string, found a list",
        },
        Case {
            name: "settings: []",
            payload: br#"{"request": {}, "settings": []}"#.to_vec(),
            reason: "invalid settings: settings: expected an object, found a list",
        },
        Case {
            name: "settings with a mistake",
            payload: br#"{"request": {}, "settings": {"servces": {}}}"#.to_vec(),
            reason: "invalid settings: servces: unknown key \"servces\": did you mean services?",
        },
    ];
    for Case { name, payload, reason } in rows {
        let answer = answer(&payload);
        let message = answer.message.clone().unwrap_or_default();
        assert!(message.starts_with(reason), "{name}: {message}");
        let audit = [("decision".to_owned(), "denied".to_owned()), ("reason".to_owned(), message.clone())].into();
        let denied =
            Answer { message: Some(message), code: Some(400), audit_annotations: Some(audit), ..Answer::default() };
        assert_eq!(answer, denied, "{name}");
    }
}

#[test]
fn unused_fields_may_have_any_value() {
    struct Case {
        name: &'static str,
        pointer: &'static str,
        value: Value,
    }
    let plain = answer(&payload(request(service())));
    assert_eq!(plain.audit().unwrap().outcome.name(), "allocated");
    let deep: Value = serde_json::from_str(&nested(100)).unwrap();
    for Case { name, pointer, value } in [
        Case { name: "a user without a name", pointer: "/userInfo", value: Value::Null },
        Case { name: "ports of 100 levels", pointer: "/object/spec/ports", value: deep.clone() },
        Case { name: "a number as the resource", pointer: "/resource", value: json!(5) },
    ] {
        let request = with(pointer, value);
        let mut expected = plain.clone();
        let mut object = request["object"].clone();
        object["spec"]["clusterIP"] = plain.mutated_object.as_ref().unwrap()["spec"]["clusterIP"].clone();
        expected.mutated_object = Some(object);
        assert_eq!(answer(&payload(request)), expected, "{name}");
    }
}

#[test]
fn same_request_gives_the_same_bytes() {
    let requests = [request(service()), with("/object/spec", json!({"clusterIP": "172.21.1.77"})), json!({})];
    for request in requests {
        let payload = payload(request);
        let first = call("validate", &payload, Arc::new(NoCluster)).unwrap();
        for _ in 0..3 {
            assert_eq!(call("validate", &payload, Arc::new(NoCluster)).unwrap(), first);
        }
    }
}

// --- Hosts with invalid answers

/// A cluster in which every look-up is needed, and the answer to one of them is invalid.
struct Rubbish {
    about: &'static str,
    text: String,
}

impl HostCalls for Rubbish {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let (HostCall::ListAll { api_version, kind, .. }
        | HostCall::ListNamespace { api_version, kind, .. }
        | HostCall::Get { api_version, kind, .. }) = call;
        let resource = format!("{api_version}/{kind}");
        if resource == self.about {
            return Ok(self.text.clone().into_bytes());
        }
        let metadata = json!({"name": "web", "namespace": "shop", "labels": {"app": "web"}});
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"runtimeClassName": "windows"}});
        let list = |item: Value| json!({"items": [item]});
        let answer = match kind.as_str() {
            "Deployment" => list(json!({"metadata": metadata, "spec": {"template": template}})),
            "CronJob" => list(json!({"metadata": metadata, "spec": {"jobTemplate": {"spec": {"template": template}}}})),
            "Pod" => list(json!({"metadata": metadata, "spec": {"nodeName": "n1"}})),
            "IPAddress" => return NoCluster.answer(call),
            _ => json!({"metadata": {"name": "x"}}),
        };
        Ok(answer.to_string().into_bytes())
    }
}

/// The kinds whose look-ups are lists, and those whose look-ups are single objects.
const LISTS: [&str; 4] = ["apps/v1/Deployment", "batch/v1/CronJob", "v1/Pod", "v1/Service"];
const OBJECTS: [&str; 4] = ["node.k8s.io/v1/RuntimeClass", "v1/Node", "v1/Namespace", "networking.k8s.io/v1/IPAddress"];

/// Answers one request whose decision needs every look-up of `Rubbish`.
fn answer_with(about: &'static str, text: &str) -> Answer {
    let settings = json!({"services": {
        "pools": [
            {"name": "windows", "cidrs": ["10.0.1.0/29"], "match": {"os": "windows"}},
            {"name": "rest", "cidrs": ["10.0.0.0/29"]},
        ],
        "evidence": {"kinds": ["Deployment", "CronJob", "Pod"]},
        "order": "lowest",
    }});
    let calls = Arc::new(Rubbish { about, text: text.to_owned() });
    MODULE.validate(&request(service()), &settings, calls).unwrap_or_else(|error| panic!("{about}: {text}: {error}"))
}

#[track_caller]
fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn invalid_answer_of_the_host_is_denied_and_names_the_resource() {
    let cut = r#"{"items":[{"metadata":{"name":"web","#;
    let anywhere = ["", "hello", "{", "5", "\"text\"", cut, "{} {}", "\u{0}", "null", "[]", "true"];
    let in_lists = [
        r#"{"items":5}"#,
        r#"{"items":"none"}"#,
        r#"{"items":{}}"#,
        r#"{"items":{"items":[]}}"#,
        r#"{"items":[5]}"#,
        r#"{"items":[null]}"#,
        r#"{"items":[{"metadata":{"name":5,"namespace":"shop"}}]}"#,
        r#"{"items":[{"metadata":"none"}]}"#,
    ];
    let in_workloads = [
        r#"{"items":[{"metadata":{"name":"web","namespace":"shop","labels":5},"spec":5}]}"#,
        r#"{"items":[{"metadata":{"name":"web","namespace":"shop","labels":{"app":"web"}},"spec":[]}]}"#,
    ];
    let in_services = [
        r#"{"items":[{"spec":{"clusterIP":5}}]}"#,
        r#"{"items":[{"spec":{"clusterIPs":"10.0.0.1"}}]}"#,
        r#"{"items":[{"spec":{"clusterIPs":[null]}}]}"#,
    ];
    let in_metadata = [
        r#"{"metadata":5}"#,
        r#"{"metadata":{"labels":[]}}"#,
        r#"{"metadata":{"labels":{"kubernetes.io/os":5}}}"#,
        r#"{"metadata":{"labels":{"kubernetes.io/os":null}}}"#,
    ];
    let in_runtime_classes = [r#"{"scheduling":5}"#, r#"{"scheduling":{"nodeSelector":[]}}"#];
    let rows: [(&[&'static str], &[&str]); 7] = [
        (&LISTS, &anywhere),
        (&LISTS, &in_lists),
        (&["apps/v1/Deployment", "batch/v1/CronJob", "v1/Pod"], &in_workloads),
        (&["v1/Service"], &in_services),
        (&OBJECTS, &anywhere),
        (&["v1/Node", "v1/Namespace"], &in_metadata),
        (&["node.k8s.io/v1/RuntimeClass"], &in_runtime_classes),
    ];
    let mut problems = Vec::new();
    for (abouts, texts) in rows {
        for (about, text) in abouts.iter().flat_map(|about| texts.iter().map(move |text| (*about, *text))) {
            let answer = answer_with(about, text);
            let message = answer.message.unwrap_or_default();
            let expected = format!("Service shop/web: the host's answer about {about}");
            if answer.accepted || answer.code != Some(500) || !message.starts_with(&expected) {
                problems.push(format!("{about}: {text:?}: accepted: {}, {message}", answer.accepted));
            }
        }
    }
    report(problems);
}

#[test]
fn fields_missing_in_host_answers_count_as_absent() {
    let in_lists = [
        "{}",
        r#"{"items":null}"#,
        r#"{"items":[]}"#,
        r#"{"items":[{}]}"#,
        r#"{"items":[{"metadata":null,"spec":null}]}"#,
        r#"{"items":[{"metadata":{"name":null,"namespace":null,"labels":null,"annotations":{}},"spec":{}}]}"#,
        r#"{"items":[{"metadata":{"name":"web","namespace":"shop"},"spec":{}}],"apiVersion":5,"metadata":[]}"#,
    ];
    let in_objects = [
        "{}",
        r#"{"metadata":null,"scheduling":null}"#,
        r#"{"metadata":{"labels":null,"annotations":null},"scheduling":{"nodeSelector":null}}"#,
    ];
    let lists = LISTS.iter().flat_map(|about| in_lists.iter().map(move |text| (*about, *text)));
    let objects = OBJECTS.iter().flat_map(|about| in_objects.iter().map(move |text| (*about, *text)));
    let mut problems = Vec::new();
    for (about, text) in lists.chain(objects) {
        let answer = answer_with(about, text);
        let address = answer.mutated_object.map(|object| object["spec"]["clusterIP"].clone());
        let found = (address, answer.message);
        // For an `IPAddress` only its existence matters, not its content.
        let expected = if about == "networking.k8s.io/v1/IPAddress" {
            found.0.is_none()
                && found.1.as_ref().is_some_and(|message| message.contains("\"rest\" (10.0.0.0/29) is full"))
        } else {
            found == (Some(json!("10.0.0.1")), None)
        };
        if !expected {
            problems.push(format!("{about}: {text}: {found:?}"));
        }
    }
    report(problems);
}

/// Answers a request that sets the block 10.0.0.0/24, with this list of Nodes.
fn answer_with_nodes(list: &[u8]) -> Answer {
    struct Nodes(Vec<u8>);
    impl HostCalls for Nodes {
        fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
            assert!(matches!(call, HostCall::ListAll { kind, .. } if kind == "Node"), "{call:?}");
            Ok(self.0.clone())
        }
    }
    let mut request = request(json!({"metadata": {"name": "w1"}, "spec": {"podCIDRs": ["10.0.0.0/24"]}}));
    request["kind"]["kind"] = "Node".into();
    let settings = json!({"nodes": {"pools": [{"name": "all", "cidrs": ["10.0.0.0/16"]}], "explicit": "deny"}});
    MODULE.validate(&request, &settings, Arc::new(Nodes(list.to_vec()))).unwrap()
}

#[test]
fn only_names_and_blocks_of_a_node_list_must_be_valid() {
    struct Case {
        name: &'static str,
        list: &'static [u8],
        message: Option<String>,
    }
    const UNREAD: &str =
        "Node w1: unknown whether another Node has 10.0.0.0/24: the host's answer about v1/Node can't be read: ";
    let taken = |block: &str, name: &str| {
        let way_out = "omit podCIDR and podCIDRs, or use a free block of the Node's pool";
        Some(format!("Node w1: 10.0.0.0/24 overlaps {block} of Node {name}; {way_out}"))
    };
    let unread = |detail: &str| Some(format!("{UNREAD}{detail}"));
    let rows = [
        Case { name: "no items", list: b"{}", message: None },
        Case { name: "items: null", list: br#"{"items":null}"#, message: None },
        Case { name: "an empty Node", list: br#"{"items":[{}]}"#, message: None },
        Case {
            name: "nothing in it",
            list: br#"{"items":[{"metadata":null,"spec":{"podCIDR":null,"podCIDRs":null}}]}"#,
            message: None,
        },
        Case {
            name: "itself",
            list: br#"{"items":[{"metadata":{"name":"w1"},"spec":{"podCIDRs":["10.0.0.0/24"]}}]}"#,
            message: None,
        },
        Case {
            name: "another block",
            list: br#"{"items":[{"metadata":{"name":"w2"},"spec":{"podCIDRs":["10.0.1.0/24","fd00::/64"]}}]}"#,
            message: None,
        },
        Case {
            name: "no block",
            list: br#"{"items":[{"metadata":{"name":"w2"},"spec":{"podCIDR":"","podCIDRs":["x","10.0.0.0"]}}]}"#,
            message: None,
        },
        Case {
            name: "the one field",
            list: br#"{"items":[{"metadata":{"name":"w2"},"spec":{"podCIDR":"10.0.0.0/24"}}]}"#,
            message: taken("10.0.0.0/24", "w2"),
        },
        Case {
            name: "the other, second",
            list: br#"{"items":[{"spec":{"podCIDRs":["fd00::/64","10.0.0.0/24"]},"metadata":{"name":"w2"}}]}"#,
            message: taken("10.0.0.0/24", "w2"),
        },
        Case {
            name: "host bits",
            list: br#"{"items":[{"metadata":{"name":"w2"},"spec":{"podCIDR":"10.0.0.7/20"}}]}"#,
            message: taken("10.0.0.0/20", "w2"),
        },
        Case {
            name: "escapes",
            list: br#"{"items":[{"metadata":{"n\u0061me":"w\u0032"},"spec":{"podCIDR":"10.0.0.0\/24"}}]}"#,
            message: taken("10.0.0.0/24", "w2"),
        },
        Case {
            name: "fields of the same names elsewhere",
            list: br#"{"items":[{"metadata":{"name":"w2","spec":{"podCIDR":5}},"status":{"podCIDR":5},"podCIDR":5,"spec":{"x":{"podCIDRs":5}}}]}"#,
            message: None,
        },
        Case { name: "nothing", list: b"", message: unread("expected an object at byte 0") },
        Case { name: "a list", list: b"[]", message: unread("expected an object at byte 0") },
        Case {
            name: "a Node that is null",
            list: br#"{"items":[null]}"#,
            message: unread("expected an object at byte 14"),
        },
        Case {
            name: "a name that is a number",
            list: br#"{"items":[{"metadata":{"name":5}}]}"#,
            message: unread("expected a string at byte 30"),
        },
        Case {
            name: "podCIDR that is a number",
            list: br#"{"items":[{"spec":{"podCIDR":5}}]}"#,
            message: unread("expected a string at byte 29"),
        },
        Case {
            name: "podCIDRs that is a string",
            list: br#"{"items":[{"spec":{"podCIDRs":"10.0.0.0/24"}}]}"#,
            message: unread("expected a list at byte 30"),
        },
        Case {
            name: "one that is null",
            list: br#"{"items":[{"spec":{"podCIDRs":[null]}}]}"#,
            message: unread("expected a string at byte 31"),
        },
        Case {
            name: "podCIDR twice",
            list: br#"{"items":[{"spec":{"podCIDR":"x","podCIDR":"y"}}]}"#,
            message: unread("expected each field once at byte 43"),
        },
        Case {
            name: "podCIDR twice, first null",
            list: br#"{"items":[{"spec":{"podCIDR":null,"podCIDR":"y"}}]}"#,
            message: unread("expected each field once at byte 44"),
        },
        Case {
            name: "no UTF-8",
            list: b"{\"items\":[{\"spec\":{\"podCIDR\":\"\xff\"}}]}",
            message: unread("a string is not UTF-8"),
        },
        Case {
            name: "cut off",
            list: br#"{"items":[{"spec":{"podCIDR":"10.0"#,
            message: unread("expected the end of a string at byte 34"),
        },
    ];
    let report_it = "; report it with the host's version";
    let mut problems = Vec::new();
    for Case { name, list, message } in rows {
        let expected = message.map(|message| if message.starts_with(UNREAD) { message + report_it } else { message });
        let found = answer_with_nodes(list).message;
        if found != expected {
            problems.push(format!("{name}: found {found:?}, expected {expected:?}"));
        }
    }
    report(problems);
}

#[test]
fn invalid_node_is_denied_with_the_reason() {
    struct Case {
        name: &'static str,
        payload: Vec<u8>,
        reason: &'static str,
    }
    let about = |object: Value, allocation: Value| {
        let mut request = request(object);
        request["kind"]["kind"] = "Node".into();
        let settings = json!({"nodes": {"pools": [{"name": "all", "cidrs": ["10.0.0.0/16"]}]}});
        serde_json::to_vec(&json!({"request": request, "settings": settings, "allocation": allocation})).unwrap()
    };
    let good = || json!({"metadata": {"name": "w1"}, "spec": {}});
    let rows = [
        Case {
            name: "object: null",
            payload: about(Value::Null, Value::Null),
            reason: "request.object: expected a Node, found nothing",
        },
        Case {
            name: "labels",
            payload: about(json!({"metadata": {"labels": 5}}), Value::Null),
            reason: "request.object.metadata.labels: expected an object, found the number 5",
        },
        Case {
            name: "podCIDRs",
            payload: about(json!({"spec": {"podCIDRs": {}}}), Value::Null),
            reason: "request.object.spec.podCIDRs: expected a list, found an object",
        },
        Case {
            name: "allocation: []",
            payload: about(good(), json!([])),
            reason: "allocation: expected an object, found a list",
        },
        Case {
            name: "allocation.held",
            payload: about(good(), json!({"held": [5]})),
            reason: "allocation.held[0]: expected a string, found the number 5",
        },
        Case {
            name: "allocation.last",
            payload: about(good(), json!({"last": ["x"]})),
            reason: r#"allocation.last[0]: expected a CIDR, found the string "x""#,
        },
    ];
    for Case { name, payload, reason } in rows {
        let answer = answer(&payload);
        let expected = Some(format!("the request can't be read: {reason}"));
        assert_eq!((answer.message, answer.code), (expected, Some(400)), "{name}");
    }
    let given = answer(&about(good(), json!({"held": ["10.0.0.0/24"], "last": null})));
    let expected = json!({"metadata": {"name": "w1"}, "spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24"]}});
    assert_eq!(given.mutated_object, Some(expected));
}
