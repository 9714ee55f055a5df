//! Every file for `clusterip evaluate --request` is read into a request with all fields that Kubernetes sends, or
//! refused with an error message. A request that is wrapped in a review reads as the same request.

#![no_main]

use clusterip_cluster::admission_review::request_of_file;
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|text: &str| {
    match request_of_file(text) {
        Ok(read) => {
            assert!(read["uid"].is_string() && read["operation"].is_string());
            assert!(read["kind"].is_object() && read["resource"].is_object() && read["userInfo"].is_object());
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": read});
            assert_eq!(request_of_file(&review.to_string()).unwrap(), read);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
