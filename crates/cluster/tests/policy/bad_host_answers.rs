//! The answer of the module if the host answers a look-up with invalid or incomplete data.

use std::sync::Arc;

use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_core::Response;
use serde_json::json;

use crate::kubewarden_deployment::Noted;
use crate::support::{MODULE, request, service};

/// A cluster in which every look-up is needed, and the answer to one of them is invalid.
struct Rubbish {
    others: Noted,
    about: &'static str,
    text: String,
}

impl HostCalls for Rubbish {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let (api_version, kind) = call.resource();
        let resource = format!("{api_version}/{kind}");
        if resource == self.about {
            return Ok(self.text.clone().into_bytes());
        }
        self.others.answer(call)
    }
}

/// The kinds whose look-ups are lists, and those whose look-ups are single objects.
const LISTS: [&str; 4] = ["apps/v1/Deployment", "batch/v1/CronJob", "v1/Pod", "v1/Service"];

const OBJECTS: [&str; 4] = ["node.k8s.io/v1/RuntimeClass", "v1/Node", "v1/Namespace", "networking.k8s.io/v1/IPAddress"];

/// Answers one request whose decision needs every look-up of `Rubbish`.
fn answer_with(about: &'static str, text: &str) -> Response {
    let settings = json!({"services": {
        "pools": [
            {"name": "windows", "cidrs": ["10.0.1.0/29"], "match": {"os": "windows"}},
            {"name": "rest", "cidrs": ["10.0.0.0/29"]},
        ],
        "evidence": {"kinds": ["Deployment", "CronJob", "Pod"]},
        "order": "lowest",
    }});
    let calls = Arc::new(Rubbish { others: Noted::new(true, false), about, text: text.to_owned() });
    MODULE.validate(&request(service()), &settings, calls).unwrap_or_else(|error| panic!("{about}: {text}: {error}"))
}

#[track_caller]
fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn invalid_answer_of_the_host_is_denied_and_names_the_resource() {
    let cut = r#"{"items":[{"metadata":{"name":"web","#;
    let anywhere = ["", "hello", "{", "5", "\"text\"", cut, "{} {}", "\u{0}", "null", "[]", "true"];
    let in_lists = [
        r#"{"items":5}"#,
        r#"{"items":"none"}"#,
        r#"{"items":{}}"#,
        r#"{"items":{"items":[]}}"#,
        r#"{"items":[5]}"#,
        r#"{"items":[null]}"#,
        r#"{"items":[{"metadata":{"name":5,"namespace":"shop"}}]}"#,
        r#"{"items":[{"metadata":"none"}]}"#,
    ];
    let in_workloads = [
        r#"{"items":[{"metadata":{"name":"web","namespace":"shop","labels":5},"spec":5}]}"#,
        r#"{"items":[{"metadata":{"name":"web","namespace":"shop","labels":{"app":"web"}},"spec":[]}]}"#,
    ];
    let in_services = [
        r#"{"items":[{"spec":{"clusterIP":5}}]}"#,
        r#"{"items":[{"spec":{"clusterIPs":"10.0.0.1"}}]}"#,
        r#"{"items":[{"spec":{"clusterIPs":[null]}}]}"#,
    ];
    let in_metadata = [
        r#"{"metadata":5}"#,
        r#"{"metadata":{"labels":[]}}"#,
        r#"{"metadata":{"labels":{"kubernetes.io/os":5}}}"#,
        r#"{"metadata":{"labels":{"kubernetes.io/os":null}}}"#,
    ];
    let in_runtime_classes = [r#"{"scheduling":5}"#, r#"{"scheduling":{"nodeSelector":[]}}"#];
    let rows: [(&[&'static str], &[&str]); 7] = [
        (&LISTS, &anywhere),
        (&LISTS, &in_lists),
        (&["apps/v1/Deployment", "batch/v1/CronJob", "v1/Pod"], &in_workloads),
        (&["v1/Service"], &in_services),
        (&OBJECTS, &anywhere),
        (&["v1/Node", "v1/Namespace"], &in_metadata),
        (&["node.k8s.io/v1/RuntimeClass"], &in_runtime_classes),
    ];
    let mut problems = Vec::new();
    for (abouts, texts) in rows {
        for (about, text) in abouts.iter().flat_map(|about| texts.iter().map(move |text| (*about, *text))) {
            let answer = answer_with(about, text);
            let message = answer.message.unwrap_or_default();
            let expected = format!("Service shop/web: the host's answer about {about}");
            if answer.accepted || answer.code != Some(500) || !message.starts_with(&expected) {
                problems.push(format!("{about}: {text:?}: accepted: {}, {message}", answer.accepted));
            }
        }
    }
    report(problems);
}

#[test]
fn fields_missing_in_host_answers_count_as_absent() {
    let in_lists = [
        "{}",
        r#"{"items":null}"#,
        r#"{"items":[]}"#,
        r#"{"items":[{}]}"#,
        r#"{"items":[{"metadata":null,"spec":null}]}"#,
        r#"{"items":[{"metadata":{"name":null,"namespace":null,"labels":null,"annotations":{}},"spec":{}}]}"#,
        r#"{"items":[{"metadata":{"name":"web","namespace":"shop"},"spec":{}}],"apiVersion":5,"metadata":[]}"#,
    ];
    let in_objects = [
        "{}",
        r#"{"metadata":null,"scheduling":null}"#,
        r#"{"metadata":{"labels":null,"annotations":null},"scheduling":{"nodeSelector":null}}"#,
    ];
    let lists = LISTS.iter().flat_map(|about| in_lists.iter().map(move |text| (*about, *text)));
    let objects = OBJECTS.iter().flat_map(|about| in_objects.iter().map(move |text| (*about, *text)));
    let mut problems = Vec::new();
    for (about, text) in lists.chain(objects) {
        let answer = answer_with(about, text);
        let address = answer.mutated_object.map(|object| object["spec"]["clusterIP"].clone());
        let found = (address, answer.message);
        // For an `IPAddress` only its existence matters, not its content.
        let expected = if about == "networking.k8s.io/v1/IPAddress" {
            found.0.is_none()
                && found.1.as_ref().is_some_and(|message| message.contains("\"rest\" (10.0.0.0/29) is full"))
        } else {
            found == (Some(json!("10.0.0.1")), None)
        };
        if !expected {
            problems.push(format!("{about}: {text}: {found:?}"));
        }
    }
    report(problems);
}
