//! Tests which parts of an answer remain in monitor mode, and that no warning is cut off.

use serde_json::{Value, json};

use crate::recorded_sessions;

/// The response that policy-server makes in monitor mode: everything is allowed, and patch and status are removed. The
/// API server shows the remaining warnings, and writes the annotations to its audit log.
fn monitored(response: &Value) -> Value {
    let mut response = response.clone();
    if let Some(response) = response.as_object_mut() {
        response.insert("allowed".to_owned(), true.into());
        response.retain(|key, _| !["patch", "patchType", "status", "uid"].contains(&key.as_str()));
    }
    response
}

#[test]
fn monitor_mode_reports_the_decision_in_warnings_and_audit_annotations() {
    struct Case {
        name: &'static str,
        session: &'static str,
        annotations: Value,
        warnings: Value,
    }
    const MISPLACED: &str =
        "172.21.0.77 lies in pool \"linux\", expected pool \"windows\": kubernetes.io/os=windows (Deployment shop/web)";
    let windows = r#"{"source":"Deployment shop/web","labels":{"kubernetes.io/os":"windows"}}"#;
    let refused = format!("Service shop/web: {MISPLACED}; omit clusterIP, or use an address of the Service's pool");
    let rows = [
        Case {
            name: "a Service that would be placed: pool and evidence, but not the address",
            session: "evidence-from-a-deployment",
            annotations: json!({"decision": "allocated", "evidence": windows, "pool": "windows"}),
            warnings: Value::Null,
        },
        Case {
            name: "a misplaced one that would be denied: the reason, and no warning",
            session: "audit-scan-of-a-misplaced-service",
            annotations: json!({"decision": "denied", "evidence": windows, "pool": "windows", "reason": refused}),
            warnings: Value::Null,
        },
        Case {
            name: "a misplaced one where the settings warn",
            session: "audit-scan-of-a-misplaced-service-warns",
            annotations: json!({"decision": "unchanged", "evidence": windows, "pool": "windows", "reason": "set by hand"}),
            warnings: json!([MISPLACED]),
        },
    ];
    let sessions = recorded_sessions::all();
    for Case { name, session, annotations, warnings } in rows {
        let session = sessions.iter().find(|recorded| recorded.name == session).expect(name);
        let expected = json!({"allowed": true, "auditAnnotations": annotations, "warnings": warnings});
        assert_eq!(monitored(&session.response), expected, "{name}");
    }
}

/// The API server may cut longer warnings; Kubernetes asks for at most 120 characters where possible. Longer warnings
/// contain the numbers of a full pool, or the error of a host.
#[test]
fn warnings_are_short() {
    const MAX_CHARACTERS: usize = 256;
    const AT_BEST: usize = 120;
    let mut long = Vec::new();
    for session in recorded_sessions::all() {
        for warning in session.response["warnings"].as_array().into_iter().flatten() {
            let length = warning.as_str().unwrap().chars().count();
            assert!(length <= MAX_CHARACTERS, "{}: {length}: {warning}", session.name);
            if length > AT_BEST {
                long.push((session.name.clone(), length));
            }
        }
    }
    let expected = [
        ("by-hand-and-a-look-up-fails-warns", 132),
        ("full-is-unmanaged", 123),
        ("node-and-a-look-up-fails-warns", 190),
    ];
    assert_eq!(long.iter().map(|(name, length)| (name.as_str(), *length)).collect::<Vec<_>>(), expected);
}
