//! Any input is answered with the right status and message, and the next request is served.

use std::io::{Read as _, Write as _};

use clusterip::webhook::admission::answer;
use clusterip::webhook::server::Limits;
use proptest::prelude::*;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use rustls::version::TLS13;

use crate::support::{Review, Running, allowed, backend, review};

const LIMIT: usize = 3 << 20;
const JSON: &str = "application/json";

#[tokio::test]
async fn body_that_is_not_a_review_is_refused_with_the_reason() {
    struct Case<'a> {
        name: &'static str,
        body: &'a str,
        message: &'static str,
    }
    let deep = "[".repeat(1000);
    let long = format!(r#"{{"apiVersion": "{}"}}"#, "x".repeat(100));
    let rows = [
        Case {
            name: "nothing",
            body: "",
            message: "the body is not JSON: EOF while parsing a value at line 1 column 0",
        },
        Case {
            name: "half",
            body: "{\n\"a\": [1,",
            message: "the body is not JSON: EOF while parsing a value at line 2 column 8",
        },
        Case {
            name: "more than one",
            body: "{} {}",
            message: "the body is not JSON: trailing characters at line 1 column 4",
        },
        Case {
            name: "deep",
            body: &deep,
            message: "the body is not JSON: recursion limit exceeded at line 1 column 128",
        },
        Case { name: "a list", body: "[]", message: "apiVersion is missing, expected admission.k8s.io/v1" },
        Case {
            name: "an older version",
            body: r#"{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "1"}}"#,
            message: r#"apiVersion is the string "admission.k8s.io/v1beta1", expected admission.k8s.io/v1"#,
        },
        Case {
            name: "a long version",
            body: &long,
            message: r#"apiVersion is the string "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"…, expected admission.k8s.io/v1"#,
        },
        Case {
            name: "another kind",
            body: r#"{"apiVersion": "admission.k8s.io/v1", "kind": "Service"}"#,
            message: r#"kind is the string "Service", expected AdmissionReview"#,
        },
        Case {
            name: "a kind that is no text",
            body: r#"{"apiVersion": "admission.k8s.io/v1", "kind": {}}"#,
            message: "kind is an object, expected AdmissionReview",
        },
        Case {
            name: "an answer",
            body: r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {}}"#,
            message: "request is missing, expected an object",
        },
        Case {
            name: "a request that is a list",
            body: r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": [1]}"#,
            message: "request is a list, expected an object",
        },
        Case {
            name: "no uid",
            body: r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"name": "web"}}"#,
            message: "request.uid is missing, expected a string",
        },
        Case {
            name: "an empty uid",
            body: r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": ""}}"#,
            message: r#"request.uid is the string "", expected a string"#,
        },
        Case {
            name: "a number for a uid",
            body: r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": 7}}"#,
            message: "request.uid is the number 7, expected a string",
        },
    ];
    let server = Running::start(backend(|_| allowed()), Limits::default()).await;
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, "application/json; charset=utf-8".parse().unwrap());
    for Case { name, body, message } in rows {
        let found = server.send(Method::POST, "/mutate", headers.clone(), body.as_bytes().into()).await;
        assert_eq!(found, (400, format!("{message}\n")), "{name}");
    }
    server.assert_serves().await;
}

#[tokio::test]
async fn unsupported_path_method_or_content_type_is_refused() {
    struct Case<'a> {
        name: &'static str,
        method: Method,
        path: &'static str,
        content_type: Option<&'static str>,
        body: &'a [u8],
        status: u16,
        message: &'static str,
    }
    let large = vec![b' '; LIMIT + 1];
    let rows = [
        Case {
            name: "no content type",
            method: Method::POST,
            path: "/mutate",
            content_type: None,
            body: b"{}",
            status: 415,
            message: "no content type, expected application/json\n",
        },
        Case {
            name: "another content type",
            method: Method::POST,
            path: "/mutate",
            content_type: Some("application/yaml"),
            body: b"{}",
            status: 415,
            message: "unsupported content type \"application/yaml\", expected application/json\n",
        },
        Case {
            name: "too large",
            method: Method::POST,
            path: "/mutate",
            content_type: Some(JSON),
            body: &large,
            status: 413,
            message: "the body is larger than 3145728 bytes\n",
        },
        Case {
            name: "GET",
            method: Method::GET,
            path: "/mutate",
            content_type: None,
            body: b"",
            status: 405,
            message: "/mutate accepts only POST, not GET\n",
        },
        Case {
            name: "PUT",
            method: Method::PUT,
            path: "/mutate",
            content_type: Some(JSON),
            body: b"{}",
            status: 405,
            message: "/mutate accepts only POST, not PUT\n",
        },
        Case {
            name: "POST",
            method: Method::POST,
            path: "/readyz",
            content_type: None,
            body: b"",
            status: 405,
            message: "/readyz accepts only GET and HEAD, not POST\n",
        },
        Case {
            name: "another path",
            method: Method::POST,
            path: "/validate",
            content_type: Some(JSON),
            body: b"{}",
            status: 404,
            message: "not found: /validate (try /mutate, /healthz, /readyz or /metrics)\n",
        },
    ];
    let server = Running::start(backend(|_| allowed()), Limits::default()).await;
    for Case { name, method, path, content_type, body, status, message } in rows {
        let headers = content_type.iter().map(|value| (CONTENT_TYPE, value.parse().unwrap())).collect();
        let found = server.send(method, path, headers, body.to_vec()).await;
        assert_eq!(found, (status, message.to_owned()), "{name}");
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
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, "application/json".parse().unwrap());
    for Case { name, object, refused } in cases {
        let (status, text) = server.send(Method::POST, "/mutate", headers.clone(), body(&object)).await;
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &found["response"]["allowed"]), (200, &refused.is_none().into()), "{name}: {text}");
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
            let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
            let status = serde_json::json!({"message": "the body is larger than 3145728 bytes", "code": 413});
            let none = serde_json::Value::Null;
            let response = serde_json::json!({"uid": "7", "allowed": false, "status": status, "auditAnnotations": none, "warnings": none});
            assert_eq!(answer["response"], response, "{name}");
        }
    }
    server.assert_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_of_unknown_length_is_limited_too() {
    let server = Running::start(backend(|_| allowed()), Limits { body: 1000, ..Limits::default() }).await;
    let said = tokio::task::block_in_place(|| {
        let mut stream = server.tls(&[&TLS13]);
        let head =
            "POST /mutate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
        let parts = format!("64\r\n{}\r\n", " ".repeat(100)).repeat(11) + "0\r\n\r\n";
        write!(stream, "{head}transfer-encoding: chunked\r\n\r\n{parts}").unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        String::from_utf8(said).unwrap()
    });
    assert!(said.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{said}");
    assert!(said.ends_with("\r\n\r\nthe body is larger than 1000 bytes\n"), "{said}");
}

#[tokio::test]
async fn memory_for_bodies_is_limited() {
    let server = Running::start(backend(|_| allowed()), Limits { bodies: 100_000, ..Limits::default() }).await;
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, "application/json".parse().unwrap());
    let large = review("1") + &" ".repeat(200_000);
    let found = server.send(Method::POST, "/mutate", headers, large.into_bytes()).await;
    let expected = "busy: waiting requests may take 100000 bytes, and those of this client take most of it\n";
    assert_eq!(found, (503, expected.to_owned()));
    // The memory was returned.
    server.assert_serves().await;
    server.assert_serves().await;
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::{Value, json};
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
    fn only_a_review_is_answered(body in json()) {
        let is_review = body["apiVersion"] == "admission.k8s.io/v1"
            && body["kind"] == "AdmissionReview"
            && body["request"]["uid"].as_str().is_some_and(|uid| !uid.is_empty());
        let answered = answer(&Review(|_: &_| allowed()), body.to_string().as_bytes());
        prop_assert_eq!(answered.is_ok(), is_review);
    }
}
