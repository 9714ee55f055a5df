//! A review of a Node never changes the Node, and an error of the webhook itself never denies it.

use std::sync::Arc;

use clusterip::server_metrics::ServerMetrics;
use clusterip::webhook::admission::{Admission, OnError};
use clusterip::webhook::review::Reviewer as _;
use clusterip_core::settings::Settings;
use clusterip_host::cluster::reservations::ledger::Ledger;
use clusterip_host::cluster::watch::stores::Stores;
use clusterip_host::evaluator::Evaluator;
use clusterip_host::live_settings::LiveSettings;
use clusterip_host::policy::module::{CompiledModule, EMBEDDED, Module};
use clusterip_host::policy::response::{AdmissionResponse, Status};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::guest;

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
        // Only this program's own controller may say which blocks are held, and it does not send them in a request.
        "allocation": {"held": [], "last": []},
    })
}

/// The response to a request with this policy and with pools of Nodes whose `explicit` has this value.
fn reviewed(policy: CompiledModule, explicit: &str, on_error: OnError, request: &Value) -> (AdmissionResponse, String) {
    // No server listens at this address.
    let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
    let metrics = ServerMetrics::new();
    let document = json!({"nodes": {"explicit": explicit, "pools": [{"name": "all", "cidrs": ["10.0.0.0/16"]}]}});
    let settings = Settings::from_value(&document).unwrap();
    let (hash, version) = (String::new(), String::new());
    let live = LiveSettings { document, settings, hash, version, warnings: Vec::new(), are_objects: false };
    let (_settings, settings) = watch::channel(Arc::new(live));
    let (stores, _changes) = Stores::new(client, metrics.cluster.clone(), |_| ());
    let ledger = Ledger::default();
    let module = Arc::new(Module::new(policy).unwrap());
    let evaluator = Evaluator::new(module, settings, stores, ledger.clone(), metrics.evaluation.clone());
    let answer = Admission::new(evaluator, metrics.admission.clone(), on_error).review(request);
    assert!(ledger.is_empty());
    let counted = metrics.encode();
    let counted = counted.lines().find(|line| line.starts_with("clusterip_admissions_total{kind=\"Node\""));
    (answer, counted.unwrap_or_default().to_owned())
}

fn counted(decision: &str) -> String {
    format!("clusterip_admissions_total{{kind=\"Node\",decision=\"{decision}\",pool=\"\"}} 1")
}

#[tokio::test]
async fn node_is_judged_and_never_changed() {
    struct Trapping {
        name: &'static str,
        explicit: &'static str,
        decision: &'static str,
    }
    struct Case {
        name: &'static str,
        policy: CompiledModule,
        explicit: &'static str,
        answer: AdmissionResponse,
        decision: &'static str,
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let allowed = AdmissionResponse {
        uid: "7".to_owned(),
        allowed: true,
        patch_type: None,
        patch: None,
        status: None,
        audit_annotations: None,
        warnings: None,
    };
    let warned = |text: &str| AdmissionResponse { warnings: Some(vec![text.to_owned()]), ..allowed.clone() };
    let denied = AdmissionResponse {
        allowed: false,
        status: Some(Status { message: Some("it is taken".to_owned()), code: Some(403) }),
        ..allowed.clone()
    };
    let (traps, refuses, changes) = (guest("traps"), guest("denies"), guest("changes the Node"));
    let trap = "clusterip-policy could not decide: the policy did not answer: ";
    for on_error in [OnError::Deny, OnError::Allow] {
        let rows = [
            Trapping { name: "a policy that traps", explicit: "warn", decision: "error" },
            Trapping { name: "a policy that traps, where blocks are denied", explicit: "deny", decision: "error" },
        ];
        for Trapping { name, explicit, decision } in rows {
            let (found, count) = reviewed(traps, explicit, on_error, &node(json!({})));
            let said = found.warnings.clone().and_then(|mut warnings| warnings.pop()).unwrap_or_default();
            assert!(said.starts_with(trap), "{name}: {found:?}");
            assert_eq!((found, count), (warned(&said), counted(decision)), "{name}");
        }
        let rows = [
            Case {
                name: "a policy that would change it",
                policy: changes,
                explicit: "warn",
                answer: allowed.clone(),
                decision: "unchanged",
            },
            Case {
                name: "a policy that refuses it, though settings don't say so",
                policy: refuses,
                explicit: "warn",
                answer: warned("clusterip-policy could not decide: it is taken"),
                decision: "error",
            },
            Case {
                name: "a policy that refuses it, though nothing is looked at",
                policy: refuses,
                explicit: "allow",
                answer: warned("clusterip-policy could not decide: it is taken"),
                decision: "error",
            },
            Case {
                name: "a policy that refuses it as the settings say",
                policy: refuses,
                explicit: "deny",
                answer: denied.clone(),
                decision: "denied",
            },
        ];
        for Case { name, policy, explicit, answer, decision } in rows {
            let found = reviewed(policy, explicit, on_error, &node(json!({})));
            assert_eq!(found, (answer, counted(decision)), "{name}");
        }
    }
}

#[tokio::test]
async fn node_without_blocks_gets_none_from_its_review() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (found, count) = reviewed(EMBEDDED, "deny", OnError::Deny, &node(json!({})));
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
    assert_eq!((found, count), (expected, counted("unchanged")));
}
