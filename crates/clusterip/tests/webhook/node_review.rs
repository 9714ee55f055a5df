//! A review of a Node never changes the Node, and denies it only if the settings say so.

use std::sync::Arc;

use clusterip::server_metrics::ServerMetrics;
use clusterip::webhook::admission::{Admission, OnError, Reviewer as _};
use clusterip_cluster::admission_review::{AdmissionResponse, Status};
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::reservations::ledger::Ledger;
use clusterip_cluster::watch::stores::Stores;
use clusterip_core::settings::Settings;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::watch;

fn node(spec: Value) -> Value {
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
    // No server listens at this address.
    let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
    let metrics = ServerMetrics::new();
    let document = json!({"nodes": {"explicit": explicit, "pools": [
        {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
        {"name": "linux", "cidrs": ["10.0.0.0/16"], "match": {"os": "linux"}},
    ]}});
    let settings = Settings::from_value(&document).unwrap();
    let (hash, version) = (String::new(), String::new());
    let live = LiveSettings { document, settings, hash, version, warnings: Vec::new(), are_objects: false };
    let (_settings, settings) = watch::channel(Arc::new(live));
    let stores = Stores::new(client, metrics.cluster.clone(), |_| (), |_| ());
    let ledger = Ledger::default();
    let evaluator = Evaluator::new(settings, stores, ledger.clone(), metrics.evaluation.clone());
    let answer = Admission::new(evaluator, metrics.admission.clone(), on_error).review(request);
    assert!(ledger.reservations().is_empty());
    let counted = metrics.encode();
    let counted = counted.lines().find(|line| line.starts_with("clusterip_admissions_total{kind=\"Node\""));
    (answer, counted.unwrap_or_default().to_owned())
}

fn counted(decision: &str, pool: &str) -> String {
    format!("clusterip_admissions_total{{kind=\"Node\",decision=\"{decision}\",pool=\"{pool}\"}} 1")
}

#[tokio::test]
async fn node_is_judged_and_never_changed() {
    struct Case {
        name: &'static str,
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
    let _ = rustls::crypto::ring::default_provider().install_default();
    let elsewhere = json!({"podCIDR": "10.1.7.0/24", "podCIDRs": ["10.1.7.0/24"]});
    let not_ours = "not set by this policy";
    let cases = [
        Case {
            name: "unreadable",
            spec: json!("x"),
            explicit: "warn",
            code: None,
            message: UNDECIDED,
            reason: "",
            decision: "error",
            pool: "",
        },
        Case {
            name: "unreadable, where blocks are not looked at",
            spec: json!("x"),
            explicit: "allow",
            code: None,
            message: UNDECIDED,
            reason: "",
            decision: "error",
            pool: "",
        },
        Case {
            name: "unreadable, where wrong blocks are denied",
            spec: json!("x"),
            explicit: "deny",
            code: Some(400),
            message: UNREADABLE,
            reason: UNREADABLE,
            decision: "denied",
            pool: "",
        },
        Case {
            name: "with a block of another pool",
            spec: elsewhere.clone(),
            explicit: "warn",
            code: None,
            message: MISPLACED,
            reason: not_ours,
            decision: "unchanged",
            pool: "linux",
        },
        Case {
            name: "with a block of another pool, where blocks are not looked at",
            spec: elsewhere.clone(),
            explicit: "allow",
            code: None,
            message: "",
            reason: not_ours,
            decision: "unchanged",
            pool: "",
        },
        Case {
            name: "with a block of another pool, where wrong blocks are denied",
            spec: elsewhere,
            explicit: "deny",
            code: Some(403),
            message: DENIED,
            reason: DENIED,
            decision: "denied",
            pool: "linux",
        },
    ];
    for on_error in [OnError::Deny, OnError::Allow] {
        for Case { name, spec, explicit, code, message, reason, decision, pool } in &cases {
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
                patch_type: None,
                patch: None,
                status: code.map(|code| Status { message: message.clone(), code: Some(code) }),
                audit_annotations: (!reason.is_empty()).then(|| audit.collect()),
                warnings: message.filter(|_| code.is_none()).map(|message| vec![message]),
            };
            let found = reviewed(explicit, on_error, &node(spec.clone()));
            assert_eq!(found, (expected, counted(decision, pool)), "{name}");
        }
    }
}

#[tokio::test]
async fn node_without_blocks_gets_none_from_its_review() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (found, count) = reviewed("deny", OnError::Deny, &node(json!({})));
    let audit = [
        ("decision", "unchanged"),
        ("reason", "pod CIDRs are assigned by the controller of `clusterip serve`, not in admission"),
    ];
    let audit = audit.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let expected = AdmissionResponse {
        uid: "7".to_owned(),
        allowed: true,
        patch_type: None,
        patch: None,
        status: None,
        audit_annotations: Some(audit),
        warnings: None,
    };
    assert_eq!((found, count), (expected, counted("unchanged", "")));
}
