//! Any input is answered with the right status and message, and the next request is served.

use clusterip::webhook::admission::answer;
use clusterip::webhook::server::Limits;
use proptest::prelude::*;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{self, Review, Running, allowed, backend, review};

const LIMIT: usize = 3 << 20;

#[tokio::test]
async fn body_that_is_not_a_review_is_refused_with_the_reason() {
    struct Case {
        body: String,
        message: &'static str,
    }
    let case = |body: &str, message| Case { body: body.to_owned(), message };
    // A review with this change.
    let changed = |change: Value, message| {
        let mut body: Value = serde_json::from_str(&review("1")).unwrap();
        json_patch::merge(&mut body, &change);
        Case { body: body.to_string(), message }
    };
    let rows = [
        case("{\n\"a\": [1,", "the body is not JSON: EOF while parsing a value at line 2 column 8"),
        case("{} {}", "the body is not JSON: trailing characters at line 1 column 4"),
        case(&"[".repeat(1000), "the body is not JSON: recursion limit exceeded at line 1 column 128"),
        case("[]", "apiVersion is missing, expected admission.k8s.io/v1"),
        changed(
            json!({"apiVersion": "admission.k8s.io/v1beta1"}),
            r#"apiVersion is the string "admission.k8s.io/v1beta1", expected admission.k8s.io/v1"#,
        ),
        changed(
            json!({"apiVersion": "x".repeat(100)}),
            r#"apiVersion is the string "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"…, expected admission.k8s.io/v1"#,
        ),
        changed(json!({"kind": "Service"}), r#"kind is the string "Service", expected AdmissionReview"#),
        changed(json!({"kind": {}}), "kind is an object, expected AdmissionReview"),
        changed(json!({"request": null, "response": {}}), "request is missing, expected an object"),
        changed(json!({"request": [1]}), "request is a list, expected an object"),
        changed(json!({"request": {"uid": null}}), "request.uid is missing, expected a string"),
        changed(json!({"request": {"uid": ""}}), r#"request.uid is the string "", expected a string"#),
        changed(json!({"request": {"uid": 7}}), "request.uid is the number 7, expected a string"),
    ];
    let server = Running::start(backend(|_| allowed()), Limits::default()).await;
    for Case { body, message } in rows {
        let found = server.post("/mutate", body).await;
        assert_eq!(found, (StatusCode::BAD_REQUEST, format!("{message}\n")));
    }
    server.assert_serves().await;
}

#[tokio::test]
async fn unsupported_path_method_or_content_type_is_refused() {
    struct Case {
        method: Method,
        path: &'static str,
        content_type: Option<&'static str>,
        body: Vec<u8>,
        status: u16,
        message: &'static str,
    }
    let base = || Case {
        method: Method::POST,
        path: "/mutate",
        content_type: Some("application/json; charset=utf-8"),
        body: b"{}".to_vec(),
        status: 405,
        message: "",
    };
    let rows = [
        Case { content_type: None, status: 415, message: "no content type, expected application/json", ..base() },
        Case {
            content_type: Some("application/yaml"),
            status: 415,
            message: "unsupported content type \"application/yaml\", expected application/json",
            ..base()
        },
        Case { body: vec![b' '; LIMIT + 1], status: 413, message: "the body is larger than 3145728 bytes", ..base() },
        Case { method: Method::GET, message: "/mutate accepts only POST, not GET", ..base() },
        Case { method: Method::PUT, message: "/mutate accepts only POST, not PUT", ..base() },
        Case { path: "/readyz", message: "/readyz accepts only GET and HEAD, not POST", ..base() },
        Case {
            path: "/validate",
            status: 404,
            message: "not found: /validate (try /mutate, /healthz, /readyz or /metrics)",
            ..base()
        },
        Case { status: 400, message: "apiVersion is missing, expected admission.k8s.io/v1", ..base() },
    ];
    let server = Running::start(backend(|_| allowed()), Limits::default()).await;
    for Case { method, path, content_type, body, status, message } in rows {
        let headers = content_type.iter().map(|value| (CONTENT_TYPE, value.parse().unwrap())).collect();
        let request = server.client().request(method, server.url(path)).headers(headers).body(body);
        let response = request.send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.text().await.unwrap()), (status, format!("{message}\n")));
    }
    server.assert_serves().await;
}

#[tokio::test]
async fn review_of_the_largest_allowed_size_is_answered() {
    let server = Running::start(backend(|_| allowed()), Limits::default()).await;
    let body = review("1") + &" ".repeat(LIMIT);
    let (status, text) = server.post("/mutate", body[..LIMIT].to_owned()).await;
    assert_eq!((status.as_u16(), text.contains("\"allowed\":true")), (200, true), "{text}");
}

/// The API server sends both as a user wrote them into `metadata.managedFields`. A body without an answer would be
/// admitted by `failurePolicy: Ignore`.
#[tokio::test]
async fn review_with_bytes_or_depth_of_a_user_gets_an_answer() {
    let server = Running::start(backend(|_| allowed()), Limits::default()).await;
    let body = |object: &[u8]| {
        let start = br#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "7",
            "kind": {"group": "", "version": "v1", "kind": "Service"}, "object": "#;
        [&start[..], object, b"}}"].concat()
    };
    let owners = |fields: &[u8]| [br#"{"metadata": {"managedFields": [{"fieldsV1": "#, fields, b"}]}}"].concat();
    let deep = ["{\"f:a\":".repeat(200), "{}".to_owned(), "}".repeat(200)].concat();
    struct Case {
        name: &'static str,
        object: Vec<u8>,
        /// The code of the refusal.
        refused: Option<u16>,
    }
    let cases = [
        Case { name: "no UTF-8", object: owners(b"{\"f:spec\": {\"f:\xff\xfe\": {}}}"), refused: None },
        Case { name: "deep owners of fields", object: owners(deep.as_bytes()), refused: None },
        Case {
            name: "deep owners of the spec",
            object: owners(format!(r#"{{"f:spec": {deep}}}"#).as_bytes()),
            refused: None,
        },
        Case {
            name: "a deep field that decisions use",
            object: format!(r#"{{"spec": {{"selector": {deep}}}}}"#).into_bytes(),
            refused: Some(400),
        },
    ];
    for Case { name, object, refused } in cases {
        let (status, text) = server.post("/mutate", body(&object)).await;
        let found: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (status.as_u16(), &found["response"]["allowed"]),
            (200, &refused.is_none().into()),
            "{name}: {text}"
        );
        assert_eq!(found["response"]["status"]["code"].as_u64(), refused.map(u64::from), "{name}: {text}");
    }
    server.assert_serves().await;
}

#[tokio::test]
async fn too_large_review_is_denied() {
    struct Case {
        name: &'static str,
        request: String,
        expected: u16,
    }
    // Without a response, the failurePolicy would decide, and a large enough request would bypass the policy.
    let about = r#""uid": "7", "kind": {"group": "", "version": "v1", "kind": "Service"}, "name": "web""#;
    let rows = [
        Case {
            name: "UID and kind come first",
            request: format!("{about}, \"object\": \"{}\"", "x".repeat(LIMIT)),
            expected: 200,
        },
        Case {
            name: "UID and kind come after a large object",
            request: format!("\"object\": \"{}\", {about}", "x".repeat(LIMIT)),
            expected: 413,
        },
        Case {
            name: "larger than anything an API server sends",
            request: format!("{about}, \"object\": \"{}\"", "x".repeat(40 << 20)),
            expected: 200,
        },
    ];
    let server = Running::start(backend(|_| allowed()), Limits::default()).await;
    for Case { name, request, expected } in rows {
        let body =
            format!(r#"{{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {{{request}}}}}"#);
        let (status, text) = server.post("/mutate", body).await;
        assert_eq!(status.as_u16(), expected, "{name}: {text}");
        if status == 200 {
            let status = json!({"message": "the body is larger than 3145728 bytes", "code": 413});
            let expected = support::answer("7", json!({"allowed": false, "status": status}));
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected, "{name}");
        }
    }
    server.assert_serves().await;
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(|number| json!(number)),
        prop::sample::select(&["admission.k8s.io/v1", "AdmissionReview", "", "1"][..]).prop_map(|text| json!(text)),
    ];
    let keys = prop::sample::select(&["apiVersion", "kind", "request", "uid", "object"][..]);
    leaf.prop_recursive(4, 32, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| json!(items)),
            prop::collection::btree_map(keys.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|fields| json!(fields)),
        ]
    })
}

proptest! {
    #[test]
    fn random_bytes_are_refused_in_one_line(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let refusal = answer(&Review(|_: &_| allowed()), &body).unwrap_err().1;
        prop_assert!(!refusal.contains('\n'));
    }

    #[test]
    fn only_a_review_is_answered(body in any_json()) {
        let is_review = body["apiVersion"] == "admission.k8s.io/v1"
            && body["kind"] == "AdmissionReview"
            && body["request"]["uid"].as_str().is_some_and(|uid| !uid.is_empty());
        let answered = answer(&Review(|_: &_| allowed()), body.to_string().as_bytes());
        prop_assert_eq!(answered.is_ok(), is_review);
    }
}
