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
    let mut whole = json!({"ports": [{"port": 80}], "selector": {"app": "web"}});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    DynamicObject::new(name, &ApiResource::erase::<Service>(&())).data(json!({ "spec": whole }))
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

/// An update: the user, the Service before, and the change, both as merge patches.
struct Update {
    name: &'static str,
    by: By,
    before: Value,
    change: Value,
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

/// An object with this merge patch.
fn changed(object: &DynamicObject, patch: &Value) -> DynamicObject {
    let mut changed = serde_json::to_value(object).unwrap();
    json_patch::merge(&mut changed, patch);
    serde_json::from_value(changed).unwrap()
}

/// All kinds of updates, and whether a webhook for addresses must be called for them.
fn updates() -> Vec<Update> {
    use By::{Mover, User};
    let address = || json!({});
    // In the static band, where the API server picks no addresses.
    let known_address = json!({"spec": {"clusterIP": "172.21.0.77"}});
    let external_name = || json!({"type": "ExternalName", "externalName": "moving.invalid"});
    let external = || json!({"spec": external_name()});
    let moving = || json!({"annotations": {MOVING: "{}"}});
    let moved = || json!({"metadata": moving(), "spec": external_name()});
    // The label of the temporary Services of seamless moves.
    let temporary = || json!({"metadata": {"labels": {"clusterip-policy/temporary": "new"}}, "spec": external_name()});
    let both = json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}});
    let label = || json!({"metadata": {"labels": {"team": "shop"}}});
    let ports_and_selector = json!({"spec": {"ports": [{"port": 81}], "selector": {"app": "other"}}});
    let node_port = json!({"spec": {"type": "NodePort"}});
    let prefers_both = json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}});
    let one_family = json!({"spec": {"ipFamilies": ["IPv4"]}});
    let another = json!({"spec": {"clusterIP": "172.21.9.9"}});
    let more = json!({"spec": {"clusterIPs": ["172.21.0.77", "fd00:21::9"]}});
    let back = || json!({"spec": {"type": "ClusterIP"}});
    let marked_and_back = json!({"metadata": moving(), "spec": {"type": "ClusterIP"}});
    let unmarked_and_back = json!({"metadata": {"annotations": null}, "spec": {"type": "ClusterIP"}});
    let update = |name, by, before, change, expected| Update { name, by, before, change, expected };
    vec![
        update("a label", User, address(), label(), "not called"),
        update("a label of one without any address", User, external(), label(), "not called"),
        update("ports and selector", User, address(), ports_and_selector, "not called"),
        update("type NodePort", User, address(), node_port, "called"),
        update("away from ExternalName", User, external(), back(), "called"),
        update("a second family, by policy", User, address(), prefers_both, "called"),
        update("the only family", User, both, one_family, "called"),
        update("another address", User, address(), another, "called"),
        update("more addresses", User, known_address, more, "called"),
        update("the annotation of a move, written by a user", User, external(), marked_and_back, "called"),
        update("the mover, away from its address", Mover, address(), moved(), "not called"),
        update("the mover, back", Mover, moved(), back(), "not called"),
        update("the mover, back, with nothing left", Mover, moved(), unmarked_and_back, "not called"),
        update("a temporary Service of the mover", Mover, temporary(), back(), "not called"),
        update("a temporary Service, written by a user", User, temporary(), back(), "called"),
        update("the mover's account, without a move", Mover, external(), back(), "called"),
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
        let created = changed(&service(&name(row), json!({})), &update.before);
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
    for (row, (update, before)) in updates.iter().zip(before).enumerate() {
        let client = match update.by {
            By::User => user.clone(),
            By::Mover => mover.clone(),
        };
        let result =
            services(client, &namespace).replace(&name(row), &dry_run, &changed(&before, &update.change)).await;
        calls.push(call(update.name, outcome(webhook, result), update.expected));
    }
    let mut status = services(user.clone(), &namespace).get(&name(0)).await.unwrap();
    status.data["status"] = json!({ "loadBalancer": {} });
    let result = services(user.clone(), &namespace).replace_status(&name(0), &dry_run, &status).await;
    calls.push(call("status", outcome(webhook, result), "not called"));
    assert_calls(calls);
}
