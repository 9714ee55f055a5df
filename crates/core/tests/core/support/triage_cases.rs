//! The table of the tests of triage: a request and its verdict.

use clusterip_core::request::Request;
use clusterip_core::services::{Triage, triage};
use clusterip_core::settings::Settings;
use serde_json::Value;

/// The verdict in a word or two, with addresses or the reason.
#[track_caller]
fn asked(request: &Value, settings: &Settings) -> String {
    let request = Request::read(request).unwrap_or_else(|mismatch| panic!("{mismatch}"));
    match triage(&request, settings) {
        Triage::Leave(reason) => format!("leave: {reason}"),
        Triage::Keep(_) => "keep".into(),
        Triage::Allocate(_) => "allocate".into(),
        Triage::AllocateSecond(_, first) => format!("allocate beside {first}"),
        Triage::Check(_, addresses) => {
            format!("check {}", addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
    }
}

/// A request with the expected verdict.
pub struct Case {
    pub name: &'static str,
    pub request: Value,
    pub expected: &'static str,
}

/// Compares the verdict on each request under the default settings.
#[track_caller]
pub fn check(cases: &[Case]) {
    for Case { name, request, expected } in cases {
        assert_eq!(asked(request, &Settings::default()), *expected, "{name}");
    }
}
