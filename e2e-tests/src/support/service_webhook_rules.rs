//! Tests which requests for Services the API server sends to a webhook.

use k8s_openapi::api::core::v1::Service;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::eventually::eventually;

/// The annotation of a Service that is being moved.
pub const MOVING: &str = "clusterip-policy/moving";

/// The Services of a namespace, as this client sees them.
pub fn services(client: Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<Service>(&()))
}

/// A Service with a port and a selector, and with this spec merged in.
pub fn service(name: &str, spec: Value) -> DynamicObject {
    let spec = Value::Object(
        [("ports", json!([{ "port": 80 }])), ("selector", json!({ "app": "web" }))]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .chain(spec.as_object().unwrap().clone())
            .collect(),
    );
    DynamicObject::new(name, &ApiResource::erase::<Service>(&())).data(json!({ "spec": spec }))
}

/// Whether a webhook was called: no server answers there, so a call fails the request.
pub fn outcome<T>(webhook: &str, result: Result<T, kube::Error>) -> String {
    match result {
        Ok(_) => "not called".to_owned(),
        Err(kube::Error::Api(status)) if status.message.contains(&format!("failed calling webhook {webhook:?}")) => {
            "called".to_owned()
        }
        Err(error) => error.to_string(),
    }
}

/// A request, whether it called a webhook ([`outcome`]), and whether it must.
pub struct Call<'a> {
    pub request: String,
    pub outcome: String,
    pub expected: &'a str,
}

/// A [`Call`].
pub fn call<'a>(request: impl Into<String>, outcome: String, expected: &'a str) -> Call<'a> {
    Call { request: request.into(), outcome, expected }
}

/// Compares all calls at once.
#[track_caller]
pub fn assert_calls(calls: Vec<Call<'_>>) {
    let (seen, expected): (Vec<_>, Vec<_>) = calls
        .into_iter()
        .map(|call| ((call.request.clone(), call.outcome), (call.request, call.expected.to_owned())))
        .unzip();
    assert_eq!(seen, expected);
}

/// An update: the user, the Service before with its marks, and the change.
struct Update {
    name: &'static str,
    by: By,
    before: Value,
    mark: fn(&mut DynamicObject),
    change: fn(&mut DynamicObject),
    expected: &'static str,
}

#[derive(Clone, Copy)]
enum By {
    User,
    Mover,
}

/// Marks a Service as being moved.
pub fn moving(service: &mut DynamicObject) {
    service.metadata.annotations.get_or_insert_default().insert(MOVING.to_owned(), "{}".to_owned());
}

fn to_external_name(service: &mut DynamicObject) {
    service.data["spec"]["type"] = json!("ExternalName");
    service.data["spec"]["externalName"] = json!("moving.invalid");
}

fn to_cluster_ip(service: &mut DynamicObject) {
    service.data["spec"]["type"] = json!("ClusterIP");
}

/// Gives a Service the label of the temporary Services of seamless moves.
fn temporary(service: &mut DynamicObject) {
    let label = ("clusterip-policy/temporary".to_owned(), "new".to_owned());
    service.metadata.labels.get_or_insert_default().extend([label]);
}

/// All kinds of updates, and whether a webhook for addresses must be called for them.
fn updates() -> Vec<Update> {
    use By::{Mover, User};
    type Change = fn(&mut DynamicObject);
    let address = || json!({});
    let external = || json!({ "type": "ExternalName", "externalName": "moving.invalid" });
    let both = json!({ "ipFamilyPolicy": "RequireDualStack" });
    let unmarked: Change = |_| {};
    let label: Change = |service| {
        service.metadata.labels.get_or_insert_default().insert("team".into(), "shop".into());
    };
    let ports_and_selector: Change = |service| {
        service.data["spec"]["ports"] = json!([{ "port": 81 }]);
        service.data["spec"]["selector"] = json!({ "app": "other" });
    };
    let node_port: Change = |service| service.data["spec"]["type"] = json!("NodePort");
    let prefers_both: Change = |service| service.data["spec"]["ipFamilyPolicy"] = json!("PreferDualStack");
    let one_family: Change = |service| service.data["spec"]["ipFamilies"] = json!(["IPv4"]);
    let another: Change = |service| service.data["spec"]["clusterIP"] = json!("172.21.9.9");
    let more: Change = |service| service.data["spec"]["clusterIPs"].as_array_mut().unwrap().push(json!("fd00:21::9"));
    let marked_and_back: Change = |service| {
        moving(service);
        to_cluster_ip(service);
    };
    let away: Change = |service| {
        moving(service);
        to_external_name(service);
    };
    let unmarked_and_back: Change = |service| {
        service.metadata.annotations = None;
        to_cluster_ip(service);
    };
    let update = |name, by, before, mark, change, expected| Update { name, by, before, mark, change, expected };
    vec![
        update("a label", User, address(), unmarked, label, "not called"),
        update("a label of one without any address", User, external(), unmarked, label, "not called"),
        update("ports and selector", User, address(), unmarked, ports_and_selector, "not called"),
        update("type NodePort", User, address(), unmarked, node_port, "called"),
        update("away from ExternalName", User, external(), unmarked, to_cluster_ip, "called"),
        update("a second family, by policy", User, address(), unmarked, prefers_both, "called"),
        update("the only family", User, both, unmarked, one_family, "called"),
        update("another address", User, address(), unmarked, another, "called"),
        update("more addresses", User, address(), unmarked, more, "called"),
        update("the annotation of a move, written by a user", User, external(), unmarked, marked_and_back, "called"),
        update("the mover, away from its address", Mover, address(), unmarked, away, "not called"),
        update("the mover, back", Mover, external(), moving, to_cluster_ip, "not called"),
        update("the mover, back, with nothing left", Mover, external(), moving, unmarked_and_back, "not called"),
        update("a temporary Service of the mover", Mover, external(), temporary, to_cluster_ip, "not called"),
        update("a temporary Service, written by a user", User, external(), temporary, to_cluster_ip, "called"),
        update("the mover's account, without a move", Mover, external(), unmarked, to_cluster_ip, "called"),
    ]
}

/// Compares which requests call a webhook with the expectation: all rows of `updates`, and the creation of a Service
/// in each of these namespaces. `register` registers the webhook with an address where no server answers and
/// `failurePolicy: Fail`, so that each call fails its request. `mover` is the client of the account that moves
/// Services.
pub async fn only_what_may_need_an_address(
    plane: &ControlPlane,
    webhook: &str,
    mover: Client,
    creates: &[(&str, &str)],
    register: impl AsyncFnOnce(),
) {
    let namespace = plane.namespace("reach").await;
    let user = plane.client();
    let updates = updates();
    let name = |row: usize| format!("row-{row}");
    let mut before = Vec::new();
    for (row, update) in updates.iter().enumerate() {
        let mut created = service(&name(row), update.before.clone());
        (update.mark)(&mut created);
        before.push(services(user.clone(), &namespace).create(&PostParams::default(), &created).await.unwrap());
    }

    register().await;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let create = async |namespace: &str, spec: Value| {
        outcome(webhook, services(user.clone(), namespace).create(&dry_run, &service("new", spec)).await)
    };
    eventually("the API server to call the webhook", async || {
        (create(&namespace, json!({})).await == "called").then_some(())
    })
    .await;

    let mut calls = vec![
        call("create", create(&namespace, json!({})).await, "called"),
        call("create, headless", create(&namespace, json!({ "clusterIP": "None" })).await, "called"),
    ];
    for (namespace, expected) in creates {
        calls.push(call(*namespace, create(namespace, json!({})).await, expected));
    }
    for (row, (update, mut changed)) in updates.iter().zip(before).enumerate() {
        (update.change)(&mut changed);
        let client = match update.by {
            By::User => user.clone(),
            By::Mover => mover.clone(),
        };
        let result = services(client, &namespace).replace(&name(row), &dry_run, &changed).await;
        calls.push(call(update.name, outcome(webhook, result), update.expected));
    }
    let mut status = services(user.clone(), &namespace).get(&name(0)).await.unwrap();
    status.data["status"] = json!({ "loadBalancer": {} });
    let result = services(user.clone(), &namespace).replace_status(&name(0), &dry_run, &status).await;
    calls.push(call("status", outcome(webhook, result), "not called"));
    assert_calls(calls);
}
