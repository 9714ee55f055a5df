//! A review of a Node never changes the Node, and denies it only if the settings say so.

use clusterip::webhook::admission::{OnError, Reviewer as _};
use clusterip_cluster::admission_review::{AdmissionResponse, Status};
use serde_json::{Value, json};

use crate::reviews::Webhook;
use crate::support;

fn node(spec: &Value) -> Value {
    json!({
        "uid": "7",
        "kind": {"group": "", "version": "v1", "kind": "Node"},
        "name": "linux-1",
        "operation": "CREATE",
        "object": {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "linux-1", "labels": {"kubernetes.io/os": "linux"}},
            "spec": spec,
        },
    })
}

/// The response to a request with pools of Nodes whose `explicit` has this value, and how it is counted.
fn reviewed(explicit: &str, on_error: OnError, request: &Value) -> (AdmissionResponse, String) {
    let document = json!({"nodes": {"explicit": explicit, "pools": [
        {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
        {"name": "linux", "cidrs": ["10.0.0.0/16"], "match": {"os": "linux"}},
    ]}});
    let webhook = Webhook::with_settings(document, on_error, false);
    let answer = webhook.admission.review(request);
    assert!(webhook.reserved().is_empty());
    let counted = webhook.metrics.encode();
    let counted = counted.lines().find(|line| line.starts_with("clusterip_admissions_total{kind=\"Node\""));
    (answer, counted.unwrap_or_default().to_owned())
}

#[tokio::test]
async fn node_is_judged_and_never_changed() {
    #[derive(Clone)]
    struct Case {
        spec: Value,
        explicit: &'static str,
        /// The code of the denial; `None` if the Node is allowed.
        code: Option<u16>,
        /// Why the Node is denied, or the warning; empty if there is none.
        message: &'static str,
        /// The reason in the audit annotations; empty if there are none.
        reason: &'static str,
        decision: &'static str,
        /// The pool of the Node; empty if it is not looked for.
        pool: &'static str,
    }
    const UNREADABLE: &str =
        r#"the request can't be read: request.object.spec: expected an object, found the string "x""#;
    const UNDECIDED: &str = "clusterip-policy could not decide: the request can't be read: request.object.spec: \
                             expected an object, found the string \"x\"";
    const MISPLACED: &str =
        r#"10.1.7.0/24 lies in pool "windows", expected pool "linux": kubernetes.io/os=linux (Node linux-1)"#;
    const DENIED: &str = "Node linux-1: 10.1.7.0/24 lies in pool \"windows\", expected pool \"linux\": \
                          kubernetes.io/os=linux (Node linux-1); omit podCIDR and podCIDRs, or use a free block of the \
                          Node's pool";
    const ASSIGNED_LATER: &str = "pod CIDRs are assigned by the controller of `clusterip serve`, not in admission";
    let unreadable = Case {
        spec: json!("x"),
        explicit: "warn",
        code: None,
        message: UNDECIDED,
        reason: "",
        decision: "error",
        pool: "",
    };
    let in_another_pool = Case {
        spec: json!({"podCIDR": "10.1.7.0/24", "podCIDRs": ["10.1.7.0/24"]}),
        message: MISPLACED,
        reason: "not set by this policy",
        decision: "unchanged",
        pool: "linux",
        ..unreadable.clone()
    };
    let cases = [
        unreadable.clone(),
        Case { explicit: "allow", ..unreadable.clone() },
        Case {
            explicit: "deny",
            code: Some(400),
            message: UNREADABLE,
            reason: UNREADABLE,
            decision: "denied",
            ..unreadable
        },
        in_another_pool.clone(),
        Case { explicit: "allow", message: "", pool: "", ..in_another_pool.clone() },
        Case {
            explicit: "deny",
            code: Some(403),
            message: DENIED,
            reason: DENIED,
            decision: "denied",
            ..in_another_pool.clone()
        },
        // Without blocks.
        Case { spec: json!({}), explicit: "deny", message: "", reason: ASSIGNED_LATER, pool: "", ..in_another_pool },
    ];
    for on_error in [OnError::Deny, OnError::Allow] {
        for Case { spec, explicit, code, message, reason, decision, pool } in &cases {
            let message = Some((*message).to_owned()).filter(|message| !message.is_empty());
            let evidence = r#"{"source":"Node linux-1","labels":{"kubernetes.io/os":"linux"}}"#;
            let mut audit = vec![("decision", *decision), ("reason", *reason)];
            if !pool.is_empty() {
                audit.extend([("pool", *pool), ("evidence", evidence)]);
            }
            let audit = audit.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
            let expected = AdmissionResponse {
                uid: "7".to_owned(),
                allowed: code.is_none(),
                status: code.map(|code| Status { message: message.clone(), code: Some(code) }),
                audit_annotations: (!reason.is_empty()).then(|| audit.collect()),
                warnings: message.filter(|_| code.is_none()).map(|message| vec![message]),
                ..support::allowed()
            };
            let line = format!("clusterip_admissions_total{{kind=\"Node\",decision=\"{decision}\",pool=\"{pool}\"}} 1");
            assert_eq!(reviewed(explicit, on_error, &node(spec)), (expected, line), "{spec}, {explicit}");
        }
    }
}
