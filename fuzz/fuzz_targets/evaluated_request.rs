//! Files that `clusterip evaluate --request` reads: each holds a request with all that Kubernetes sends, or is
//! refused with words. A request survives in a review of its own.

#![no_main]

use clusterip::policy::request;
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|text: &str| {
    match request::read(text) {
        Ok(read) => {
            assert!(read["uid"].is_string() && read["operation"].is_string());
            assert!(read["kind"].is_object() && read["resource"].is_object() && read["userInfo"].is_object());
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": read});
            assert_eq!(request::read(&review.to_string()), Ok(read));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
