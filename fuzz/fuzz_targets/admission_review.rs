//! Every body sent to the webhook is answered with an `AdmissionReview`, or refused with an error message.

#![no_main]

use clusterip::webhook::admission::{self, Reviewer};
use clusterip_cluster::admission_review::AdmissionResponse;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

struct Refuses;

impl Reviewer for Refuses {
    fn review(&self, request: &Value) -> AdmissionResponse {
        AdmissionResponse::refused(request, 403, "no".to_owned())
    }
}

fuzz_target!(|body: &[u8]| {
    admission::namespace_of(body);
    match admission::answer(&Refuses, body) {
        Ok(answer) => {
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert_eq!(answer["kind"], "AdmissionReview");
            assert_eq!(answer["response"]["allowed"], false);
            // The server skips what it does not use: it may be nested too deeply to be read here.
            if let Ok(asked) = serde_json::from_str::<Value>(&String::from_utf8_lossy(body)) {
                assert_eq!(answer["response"]["uid"], asked["request"]["uid"]);
            }
        }
        Err(refusal) => assert!(!refusal.1.is_empty()),
    }
});
