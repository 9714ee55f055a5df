//! The schemas of `deploy/crds` on the API server: for each rule, an object that it refuses.

use std::path::PathBuf;
use std::sync::Arc;

use crate::support::shared::Shared;
use axum::http::Method;
use clusterip_api::Kind;
use clusterip_cluster::yaml;
use futures::stream::{self, StreamExt as _};
use kube::Client;
use serde_json::{Value, json};

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::move_helpers::request;
use crate::support::pools::pool;
use crate::support::webhook_cluster::message;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/crds");

/// How many objects are created at once.
const AT_ONCE: usize = 4;

async fn defined() -> Arc<ControlPlane> {
    static DEFINED: Shared<ControlPlane> = Shared::new();
    DEFINED
        .get(async || {
            let plane = ControlPlane::start(Options { audit: false, ..Options::default() });
            plane.install_pools().await;
            plane
        })
        .await
}

/// The files of a folder of objects.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("{FIXTURES}/{folder}")).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The definitions of `deploy/crds`.
fn definitions() -> [Value; 4] {
    Kind::ALL.map(|kind| {
        let file = format!("{}/../deploy/crds/{}.yaml", env!("CARGO_MANIFEST_DIR"), kind.api_resource().plural);
        yaml::single(&std::fs::read_to_string(file).unwrap()).unwrap()
    })
}

/// Creates an object in a dry run, as strictly as kubectl does.
async fn trial(client: &Client, text: &str) -> Result<Value, String> {
    let object = yaml::single(text).unwrap();
    let kind = Kind::ALL.into_iter().find(|kind| object["kind"] == kind.api_resource().kind).unwrap();
    let path = format!(
        "/apis/{}/{}?dryRun=All&fieldValidation=Strict",
        object["apiVersion"].as_str().unwrap(),
        kind.api_resource().plural
    );
    client.request(request(Method::POST, &path, &object)).await.map_err(|error| message(&error))
}

/// Each file begins with a comment: a part of the message. Each rule in CEL has a file.
#[tokio::test]
async fn each_rule_in_cel_refuses_an_object() {
    let plane = defined().await;
    let client = plane.client();
    let answers = stream::iter(files("refused")).map(async |file| {
        let text = std::fs::read_to_string(&file).unwrap();
        let expected = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap().to_owned();
        let created = trial(&client, &text).await;
        let refused = created.as_ref().is_err_and(|error| error.contains(&expected));
        assert!(refused, "{}: {created:?}, expected {expected:?}", file.display());
        (text, created.unwrap_err())
    });
    let answers: Vec<(String, String)> = answers.buffer_unordered(AT_ONCE).collect().await;
    let mut without_file = Vec::new();
    for definition in definitions() {
        let kind = format!("\nkind: {}\n", definition["spec"]["names"]["kind"].as_str().unwrap());
        let mut rules = Vec::new();
        rules_in_cel(schema(&definition), "", &mut rules);
        assert!(!rules.is_empty(), "{definition}");
        let answers: Vec<&String> =
            answers.iter().filter(|(text, _)| text.contains(&kind)).map(|(_, answer)| answer).collect();
        let is_tested = |(path, message): &(String, String)| {
            answers.iter().any(|answer| answer.contains(path.as_str()) && answer.contains(message.as_str()))
        };
        without_file.extend(rules.into_iter().filter(|rule| !is_tested(rule)).map(|rule| (kind.clone(), rule)));
    }
    assert!(without_file.is_empty(), "{without_file:#?}");
}

/// All other rules of the schemas: types, limits, and what must not be absent or there twice.
#[tokio::test]
async fn each_limit_of_a_schema_refuses_a_value() {
    let plane = defined().await;
    let client = plane.client();
    let mut all = Vec::new();
    for definition in definitions() {
        let names = &definition["spec"]["names"];
        let (kind, plural) = (names["kind"].as_str().unwrap(), names["plural"].as_str().unwrap());
        let mut violations = Vec::new();
        limits(schema(&definition), "", &mut violations);
        let path = format!("/apis/clusterip-policy.io/v1alpha1/{plural}?dryRun=All");
        all.extend(violations.into_iter().map(|violation| (path.clone(), kind.to_owned(), violation)));
    }
    assert!(all.len() > 250, "{}", all.len());
    let wrong = stream::iter(all).map(async |(path, kind, violation)| {
        let request = request(Method::POST, &path, &with(&kind, &violation));
        let answer = client.request::<Value>(request).await.map_err(|error| message(&error));
        let refused = answer.as_ref().is_err_and(|answer| answer.contains(&violation.message));
        (!refused).then(|| format!("{kind}: {violation:?}: {answer:?}"))
    });
    let wrong: Vec<String> = wrong.buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A value that breaks one limit of a schema.
#[derive(Debug)]
struct Violation {
    /// Where the value is, such as `spec.cidrs[0]`; empty for the object itself, whose spec is missing then.
    path: String,
    value: Value,
    /// A part of the message of the API server.
    message: String,
}

/// The schema of a definition.
fn schema(definition: &Value) -> &Value {
    &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

/// The schemas inside of this one, each with its path. Users don't write the status.
fn inner<'s>(schema: &'s Value, path: &str) -> Vec<(String, &'s Value)> {
    let fields = schema["properties"].as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| !(path.is_empty() && *name == "status"));
    let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
    let mut inner: Vec<_> = fields.map(|(name, schema)| (format!("{prefix}{name}"), schema)).collect();
    inner.extend(schema.get("items").map(|items| (format!("{path}[0]"), items)));
    inner.extend(schema.get("additionalProperties").map(|values| (format!("{path}.x"), values)));
    inner
}

/// Adds the path and the message of each rule in CEL.
fn rules_in_cel(schema: &Value, path: &str, all: &mut Vec<(String, String)>) {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    all.extend(rules.map(|rule| (path.to_owned(), rule["message"].as_str().unwrap().to_owned())));
    for (path, schema) in inner(schema, path) {
        rules_in_cel(schema, &path, all);
    }
}

/// Adds a violation of each limit.
fn limits(schema: &Value, path: &str, all: &mut Vec<Violation>) {
    // The API writes limits as 32.0.
    let number = |limit: &str| schema.get(limit)?.to_string().trim_end_matches(".0").parse::<i64>().ok();
    let size = |limit: &str| number(limit).map(|size| usize::try_from(size).unwrap());
    let mut add = |value: Value, message: String| all.push(Violation { path: path.to_owned(), value, message });

    if let Some(expected) = schema["type"].as_str().filter(|_| !path.is_empty()) {
        let value = if expected == "string" { json!(1) } else { json!("x") };
        add(value, format!("{path} in body must be of type {expected}"));
    }
    if let Some(most) = size("maxItems") {
        let is_object = schema["items"]["type"] == "object";
        let items = (0..=most).map(|nth| if is_object { json!({}) } else { json!(format!("x{nth}")) });
        add(items.collect(), format!("{path}: Too many: {}: must have at most {most} items", most + 1));
    }
    if let Some(least) = size("minItems") {
        add(json!([]), format!("{path} in body should have at least {least} items"));
    }
    if schema["x-kubernetes-list-type"] == "set" {
        add(json!(["x", "x"]), format!("{path}[1]: Duplicate value: \"x\""));
    }
    if let Some(most) = size("maxProperties") {
        let labels: Value = (0..=most).map(|nth| (format!("x{nth}"), json!(""))).collect();
        add(labels, format!("{path}: Too many: {}: must have at most {most} items", most + 1));
    }
    if let Some(most) = size("maxLength") {
        // The rest of the message depends on the version of Kubernetes.
        add(json!("x".repeat(most + 1)), format!("{path}: Too long: may not be"));
    }
    if let Some(least) = size("minLength") {
        add(json!(""), format!("{path} in body should be at least {least} chars long"));
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        add(json!("."), format!("{path} in body should match '{pattern}'"));
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        add(json!("x"), format!("{path}: Unsupported value: \"x\": supported values: {}", values.join(", ")));
    }
    if let Some(least) = number("minimum") {
        add(json!(least - 1), format!("{path} in body should be greater than or equal to"));
    }
    if let Some(most) = number("maximum") {
        add(json!(most + 1), format!("{path} in body should be less than or equal to"));
    }
    for field in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
        add(json!({}), format!("{prefix}{field}: Required value"));
    }
    for (path, schema) in inner(schema, path) {
        limits(schema, &path, all);
    }
}

/// An object with a violation.
fn with(kind: &str, violation: &Violation) -> Value {
    let has_cidrs = kind != "ClusterIPPolicy" && !violation.path.starts_with("spec.serviceCIDRSelector");
    let spec = if has_cidrs { json!({"cidrs": ["10.96.1.0/24"]}) } else { json!({}) };
    let mut object = pool(kind, "default", spec);
    if violation.path.is_empty() {
        object.as_object_mut().unwrap().remove("spec");
        return object;
    }
    let mut at = &mut object;
    for step in violation.path.split('.') {
        let (field, is_list) = step.strip_suffix("[0]").map_or((step, false), |field| (field, true));
        at = &mut at[field];
        if is_list {
            *at = json!([null]);
            at = &mut at[0];
        }
    }
    *at = violation.value.clone();
    object
}

/// Otherwise a tool that follows kstatus takes a pool for ready before a server has read it.
#[tokio::test]
async fn new_object_counts_as_not_observed() {
    let plane = defined().await;
    let new = pool("ServicePool", "unobserved", json!({"cidrs": ["172.21.9.0/24"]}));
    plane.apply(&new.to_string()).await;
    let observed = ["get", "servicepool", "unobserved", "--output", "jsonpath={.status.observedGeneration}"];
    assert_eq!(plane.kubectl(&observed).await.ok(), "-1");
}

#[tokio::test]
async fn rules_accept_every_field() {
    let plane = defined().await;
    let client = plane.client();
    for file in files("accepted") {
        let created = trial(&client, &std::fs::read_to_string(&file).unwrap()).await;
        created.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}
