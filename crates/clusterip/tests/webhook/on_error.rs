//! A request without a decision is treated as `--on-error` says.

use clusterip::webhook::admission::{OnError, Reviewer as _};
use clusterip_cluster::admission_review::{AdmissionResponse, Status};
use serde_json::json;

use crate::reviews::{Webhook, created};
use crate::support;

// A claim blocks the thread that it is made on.
#[tokio::test(flavor = "multi_thread")]
async fn request_without_a_decision_is_treated_as_on_error_says() {
    let reason = "clusterip-policy could not decide: external addresses can't be reserved: 10.9.0.1 can't be claimed: ";
    let document = json!({"external": {"pools": [{"name": "lan", "cidrs": ["10.9.0.1-10.9.0.1"]}]}});
    for (on_error, allowed) in [(OnError::Deny, false), (OnError::Allow, true)] {
        let webhook = Webhook::with_settings(document.clone(), on_error, true);
        let balancer = json!({"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external"});
        let request = created("shop", json!({"namespace": "shop", "name": "web"}), balancer);
        for _ in 0..2 {
            let found = webhook.admission.review(&request);
            let said = match on_error {
                OnError::Deny => found.status.clone().and_then(|status| status.message),
                OnError::Allow => found.warnings.clone().and_then(|mut warnings| warnings.pop()),
            };
            let said = said.expect("why");
            assert!(said.starts_with(reason), "{said}");
            let expected = AdmissionResponse {
                uid: "7".to_owned(),
                allowed,
                status: (!allowed).then(|| Status { message: Some(said.clone()), code: Some(500) }),
                warnings: allowed.then(|| vec![said.clone()]),
                ..support::allowed()
            };
            assert_eq!(found, expected);
        }
        // A cluster must get its Nodes.
        let node = json!({"uid": "7", "kind": {"group": "", "version": "v1", "kind": "Node"}, "name": "a"});
        let found = webhook.admission.unreviewed(&node, 500, "the review panicked");
        let warnings = Some(vec!["clusterip-policy could not decide: the review panicked".to_owned()]);
        assert_eq!((found.allowed, found.status, found.warnings), (true, None, warnings));
        assert!(webhook.reserved().is_empty());
        let text = webhook.metrics.encode();
        let line = "clusterip_admissions_total{kind=\"Service\",decision=\"error\",pool=\"\"} 2";
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
}
