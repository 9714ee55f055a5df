//! A request without a decision is treated as `--on-error` says.

use std::sync::Arc;

use clusterip::server_metrics::ServerMetrics;
use clusterip::webhook::admission::{Admission, OnError, Reviewer as _};
use clusterip_cluster::admission_review::{AdmissionResponse, Status};
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::live_settings::check_settings;
use clusterip_cluster::reservations::ledger::Ledger;
use clusterip_cluster::reservations::replica_claims::Claims;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_cluster::watch::stores::Stores;
use kube::{Client, Config};
use serde_json::json;
use tokio::sync::watch;

// A claim blocks the thread that it is made on.
#[tokio::test(flavor = "multi_thread")]
async fn request_without_a_decision_is_treated_as_on_error_says() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // No server listens at this address.
    let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
    let reason = "clusterip-policy could not decide: external addresses can't be reserved: 10.9.0.1 can't be claimed: ";
    let document = json!({"external": {"pools": [{"name": "lan", "cidrs": ["10.9.0.1-10.9.0.1"]}]}});
    let rows = [(OnError::Deny, false), (OnError::Allow, true)];
    for (on_error, allowed) in rows {
        let metrics = ServerMetrics::new();
        let live = check_settings(document.clone(), &ServiceRanges::default()).unwrap();
        let (_settings, settings) = watch::channel(Arc::new(live));
        let stores = Stores::new(client.clone(), metrics.cluster.clone(), |_| (), |_| ());
        let ledger = Ledger::default();
        let claims = Claims::new(client.clone(), "clusterip", "a", ledger.clone(), metrics.claims.clone());
        let mut evaluator = Evaluator::new(settings, stores, ledger.clone(), metrics.evaluation.clone());
        evaluator.claims = Some(claims);
        let admission = Admission::new(evaluator, metrics.admission.clone(), on_error);
        let request = json!({
            "uid": "7",
            "kind": {"group": "", "version": "v1", "kind": "Service"},
            "namespace": "shop",
            "name": "web",
            "operation": "CREATE",
            "object": {
                "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
                "spec": {"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external"},
            },
        });
        for _ in 0..2 {
            let found = admission.review(&request);
            let said = match on_error {
                OnError::Deny => found.status.clone().and_then(|status| status.message),
                OnError::Allow => found.warnings.clone().and_then(|mut warnings| warnings.pop()),
            };
            let said = said.expect("why");
            assert!(said.starts_with(reason), "{said}");
            let expected = AdmissionResponse {
                uid: "7".to_owned(),
                allowed,
                patch_type: None,
                patch: None,
                status: (!allowed).then(|| Status { message: Some(said.clone()), code: Some(500) }),
                audit_annotations: None,
                warnings: allowed.then(|| vec![said.clone()]),
            };
            assert_eq!(found, expected);
        }
        // A cluster must get its Nodes.
        let node = json!({"uid": "7", "kind": {"group": "", "version": "v1", "kind": "Node"}, "name": "a"});
        let found = admission.unreviewed(&node, 500, "the review panicked");
        let warnings = Some(vec!["clusterip-policy could not decide: the review panicked".to_owned()]);
        assert_eq!((found.allowed, found.status, found.warnings), (true, None, warnings));
        assert!(ledger.reservations().is_empty());
        let text = metrics.encode();
        let line = "clusterip_admissions_total{kind=\"Service\",decision=\"error\",pool=\"\"} 2";
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
}
